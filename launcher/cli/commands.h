#pragma once
/// The verbs of `muster`: one function each, called by muster_main.cpp.
///
/// `args` holds what follows the verb on the command line; the result is the exit status of the
/// process. A command prints its own errors; it never throws.

#include <span>

namespace muster {

/// `muster run`: starts the workers of a recipe or a program and supervises them.
/// @blocks until the job ends and no process of it is left
int run_command(std::span<char*> args);

/// `muster recipe`: checks, explains and prints recipes; starts nothing.
int recipe_command(std::span<char*> args);

/// `muster drill`: runs a recipe under injected faults and compares the outcome with the file.
int drill_command(std::span<char*> args);

/// `muster report`: writes one HTML file that shows a run.
int report_command(std::span<char*> args);

/// `muster status`: the jobs of this user that run on this machine.
int status_command(std::span<char*> args);

/// `muster top`: the same, again and again while the output is a terminal.
int top_command(std::span<char*> args);

/// `muster logs`: what the ranks of a job have written.
/// @blocks with --follow until the job has ended
int logs_command(std::span<char*> args);

}  // namespace muster
