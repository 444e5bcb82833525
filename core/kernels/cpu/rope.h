#pragma once
/// Rotary position embedding: pairs of features of a row turn by the row's angles.
///
/// Arithmetic runs in f32 (f64 for f64) and rounds once. Knows angles only by their cosines and
/// sines; where they come from is the caller's business.

#include "core/tensor/tensor_view.h"

namespace muster::kernels::cpu {

struct RopeOptions {
  bool interleaved = false;  ///< pairs (2i, 2i + 1) instead of (i, i + R/2)
  bool inverse = false;      ///< turns back
};

/// out = in with its pairs turned: (a cos - b sin, b cos + a sin). Features from R on are copied.
/// @shape out, in [.., D]; cos, sin [.., R/2] with the leading sizes of `in` (stride 0 repeats) and
///        R <= D; any strides, any floating dtype. `out` does not overlap `in`
/// @error kInvalidArgument  a size does not fit
void rope(const TensorView& out, const TensorView& in, const TensorView& cos, const TensorView& sin,
          const RopeOptions& options);

}  // namespace muster::kernels::cpu
