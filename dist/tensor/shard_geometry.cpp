#include "dist/tensor/shard_geometry.h"

#include <algorithm>

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
}  // namespace muster
