#pragma once
/// Random shapes and tilings for the property tests of plans, loads and digests.

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "checkpoint/plan/box.h"

namespace muster::checkpoint {

using Rng = std::mt19937_64;

inline int64_t uniform(Rng& rng, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(rng);
}

/// 0 to 4 dims; sizes 0 to 9, 0 rarely.
inline Dims random_sizes(Rng& rng) {
  Dims sizes(static_cast<size_t>(uniform(rng, 0, 4)));
  for (int64_t& n : sizes) n = uniform(rng, 0, 30) == 0 ? 0 : uniform(rng, 1, 9);
  return sizes;
}

inline void split_box(Rng& rng, const Box& box, int64_t num_boxes, std::vector<Box>& out) {
  if (num_boxes <= 1 || box.sizes.empty()) {
    out.push_back(box);
    return;
  }
  const size_t d = static_cast<size_t>(uniform(rng, 0, static_cast<int64_t>(box.sizes.size()) - 1));
  const int64_t cut = uniform(rng, 0, box.sizes[d]);
  const int64_t left = uniform(rng, 1, num_boxes - 1);
  Box low = box;
  Box high = box;
  low.sizes[d] = cut;
  high.offsets[d] += cut;
  high.sizes[d] -= cut;
  split_box(rng, low, left, out);
  split_box(rng, high, num_boxes - left, out);
}

/// A random tiling by guillotine cuts, in random order: uneven boxes, some empty.
inline std::vector<Box> random_tiling(Rng& rng, const Dims& sizes, int64_t max_boxes = 8) {
  std::vector<Box> boxes;
  split_box(rng, full_box(sizes), uniform(rng, 1, max_boxes), boxes);
  std::shuffle(boxes.begin(), boxes.end(), rng);
  return boxes;
}

/// A random box inside of a tensor; may be empty.
inline Box random_box(Rng& rng, const Dims& sizes) {
  Box box = full_box(sizes);
  for (size_t d = 0; d < sizes.size(); ++d) {
    box.offsets[d] = uniform(rng, 0, sizes[d]);
    box.sizes[d] = uniform(rng, 0, sizes[d] - box.offsets[d]);
  }
  return box;
}

}  // namespace muster::checkpoint
