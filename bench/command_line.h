#pragma once
/// Command lines of the benches: `--help` prints the usage, what is wrong is told in one line.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <optional>

#include "core/base/error.h"

namespace muster::bench {

/// Of an option that counts something.
inline CLI::Range count() { return {1, 1 << 30}; }

/// Reads the command line. Returns what main must return now: 0 after `--help`, 64 where the line
/// is wrong; nullopt when there is something to measure.
inline std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "%s: %s; --help lists the options\n", app.get_name().c_str(),
                 error.what());
    return exit_status(ErrorCode::kInvalidArgument);
  }
  return std::nullopt;
}

/// Runs `body`, which returns an exit status; what it throws is told, and becomes one.
template <typename Body>
int guarded(const CLI::App& app, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), error.what());
    return exit_status(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), error.what());
    return exit_status(ErrorCode::kInternal);
  }
}

}  // namespace muster::bench
