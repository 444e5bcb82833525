#pragma once
/// Sizes, strides and offset: pure arithmetic of strided layouts, in elements, never bytes.
///
/// All view operators reduce to a function here. Size-1 dims are ignored by contiguity and empty
/// tensors are contiguous, as in PyTorch. Nothing here touches memory.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

#include "core/base/small_vector.h"

namespace muster {

/// Dims of a tensor; up to 6 without an allocation.
using DimVector = SmallVector<int64_t, 6>;

/// A view of sizes, strides or dims passed to a function: `view(x, {2, 3})` and `view(x,
/// y.sizes())` both work. Keeps no copy: valid for the call only.
class Dims : public std::span<const int64_t> {
 public:
  using span::span;
  Dims(std::span<const int64_t> dims) noexcept
      : span(dims) {}  // NOLINT(google-explicit-constructor)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winit-list-lifetime"
  Dims(std::initializer_list<int64_t> dims) noexcept : span(dims.begin(), dims.size()) {}  // NOLINT
#pragma GCC diagnostic pop
};

/// Where element (i, j, ..) lies: offset + i*strides[0] + j*strides[1] + ...
struct Layout {
  DimVector sizes;
  DimVector strides;
  int64_t offset = 0;
};

/// Product of sizes; 1 for a 0-dim tensor. @error kInvalidArgument on a negative size or 2^63
/// overflow
int64_t checked_numel(Dims sizes);
inline int64_t numel_of(Dims sizes) noexcept {
  int64_t n = 1;
  for (const int64_t size : sizes) n *= size;
  return n;
}

/// Row-major strides; a size-0 dim counts as 1, as PyTorch does.
DimVector contiguous_strides(Dims sizes);
bool is_contiguous(Dims sizes, Dims strides) noexcept;
/// True when the elements fill a block of memory without holes or overlap, in some dim order.
bool is_non_overlapping_and_dense(Dims sizes, Dims strides) noexcept;
/// Strides for a fresh result that keeps the dim order of (sizes, strides) where it is dense, and
/// sorts dims by stride otherwise; what `preserve_format` and pointwise operators give.
DimVector preserved_strides(Dims sizes, Dims strides);
/// Elements of storage that the layout spans, from element 0: 1 + sum((size-1)*stride) + offset; 0
/// if empty.
int64_t storage_extent(const Layout& layout) noexcept;
/// True when two indices are certain to name the same element (an expanded dim, for one).
bool certainly_overlaps_itself(Dims sizes, Dims strides) noexcept;

/// `dim` counted from the end when negative. @error kOutOfRange naming the operation and the range
int64_t wrap_dim(int64_t dim, int64_t ndim, const char* operation);
/// Broadcast of two shapes. @error kInvalidArgument naming both shapes
DimVector broadcast_sizes(Dims a, Dims b, const char* operation);
/// True when `from` broadcasts to `to`.
bool is_expandable_to(Dims from, Dims to) noexcept;
/// Resolves one -1 in `sizes` against `numel`. @error kInvalidArgument
DimVector infer_size(Dims sizes, int64_t numel, const char* operation);

/// Strides of a view with other sizes over the same memory, or nothing when a copy is needed.
std::optional<DimVector> view_strides(Dims old_sizes, Dims old_strides, Dims new_sizes);

Layout expand_layout(const Layout& in, Dims sizes);
Layout permute_layout(const Layout& in, Dims order);
Layout transpose_layout(const Layout& in, int64_t dim0, int64_t dim1);
Layout select_layout(const Layout& in, int64_t dim, int64_t index);
/// Python slice semantics: bounds are clamped, negative ones wrap; step > 0.
Layout slice_layout(const Layout& in, int64_t dim, int64_t start, int64_t end, int64_t step);
Layout unsqueeze_layout(const Layout& in, int64_t dim);
/// Drops the given dim if its size is 1.
Layout squeeze_layout(const Layout& in, int64_t dim);
Layout diagonal_layout(const Layout& in, int64_t offset, int64_t dim0, int64_t dim1);
/// Windows of `size` at every `step` along `dim`, as a new last dim.
Layout unfold_layout(const Layout& in, int64_t dim, int64_t size, int64_t step);

/// Sizes of the pieces of torch.chunk: ceil(n / parts) each, perhaps fewer pieces.
DimVector chunk_sizes(int64_t n, int64_t parts);
/// Sizes of torch.tensor_split: the first n % parts pieces are one longer.
DimVector tensor_split_sizes(int64_t n, int64_t parts);

/// "[2, 3]".
std::string to_string(Dims dims);

}  // namespace muster
