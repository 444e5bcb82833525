#pragma once
/// The published model families in plain loops over f64, straight from config.json and the names in
/// the files.
///
/// Shares no code with what it checks: no operators, no modules, no config reader. Slow, for models
/// of a few thousand parameters.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace muster::testing {

/// The logits of every position of one sequence, by the model of a Hugging Face folder whose
/// weights are in model.safetensors or in the files of its index. @shape [length][vocabulary]
std::vector<std::vector<double>> plain_logits(const std::string& folder,
                                              const std::vector<int64_t>& tokens);

/// A greedy continuation and how clear its choices were.
struct PlainText {
  std::vector<int64_t> ids;   ///< the prompt and `count` tokens
  double smallest_gap = 1e9;  ///< between the best logit and the next
};
PlainText plain_greedy(const std::string& folder, const std::vector<int64_t>& prompt,
                       int64_t count);

}  // namespace muster::testing
