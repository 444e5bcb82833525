#include "core/kernels/cpu/scan.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "core/base/error.h"
#include "core/kernels/cpu/copy_block.h"
#include "core/kernels/cpu/copy_convert.h"
#include "core/kernels/parallel.h"

namespace muster::kernels::cpu {
namespace {
constexpr int64_t kGrain = 1 << 15;

// The lines of a tensor along one dim: where each starts, by operand, and the steps along it.
struct Lines {
  LoopNest starts;
  int64_t length = 1;
  int64_t steps[3] = {};
};

Lines lines_along(const char* operation, std::span<const TensorView* const> views, int64_t dim) {
  const TensorView& first = *views[0];
  Lines lines;
  dim = wrap_dim(dim, static_cast<int64_t>(first.ndim()), operation);
  DimVector sizes(first.sizes);
  DimVector strides[3];
  for (size_t k = 0; k < views.size(); ++k) {
    MUSTER_CHECK(std::ranges::equal(views[k]->sizes, first.sizes), ErrorCode::kInvalidArgument,
                 "{}: all views must have the same sizes; got {} and {}", operation,
                 to_string(views[k]->sizes), to_string(first.sizes));
    strides[k] = DimVector(views[k]->strides);
  }
  if (!first.sizes.empty()) {
    const auto d = static_cast<size_t>(dim);
    lines.length = first.sizes[d];
    sizes.erase(d);
    for (size_t k = 0; k < views.size(); ++k) {
      lines.steps[k] = strides[k][d];
      strides[k].erase(d);
    }
  }
  const Dims starts[] = {strides[0].span(), strides[1].span(), strides[2].span()};
  lines.starts =
      LoopNest(sizes.span(), std::span(starts, views.size()), LoopNest::Order::kByStride);
  return lines;
}

template <typename Body>
void for_each_line(const Lines& lines, const Body& body) {
  if (lines.length == 0) return;
  parallel_tiles(lines.starts.numel, std::max<int64_t>(1, kGrain / lines.length),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) body(i);
                 });
}

// A: double or int64_t.
template <typename A>
A next(ScanKind kind, A total, A x) {
  if constexpr (std::is_same_v<A, int64_t>) {
    const auto a = static_cast<uint64_t>(total);
    const auto b = static_cast<uint64_t>(x);
    return static_cast<A>(kind == ScanKind::kProd ? a * b : a + b);
  } else {
    if (kind == ScanKind::kSum) return total + x;
    if (kind == ScanKind::kProd) return total * x;
    const double top = x != x || x > total ? x : total;
    if (std::isinf(top)) return top;
    return top + std::log1p(std::exp(-std::abs(total - x)));
  }
}

// Block by block through the accumulation type.
template <typename A>
void scan_lines(ScanKind kind, const TensorView& out, const TensorView& in, const Lines& lines) {
  constexpr ComputeType kType = std::is_same_v<A, double> ? ComputeType::kF64 : ComputeType::kI64;
  const LoadBlock load = block_loader(in.dtype, kType);
  const StoreBlock store = block_storer(kType, out.dtype);
  const int64_t in_step = lines.steps[1] * item_nbytes(in.dtype);
  const int64_t out_step = lines.steps[0] * item_nbytes(out.dtype);
  for_each_line(lines, [&](int64_t line) {
    const auto* from =
        in.as<const std::byte>() + lines.starts.offset_of(1, line) * item_nbytes(in.dtype);
    auto* to = out.as<std::byte>() + lines.starts.offset_of(0, line) * item_nbytes(out.dtype);
    A block[kBlockNumel];
    A total{};
    for (int64_t at = 0; at < lines.length; at += kBlockNumel) {
      const int64_t count = std::min(kBlockNumel, lines.length - at);
      load(block, from + at * in_step, lines.steps[1], count);
      for (int64_t i = 0; i < count; ++i) {
        total = at + i == 0 ? block[0] : next(kind, total, block[i]);
        block[i] = total;
      }
      store(to + at * out_step, lines.steps[0], block, count);
    }
  });
}
// Lines that lie side by side, a row of them at a time.
template <typename A>
void scan_columns(ScanKind kind, const TensorView& out, const TensorView& in, const Lines& lines) {
  constexpr ComputeType kType = std::is_same_v<A, double> ? ComputeType::kF64 : ComputeType::kI64;
  const LoadBlock load = block_loader(in.dtype, kType);
  const StoreBlock store = block_storer(kType, out.dtype);
  const int64_t in_item = item_nbytes(in.dtype);
  const int64_t out_item = item_nbytes(out.dtype);
  const int64_t width = lines.starts.sizes[0];
  const int64_t tiles = num_tiles(width, kBlockNumel);
  const int64_t tile_numel = std::min(width, kBlockNumel) * lines.length;
  parallel_tiles(
      lines.starts.numel / width * tiles, std::max<int64_t>(1, kGrain / tile_numel),
      [&](int64_t first, int64_t last) {
        A totals[kBlockNumel];
        A row[kBlockNumel];
        for (int64_t k = first; k < last; ++k) {
          const int64_t column = k % tiles * kBlockNumel;
          const int64_t count = std::min(kBlockNumel, width - column);
          const int64_t line = k / tiles * width + column;
          const auto* from = in.as<const std::byte>() + lines.starts.offset_of(1, line) * in_item;
          auto* to = out.as<std::byte>() + lines.starts.offset_of(0, line) * out_item;
          for (int64_t i = 0; i < lines.length; ++i) {
            load(row, from + i * lines.steps[1] * in_item, lines.starts.strides[1][0], count);
            for (int64_t j = 0; j < count; ++j) {
              totals[j] = i == 0 ? row[j] : next(kind, totals[j], row[j]);
            }
            store(to + i * lines.steps[0] * out_item, lines.starts.strides[0][0], totals, count);
          }
        }
      });
}

template <typename A>
void scan_typed(ScanKind kind, const TensorView& out, const TensorView& in, const Lines& lines) {
  const bool side_by_side = lines.starts.ndim > 0 && lines.starts.sizes[0] >= 8 &&
                            std::abs(lines.starts.strides[1][0]) < std::abs(lines.steps[1]);
  if (lines.length == 0 || lines.starts.numel == 0) return;
  if (side_by_side) {
    scan_columns<A>(kind, out, in, lines);
  } else {
    scan_lines<A>(kind, out, in, lines);
  }
}
}  // namespace

void scan(ScanKind kind, const TensorView& out, const TensorView& in, int64_t dim) {
  const TensorView* views[] = {&out, &in};
  const Lines lines = lines_along("scan", views, dim);
  MUSTER_CHECK(kind != ScanKind::kLogsumexp || is_floating(in.dtype), ErrorCode::kUnimplemented,
               "logcumsumexp: the input must be floating; got {}", in.dtype);
  if (is_floating(in.dtype)) {
    scan_typed<double>(kind, out, in, lines);
  } else {
    scan_typed<int64_t>(kind, out, in, lines);
  }
}

void scan_extreme(bool largest, const TensorView& values, const TensorView& indices,
                  const TensorView& in, int64_t dim) {
  const TensorView* views[] = {&values, &in, &indices};
  const Lines lines = lines_along(largest ? "cummax" : "cummin", views, dim);
  MUSTER_CHECK(values.dtype == in.dtype && indices.dtype == DType::kI64,
               ErrorCode::kInvalidArgument,
               "cummax, cummin: values must be {} and indices i64; got {} and {}", in.dtype,
               values.dtype, indices.dtype);
  visit_dtype(in.dtype, [&](auto type) {
    using T = decltype(type);
    using A = std::conditional_t<is_floating(dtype_of<T>), double, int64_t>;
    for_each_line(lines, [&](int64_t line) {
      const T* from = in.as<const T>() + lines.starts.offset_of(1, line);
      T* to = values.as<T>() + lines.starts.offset_of(0, line);
      int64_t* places = indices.as<int64_t>() + lines.starts.offset_of(2, line);
      A best = convert<A>(from[0]);
      int64_t place = 0;
      for (int64_t i = 0; i < lines.length; ++i) {
        const A x = convert<A>(from[i * lines.steps[1]]);
        if (x != x || (largest ? x >= best : x <= best)) {
          best = x;
          place = i;
        }
        to[i * lines.steps[0]] = convert<T>(best);
        places[i * lines.steps[2]] = place;
      }
    });
  });
}
}  // namespace muster::kernels::cpu
