#include "checkpoint/plan/shard_map.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

namespace muster::checkpoint {

ShardMap ShardMap::chunk(const Dims& global_sizes, int world_size, int dim) {
  ShardMap map{global_sizes, {}};
  for (int global_rank = 0; global_rank < world_size; ++global_rank)
    map.shards.push_back({global_rank, chunk_box(global_sizes, dim, global_rank, world_size)});
  return map;
}

ShardMap ShardMap::replicate(const Dims& global_sizes, int world_size) {
  ShardMap map{global_sizes, {}};
  for (int global_rank = 0; global_rank < world_size; ++global_rank)
    map.shards.push_back({global_rank, full_box(global_sizes)});
  return map;
}

std::vector<Box> ShardMap::boxes_of(int global_rank) const {
  std::vector<Box> boxes;
  for (const Shard& shard : shards)
    if (shard.global_rank == global_rank) boxes.push_back(shard.box);
  return boxes;
}

std::vector<int> ShardMap::holders_of(const Box& box) const {
  std::vector<int> holders;
  for (const Shard& shard : shards)
    if (shard.box == box) holders.push_back(shard.global_rank);
  std::sort(holders.begin(), holders.end());
  return holders;
}

std::optional<std::pair<size_t, size_t>> find_overlap(std::span<const Box> boxes) {
  std::vector<size_t> order;
  for (size_t i = 0; i < boxes.size(); ++i)
    if (numel(boxes[i].sizes) > 0) order.push_back(i);
  if (order.size() < 2) return std::nullopt;
  if (boxes[order[0]].sizes.empty()) return std::pair(order[0], order[1]);
  // A sweep along dim 0: only boxes whose ranges there meet are compared in full.
  std::sort(order.begin(), order.end(), [&](size_t x, size_t y) {
    return std::pair(boxes[x].offsets[0], x) < std::pair(boxes[y].offsets[0], y);
  });
  std::vector<size_t> open;
  for (const size_t i : order) {
    std::erase_if(open, [&](size_t j) {
      return boxes[j].offsets[0] + boxes[j].sizes[0] <= boxes[i].offsets[0];
    });
    for (const size_t j : open)
      if (intersect(boxes[i], boxes[j])) return std::pair(std::min(i, j), std::max(i, j));
    open.push_back(i);
  }
  return std::nullopt;
}

std::optional<std::string> tiling_fault(const Dims& global_sizes, std::span<const Box> boxes) {
  int64_t covered = 0;
  for (const Box& box : boxes) {
    if (!is_inside(box, global_sizes)) {
      return fmt::format("box {} lies outside of sizes {}", to_string(box),
                         to_string(global_sizes));
    }
    covered += numel(box.sizes);
  }
  if (const auto pair = find_overlap(boxes)) {
    return fmt::format("boxes {} and {} overlap", to_string(boxes[pair->first]),
                       to_string(boxes[pair->second]));
  }
  const int64_t total = numel(global_sizes);
  if (covered != total) {
    return fmt::format("{} of {} elements of sizes {} are in no box", total - covered, total,
                       to_string(global_sizes));
  }
  return std::nullopt;
}

std::optional<std::string> coverage_fault(const Box& wanted, std::span<const Box> saved) {
  int64_t covered = 0;
  for (const Box& box : saved)
    if (const auto common = intersect(wanted, box)) covered += numel(common->sizes);
  const int64_t total = numel(wanted.sizes);
  if (covered == total) return std::nullopt;
  return fmt::format("{} of {} elements of box {} are stored", covered, total, to_string(wanted));
}
}  // namespace muster::checkpoint
