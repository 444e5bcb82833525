#include "core/kernels/cpu/copy.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/kernels/cpu/copy_block.h"
#include "core/kernels/cpu/copy_convert.h"
#include "core/kernels/cpu/copy_rows.h"
#include "core/kernels/parallel.h"

namespace muster::kernels::cpu {
namespace {
constexpr int64_t kGrain = 32768;

// An element without meaning: moves bytes of its size.
template <typename Body>
void visit_item(int64_t nbytes, Body&& body) {
  switch (nbytes) {
    case 1:
      return body(uint8_t{});
    case 2:
      return body(uint16_t{});
    case 4:
      return body(uint32_t{});
    default:
      return body(uint64_t{});
  }
}

template <typename T>
void copy_row(T* to, int64_t to_stride, const T* from, int64_t from_stride, int64_t count) {
  if (to_stride == 1 && from_stride == 1) {
    if (count >= 16) {
      std::memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = from[i];
    }
  } else if (to_stride == 1 && from_stride == 0) {
    std::fill_n(to, count, *from);
  } else {
    for (int64_t i = 0; i < count; ++i) to[i * to_stride] = from[i * from_stride];
  }
}

// The dim, other than the innermost, along which the input is contiguous: a transpose; or -1.
int transposed_dim(const LoopNest& nest) {
  if (nest.ndim < 2 || nest.strides[0][0] != 1) return -1;
  if (nest.strides[1][0] == 1 || nest.strides[1][0] == 0) return -1;
  for (int d = 1; d < nest.ndim; ++d) {
    if (nest.strides[1][d] == 1 && nest.sizes[d] >= 4) return d;
  }
  return -1;
}

// Squares of 32 x 32 stay in the first-level cache in both directions.
template <typename T>
void copy_transposed(T* out, const T* in, const LoopNest& nest, int across) {
  constexpr int64_t kSide = 32;
  const int64_t rows = nest.sizes[across];
  const int64_t columns = nest.sizes[0];
  const int64_t out_pitch = nest.strides[0][across];
  const int64_t in_pitch = nest.strides[1][0];
  LoopNest outer = nest;  // the other dims
  outer.ndim = 0;
  outer.numel = 1;
  for (int d = 1; d < nest.ndim; ++d) {
    if (d == across) continue;
    for (int k = 0; k < 2; ++k) outer.strides[k][outer.ndim] = nest.strides[k][d];
    outer.sizes[outer.ndim++] = nest.sizes[d];
    outer.numel *= nest.sizes[d];
  }
  const int64_t bands = num_tiles(rows, kSide);
  const int64_t bands_per_tile = std::max<int64_t>(1, kGrain / (kSide * columns));
  parallel_tiles(outer.numel * bands, bands_per_tile, [&](int64_t begin, int64_t end) {
    for (int64_t band = begin; band < end; ++band) {
      const int64_t row_begin = band % bands * kSide;
      const int64_t row_end = std::min(rows, row_begin + kSide);
      T* to = out + outer.offset_of(0, band / bands);
      const T* from = in + outer.offset_of(1, band / bands);
      for (int64_t column = 0; column < columns; column += kSide) {
        const int64_t column_end = std::min(columns, column + kSide);
        // Both sides are walked along their rows, through a buffer: pitches that are powers of two
        // would throw each other out of the cache.
        T square[kSide][kSide + 1];
        for (int64_t c = column; c < column_end; ++c) {
          const T* line = from + c * in_pitch + row_begin;
          for (int64_t r = 0; r < row_end - row_begin; ++r) square[r][c - column] = line[r];
        }
        for (int64_t r = row_begin; r < row_end; ++r) {
          copy_row(to + r * out_pitch + column, 1, square[r - row_begin], 1, column_end - column);
        }
      }
    }
  });
}

template <typename T>
void copy_items(T* out, const T* in, const LoopNest& nest) {
  if (const int across = transposed_dim(nest); across > 0) {
    copy_transposed(out, in, nest, across);
    return;
  }
  parallel_tiles(nest.numel, kGrain, [&](int64_t begin, int64_t end) {
    const int64_t to_stride = nest.inner_stride(0);
    const int64_t from_stride = nest.inner_stride(1);
    for_each_row(nest, begin, end, [&](const int64_t* offsets, int64_t count) {
      copy_row(out + offsets[0], to_stride, in + offsets[1], from_stride, count);
    });
  });
}

void check_same_sizes(const char* operation, const TensorView& out, const TensorView& in) {
  MUSTER_CHECK(std::ranges::equal(out.sizes, in.sizes), ErrorCode::kInvalidArgument,
               "{}: both views must have the same sizes; got {} and {}", operation,
               to_string(out.sizes), to_string(in.sizes));
}

// Copies row by row of the last dim with a range of columns kept and the rest set to 0.
void copy_triangle(const char* operation, const TensorView& out, const TensorView& in,
                   int64_t diagonal, bool lower) {
  check_same_sizes(operation, out, in);
  MUSTER_CHECK(out.ndim() >= 2, ErrorCode::kInvalidArgument, "{}: at least two dims; got sizes {}",
               operation, to_string(out.sizes));
  MUSTER_CHECK(out.dtype == in.dtype, ErrorCode::kInvalidArgument,
               "{}: both views must have one dtype; got {} and {}", operation, out.dtype, in.dtype);
  const size_t n = out.ndim();
  const int64_t rows = out.sizes[n - 2];
  const int64_t columns = out.sizes[n - 1];
  if (out.numel() == 0) return;
  const Dims strides[] = {out.strides.first(n - 1), in.strides.first(n - 1)};
  const LoopNest nest(out.sizes.first(n - 1), strides, LoopNest::Order::kRowMajor);
  const int64_t grain = std::max<int64_t>(1, kGrain / columns);
  visit_item(item_nbytes(out.dtype), [&](auto item) {
    using T = decltype(item);
    parallel_tiles(nest.numel, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T* to = out.as<T>() + nest.offset_of(0, i);
        const T* from = in.as<const T>() + nest.offset_of(1, i);
        const int64_t split =
            std::clamp<int64_t>(i % rows + diagonal + (lower ? 1 : 0), 0, columns);
        for (int64_t c = 0; c < columns; ++c) {
          const bool keep = lower ? c < split : c >= split;
          to[c * out.strides[n - 1]] = keep ? from[c * in.strides[n - 1]] : T{0};
        }
      }
    });
  });
}
}  // namespace

void copy(const TensorView& out, const TensorView& in) {
  check_same_sizes("copy", out, in);
  const Dims strides[] = {out.strides, in.strides};
  const LoopNest nest(out.sizes, strides, LoopNest::Order::kByStride);
  if (nest.numel == 0 || (out.data == in.data && out.dtype == in.dtype &&
                          std::ranges::equal(out.strides, in.strides))) {
    return;
  }
  if (out.dtype == in.dtype) {
    visit_item(item_nbytes(out.dtype), [&](auto item) {
      using T = decltype(item);
      copy_items(out.as<T>(), in.as<const T>(), nest);
    });
    return;
  }
  const ConvertRow convert_row = row_converter(in.dtype, out.dtype);
  const int64_t out_item = item_nbytes(out.dtype);
  const int64_t in_item = item_nbytes(in.dtype);
  parallel_tiles(nest.numel, kGrain, [&](int64_t begin, int64_t end) {
    for_each_row(nest, begin, end, [&](const int64_t* offsets, int64_t count) {
      convert_row(out.as<std::byte>() + offsets[0] * out_item, nest.inner_stride(0),
                  in.as<const std::byte>() + offsets[1] * in_item, nest.inner_stride(1), count);
    });
  });
}

void tril(const TensorView& out, const TensorView& in, int64_t diagonal) {
  copy_triangle("tril", out, in, diagonal, true);
}

void triu(const TensorView& out, const TensorView& in, int64_t diagonal) {
  copy_triangle("triu", out, in, diagonal, false);
}

bool equal(const TensorView& a, const TensorView& b) {
  check_same_sizes("equal", a, b);
  const Dims strides[] = {a.strides, b.strides};
  const LoopNest nest(a.sizes, strides, LoopNest::Order::kByStride);
  const ComputeType type = compute_type(promote_types(a.dtype, b.dtype));
  const BlockReader read_a(a, nest, 0, type);
  const BlockReader read_b(b, nest, 1, type);
  std::atomic<bool> same{true};
  parallel_tiles(nest.numel, kGrain, [&](int64_t begin, int64_t end) {
    BlockBuffer buffer_a;
    BlockBuffer buffer_b;
    for_each_block(nest, begin, end, [&](int64_t at, int64_t count) {
      if (!same.load(std::memory_order_relaxed)) return;
      const void* x = read_a.read(at, count, buffer_a.bytes);
      const void* y = read_b.read(at, count, buffer_b.bytes);
      visit_dtype(dtype_of_compute(type), [&](auto value) {
        using T = decltype(value);
        if constexpr (!kIsStorageFloat<T>) {
          const T* first = static_cast<const T*>(x);
          if (!std::equal(first, first + count, static_cast<const T*>(y))) {
            same.store(false, std::memory_order_relaxed);
          }
        }
      });
    });
  });
  return same.load();
}
}  // namespace muster::kernels::cpu
