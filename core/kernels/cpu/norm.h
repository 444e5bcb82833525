#pragma once
/// Layer norm and RMS norm over the rows of a matrix, forward and backward.
///
/// The caller folds normalized dims into one: x is [R, N], any strides (last stride 1 is fast). Row
/// statistics are f32 for f32, bf16 and f16 inputs and f64 for f64; arithmetic has the same type.
/// Weight gradients are summed per fixed tile of rows, then along a fixed tree. N = 0 is allowed.

#include <optional>

#include "core/tensor/tensor_view.h"

namespace muster::kernels::cpu {

/// y = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var + eps) with the biased variance.
/// @shape x, y [R, N]; mean, rstd [R] contiguous, f32 (f64 for f64); weight, bias [N] of x's dtype
///        or of the statistics' dtype
/// @error kInvalidArgument  a size or dtype does not fit
void layer_norm(const TensorView& y, const TensorView& mean, const TensorView& rstd,
                const TensorView& x, const std::optional<TensorView>& weight,
                const std::optional<TensorView>& bias, double eps);

/// Which gradients to compute; an absent one costs nothing.
struct NormGradients {
  std::optional<TensorView> dx;       ///< [R, N]
  std::optional<TensorView> dweight;  ///< [N], overwritten
  std::optional<TensorView> dbias;    ///< [N], overwritten; layer norm only
};

/// One pass over the rows of x and dy gives all three gradients.
void layer_norm_backward(const NormGradients& gradients, const TensorView& dy, const TensorView& x,
                         const TensorView& mean, const TensorView& rstd,
                         const std::optional<TensorView>& weight);

/// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps).
/// @shape as layer_norm
void rms_norm(const TensorView& y, const TensorView& rstd, const TensorView& x,
              const std::optional<TensorView>& weight, double eps);

void rms_norm_backward(const NormGradients& gradients, const TensorView& dy, const TensorView& x,
                       const TensorView& rstd, const std::optional<TensorView>& weight);

}  // namespace muster::kernels::cpu
