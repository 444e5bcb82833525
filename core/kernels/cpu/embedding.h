#pragma once
/// Row look-up in an embedding table, and its dense gradient.
///
/// The gradient adds rows of equal index in order of their position, whatever the thread count.
/// Indices are checked before anything is written.

#include <cstdint>

#include "core/tensor/tensor_view.h"

namespace muster::kernels::cpu {

/// out[i] = weight[indices[i]].
/// @shape weight [V, D], indices [N] i64 or i32, out [N, D]; any strides, one floating dtype
/// @error kOutOfRange  an index outside [0, V); names its position, value and the range
void embedding(const TensorView& out, const TensorView& weight, const TensorView& indices);

struct EmbeddingBackwardOptions {
  int64_t padding_idx = -1;         ///< rows of this index get no gradient; -1: none
  bool scale_grad_by_freq = false;  ///< divides each row by the count of its index in `indices`
  bool accumulate = false;  ///< adds into dweight (touched rows only) instead of overwriting
};

/// dweight[v] = sum of dout[i] over i with indices[i] == v; bf16 and f16 rows are summed in f32.
/// @shape dweight [V, D], dout [N, D], indices [N]
void embedding_backward(const TensorView& dweight, const TensorView& dout,
                        const TensorView& indices, const EmbeddingBackwardOptions& options = {});

}  // namespace muster::kernels::cpu
