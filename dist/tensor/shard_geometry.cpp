#include "dist/tensor/shard_geometry.h"

#include <algorithm>
#include <numeric>

namespace muster {

ChunkRange chunk_range(int64_t n, int64_t parts, int64_t rank) noexcept {
  const int64_t each = (n + parts - 1) / parts;
  const int64_t begin = std::min(n, each * rank);
  return {begin, std::min(n, begin + each) - begin};
}

ShardBox shard_box(Dims global_sizes, std::span<const int> axis_sizes,
                   std::span<const int> coordinate, std::span<const Placement> placements) {
  MUSTER_ASSERT(placements.size() == axis_sizes.size(), "{} placements for {} mesh axes",
                placements.size(), axis_sizes.size());
  ShardBox box{DimVector(global_sizes.size()), DimVector(global_sizes)};
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    const Placement& placement = placements[axis];
    if (!placement.is_shard()) continue;
    MUSTER_CHECK(placement.kind == Placement::Kind::kShard, ErrorCode::kUnimplemented,
                 "shard_box: a strided shard is no box; got {}", to_string(placements));
    const auto dim = static_cast<size_t>(
        wrap_dim(placement.dim, static_cast<int64_t>(global_sizes.size()), "shard_box"));
    const ChunkRange range = chunk_range(box.sizes[dim], axis_sizes[axis], coordinate[axis]);
    box.offsets[dim] += range.offset;
    box.sizes[dim] = range.size;
  }
  return box;
}

std::vector<int64_t> shard_indices(int64_t n, int32_t dim, std::span<const int> axis_sizes,
                                   std::span<const int> coordinate,
                                   std::span<const Placement> placements) {
  std::vector<int64_t> held(static_cast<size_t>(n));
  std::iota(held.begin(), held.end(), 0);
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_shard_of(dim)) continue;
    // A plain shard is the strided one of a single part.
    const int64_t parts =
        placements[axis].kind == Placement::Kind::kShard ? 1 : placements[axis].split_factor;
    std::vector<int64_t> kept;
    for (int64_t part = 0; part < parts; ++part) {
      const ChunkRange whole = chunk_range(static_cast<int64_t>(held.size()), parts, part);
      const ChunkRange mine = chunk_range(whole.size, axis_sizes[axis], coordinate[axis]);
      const auto first = held.begin() + whole.offset + mine.offset;
      kept.insert(kept.end(), first, first + mine.size);
    }
    held = std::move(kept);
  }
  return held;
}

DimVector shard_sizes(Dims global_sizes, std::span<const int> axis_sizes,
                      std::span<const int> coordinate, std::span<const Placement> placements) {
  const bool is_box = std::none_of(placements.begin(), placements.end(), [](Placement placement) {
    return placement.kind == Placement::Kind::kStridedShard;
  });
  if (is_box) return shard_box(global_sizes, axis_sizes, coordinate, placements).sizes;
  DimVector sizes(global_sizes);
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    sizes[dim] = static_cast<int64_t>(
        shard_indices(sizes[dim], static_cast<int32_t>(dim), axis_sizes, coordinate, placements)
            .size());
  }
  return sizes;
}
}  // namespace muster
