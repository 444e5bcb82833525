#include "dist/tensor/shard_geometry.h"

#include <gtest/gtest.h>

namespace muster {
namespace {
std::vector<int64_t> sizes_of_chunks(int64_t n, int parts) {
  std::vector<int64_t> sizes;
  for (int rank = 0; rank < parts; ++rank) sizes.push_back(chunk_range(n, parts, rank).size);
  return sizes;
}
using Sizes = std::vector<int64_t>;

TEST(ChunkRange, CutsAsTorchChunkDoes) {
  EXPECT_EQ(sizes_of_chunks(5, 4), (Sizes{2, 2, 1, 0}));
  EXPECT_EQ(sizes_of_chunks(9, 4), (Sizes{3, 3, 3, 0}));
  EXPECT_EQ(sizes_of_chunks(10, 8), (Sizes{2, 2, 2, 2, 2, 0, 0, 0}));
  EXPECT_EQ(sizes_of_chunks(16, 6), (Sizes{3, 3, 3, 3, 3, 1}));
  EXPECT_EQ(sizes_of_chunks(1, 2), (Sizes{1, 0}));
  EXPECT_EQ(sizes_of_chunks(0, 2), (Sizes{0, 0}));
}

TEST(ChunkRange, EmptyPiecesStartAtTheEnd) {
  EXPECT_EQ(chunk_range(5, 4, 3).offset, 5);
  EXPECT_EQ(chunk_range(10, 8, 7).offset, 10);
}

// pt#161368: nested cuts of 2 elements on a 4 x 2 mesh.
TEST(ShardBox, NestedCutsFollowTheLocalSize) {
  const int mesh[] = {4, 2};
  const Placement both[] = {Placement::shard(0), Placement::shard(0)};
  const int64_t sizes[] = {1, 0, 1, 0, 0, 0, 0, 0};
  const int64_t offsets[] = {0, 1, 1, 2, 2, 2, 2, 2};
  for (int rank = 0; rank < 8; ++rank) {
    const int coordinate[] = {rank / 2, rank % 2};
    const ShardBox box = shard_box({2}, mesh, coordinate, both);
    EXPECT_EQ(box.sizes[0], sizes[rank]) << rank;
    EXPECT_EQ(box.offsets[0], offsets[rank]) << rank;
  }
}

TEST(ShardBox, ReplicatedAndPartialAxesCutNothing) {
  const int mesh[] = {2, 2};
  const int coordinate[] = {1, 1};
  const Placement placements[] = {Placement::partial(), Placement::shard(1)};
  const ShardBox box = shard_box({4, 5}, mesh, coordinate, placements);
  EXPECT_EQ(box.sizes, (DimVector{4, 2}));
  EXPECT_EQ(box.offsets, (DimVector{0, 3}));
}
}  // namespace
}  // namespace muster
