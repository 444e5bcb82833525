#pragma once
/// A language model against what transformers computes: logits, every gradient, twenty steps.
///
/// The same checks serve each family; a family states how it names and lays out its tensors.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/nn/causal_lm.h"
#include "tests/support/golden_case.h"

namespace muster::testing {

struct GoldenLm {
  std::string name;  ///< of the golden file: "models/gpt2"
  /// Builds the model with the weights of the folder, in `dtype`.
  std::function<std::unique_ptr<CausalLm>(DType dtype)> load;
  std::string prefix = {};  ///< of the names in the file
  /// Weights that the file holds as [in, out].
  std::function<bool(const std::string& name)> is_transposed = [](const std::string&) {
    return false;
  };
  /// Leaves out of a tensor what has no gradient but rounding; the identity by default.
  std::function<Tensor(const std::string& name, const Tensor& tensor)> meaningful =
      [](const std::string&, const Tensor& tensor) { return tensor; };
  bool decays_matrices_only = true;  ///< else weight decay on everything
  /// Of the f64 logits. Published bf16 and f32 weights are exact in f64.
  double f64_tolerance = 1e-12;
  double f32_train_tolerance = 5e-6;
};

/// The loss of the next token: targets are the tokens moved to the left.
Tensor next_tokens(const Tensor& labels);

void expect_forward(const GoldenLm& lm);
void expect_gradients(const GoldenLm& lm);
/// @error a test failure where the loss, the norm or a final weight leaves `tolerance`
void expect_training(const GoldenLm& lm, DType dtype, double tolerance);
/// Greedy continuations, with and without a stop token, by recomputing and with a cache.
void expect_generation(const GoldenLm& lm);

}  // namespace muster::testing
