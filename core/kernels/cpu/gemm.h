#pragma once
/// Matrix products on strided views: f32 by oneDNN, bf16 by oneDNN where the CPU multiplies bf16
/// (core/kernels/precision.h) and widened elsewhere, f16 widened, f64 and i64 by own kernels.
///
/// Work is cut into tiles by shape alone and each output element is summed by one thread in a fixed
/// order, so results do not depend on the number of threads. Transposed and sliced operands are
/// read in place when one of their strides is 1, and copied otherwise. Not a dispatcher: the caller
/// allocates `out` and gives all operands one dtype.

#include <optional>

#include "core/tensor/tensor_view.h"

namespace muster::kernels::cpu {

struct GemmOptions {
  double alpha = 1.0;
  double beta = 0.0;               ///< 0: `out` is written only, never read (nan in it is harmless)
  std::optional<TensorView> bias;  ///< [N], added to every row, not scaled by alpha
};

/// out = alpha * a @ b + beta * out + bias. K = 0 gives beta * out + bias.
/// @shape a [M, K], b [K, N], out [M, N], any strides; `out` must not overlap itself, a or b
/// @error kInvalidArgument  sizes or dtypes do not fit; kUnimplemented for bool
void gemm(const TensorView& out, const TensorView& a, const TensorView& b,
          const GemmOptions& options = {});

/// The same for each of B matrices; a batch stride of 0 repeats one matrix (not for `out`).
/// @shape a [B, M, K], b [B, K, N], out [B, M, N], bias [N]
void batched_gemm(const TensorView& out, const TensorView& a, const TensorView& b,
                  const GemmOptions& options = {});

}  // namespace muster::kernels::cpu
