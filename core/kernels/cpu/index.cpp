// Advanced indexing (index, index_put), take, and the bounds error of all index kernels.
#include "core/kernels/cpu/index.h"

#include <algorithm>

#include "core/kernels/cpu/index_common.h"
#include "core/kernels/cpu/workspace.h"
#include "core/kernels/parallel.h"

namespace muster::kernels::cpu {
namespace {
// The row-major coordinates of element `linear` of a shape.
DimVector coordinates(Dims sizes, int64_t linear) {
  DimVector out(sizes.size());
  for (size_t d = sizes.size(); d-- > 0;) {
    out[d] = linear % sizes[d];
    linear /= sizes[d];
  }
  return out;
}

// For each place b of the index tensors, the offset in a tensor whose first dims they index.
class IndexedOffsets {
 public:
  IndexedOffsets(const char* operation, std::span<const TensorView> indices, const TensorView& in)
      : offsets_(indices.empty() ? 1 : indices[0].numel()) {
    MUSTER_CHECK(indices.size() <= in.ndim(), ErrorCode::kInvalidArgument,
                 "{}: at most as many index tensors as dims; got {} for sizes {}", operation,
                 indices.size(), to_string(in.sizes));
    numel_ = indices.empty() ? 1 : indices[0].numel();
    std::fill_n(offsets_.data(), numel_, int64_t{0});
    for (size_t k = 0; k < indices.size(); ++k) {
      MUSTER_CHECK(std::ranges::equal(indices[k].sizes, indices[0].sizes),
                   ErrorCode::kInvalidArgument,
                   "{}: index tensors must have equal sizes; got {} "
                   "and {}",
                   operation, to_string(indices[k].sizes), to_string(indices[0].sizes));
      add_dim(operation, indices[k], in.sizes[k], in.strides[k], static_cast<int64_t>(k));
    }
  }
  [[nodiscard]] int64_t numel() const noexcept { return numel_; }
  int64_t operator[](int64_t b) const noexcept { return offsets_[b]; }

 private:
  void add_dim(const char* operation, const TensorView& index, int64_t size, int64_t stride,
               int64_t dim) {
    const IndexReader reader(operation, index);
    const LoopNest nest(index.sizes, std::span(&index.strides, 1), LoopNest::Order::kRowMajor);
    parallel_tiles(numel_, kIndexGrain, [&](int64_t begin, int64_t end) {
      int64_t b = begin;
      for_each_row(nest, 0, begin, end, [&](int64_t offset, int64_t count) {
        for (int64_t i = 0; i < count; ++i, ++b) {
          int64_t value = reader.at(offset + i * nest.inner_stride(0));
          if (value < 0) value += size;
          if (!is_in_range(value, size)) throw_bad_index(operation, index, -size, size, dim);
          offsets_[b] += value * stride;
        }
      });
    });
  }

  Workspace<int64_t> offsets_;
  int64_t numel_ = 0;
};

// How out[b.., r..] pairs with in[.., r..]: b by offset, r by a nest over both.
struct Pairing {
  LoopNest places;  ///< b; operand: the dense side
  LoopNest rest;    ///< r; operands: dense side, indexed side
};

Pairing pair_up(const char* operation, std::span<const TensorView> indices, const TensorView& dense,
                const TensorView& indexed) {
  const size_t k = indices.size();
  const Dims index_sizes = k == 0 ? Dims() : indices[0].sizes;
  const size_t nb = index_sizes.size();
  const Dims rest_sizes = indexed.sizes.subspan(k);
  const bool fits = dense.ndim() == nb + rest_sizes.size() &&
                    std::ranges::equal(dense.sizes.first(nb), index_sizes) &&
                    std::ranges::equal(dense.sizes.subspan(nb), rest_sizes);
  MUSTER_CHECK(fits, ErrorCode::kInvalidArgument,
               "{}: sizes must be those of the index, {}, then those of the dims left, {}; got {}",
               operation, to_string(index_sizes), to_string(rest_sizes), to_string(dense.sizes));
  const Dims place_strides = dense.strides.first(nb);
  const Dims rest_strides[] = {dense.strides.subspan(nb), indexed.strides.subspan(k)};
  return {LoopNest(index_sizes, std::span(&place_strides, 1), LoopNest::Order::kRowMajor),
          LoopNest(rest_sizes, rest_strides, LoopNest::Order::kByStride)};
}

void check_same_dtype(const char* operation, const TensorView& a, const TensorView& b) {
  MUSTER_CHECK(a.dtype == b.dtype, ErrorCode::kInvalidArgument,
               "{}: both tensors must have one dtype; got {} and {}", operation, a.dtype, b.dtype);
}

// Writes place after place, so that the last one wins and sums have one order; threads share the
// elements of a place, never the places.
template <typename T, typename Write>
void put_in_order(const Pairing& pairing, const IndexedOffsets& offsets, T* out, const T* values,
                  const Write& write) {
  const int64_t grain = grain_of_ordered_writes(pairing.rest.numel, offsets.numel());
  parallel_tiles(pairing.rest.numel, grain, [&](int64_t begin, int64_t end) {
    int64_t b = 0;
    for_each_row(pairing.places, 0, 0, offsets.numel(), [&](int64_t place, int64_t count) {
      for (int64_t i = 0; i < count; ++i, ++b) {
        const T* from = values + place + i * pairing.places.inner_stride(0);
        T* to = out + offsets[b];
        for_each_row(pairing.rest, begin, end, [&](const int64_t* at, int64_t run) {
          for (int64_t j = 0; j < run; ++j) {
            write(to[at[1] + j * pairing.rest.inner_stride(1)],
                  from[at[0] + j * pairing.rest.inner_stride(0)]);
          }
        });
      }
    });
  });
}
}  // namespace

void throw_bad_index(const char* operation, const TensorView& index, int64_t low, int64_t size,
                     int64_t dim) {
  const IndexReader reader(operation, index);
  const LoopNest nest(index.sizes, std::span(&index.strides, 1), LoopNest::Order::kRowMajor);
  for (int64_t i = 0; i < nest.numel; ++i) {
    const int64_t value = reader.at(nest.offset_of(0, i));
    if (value >= low && value < size) continue;
    throw_error(ErrorCode::kOutOfRange, "{}: index must be in [{}, {}) for dim {}; got {} at {}",
                operation, low, size, dim, value, to_string(coordinates(index.sizes, i)));
  }
  throw_error(ErrorCode::kInternal, "{}: an index changed while it was read", operation);
}

void index(const TensorView& out, const TensorView& in, std::span<const TensorView> indices) {
  check_same_dtype("index", out, in);
  const Pairing pairing = pair_up("index", indices, out, in);
  const IndexedOffsets offsets("index", indices, in);
  visit_item_size(item_nbytes(in.dtype), [&](auto item) {
    using T = decltype(item);
    const int64_t grain =
        std::max<int64_t>(1, kIndexGrain / std::max<int64_t>(1, pairing.rest.numel));
    parallel_tiles(offsets.numel(), grain, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        T* to = out.as<T>() + pairing.places.offset_of(0, b);
        const T* from = in.as<const T>() + offsets[b];
        for_each_row(pairing.rest, 0, pairing.rest.numel, [&](const int64_t* at, int64_t run) {
          for (int64_t j = 0; j < run; ++j) {
            to[at[0] + j * pairing.rest.inner_stride(0)] =
                from[at[1] + j * pairing.rest.inner_stride(1)];
          }
        });
      }
    });
  });
}

void index_put(const TensorView& out, std::span<const TensorView> indices, const TensorView& values,
               bool accumulate) {
  check_same_dtype("index_put", out, values);
  const Pairing pairing = pair_up("index_put", indices, values, out);
  const IndexedOffsets offsets("index_put", indices, out);
  if (!accumulate) {
    visit_item_size(item_nbytes(out.dtype), [&](auto item) {
      using T = decltype(item);
      put_in_order(pairing, offsets, out.as<T>(), values.as<const T>(),
                   [](T& to, T from) { to = from; });
    });
    return;
  }
  visit_dtype(out.dtype, [&](auto type) {
    using T = decltype(type);
    put_in_order(pairing, offsets, out.as<T>(), values.as<const T>(),
                 [](T& to, T from) { to = add_elements(to, from); });
  });
}

void take(const TensorView& out, const TensorView& in, const TensorView& index) {
  check_same_dtype("take", out, in);
  MUSTER_CHECK(std::ranges::equal(out.sizes, index.sizes), ErrorCode::kInvalidArgument,
               "take: the output must have the sizes of the index, {}; got {}",
               to_string(index.sizes), to_string(out.sizes));
  const IndexReader reader("take", index);
  const LoopNest source(in.sizes, std::span(&in.strides, 1), LoopNest::Order::kRowMajor);
  const Dims strides[] = {out.strides, index.strides};
  const LoopNest nest(out.sizes, strides, LoopNest::Order::kByStride);
  visit_item_size(item_nbytes(in.dtype), [&](auto item) {
    using T = decltype(item);
    parallel_tiles(nest.numel, kIndexGrain, [&](int64_t begin, int64_t end) {
      for_each_row(nest, begin, end, [&](const int64_t* at, int64_t run) {
        for (int64_t j = 0; j < run; ++j) {
          int64_t place = reader.at(at[1] + j * nest.inner_stride(1));
          if (place < 0) place += source.numel;
          if (!is_in_range(place, source.numel)) {
            throw_bad_index("take", index, -source.numel, source.numel, 0);
          }
          out.as<T>()[at[0] + j * nest.inner_stride(0)] =
              in.as<const T>()[source.offset_of(0, place)];
        }
      });
    });
  });
}
}  // namespace muster::kernels::cpu
