#pragma once
/// Softmax and log-softmax along one dim, forward and backward, on any strides.
///
/// f32, f64, and bf16/f16 with f32 arithmetic. The maximum is subtracted first. A slice of -inf
/// only gives nan, as in PyTorch, except in safe_softmax, where it gives 0. Outputs have the
/// input's sizes and dtype and may be the input itself.

#include "core/tensor/tensor_view.h"

namespace muster::kernels::cpu {

/// y = exp(x - max) / sum(exp(x - max)) along `dim`; a 0-dim tensor counts as one element.
/// @error kInvalidArgument  sizes or dtypes differ or are not floating; kOutOfRange for a bad dim
void softmax(const TensorView& y, const TensorView& x, int64_t dim);

/// Softmax that gives 0 on slices that are -inf throughout: attention rows without a key.
void safe_softmax(const TensorView& y, const TensorView& x, int64_t dim);

/// y = x - max - log(sum(exp(x - max))).
void log_softmax(const TensorView& y, const TensorView& x, int64_t dim);

/// dx = y * (dy - sum(dy * y)); serves softmax and safe_softmax.
void softmax_backward(const TensorView& dx, const TensorView& dy, const TensorView& y, int64_t dim);

/// dx = dy - exp(y) * sum(dy), y being the output of log_softmax.
void log_softmax_backward(const TensorView& dx, const TensorView& dy, const TensorView& y,
                          int64_t dim);

}  // namespace muster::kernels::cpu
