#pragma once
/// What the commands that run a model folder share: token ids from text, dtypes, and their checks.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "train/hf/folder.h"

namespace muster {

/// "105,66,205" as numbers. @error kInvalidArgument anything else, an empty text included
Result<std::vector<int64_t>> parse_ids(const std::string& text);

/// Refuses ids outside the vocabulary. @error kOutOfRange names the first
Result<void> check_ids(const std::vector<int64_t>& ids, const hf::Config& config);

/// "f32", "f64", "bf16", "f16". @error kInvalidArgument
Result<DType> parse_compute_dtype(const std::string& name);

}  // namespace muster
