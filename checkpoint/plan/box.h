#pragma once
/// Hyper-rectangles of a tensor: the vocabulary of every checkpoint plan.
///
/// A Box is a half-open range in each dim of a global tensor. Its bytes lie row-major without
/// gaps, wherever it is stored. A 0-dim tensor has one box with no dims and one element. Pure.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace muster::checkpoint {

/// Sizes or offsets, one entry per dim.
using Dims = std::vector<int64_t>;

struct Box {
  Dims offsets;
  Dims sizes;
  bool operator==(const Box&) const = default;
};

/// Number of elements; 1 for no dims.
/// @error throws kInvalidArgument on a negative size or a product above 2^63 - 1
int64_t numel(const Dims& sizes);

/// Offsets 0 and the whole tensor.
Box full_box(const Dims& global_sizes);

/// True when `box` has the right number of dims and lies inside the tensor. An empty box may lie
/// at the end.
bool is_inside(const Box& box, const Dims& global_sizes);

/// The common part; nullopt when it has no element.
std::optional<Box> intersect(const Box& a, const Box& b);

/// The part of `global_sizes` that torch.chunk gives position `index` of `count` along `dim`:
/// chunks of ceil(n / count), the last ones short or empty (an empty one starts at the end).
/// @error throws kInvalidArgument for a dim, index or count out of range
/// @source torch.chunk as FSDP2 and DTensor Shard(dim) use it
Box chunk_box(const Dims& global_sizes, int dim, int index, int count);

/// "[0:4, 2:6]"; "[]" for no dims.
std::string to_string(const Box& box);
/// "[4, 6]"
std::string to_string(const Dims& dims);

/// A walk over the longest pieces of `region` that are contiguous in two row-major boxes that both
/// contain it. Ascending in both. Made by run_walk(); see for_each_run().
struct RunWalk {
  Dims counts;            ///< outer loop lengths
  Dims stride_a;          ///< elements per step of each outer loop in a
  Dims stride_b;          ///< the same in b
  int64_t begin_a = 0;    ///< first element in a
  int64_t begin_b = 0;    ///< first element in b
  int64_t run_numel = 0;  ///< elements of each run
  int64_t num_runs = 0;   ///< product of counts; 0 for an empty region
};
RunWalk run_walk(const Box& region, const Box& a, const Box& b);

/// Calls `body(a_elem, b_elem, numel)` for each run of `region`, in row-major order. Offsets are in
/// elements from the start of a's and of b's bytes.
template <typename Body>
void for_each_run(const Box& region, const Box& a, const Box& b, Body&& body) {
  const RunWalk walk = run_walk(region, a, b);
  Dims index(walk.counts.size(), 0);
  int64_t at_a = walk.begin_a;
  int64_t at_b = walk.begin_b;
  for (int64_t run = 0; run < walk.num_runs; ++run) {
    body(at_a, at_b, walk.run_numel);
    for (size_t d = index.size(); d-- > 0;) {
      at_a += walk.stride_a[d];
      at_b += walk.stride_b[d];
      if (++index[d] < walk.counts[d]) break;
      at_a -= walk.stride_a[d] * walk.counts[d];
      at_b -= walk.stride_b[d] * walk.counts[d];
      index[d] = 0;
    }
  }
}

}  // namespace muster::checkpoint
