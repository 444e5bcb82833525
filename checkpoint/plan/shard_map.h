#pragma once
/// Which rank holds which boxes of one tensor, and the proof that boxes tile it.
///
/// A map is derived by each rank alone from shapes and placements; nothing is exchanged. Several
/// ranks may hold the same box (replicas); boxes that are not equal must not overlap. Pure.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/plan/box.h"

namespace muster::checkpoint {

/// One box and who holds it.
struct Shard {
  int global_rank = 0;
  Box box;
  bool operator==(const Shard&) const = default;
};

struct ShardMap {
  Dims global_sizes;
  std::vector<Shard> shards;

  /// One torch.chunk piece along `dim` per rank, in rank order; late ones may be short or empty.
  static ShardMap chunk(const Dims& global_sizes, int world_size, int dim = 0);
  /// The whole tensor on every rank.
  static ShardMap replicate(const Dims& global_sizes, int world_size);

  /// The boxes of one rank.
  [[nodiscard]] std::vector<Box> boxes_of(int global_rank) const;
  /// All ranks that hold exactly `box`, ascending: what TensorPiece::holders wants.
  [[nodiscard]] std::vector<int> holders_of(const Box& box) const;
};

/// Why `boxes` do not tile the tensor exactly once (a box outside, an overlap, a hole), or nullopt
/// when they do. Empty boxes are ignored; equal boxes count as an overlap.
std::optional<std::string> tiling_fault(const Dims& global_sizes, std::span<const Box> boxes);

/// Why `wanted` is not covered by the disjoint boxes `saved`, or nullopt when it is.
std::optional<std::string> coverage_fault(const Box& wanted, std::span<const Box> saved);

/// A pair of overlapping boxes, as indices, or nullopt when all are disjoint.
std::optional<std::pair<size_t, size_t>> find_overlap(std::span<const Box> boxes);

}  // namespace muster::checkpoint
