#pragma once
/// Copies, conversions and fills on any strides: what clone, contiguous, to, cat and the factories
/// run on.
///
/// Floats convert to integers by truncation, f64 to bf16 and f16 through f32, anything to bool as
/// x != 0. Views given here have equal sizes; strides of an input may be 0 or negative, so a flip
/// is a copy. Overlap of input and output is allowed only when both views are the same.

#include "core/tensor/scalar.h"
#include "core/tensor/tensor_view.h"

namespace muster::kernels::cpu {

/// out = in, converted to the dtype of `out`.
/// @error kInvalidArgument  sizes differ
void copy(const TensorView& out, const TensorView& in);

/// Every element = value, converted to the dtype.
void fill(const TensorView& out, Scalar value);

/// out[i] = start + i * step, in f64 or, when both are integers, in i64.
/// @shape out [n]
void arange(const TensorView& out, Scalar start, Scalar step);

/// n numbers from start to end inclusive; the second half is counted back from the end.
/// @shape out [n]
void linspace(const TensorView& out, Scalar start, Scalar end);

/// 1 on the main diagonal, 0 elsewhere. @shape out [rows, columns]
void eye(const TensorView& out);

/// out = in on and below (lower) or on and above (upper) the diagonal number `diagonal`, else 0, in
/// each matrix of the last two dims.
/// @error kInvalidArgument  fewer than two dims, or sizes differ
void tril(const TensorView& out, const TensorView& in, int64_t diagonal);
void triu(const TensorView& out, const TensorView& in, int64_t diagonal);

/// True when both hold the same values; nan equals nothing. Sizes must be equal.
bool equal(const TensorView& a, const TensorView& b);

}  // namespace muster::kernels::cpu
