#pragma once
/// Losses. Names, argument order and results are those of torch.nn.functional.
///
/// cross_entropy_sum_count is what training uses: it returns a sum and a count, so that the caller
/// owns the denominator and gradients depend neither on microbatches nor on layout.

#include <cstdint>
#include <functional>

#include "core/tensor/tensor.h"

namespace muster {

enum class Reduction : uint8_t {
  kNone,
  kMean,
  kSum,
  kBatchMean,  ///< the sum divided by the size of dim 0; kl_div only
};

struct CrossEntropyOptions {
  Tensor weight = {};  ///< [C]: a factor per class; undefined: 1
  int64_t ignore_index = -100;
  double label_smoothing = 0.0;
};

/// Loss of logits against classes: -log softmax(input)[target].
///
/// The mean divides by the sum of the kept targets' weights. Targets may also be probabilities of
/// all classes (a floating tensor of input's sizes); the mean is then over rows, weights or not.
/// @shape input [N, C], [N, C, ..] or [C]; target [N], [N, ..] or [], i64
/// @error kOutOfRange a target outside [0, C) that is not ignore_index
Tensor cross_entropy(const Tensor& input, const Tensor& target,
                     const CrossEntropyOptions& options = {},
                     Reduction reduction = Reduction::kMean);

/// A loss as a sum and what it is to be divided by.
struct LossSum {
  Tensor sum;    ///< 0-dim, f32 (f64 for f64 logits); carries the gradient
  Tensor count;  ///< 0-dim, dtype of sum: kept targets, or the sum of their weights
};
LossSum cross_entropy_sum_count(const Tensor& input, const Tensor& target,
                                const CrossEntropyOptions& options = {});

struct LinearCrossEntropyOptions {
  Tensor linear_bias = {};  ///< [C]
  CrossEntropyOptions loss = {};
  int64_t chunk = 1024;  ///< rows whose logits are made at a time; 0: all
};

/// cross_entropy(linear(input, linear_weight, linear_bias), target) without all logits in memory:
/// chunks of rows get theirs one after the other, and once more in backward, which costs a third
/// more products. Gradients of weights are sums over chunks.
/// @shape input [.., K], linear_weight [C, K], target [..] i64 @error as cross_entropy and linear
/// @source torch.nn.functional.linear_cross_entropy
Tensor linear_cross_entropy(const Tensor& input, const Tensor& linear_weight, const Tensor& target,
                            const LinearCrossEntropyOptions& options = {},
                            Reduction reduction = Reduction::kMean);

/// A loss of some rows and their targets.
using RowsLoss = std::function<LossSum(const Tensor& rows, const Tensor& targets)>;
/// The loss of all rows from that of each chunk of them, computed again in backward. `loss` must do
/// the same work both times. @shape rows [N, ..], targets [N] @error kInvalidArgument chunk < 0
LossSum chunked_loss(const Tensor& rows, const Tensor& targets, int64_t chunk,
                     const RowsLoss& loss);
/// Calls `body` with chunks of rows and targets, in order; once, with none, where there are none.
void for_each_chunk(const Tensor& rows, const Tensor& targets, int64_t chunk,
                    const std::function<void(const Tensor& rows, const Tensor& targets)>& body);

/// Negative log likelihood: input holds log-probabilities. Shapes as cross_entropy.
Tensor nll_loss(const Tensor& input, const Tensor& target, const Tensor& weight = {},
                int64_t ignore_index = -100, Reduction reduction = Reduction::kMean);

/// A weight multiplies each element; the mean then divides by the sum of weights.
Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::kMean,
                const Tensor& weight = {});
Tensor l1_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::kMean,
               const Tensor& weight = {});
/// Quadratic below `beta`, linear above; continuous in value. beta 0 is l1.
Tensor smooth_l1_loss(const Tensor& input, const Tensor& target,
                      Reduction reduction = Reduction::kMean, double beta = 1.0);
/// smooth_l1 scaled by delta; a weighted mean divides by the number of elements.
/// @error kInvalidArgument delta <= 0
Tensor huber_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::kMean,
                  double delta = 1.0, const Tensor& weight = {});
/// Of probabilities; logarithms are at least -100.
Tensor binary_cross_entropy(const Tensor& input, const Tensor& target, const Tensor& weight = {},
                            Reduction reduction = Reduction::kMean);
Tensor binary_cross_entropy_with_logits(const Tensor& input, const Tensor& target,
                                        const Tensor& weight = {}, const Tensor& pos_weight = {},
                                        Reduction reduction = Reduction::kMean);
/// target * (log target - input), input being log-probabilities; with `log_target` target too.
/// kMean divides by the number of elements.
Tensor kl_div(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::kMean,
              bool log_target = false);

}  // namespace muster
