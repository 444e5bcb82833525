#pragma once
/// `muster-tools ckpt`: look at checkpoints from the command line.
///
///   ckpt ls DIR        one line per checkpoint, newest first
///   ckpt verify DIR    reads every byte of each checkpoint and names all damage
///   ckpt digest DIR    one layout-independent digest per tensor and one for all
///   ckpt diff A B      tensors and state in which two checkpoints differ
///
/// DIR is a checkpoint or a folder of them. With --json each prints one JSON object. Exit status: 0
/// fine or equal, 1 different, 64 usage, 66 damaged or missing, 74 files that cannot be read.

#include <span>
#include <string>

namespace muster {

/// What a command printed, and its exit status.
struct CommandOutput {
  int status = 0;
  std::string out;
  std::string err;
};

/// Runs `ckpt` with the arguments behind that word.
CommandOutput run_ckpt_command(std::span<const std::string> arguments);

}  // namespace muster
