#pragma once
/// Reads and writes at places that a tensor of indices names.
///
/// Names and argument order are PyTorch's. Indices are i64 or i32 and are checked: a wrong one is
/// kOutOfRange. Of several writes to one place the last in row-major order wins, and sums have a
/// fixed order. index and take count negative indices from the end, the others refuse them.

#include <initializer_list>
#include <span>

#include "core/ops/operand.h"

namespace muster {

/// Rows `index` of dim `dim`. @shape index [n] or 0-dim
Tensor index_select(const Tensor& self, int64_t dim, const Tensor& index);
/// self with source * alpha added to rows `index`.
Tensor index_add(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source,
                 Scalar alpha = 1);
Tensor index_add_(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source,
                  Scalar alpha = 1);
Tensor index_copy(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source);
Tensor index_fill(const Tensor& self, int64_t dim, const Tensor& index, const Operand& value);

/// out[i, j, ..] = self with the coordinate of `dim` replaced by index[i, j, ..].
Tensor gather(const Tensor& self, int64_t dim, const Tensor& index);
/// The inverse of gather: self with src written at `index`.
Tensor scatter(const Tensor& self, int64_t dim, const Tensor& index, const Operand& src);
Tensor scatter_(const Tensor& self, int64_t dim, const Tensor& index, const Operand& src);
Tensor scatter_add(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src);
Tensor scatter_add_(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src);
/// gather with sizes broadcast outside `dim`; without a dim of the flattened tensor.
Tensor take_along_dim(const Tensor& self, const Tensor& indices, std::optional<int64_t> dim = {});
/// Elements at places of the flattened tensor.
Tensor take(const Tensor& self, const Tensor& index);

/// Advanced indexing: one tensor of indices (or mask) per dim, broadcast together; an undefined
/// tensor takes the whole dim. Index tensors that a whole dim parts put their dims first.
Tensor index(const Tensor& self, std::span<const Tensor> indices);
inline Tensor index(const Tensor& self, std::initializer_list<Tensor> indices) {
  return index(self, std::span<const Tensor>(indices.begin(), indices.size()));
}
/// self with `values` written (or added) where index() would read.
Tensor index_put(const Tensor& self, std::span<const Tensor> indices, const Operand& values,
                 bool accumulate = false);
Tensor index_put_(const Tensor& self, std::span<const Tensor> indices, const Operand& values,
                  bool accumulate = false);
inline Tensor index_put_(const Tensor& self, std::initializer_list<Tensor> indices,
                         const Operand& values, bool accumulate = false) {
  return index_put_(self, std::span<const Tensor>(indices.begin(), indices.size()), values,
                    accumulate);
}

/// Each element `repeats` times, one after the other, along `dim`; without a dim of the flattened
/// tensor. A tensor of repeats holds one count per index of the dim, or one for all.
/// @error kInvalidArgument negative repeats, or their number does not fit
Tensor repeat_interleave(const Tensor& self, const Operand& repeats,
                         std::optional<int64_t> dim = {});

/// Elements where `mask`, in row-major order.
Tensor masked_select(const Tensor& self, const Tensor& mask);
/// Coordinates of the elements that are not 0. @shape i64 [count, ndim]
Tensor nonzero(const Tensor& self);
/// 1 at the class of each element. -1: as many classes as the largest needs. @shape [.., classes]
Tensor one_hot(const Tensor& self, int64_t num_classes = -1);

}  // namespace muster
