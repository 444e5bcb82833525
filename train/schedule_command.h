#pragma once
/// `muster-tools schedule`: draw, prove and compare pipeline schedules.
///
///   schedule show NAME|FILE      draws it, with makespan, bubble and peak memory
///   schedule validate FILE       reads a CSV of PyTorch's format; proves that it can run
///   schedule compare [NAME]...   a table of schedules on the same ranks and microbatches
///
/// With --json each prints one JSON object. Exit status: 0 fine, 64 usage, 65 the schedule is
/// refused (every fault with rank, position, action and reason), 66 no such file.

#include <span>
#include <string>

#include "train/ckpt_command.h"

namespace muster {

/// Runs `schedule` with the arguments behind that word.
CommandOutput run_schedule_command(std::span<const std::string> arguments);

}  // namespace muster
