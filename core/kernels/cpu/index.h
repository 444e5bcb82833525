#pragma once
/// Reads and writes at places that a tensor names: index_select, gather, scatter, index, masks.
///
/// Indices are i64 or i32. Writes happen in row-major order of the index tensor: of several to one
/// place the last wins, and sums have a fixed order, whatever the number of threads. Every index is
/// checked; the message names index, range, dim and where it stood. `out` of a writing kernel holds
/// the previous values on entry; it overlaps no other argument.

#include <span>

#include "core/tensor/scalar.h"
#include "core/tensor/tensor_view.h"

namespace muster::kernels::cpu {

/// out[.., i, ..] = in[.., index[i], ..]. Negative indices are refused, as PyTorch does here.
/// @shape index [n] or 0-dim; out: as in with n at dim
/// @error kOutOfRange  an index or dim
void index_select(const TensorView& out, const TensorView& in, int64_t dim,
                  const TensorView& index);

/// out[.., index[i], ..] += alpha * source[.., i, ..].
void index_add(const TensorView& out, int64_t dim, const TensorView& index,
               const TensorView& source, Scalar alpha = 1);
/// out[.., index[i], ..] = source[.., i, ..].
void index_copy(const TensorView& out, int64_t dim, const TensorView& index,
                const TensorView& source);
/// out[.., index[i], ..] = value.
void index_fill(const TensorView& out, int64_t dim, const TensorView& index, Scalar value);

/// out[i, j, ..] = in with the coordinate of `dim` replaced by index[i, j, ..]. Negative indices
/// are refused.
/// @shape index and out equal; each other dim of index <= that of in
void gather(const TensorView& out, const TensorView& in, int64_t dim, const TensorView& index);

enum class ScatterKind : uint8_t { kAssign, kSum, kProd, kAmax, kAmin, kMean };

/// The inverse of gather: out[.., index[i, j], ..] (kind)= src[i, j]. Without `include_self` the
/// previous value of a written place does not take part. Negative indices are refused.
/// @shape index: no dim larger than in src, nor, but for `dim`, than in out
void scatter(ScatterKind kind, const TensorView& out, int64_t dim, const TensorView& index,
             const TensorView& src, bool include_self = true);

/// Advanced indexing, dims arranged by the caller: out[b.., r..] = in[i1[b..], i2[b..], .., r..].
/// Negative indices count from the end.
/// @shape indices: k views of equal sizes b (broadcast by stride 0), for the first k dims of in
void index(const TensorView& out, const TensorView& in, std::span<const TensorView> indices);

/// out[i1[b..], i2[b..], .., r..] = values[b.., r..], or += when `accumulate`.
void index_put(const TensorView& out, std::span<const TensorView> indices, const TensorView& values,
               bool accumulate);

/// out[i..] = the element of `in` at row-major place index[i..]; negative places count from the
/// end.
void take(const TensorView& out, const TensorView& in, const TensorView& index);

/// Number of elements that are not 0: the size that nonzero and masked_select need.
int64_t count_nonzero(const TensorView& in);
/// Coordinates of the nonzero elements in row-major order. @shape out i64 [count, ndim]
void nonzero(const TensorView& out, const TensorView& in);
/// The elements of `in` where `mask`, in row-major order. @shape mask as in; out [count]
void masked_select(const TensorView& out, const TensorView& in, const TensorView& mask);
/// out[mask] = source, taken in row-major order. @error kInvalidArgument  source is too short
void masked_scatter(const TensorView& out, const TensorView& mask, const TensorView& source);

/// out[.., c] = (in[..] == c). @shape out: as in plus one last dim
/// @error kOutOfRange  a class is negative or too large
void one_hot(const TensorView& out, const TensorView& in);

/// out[v] = how often v occurs in `in`, or the sum of its weights (data may be null).
/// @shape in, weights [n]; out [classes]
void bincount(const TensorView& out, const TensorView& in, const TensorView& weights);

}  // namespace muster::kernels::cpu
