#pragma once
/// `muster-tools generate FOLDER --prompt-ids 1,2,3`: continues a prompt with the model of a
/// Hugging Face folder, greedily.
///
/// Prints the ids of prompt and continuation; with --json {"ids": [..]}. Exit status: 0, 64 usage
/// or a folder that does not fit its config, 65 an architecture or a key that is not supported, 66
/// damaged or missing files.

#include <span>
#include <string>

#include "train/ckpt_command.h"

namespace muster {
/// Runs `generate` with the arguments behind that word.
CommandOutput run_generate_command(std::span<const std::string> arguments);
}  // namespace muster
