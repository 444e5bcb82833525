// gather and scatter: one index for each element.
#include <algorithm>
#include <cmath>

#include "core/kernels/cpu/index.h"
#include "core/kernels/cpu/index_common.h"
#include "core/kernels/cpu/workspace.h"
#include "core/kernels/parallel.h"

namespace muster::kernels::cpu {
namespace {
int64_t stride_at(const TensorView& view, int64_t dim) {
  return view.ndim() == 0 ? 0 : view.strides[static_cast<size_t>(dim)];
}
int64_t size_at(const TensorView& view, int64_t dim) {
  return view.ndim() == 0 ? 1 : view.sizes[static_cast<size_t>(dim)];
}

// A 0-dim tensor stands for one element.
TensorView with_a_dim(const TensorView& view) {
  static constexpr int64_t kOne[] = {1};
  return view.ndim() == 0 ? TensorView(view.data, view.dtype, kOne, kOne) : view;
}

void check_shapes(const char* operation, const TensorView& index, const TensorView& dense,
                  const TensorView& indexed, int64_t dim) {
  bool fits = dense.ndim() == index.ndim() && indexed.ndim() == index.ndim();
  for (size_t d = 0; fits && d < index.ndim(); ++d) {
    fits = index.sizes[d] <= dense.sizes[d] &&
           (static_cast<int64_t>(d) == dim || index.sizes[d] <= indexed.sizes[d]);
  }
  MUSTER_CHECK(fits, ErrorCode::kInvalidArgument,
               "{}: the index, {}, must fit into sizes {} and, but for dim {}, into {}", operation,
               to_string(index.sizes), to_string(dense.sizes), dim, to_string(indexed.sizes));
  MUSTER_CHECK(dense.dtype == indexed.dtype, ErrorCode::kInvalidArgument,
               "{}: both tensors must have one dtype; got {} and {}", operation, dense.dtype,
               indexed.dtype);
}

// Lines along the dim: the places that meet in one output element lie in one line.
struct Lines {
  LoopNest starts;  ///< operands: index, src, out
  int64_t length;
  int64_t steps[3];
};

Lines lines_along(const TensorView& index, const TensorView& src, const TensorView& out,
                  int64_t dim) {
  const auto d = static_cast<size_t>(dim);
  DimVector sizes(index.sizes);
  DimVector strides[] = {DimVector(index.strides), DimVector(src.strides), DimVector(out.strides)};
  sizes.erase(d);
  for (DimVector& s : strides) s.erase(d);
  const Dims starts[] = {strides[0].span(), strides[1].span(), strides[2].span()};
  return {LoopNest(sizes.span(), starts, LoopNest::Order::kByStride),
          size_at(index, dim),
          {stride_at(index, dim), stride_at(src, dim), stride_at(out, dim)}};
}

// out[target] = write(out[target], src[place]) in order of the places of each line.
template <typename T, typename Write>
void scatter_in_order(const Lines& lines, const TensorView& index, const IndexReader& reader,
                      T* out, const T* src, int64_t size, int64_t dim, const Write& write) {
  const auto element = [&](int64_t index_at, int64_t src_at, int64_t out_at) {
    const int64_t target = reader.at(index_at);
    if (!is_in_range(target, size)) throw_bad_index("scatter", index, 0, size, dim);
    write(out[out_at + target * lines.steps[2]], src[src_at]);
  };
  const int64_t* steps = lines.steps;
  const int64_t grain = grain_of_ordered_writes(lines.starts.numel, lines.length);
  const bool dim_is_inner = lines.starts.inner_size() < 16;
  parallel_tiles(lines.starts.numel, grain, [&](int64_t begin, int64_t end) {
    const LoopNest& nest = lines.starts;
    if (dim_is_inner) {
      for (int64_t line = begin; line < end; ++line) {
        const int64_t at[] = {nest.offset_of(0, line), nest.offset_of(1, line),
                              nest.offset_of(2, line)};
        for (int64_t i = 0; i < lines.length; ++i) {
          element(at[0] + i * steps[0], at[1] + i * steps[1], at[2]);
        }
      }
      return;
    }
    for (int64_t i = 0; i < lines.length; ++i) {
      for_each_row(nest, begin, end, [&](const int64_t* at, int64_t run) {
        for (int64_t j = 0; j < run; ++j) {
          element(at[0] + i * steps[0] + j * nest.inner_stride(0),
                  at[1] + i * steps[1] + j * nest.inner_stride(1),
                  at[2] + j * nest.inner_stride(2));
        }
      });
    }
  });
}

template <typename T>
T combine(ScatterKind kind, T a, T b) {
  using C = std::conditional_t<kIsStorageFloat<T>, float, T>;
  const C x = convert<C>(a);
  const C y = convert<C>(b);
  switch (kind) {
    case ScatterKind::kProd:
      if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(static_cast<uint64_t>(x) * static_cast<uint64_t>(y));
      } else {
        return convert<T>(x * y);
      }
    case ScatterKind::kAmax:
      return convert<T>(y > x || y != y ? y : x);
    case ScatterKind::kAmin:
      return convert<T>(y < x || y != y ? y : x);
    case ScatterKind::kAssign:
      return b;
    case ScatterKind::kSum:
    case ScatterKind::kMean:
      break;
  }
  return add_elements(a, b);
}

template <typename T>
T divide_by_count(T sum, int64_t count) {
  if constexpr (std::is_same_v<T, bool>) {
    return sum;
  } else if constexpr (std::is_integral_v<T>) {
    const auto value = static_cast<int64_t>(sum);
    return static_cast<T>(value / count - (value % count != 0 && value < 0 ? 1 : 0));
  } else {
    using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
    return convert<T>(convert<C>(sum) / static_cast<C>(count));
  }
}

// Line by line with a count of the writes to each place: what prod, extremes and means need.
template <typename T>
void scatter_counted(ScatterKind kind, const Lines& lines, const TensorView& index,
                     const IndexReader& reader, T* out, const T* src, int64_t size, int64_t dim,
                     bool include_self) {
  const int64_t line_numel = std::max<int64_t>(1, std::max(lines.length, size));
  parallel_tiles(lines.starts.numel, std::max<int64_t>(1, kIndexGrain / line_numel),
                 [&](int64_t begin, int64_t end) {
                   const Workspace<int64_t> writes(size);
                   for (int64_t line = begin; line < end; ++line) {
                     std::fill_n(writes.data(), size, int64_t{0});
                     T* to = out + lines.starts.offset_of(2, line);
                     const T* from = src + lines.starts.offset_of(1, line);
                     const int64_t index_base = lines.starts.offset_of(0, line);
                     for (int64_t i = 0; i < lines.length; ++i) {
                       const int64_t target = reader.at(index_base + i * lines.steps[0]);
                       if (!is_in_range(target, size))
                         throw_bad_index("scatter", index, 0, size, dim);
                       T& place = to[target * lines.steps[2]];
                       const T value = from[i * lines.steps[1]];
                       place = writes[target]++ == 0 && !include_self ? value
                                                                      : combine(kind, place, value);
                     }
                     if (kind != ScatterKind::kMean) continue;
                     for (int64_t i = 0; i < size; ++i) {
                       T& place = to[i * lines.steps[2]];
                       if (writes[i] > 0)
                         place = divide_by_count(place, writes[i] + (include_self ? 1 : 0));
                     }
                   }
                 });
}
}  // namespace

void gather(const TensorView& out_view, const TensorView& in_view, int64_t dim,
            const TensorView& index_view) {
  const TensorView out = with_a_dim(out_view);
  const TensorView in = with_a_dim(in_view);
  const TensorView index = with_a_dim(index_view);
  dim = wrap_dim(dim, static_cast<int64_t>(in.ndim()), "gather");
  check_shapes("gather", index, out, in, dim);
  MUSTER_CHECK(std::ranges::equal(out.sizes, index.sizes), ErrorCode::kInvalidArgument,
               "gather: the output must have the sizes of the index, {}; got {}",
               to_string(index.sizes), to_string(out.sizes));
  const IndexReader reader("gather", index);
  DimVector bases(in.strides);
  bases[static_cast<size_t>(dim)] = 0;
  const Dims strides[] = {out.strides, index.strides, bases.span()};
  const LoopNest nest(index.sizes, strides, LoopNest::Order::kByStride);
  const int64_t size = size_at(in, dim);
  const int64_t step = stride_at(in, dim);
  visit_item_size(item_nbytes(in.dtype), [&](auto item) {
    using T = decltype(item);
    parallel_tiles(nest.numel, kIndexGrain, [&](int64_t begin, int64_t end) {
      for_each_row(nest, begin, end, [&](const int64_t* at, int64_t run) {
        for (int64_t j = 0; j < run; ++j) {
          const int64_t source = reader.at(at[1] + j * nest.inner_stride(1));
          if (!is_in_range(source, size)) throw_bad_index("gather", index, 0, size, dim);
          out.as<T>()[at[0] + j * nest.inner_stride(0)] =
              in.as<const T>()[at[2] + j * nest.inner_stride(2) + source * step];
        }
      });
    });
  });
}

void scatter(ScatterKind kind, const TensorView& out_view, int64_t dim,
             const TensorView& index_view, const TensorView& src_view, bool include_self) {
  const TensorView out = with_a_dim(out_view);
  const TensorView src = with_a_dim(src_view);
  const TensorView index = with_a_dim(index_view);
  dim = wrap_dim(dim, static_cast<int64_t>(out.ndim()), "scatter");
  check_shapes("scatter", index, src, out, dim);
  if (index.numel() == 0) return;
  const IndexReader reader("scatter", index);
  const Lines lines = lines_along(index, src, out, dim);
  const int64_t size = size_at(out, dim);
  if (kind == ScatterKind::kAssign) {
    visit_item_size(item_nbytes(out.dtype), [&](auto item) {
      using T = decltype(item);
      scatter_in_order(lines, index, reader, out.as<T>(), src.as<const T>(), size, dim,
                       [](T& to, T from) { to = from; });
    });
    return;
  }
  visit_dtype(out.dtype, [&](auto type) {
    using T = decltype(type);
    if (kind == ScatterKind::kSum && include_self) {
      scatter_in_order(lines, index, reader, out.as<T>(), src.as<const T>(), size, dim,
                       [](T& to, T from) { to = add_elements(to, from); });
    } else {
      scatter_counted(kind, lines, index, reader, out.as<T>(), src.as<const T>(), size, dim,
                      include_self);
    }
  });
}
}  // namespace muster::kernels::cpu
