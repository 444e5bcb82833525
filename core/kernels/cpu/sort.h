#pragma once
/// Sorting and selection along one dim. Always stable, so there is one right answer.
///
/// nan is the largest value: last when ascending, first when descending. -0 and 0 are equal. Any
/// dtype, any strides; `values` has the dtype of `in`, `indices` is i64; either may have null data
/// when it is not wanted.

#include "core/tensor/tensor_view.h"

namespace muster::kernels::cpu {

/// Equals keep their order, also when descending.
/// @shape values, indices as in
void sort(const TensorView& values, const TensorView& indices, const TensorView& in, int64_t dim,
          bool descending);

/// The k largest (or smallest), best first; among equals the earlier place wins.
/// @shape values, indices: as in with k at dim
/// @error kOutOfRange  k exceeds the size of dim
void topk(const TensorView& values, const TensorView& indices, const TensorView& in, int64_t dim,
          bool largest);

/// The k-th smallest, k from 1, and its place (the earliest among equals in sorted order).
/// @shape values, indices: as in with 1 at dim
void kthvalue(const TensorView& values, const TensorView& indices, const TensorView& in,
              int64_t dim, int64_t k);

/// For each of `values` the first place of `sorted` that is not less (right: that is greater).
/// @shape sorted [.., n] sorted along the last dim, leading dims as in values or none; out i64 as
///        values
void searchsorted(const TensorView& out, const TensorView& sorted, const TensorView& values,
                  bool right);

}  // namespace muster::kernels::cpu
