#pragma once
/// Which part of a global tensor a rank holds: pure arithmetic of placements.
///
/// A Shard cuts as torch.chunk: pieces of ceil(n / W), the last ones smaller or empty. Several mesh
/// axes on one dim cut outer to inner, each the local size; a strided shard is the piece that
/// results when an inner axis had cut first. Empty pieces start at the end of the dim.

#include <span>
#include <vector>

#include "core/schema/placement.h"
#include "core/tensor/layout.h"

namespace muster {

/// A box of the global tensor.
struct ShardBox {
  DimVector offsets;
  DimVector sizes;
  bool operator==(const ShardBox&) const = default;
};

/// Piece `rank` of `parts` of n elements: {offset, size}.
struct ChunkRange {
  int64_t offset = 0;
  int64_t size = 0;
};
ChunkRange chunk_range(int64_t n, int64_t parts, int64_t rank) noexcept;

/// The box of the rank at `coordinate` of a mesh of `axis_sizes`. Replicated and partial axes cut
/// nothing. @error kUnimplemented for strided shards, whose piece is no box in general
ShardBox shard_box(Dims global_sizes, std::span<const int> axis_sizes,
                   std::span<const int> coordinate, std::span<const Placement> placements);

/// Which indices of `dim` (of n elements) that rank holds, in its local order; strided shards too.
std::vector<int64_t> shard_indices(int64_t n, int32_t dim, std::span<const int> axis_sizes,
                                   std::span<const int> coordinate,
                                   std::span<const Placement> placements);

/// Sizes of the piece; strided shards too.
DimVector shard_sizes(Dims global_sizes, std::span<const int> axis_sizes,
                      std::span<const int> coordinate, std::span<const Placement> placements);

}  // namespace muster
