// Kernels steered by values: nonzero, masks, one_hot, bincount.
#include <algorithm>
#include <vector>

#include "core/kernels/cpu/copy.h"
#include "core/kernels/cpu/copy_block.h"
#include "core/kernels/cpu/index.h"
#include "core/kernels/cpu/index_common.h"
#include "core/kernels/parallel.h"

namespace muster::kernels::cpu {
namespace {
constexpr int64_t kMaskTile = 1 << 14;

// Calls `body(i)` for the linear indices in [begin, end) at which the operand is not 0.
template <typename Body>
void for_each_true(const BlockReader& reader, ComputeType type, int64_t begin, int64_t end,
                   const Body& body) {
  BlockBuffer buffer;
  const auto visit = [&](auto zero, int64_t at, int64_t count) {
    using T = decltype(zero);
    const T* values = static_cast<const T*>(reader.read(at, count, buffer.bytes));
    for (int64_t i = 0; i < count; ++i) {
      if (values[i] != zero) body(at + i);
    }
  };
  for (int64_t at = begin; at < end; at += kBlockNumel) {
    const int64_t count = std::min(kBlockNumel, end - at);
    switch (type) {
      case ComputeType::kF32:
        visit(0.0f, at, count);
        break;
      case ComputeType::kF64:
        visit(0.0, at, count);
        break;
      case ComputeType::kI64:
        visit(int64_t{0}, at, count);
        break;
      case ComputeType::kI32:
        visit(int32_t{0}, at, count);
        break;
    }
  }
}

// How many elements are true before each tile; the total is the last entry.
std::vector<int64_t> true_before_tiles(const BlockReader& reader, ComputeType type, int64_t numel) {
  std::vector<int64_t> before(static_cast<size_t>(num_tiles(numel, kMaskTile)) + 1, 0);
  parallel_tiles(numel, kMaskTile, [&](int64_t begin, int64_t end) {
    int64_t found = 0;
    for_each_true(reader, type, begin, end, [&](int64_t) { ++found; });
    before[static_cast<size_t>(begin / kMaskTile) + 1] = found;
  });
  for (size_t i = 1; i < before.size(); ++i) before[i] += before[i - 1];
  return before;
}

// Calls `body(i, k)` for the k-th true element, at linear index i of a row-major nest.
template <typename Body>
int64_t for_each_true_numbered(const TensorView& mask, const LoopNest& nest, const Body& body) {
  const ComputeType type = compute_type(mask.dtype);
  const BlockReader reader(mask, nest, 0, type);
  const std::vector<int64_t> before = true_before_tiles(reader, type, nest.numel);
  parallel_tiles(nest.numel, kMaskTile, [&](int64_t begin, int64_t end) {
    int64_t k = before[static_cast<size_t>(begin / kMaskTile)];
    for_each_true(reader, type, begin, end, [&](int64_t i) { body(i, k++); });
  });
  return before.back();
}

void check_masked(const char* operation, const TensorView& view, const TensorView& mask) {
  MUSTER_CHECK(std::ranges::equal(view.sizes, mask.sizes), ErrorCode::kInvalidArgument,
               "{}: the mask must have the sizes of the tensor, {}; got {}", operation,
               to_string(view.sizes), to_string(mask.sizes));
}
}  // namespace

int64_t count_nonzero(const TensorView& in) {
  const LoopNest nest(in.sizes, std::span(&in.strides, 1), LoopNest::Order::kByStride);
  const ComputeType type = compute_type(in.dtype);
  return true_before_tiles(BlockReader(in, nest, 0, type), type, nest.numel).back();
}

void nonzero(const TensorView& out, const TensorView& in) {
  MUSTER_CHECK(out.dtype == DType::kI64 && out.ndim() == 2 &&
                   out.sizes[1] == static_cast<int64_t>(in.ndim()),
               ErrorCode::kInvalidArgument,
               "nonzero: the output must be i64 of [count, {}]; got {} of {}", in.ndim(), out.dtype,
               to_string(out.sizes));
  const LoopNest nest(in.sizes, std::span(&in.strides, 1), LoopNest::Order::kRowMajor);
  int64_t* to = out.as<int64_t>();
  const int64_t found = for_each_true_numbered(in, nest, [&](int64_t i, int64_t k) {
    if (k >= out.sizes[0]) return;
    for (size_t d = in.ndim(); d-- > 0;) {
      to[k * out.strides[0] + static_cast<int64_t>(d) * out.strides[1]] = i % in.sizes[d];
      i /= in.sizes[d];
    }
  });
  MUSTER_CHECK(found == out.sizes[0], ErrorCode::kInvalidArgument,
               "nonzero: the output must have a row for each of {} elements; got {}", found,
               out.sizes[0]);
}

void masked_select(const TensorView& out, const TensorView& in, const TensorView& mask) {
  check_masked("masked_select", in, mask);
  MUSTER_CHECK(out.ndim() == 1 && out.dtype == in.dtype, ErrorCode::kInvalidArgument,
               "masked_select: the output must have one dim and dtype {}; got {} of {}", in.dtype,
               out.dtype, to_string(out.sizes));
  const Dims strides[] = {mask.strides, in.strides};
  const LoopNest nest(in.sizes, strides, LoopNest::Order::kRowMajor);
  int64_t found = 0;
  visit_item_size(item_nbytes(in.dtype), [&](auto item) {
    using T = decltype(item);
    found = for_each_true_numbered(mask, nest, [&](int64_t i, int64_t k) {
      if (k < out.sizes[0]) {
        out.as<T>()[k * out.strides[0]] = in.as<const T>()[nest.offset_of(1, i)];
      }
    });
  });
  MUSTER_CHECK(found == out.sizes[0], ErrorCode::kInvalidArgument,
               "masked_select: the output must have an element for each of {} true ones; got {}",
               found, out.sizes[0]);
}

void masked_scatter(const TensorView& out, const TensorView& mask, const TensorView& source) {
  check_masked("masked_scatter", out, mask);
  MUSTER_CHECK(out.dtype == source.dtype, ErrorCode::kInvalidArgument,
               "masked_scatter: the source must be {}; got {}", out.dtype, source.dtype);
  const int64_t wanted = count_nonzero(mask);
  MUSTER_CHECK(source.numel() >= wanted, ErrorCode::kInvalidArgument,
               "masked_scatter: the source must have an element for each of {} true ones; got {}",
               wanted, source.numel());
  const Dims strides[] = {mask.strides, out.strides};
  const LoopNest nest(out.sizes, strides, LoopNest::Order::kRowMajor);
  const LoopNest from(source.sizes, std::span(&source.strides, 1), LoopNest::Order::kRowMajor);
  visit_item_size(item_nbytes(out.dtype), [&](auto item) {
    using T = decltype(item);
    for_each_true_numbered(mask, nest, [&](int64_t i, int64_t k) {
      out.as<T>()[nest.offset_of(1, i)] = source.as<const T>()[from.offset_of(0, k)];
    });
  });
}

void one_hot(const TensorView& out, const TensorView& in) {
  const size_t n = in.ndim();
  MUSTER_CHECK(out.ndim() == n + 1 && std::ranges::equal(out.sizes.first(n), in.sizes),
               ErrorCode::kInvalidArgument,
               "one_hot: the output must have the input's sizes, {}, and one more dim; got {}",
               to_string(in.sizes), to_string(out.sizes));
  const IndexReader reader("one_hot", in);
  const int64_t classes = out.sizes[n];
  fill(out, 0);
  const Dims strides[] = {in.strides, out.strides.first(n)};
  const LoopNest nest(in.sizes, strides, LoopNest::Order::kRowMajor);
  visit_dtype(out.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_tiles(nest.numel, kIndexGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t value = reader.at(nest.offset_of(0, i));
        if (!is_in_range(value, classes)) throw_bad_index("one_hot", in, 0, classes, -1);
        out.as<T>()[nest.offset_of(1, i) + value * out.strides[n]] = convert<T>(1);
      }
    });
  });
}

void bincount(const TensorView& out, const TensorView& in, const TensorView& weights) {
  MUSTER_CHECK(out.ndim() == 1 && in.ndim() == 1 &&
                   (weights.data == nullptr || std::ranges::equal(weights.sizes, in.sizes)),
               ErrorCode::kInvalidArgument,
               "bincount: one dim each and one weight for each value; got sizes {}, {} and {}",
               to_string(out.sizes), to_string(in.sizes), to_string(weights.sizes));
  const bool weighted = weights.data != nullptr && weights.numel() > 0;
  MUSTER_CHECK(!weighted || weights.dtype == out.dtype, ErrorCode::kInvalidArgument,
               "bincount: the output must have the dtype of the weights, {}; got {}", weights.dtype,
               out.dtype);
  const IndexReader reader("bincount", in);
  fill(out, 0);
  visit_dtype(out.dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t i = 0; i < in.sizes[0]; ++i) {
      const int64_t value = reader.at(i * in.strides[0]);
      if (!is_in_range(value, out.sizes[0])) throw_bad_index("bincount", in, 0, out.sizes[0], 0);
      T& place = out.as<T>()[value * out.strides[0]];
      place = add_elements(
          place, weighted ? weights.as<const T>()[i * weights.strides[0]] : convert<T>(1));
    }
  });
}
}  // namespace muster::kernels::cpu
