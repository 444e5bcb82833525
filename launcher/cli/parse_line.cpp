#include "launcher/cli/parse_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace muster {
namespace {
// CLI11 looks for what is missing first. To whoever mistyped an option that says nothing.
std::string what_is_wrong(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  const auto option = std::find_if(unknown.begin(), unknown.end(),
                                   [](const std::string& word) { return word.starts_with("-"); });
  if (option != unknown.end()) return *option + ": no such option";
  std::string text = error.what();
  if (!text.empty()) text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}
}  // namespace

std::optional<int> parse_line(CLI::App& app, std::span<char*> args) {
  std::vector<std::string> reversed(args.rbegin(), args.rend());  // CLI11 takes them from the back
  try {
    app.parse(reversed);
  } catch (const CLI::Success& done) {
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "{}: {}; {} --help tells more\n", app.get_name(), what_is_wrong(app, error),
               app.get_name());
    return exit_status(ErrorCode::kInvalidArgument);
  }
  return std::nullopt;
}

}  // namespace muster
