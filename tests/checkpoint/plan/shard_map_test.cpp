#include "checkpoint/plan/shard_map.h"

#include "tests/checkpoint/random_layout.h"
#include "tests/support/matchers.h"

namespace muster::checkpoint {
namespace {
using ::testing::HasSubstr;
using ::testing::Optional;

TEST(ShardMap, ChunkGivesEachRankItsRows) {
  const ShardMap map = ShardMap::chunk({5, 3}, 4);
  EXPECT_EQ(map.boxes_of(0), (std::vector<Box>{{{0, 0}, {2, 3}}}));
  EXPECT_EQ(map.boxes_of(2), (std::vector<Box>{{{4, 0}, {1, 3}}}));
  EXPECT_EQ(map.boxes_of(3), (std::vector<Box>{{{5, 0}, {0, 3}}}));
  EXPECT_EQ(map.holders_of({{0, 0}, {2, 3}}), (std::vector<int>{0}));
}

TEST(ShardMap, ReplicateNamesAllHolders) {
  const ShardMap map = ShardMap::replicate({5, 3}, 3);
  EXPECT_EQ(map.holders_of(full_box({5, 3})), (std::vector<int>{0, 1, 2}));
}

TEST(ShardMap, TilingNamesTheFault) {
  const std::vector<Box> outside{{{0}, {5}}};
  EXPECT_THAT(tiling_fault({4}, outside), Optional(HasSubstr("[0:5] lies outside of sizes [4]")));
  const std::vector<Box> overlap{{{0}, {3}}, {{2}, {2}}};
  EXPECT_THAT(tiling_fault({4}, overlap), Optional(HasSubstr("[0:3] and [2:4] overlap")));
  const std::vector<Box> hole{{{0}, {1}}, {{2}, {2}}};
  EXPECT_THAT(tiling_fault({4}, hole),
              Optional(HasSubstr("1 of 4 elements of sizes [4] are in no")));
  // The volumes add up, but one part is stored twice and another not at all.
  const std::vector<Box> twice{{{0, 0}, {2, 2}}, {{0, 0}, {2, 2}}};
  EXPECT_THAT(tiling_fault({4, 2}, twice), Optional(HasSubstr("overlap")));
  const std::vector<Box> two_scalars{{{}, {}}, {{}, {}}};
  EXPECT_THAT(tiling_fault({}, two_scalars), Optional(HasSubstr("overlap")));
  EXPECT_EQ(tiling_fault({0, 3}, {}), std::nullopt);
  EXPECT_THAT(tiling_fault({}, {}), Optional(HasSubstr("1 of 1")));
}

TEST(ShardMap, EveryRandomTilingPassesAndEveryDamagedOneFails) {
  Rng rng(7);
  for (int i = 0; i < 3000; ++i) {
    SCOPED_TRACE(i);
    const Dims sizes = random_sizes(rng);
    std::vector<Box> boxes = random_tiling(rng, sizes);
    ASSERT_EQ(tiling_fault(sizes, boxes), std::nullopt);
    const size_t at = static_cast<size_t>(uniform(rng, 0, static_cast<int64_t>(boxes.size()) - 1));
    if (numel(boxes[at].sizes) == 0) continue;
    std::vector<Box> less = boxes;
    less.erase(less.begin() + static_cast<std::ptrdiff_t>(at));
    ASSERT_NE(tiling_fault(sizes, less), std::nullopt);
    std::vector<Box> more = boxes;
    more.push_back(boxes[at]);
    ASSERT_NE(tiling_fault(sizes, more), std::nullopt);
  }
}

TEST(ShardMap, OverlapsAgreeWithTheQuadraticCheck) {
  Rng rng(11);
  for (int i = 0; i < 2000; ++i) {
    const Dims sizes = random_sizes(rng);
    std::vector<Box> boxes;
    for (int64_t n = uniform(rng, 0, 5); n > 0; --n) boxes.push_back(random_box(rng, sizes));
    bool expected = false;
    for (size_t a = 0; a < boxes.size(); ++a)
      for (size_t b = a + 1; b < boxes.size(); ++b)
        expected = expected || intersect(boxes[a], boxes[b]).has_value();
    ASSERT_EQ(find_overlap(boxes).has_value(), expected) << i;
  }
}
}  // namespace
}  // namespace muster::checkpoint
