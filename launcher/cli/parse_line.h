#pragma once
/// The command line of a verb, read with CLI11: one way for all verbs to tell what is wrong.

#include <optional>
#include <span>

namespace CLI {
class App;
}

namespace muster {

/// Reads `args`, which follow the verb. Returns the exit status where there is nothing to do: 0
/// after --help, 64 with one line on stderr where the line is wrong.
std::optional<int> parse_line(CLI::App& app, std::span<char*> args);

}  // namespace muster
