#pragma once
/// Cross entropy from logits and class indices, fused: log-softmax is never stored.
///
/// The forward pass keeps one float a row (log-sum-exp); the backward pass rebuilds the
/// probabilities from it, or the in-place variant overwrites the logits with their gradient in the
/// forward pass. Results are sums with counts, never means: the caller owns the denominator.
/// Rows with target == ignore_index add nothing, are not read, and have gradient 0.

#include <cstdint>
#include <optional>

#include "core/tensor/tensor_view.h"

namespace muster::kernels::cpu {

struct CrossEntropyOptions {
  int64_t ignore_index = -100;
  double label_smoothing = 0.0;      ///< in [0, 1]
  std::optional<TensorView> weight;  ///< [C] contiguous, dtype of the logits
};

struct CrossEntropySums {
  double loss = 0.0;    ///< sum over kept rows, weights applied
  double weight = 0.0;  ///< sum of the kept targets' weights: the denominator of the mean
  int64_t count = 0;    ///< kept rows
};

/// Counts kept rows and their weights: the denominator before any logit is read.
/// @error kOutOfRange  a target is outside [0, num_classes) and not ignore_index; names the row
CrossEntropySums cross_entropy_count(const TensorView& targets, int64_t num_classes,
                                     const CrossEntropyOptions& options);

/// Loss of each row, its log-sum-exp, and the sums.
/// With smoothing s: loss = (1-s) w[t] (lse - x[t]) + s/C sum_c w[c] (lse - x[c]).
/// @shape logits [N, C] any strides, f32, f64, bf16, f16; targets [N] i64; row_loss (optional) and
///        lse [N] contiguous, f32 (f64 for f64)
/// @error kOutOfRange  as cross_entropy_count; kInvalidArgument for sizes and dtypes
CrossEntropySums cross_entropy(const std::optional<TensorView>& row_loss, const TensorView& lse,
                               const TensorView& logits, const TensorView& targets,
                               const CrossEntropyOptions& options);

/// dlogits[i] = scale * row_grad[i] * d(row_loss[i])/d(logits[i]); row_grad absent counts as 1.
/// @shape dlogits [N, C], may be `logits` itself; row_grad [N] any stride (0 repeats a scalar), of
///        lse's dtype
void cross_entropy_backward(const TensorView& dlogits, const TensorView& logits,
                            const TensorView& targets, const TensorView& lse,
                            const std::optional<TensorView>& row_grad, double scale,
                            const CrossEntropyOptions& options);

/// cross_entropy and cross_entropy_backward in one visit of each row: `logits` ends as
/// scale * d(sum of losses)/d(logits). row_loss and lse are optional.
CrossEntropySums cross_entropy_in_place(const TensorView& logits, const TensorView& targets,
                                        double scale, const std::optional<TensorView>& row_loss,
                                        const std::optional<TensorView>& lse,
                                        const CrossEntropyOptions& options);

}  // namespace muster::kernels::cpu
