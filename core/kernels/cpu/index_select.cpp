// index_select and its writing relatives: whole slices along one dim, named by a 1-d index.
#include <algorithm>

#include "core/kernels/cpu/index.h"
#include "core/kernels/cpu/index_common.h"
#include "core/kernels/cpu/workspace.h"
#include "core/kernels/parallel.h"

namespace muster::kernels::cpu {
namespace {
// `indexed` has size `size` at the dim, `dense` has one slice for each index.
struct Slices {
  LoopNest rest;  ///< the other dims; operands: dense, indexed
  int64_t count;
  int64_t dense_step;
  int64_t indexed_step;
};

class CheckedIndices {
 public:
  CheckedIndices(const char* operation, const TensorView& index, int64_t size, int64_t dim)
      : values_(index.numel()) {
    MUSTER_CHECK(index.ndim() <= 1, ErrorCode::kInvalidArgument,
                 "{}: the index must have at most one dim; got sizes {}", operation,
                 to_string(index.sizes));
    const IndexReader reader(operation, index);
    const int64_t stride = index.ndim() == 0 ? 0 : index.strides[0];
    for (int64_t i = 0; i < index.numel(); ++i) {
      values_[i] = reader.at(i * stride);
      if (!is_in_range(values_[i], size)) throw_bad_index(operation, index, 0, size, dim);
    }
  }
  int64_t operator[](int64_t i) const noexcept { return values_[i]; }

 private:
  Workspace<int64_t> values_;
};

Slices slices_along(const char* operation, const TensorView& dense, const TensorView& indexed,
                    int64_t dim, int64_t count) {
  MUSTER_CHECK(dense.ndim() == indexed.ndim(), ErrorCode::kInvalidArgument,
               "{}: both tensors must have the same dims; got sizes {} and {}", operation,
               to_string(dense.sizes), to_string(indexed.sizes));
  MUSTER_CHECK(dense.dtype == indexed.dtype, ErrorCode::kInvalidArgument,
               "{}: both tensors must have one dtype; got {} and {}", operation, dense.dtype,
               indexed.dtype);
  DimVector sizes(indexed.sizes);
  DimVector dense_strides(dense.strides);
  DimVector indexed_strides(indexed.strides);
  Slices slices{{}, count, 0, 0};
  if (!sizes.empty()) {
    const auto d = static_cast<size_t>(dim);
    for (size_t i = 0; i < sizes.size(); ++i) {
      MUSTER_CHECK(dense.sizes[i] == (i == d ? count : sizes[i]), ErrorCode::kInvalidArgument,
                   "{}: sizes must agree but for dim {}, which has one slice for each of {} "
                   "indices; got {} and {}",
                   operation, dim, count, to_string(dense.sizes), to_string(indexed.sizes));
    }
    slices.dense_step = dense.strides[d];
    slices.indexed_step = indexed.strides[d];
    sizes.erase(d);
    dense_strides.erase(d);
    indexed_strides.erase(d);
  }
  const Dims strides[] = {dense_strides.span(), indexed_strides.span()};
  slices.rest = LoopNest(sizes.span(), strides, LoopNest::Order::kByStride);
  return slices;
}

int64_t size_at(const TensorView& view, int64_t dim) {
  return view.ndim() == 0 ? 1 : view.sizes[static_cast<size_t>(dim)];
}

// Calls `element(dense_offset, indexed_offset)` for all elements, each tile of the other dims from
// the first index to the last.
template <typename Element>
void for_each_in_order(const Slices& slices, const CheckedIndices& indices,
                       const Element& element) {
  const int64_t grain = grain_of_ordered_writes(slices.rest.numel, slices.count);
  const int64_t dense_inner = slices.rest.inner_stride(0);
  const int64_t indexed_inner = slices.rest.inner_stride(1);
  // A long innermost row is walked once per index; short ones index by index.
  const bool rows_first = slices.rest.inner_size() < 16;
  parallel_tiles(slices.rest.numel, grain, [&](int64_t begin, int64_t end) {
    if (rows_first) {
      for_each_row(slices.rest, begin, end, [&](const int64_t* at, int64_t run) {
        for (int64_t j = 0; j < run; ++j) {
          for (int64_t i = 0; i < slices.count; ++i) {
            element(at[0] + j * dense_inner + i * slices.dense_step,
                    at[1] + j * indexed_inner + indices[i] * slices.indexed_step);
          }
        }
      });
      return;
    }
    for (int64_t i = 0; i < slices.count; ++i) {
      const int64_t dense_base = i * slices.dense_step;
      const int64_t indexed_base = indices[i] * slices.indexed_step;
      for_each_row(slices.rest, begin, end, [&](const int64_t* at, int64_t run) {
        for (int64_t j = 0; j < run; ++j) {
          element(dense_base + at[0] + j * dense_inner, indexed_base + at[1] + j * indexed_inner);
        }
      });
    }
  });
}

template <typename T>
void copy_slice(const Slices& slices, T* to, const T* from) {
  const int64_t to_step = slices.rest.inner_stride(0);
  const int64_t from_step = slices.rest.inner_stride(1);
  for_each_row(slices.rest, 0, slices.rest.numel, [&](const int64_t* at, int64_t run) {
    if (to_step == 1 && from_step == 1) {
      std::copy_n(from + at[1], run, to + at[0]);
      return;
    }
    for (int64_t j = 0; j < run; ++j) to[at[0] + j * to_step] = from[at[1] + j * from_step];
  });
}
}  // namespace

void index_select(const TensorView& out, const TensorView& in, int64_t dim,
                  const TensorView& index) {
  dim = wrap_dim(dim, static_cast<int64_t>(in.ndim()), "index_select");
  const CheckedIndices indices("index_select", index, size_at(in, dim), dim);
  const Slices slices = slices_along("index_select", out, in, dim, index.numel());
  visit_item_size(item_nbytes(in.dtype), [&](auto item) {
    using T = decltype(item);
    T* to = out.as<T>();
    const T* from = in.as<const T>();
    for_each_in_order(slices, indices,
                      [=](int64_t dense, int64_t indexed) { to[dense] = from[indexed]; });
  });
}

void index_add(const TensorView& out, int64_t dim, const TensorView& index,
               const TensorView& source, Scalar alpha) {
  dim = wrap_dim(dim, static_cast<int64_t>(out.ndim()), "index_add");
  const CheckedIndices indices("index_add", index, size_at(out, dim), dim);
  const Slices slices = slices_along("index_add", source, out, dim, index.numel());
  visit_dtype(out.dtype, [&](auto type) {
    using T = decltype(type);
    using C = std::conditional_t<kIsStorageFloat<T>, float, T>;
    T* to = out.as<T>();
    const T* from = source.as<const T>();
    const C factor =
        alpha.is_floating() ? convert<C>(alpha.to_double()) : convert<C>(alpha.to_int());
    for_each_in_order(slices, indices, [=](int64_t dense, int64_t indexed) {
      if constexpr (std::is_integral_v<T>) {
        const auto product = static_cast<uint64_t>(factor) * static_cast<uint64_t>(from[dense]);
        to[indexed] = add_elements(to[indexed], static_cast<T>(product));
      } else {
        to[indexed] = convert<T>(convert<C>(to[indexed]) + factor * convert<C>(from[dense]));
      }
    });
  });
}

void index_copy(const TensorView& out, int64_t dim, const TensorView& index,
                const TensorView& source) {
  dim = wrap_dim(dim, static_cast<int64_t>(out.ndim()), "index_copy");
  const CheckedIndices indices("index_copy", index, size_at(out, dim), dim);
  const Slices slices = slices_along("index_copy", source, out, dim, index.numel());
  visit_item_size(item_nbytes(out.dtype), [&](auto item) {
    using T = decltype(item);
    T* to = out.as<T>();
    const T* from = source.as<const T>();
    for_each_in_order(slices, indices,
                      [=](int64_t dense, int64_t indexed) { to[indexed] = from[dense]; });
  });
}

void index_fill(const TensorView& out, int64_t dim, const TensorView& index, Scalar value) {
  dim = wrap_dim(dim, static_cast<int64_t>(out.ndim()), "index_fill");
  // As index_copy of one element that is everywhere.
  DimVector sizes(out.sizes);
  const DimVector strides(out.ndim(), 0);
  if (!sizes.empty()) sizes[static_cast<size_t>(dim)] = index.numel();
  visit_dtype(out.dtype, [&](auto type) {
    using T = decltype(type);
    T element = value.is_floating() ? convert<T>(value.to_double()) : convert<T>(value.to_int());
    index_copy(out, dim, index, TensorView(&element, out.dtype, sizes.span(), strides.span()));
  });
}
}  // namespace muster::kernels::cpu
