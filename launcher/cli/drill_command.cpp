// `muster drill`: runs a recipe in peace and under faults, and says whether both end the same.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "core/base/file_system.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/parse_line.h"
#include "launcher/cli/write_output.h"
#include "launcher/drill/drill.h"
#include "launcher/drill/drill_runner.h"
#include "launcher/drill/report.h"

namespace muster {
namespace {
int fail(const Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return exit_status(error.code());
}

struct Arguments {
  std::string file;
  std::vector<std::string> overrides;
  std::string json_path;
  std::string keep;
  bool quiet = false;
};

Result<std::string> own_path() {
  std::array<char, 4096> buffer;
  const ssize_t length = ::readlink("/proc/self/exe", buffer.data(), buffer.size());
  if (length <= 0 || static_cast<size_t>(length) == buffer.size()) {
    return make_error(ErrorCode::kIo, "drill: /proc/self/exe must name this program");
  }
  return std::string(buffer.data(), static_cast<size_t>(length));
}

Result<std::string> absolute(const std::string& path) {
  std::array<char, 4096> buffer;
  if (::getcwd(buffer.data(), buffer.size()) == nullptr) {
    return make_error(ErrorCode::kIo, "drill: working folder: {}", errno_text(errno));
  }
  return path_join(buffer.data(), path);
}

// A folder that goes away after a success and stays for the search after a failure.
class RunFolder {
 public:
  explicit RunFolder(std::string kept) : path_(std::move(kept)) {
    if (!path_.empty()) return;
    std::string pattern = "/tmp/muster-drill.XXXXXX";
    if (const char* base = std::getenv("TMPDIR")) {
      pattern = path_join(base, "muster-drill.XXXXXX");
    }
    MUSTER_CHECK(::mkdtemp(pattern.data()) != nullptr, ErrorCode::kIo, "drill: folder {}: {}",
                 pattern, errno_text(errno));
    path_ = pattern;
    is_temporary_ = true;
  }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  void done(bool worked) const {
    if (worked && is_temporary_) {
      static_cast<void>(remove_tree(real_file_system(), path_));
    } else if (is_temporary_) {
      fmt::print(stderr, "logs, metrics and checkpoints of both runs are kept in {}\n", path_);
    }
  }

 private:
  std::string path_;
  bool is_temporary_ = false;
};

Result<int> run(const Arguments& arguments) {
  const Drill drill = MUSTER_TRY(load_drill(arguments.file));
  if (!arguments.json_path.empty()) MUSTER_TRY(check_output(arguments.json_path), "drill --json");
  const std::string self = MUSTER_TRY(own_path());
  const RunFolder folder(arguments.keep.empty() ? "" : MUSTER_TRY(absolute(arguments.keep)));
  const Result<DrillOutcome> outcome =
      run_drill(drill, {.launcher = {self},
                        .tools = {path_join(path_parent(self), "muster-tools")},
                        .directory = folder.path(),
                        .overrides = arguments.overrides,
                        .shows_progress = !arguments.quiet});
  if (!outcome.ok() || outcome->interrupted_by != 0) {
    folder.done(!outcome.ok());  // an error comes before the runs: nothing to look at
    if (!outcome.ok()) return outcome.error();
    return 128 + outcome->interrupted_by;
  }
  fmt::print("{}", report_table(outcome->report));
  folder.done(outcome->report.ok());
  if (!arguments.json_path.empty()) {
    MUSTER_TRY(write_output(arguments.json_path, report_json(outcome->report)));
  }
  return outcome->report.ok() ? 0 : 1;
}
}  // namespace

int drill_command(std::span<char*> args) {
  CLI::App app(
      "Runs a recipe twice, in peace and while workers or agents fail at named places, and checks\n"
      "that the second run recovered as the drill file says. configs/drills/ has examples,\n"
      "docs/drills.md the keys.",
      "muster drill");
  Arguments arguments;
  app.add_option("file", arguments.file, "drill file")->required()->type_name("FILE");
  app.add_option(
         "overrides", arguments.overrides,
         "section.key=value or ~section.key of the recipe, for both runs: dist.backend=gloo")
      ->type_name("KEY=VALUE");
  app.add_option("--json", arguments.json_path, "write the report to this file as JSON, too")
      ->type_name("FILE");
  app.add_option(
         "--keep", arguments.keep,
         "keep the folders of both runs in this one; without it they are removed, but after a "
         "failure")
      ->type_name("DIR");
  app.add_flag("--quiet", arguments.quiet, "no progress line");
  app.footer(
      "exit status: 0 every check holds; 1 one does not; 64 wrong options; 78 wrong drill or "
      "recipe;\n"
      "128+n when signal n stopped it.");
  if (const std::optional<int> status = parse_line(app, args)) return *status;
  try {
    const Result<int> status = run(arguments);
    return status.ok() ? *status : fail(status.error());
  } catch (const Error& error) {
    return fail(error);
  }
}
}  // namespace muster
