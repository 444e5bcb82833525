#pragma once
/// `muster-tools logits FOLDER --prompt-ids 1,2,3 --out F.safetensors`: the logits of every
/// position of one or more sequences of equal length.
///
/// Writes `logits` [sequences, length, vocabulary] and `input_ids`. Exit status as generate.

#include <span>
#include <string>

#include "train/ckpt_command.h"

namespace muster {
/// Runs `logits` with the arguments behind that word.
CommandOutput run_logits_command(std::span<const std::string> arguments);
}  // namespace muster
