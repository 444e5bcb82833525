#pragma once
/// `muster-tools ops`: what the operator table knows, from the definitions themselves.
///
///   ops              one schema a line
///   ops NAME         everything stated of one operator: derivative, saved values, sharding,
///   autocast
///
/// With --json a JSON array, or one object. Exit status: 0, 64 usage, 66 no such operator.

#include <span>
#include <string>

#include "train/ckpt_command.h"

namespace muster {

/// Runs `ops` with the arguments behind that word.
CommandOutput run_ops_command(std::span<const std::string> arguments);

}  // namespace muster
