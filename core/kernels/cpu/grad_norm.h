#pragma once
/// Sums for gradient clipping by global norm, and the scaling that follows.
///
/// Sums are double throughout, over fixed tiles and a fixed tree: they depend on the values and the
/// numel, not on threads. The caller adds the sums of several tensors in an order of its own.

#include "core/tensor/tensor_view.h"

namespace muster::kernels::cpu {

/// Sum of x^2 over all elements, any strides, floating dtypes. nan and inf propagate.
double sum_of_squares(const TensorView& x);

/// x *= factor, any strides, floating dtypes; factor is rounded to x's arithmetic type first.
void scale_inplace(const TensorView& x, double factor);

}  // namespace muster::kernels::cpu
