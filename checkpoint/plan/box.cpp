#include "checkpoint/plan/box.h"

#include <fmt/ranges.h>

#include "core/base/error.h"

namespace muster::checkpoint {

int64_t numel(const Dims& sizes) {
  int64_t product = 1;
  bool overflow = false;
  bool has_zero = false;
  for (const int64_t n : sizes) {
    MUSTER_CHECK(n >= 0, ErrorCode::kInvalidArgument, "numel: sizes must not be negative; got {}",
                 to_string(sizes));
    if (n == 0) has_zero = true;
    if (__builtin_mul_overflow(product, n, &product)) overflow = true;
    if (n == 0) product = 1;
  }
  MUSTER_CHECK(!overflow, ErrorCode::kInvalidArgument,
               "numel: the number of elements must fit 63 bits; got sizes {}", to_string(sizes));
  return has_zero ? 0 : product;
}

Box full_box(const Dims& global_sizes) { return {Dims(global_sizes.size(), 0), global_sizes}; }

bool is_inside(const Box& box, const Dims& global_sizes) {
  if (box.offsets.size() != global_sizes.size() || box.sizes.size() != global_sizes.size())
    return false;
  for (size_t d = 0; d < global_sizes.size(); ++d) {
    if (box.offsets[d] < 0 || box.sizes[d] < 0) return false;
    if (box.offsets[d] > global_sizes[d] || box.sizes[d] > global_sizes[d] - box.offsets[d])
      return false;
  }
  return true;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  MUSTER_CHECK(a.sizes.size() == b.sizes.size(), ErrorCode::kInvalidArgument,
               "intersect: boxes must have the same number of dims; got {} and {}", to_string(a),
               to_string(b));
  Box common{Dims(a.sizes.size()), Dims(a.sizes.size())};
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    const int64_t begin = std::max(a.offsets[d], b.offsets[d]);
    const int64_t end = std::min(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d]);
    if (end <= begin) return std::nullopt;
    common.offsets[d] = begin;
    common.sizes[d] = end - begin;
  }
  return common;
}

Box chunk_box(const Dims& global_sizes, int dim, int index, int count) {
  MUSTER_CHECK(dim >= 0 && dim < static_cast<int>(global_sizes.size()), ErrorCode::kInvalidArgument,
               "chunk_box: dim must be in [0, {}); got {}", global_sizes.size(), dim);
  MUSTER_CHECK(count > 0 && index >= 0 && index < count, ErrorCode::kInvalidArgument,
               "chunk_box: index must be in [0, count); got {} of {}", index, count);
  Box box = full_box(global_sizes);
  const size_t d = static_cast<size_t>(dim);
  const int64_t n = global_sizes[d];
  const int64_t step = (n + count - 1) / count;
  box.offsets[d] = std::min(n, step * index);
  box.sizes[d] = std::min(n, step * (index + 1)) - box.offsets[d];
  return box;
}

std::string to_string(const Box& box) {
  std::string text = "[";
  for (size_t d = 0; d < box.sizes.size(); ++d) {
    const int64_t begin = d < box.offsets.size() ? box.offsets[d] : -1;
    text += fmt::format("{}{}:{}", d == 0 ? "" : ", ", begin, begin + box.sizes[d]);
  }
  return text + "]";
}

std::string to_string(const Dims& dims) { return fmt::format("[{}]", fmt::join(dims, ", ")); }

RunWalk run_walk(const Box& region, const Box& a, const Box& b) {
  RunWalk walk;
  const size_t ndim = region.sizes.size();
  MUSTER_ASSERT(a.sizes.size() == ndim && b.sizes.size() == ndim, "{} in {} and {}",
                to_string(region), to_string(a), to_string(b));
  int64_t stride_a = 1;
  int64_t stride_b = 1;
  walk.run_numel = 1;
  walk.num_runs = 1;
  // Inner dims merge into one run as long as all dims inside them are whole in both boxes.
  bool merging = true;
  for (size_t d = ndim; d-- > 0;) {
    walk.begin_a += (region.offsets[d] - a.offsets[d]) * stride_a;
    walk.begin_b += (region.offsets[d] - b.offsets[d]) * stride_b;
    if (merging) {
      walk.run_numel *= region.sizes[d];
      merging = region.sizes[d] == a.sizes[d] && region.sizes[d] == b.sizes[d];
    } else if (region.sizes[d] != 1) {
      walk.counts.insert(walk.counts.begin(), region.sizes[d]);
      walk.stride_a.insert(walk.stride_a.begin(), stride_a);
      walk.stride_b.insert(walk.stride_b.begin(), stride_b);
      walk.num_runs *= region.sizes[d];
    }
    stride_a *= a.sizes[d];
    stride_b *= b.sizes[d];
  }
  if (walk.run_numel == 0) walk.num_runs = 0;
  return walk;
}
}  // namespace muster::checkpoint
