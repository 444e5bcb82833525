#pragma once
/// View operators: new metadata on the same storage, never a copy (but see reshape and flatten).
///
/// Names and argument order are PyTorch's. A write to a view is seen by its base and counted in
/// their common version. Negative dims count from the end.

#include <optional>
#include <vector>

#include "core/tensor/tensor.h"

namespace muster {

/// The same elements in row-major order under other sizes; one size may be -1.
/// @error kInvalidArgument when only a copy could give it; then use reshape
Tensor view(const Tensor& self, Dims size);
Tensor view_as(const Tensor& self, const Tensor& other);
/// A view where that is possible, else a copy. Code must not depend on which.
Tensor reshape(const Tensor& self, Dims shape);
/// Joins dims start_dim..end_dim into one. A view, a copy or `self`, as reshape.
Tensor flatten(const Tensor& self, int64_t start_dim = 0, int64_t end_dim = -1);
/// Splits one dim into `sizes`; one of them may be -1.
Tensor unflatten(const Tensor& self, int64_t dim, Dims sizes);
/// Any layout inside the storage. Strides and offset count elements, from the storage's start.
/// @error kOutOfRange the layout leaves the storage
Tensor as_strided(const Tensor& self, Dims size, Dims stride,
                  std::optional<int64_t> storage_offset = {});

/// Repeats dims of size 1 by stride 0; -1 keeps a size.
Tensor expand(const Tensor& self, Dims size);
Tensor expand_as(const Tensor& self, const Tensor& other);
Tensor permute(const Tensor& self, Dims dims);
Tensor transpose(const Tensor& self, int64_t dim0, int64_t dim1);
/// Transpose of a matrix; a vector stays. @error kInvalidArgument for more than two dims
Tensor t(const Tensor& self);
Tensor movedim(const Tensor& self, int64_t source, int64_t destination);
Tensor movedim(const Tensor& self, Dims source, Dims destination);
/// Drops all dims of size 1, or the named ones where their size is 1.
Tensor squeeze(const Tensor& self);
Tensor squeeze(const Tensor& self, int64_t dim);
Tensor squeeze(const Tensor& self, Dims dim);
Tensor unsqueeze(const Tensor& self, int64_t dim);

/// One index of a dim, which goes away. @error kOutOfRange
Tensor select(const Tensor& self, int64_t dim, int64_t index);
/// Python's self[start:end:step] along `dim`; bounds are clamped.
Tensor slice(const Tensor& self, int64_t dim, std::optional<int64_t> start = {},
             std::optional<int64_t> end = {}, int64_t step = 1);
/// `length` indices from `start`. @error kOutOfRange when they leave the dim
Tensor narrow(const Tensor& self, int64_t dim, int64_t start, int64_t length);
/// The diagonal of two dims, as a new last dim; `offset` > 0 is above the main one.
Tensor diagonal(const Tensor& self, int64_t offset = 0, int64_t dim1 = 0, int64_t dim2 = 1);
/// Windows of `size` at every `step` along `dimension`, as a new last dim.
Tensor unfold(const Tensor& self, int64_t dimension, int64_t size, int64_t step);

/// Pieces of `split_size`; the last may be smaller.
std::vector<Tensor> split(const Tensor& self, int64_t split_size, int64_t dim = 0);
/// Pieces of the given sizes, which sum to the dim's size.
std::vector<Tensor> split_with_sizes(const Tensor& self, Dims split_sizes, int64_t dim = 0);
/// Pieces of ceil(size / chunks); perhaps fewer than `chunks`.
std::vector<Tensor> chunk(const Tensor& self, int64_t chunks, int64_t dim = 0);
/// Exactly `sections` pieces, the first ones longer by one where it does not divide.
std::vector<Tensor> tensor_split(const Tensor& self, int64_t sections, int64_t dim = 0);
std::vector<Tensor> unbind(const Tensor& self, int64_t dim = 0);

/// The same storage without history: gradients stop here. Shares the version counter, is no view.
Tensor detach(const Tensor& self);

}  // namespace muster
