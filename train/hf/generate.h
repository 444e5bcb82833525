#pragma once
/// Greedy continuation of a prompt.

#include <cstdint>
#include <span>
#include <vector>

#include "core/nn/causal_lm.h"

namespace muster::hf {

struct GenerateOptions {
  int64_t max_new_tokens = 20;
  std::vector<int64_t> stop_ids = {};  ///< the first of them ends the text and is kept
};

/// The prompt and the tokens after it, each the most likely one (the lowest of equals). Uses the
/// model's cache: one position is computed for each token. Records nothing.
/// @error kInvalidArgument an empty prompt; as the model's call
std::vector<int64_t> generate_greedy(CausalLm& model, std::span<const int64_t> prompt,
                                     const GenerateOptions& options = {});

}  // namespace muster::hf
