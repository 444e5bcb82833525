#include "checkpoint/plan/box.h"

#include "tests/checkpoint/random_layout.h"
#include "tests/support/matchers.h"

namespace muster::checkpoint {
namespace {
using ::testing::HasSubstr;

TEST(Box, ChunksAsTorchDoes) {
  // torch.chunk(10 rows, 4): 3, 3, 3, 1; 5 rows in 4: 2, 2, 1, none; 2 rows in 4: 1, 1, none, none.
  const auto rows = [](int64_t n, int count) {
    Dims sizes;
    for (int i = 0; i < count; ++i) sizes.push_back(chunk_box({n, 2}, 0, i, count).sizes[0]);
    return sizes;
  };
  EXPECT_EQ(rows(10, 4), (Dims{3, 3, 3, 1}));
  EXPECT_EQ(rows(5, 4), (Dims{2, 2, 1, 0}));
  EXPECT_EQ(rows(2, 4), (Dims{1, 1, 0, 0}));
  EXPECT_EQ(rows(0, 2), (Dims{0, 0}));
  EXPECT_EQ(chunk_box({5, 2}, 0, 3, 4).offsets, (Dims{5, 0}));
  EXPECT_EQ(chunk_box({3, 8}, 1, 1, 2), (Box{{0, 4}, {3, 4}}));
}

TEST(Box, ChunkRefusesWhatIsOutOfRange) {
  EXPECT_ERROR(chunk_box({4}, 1, 0, 2), ErrorCode::kInvalidArgument, HasSubstr("dim"));
  EXPECT_ERROR(chunk_box({4}, 0, 2, 2), ErrorCode::kInvalidArgument, HasSubstr("2 of 2"));
  EXPECT_ERROR(chunk_box({}, 0, 0, 1), ErrorCode::kInvalidArgument, HasSubstr("dim"));
}

TEST(Box, NumelCountsScalarsAndRefusesOverflow) {
  EXPECT_EQ(numel({}), 1);
  EXPECT_EQ(numel({3, 0, 5}), 0);
  EXPECT_EQ(numel({int64_t{1} << 62}), int64_t{1} << 62);
  EXPECT_ERROR(numel({int64_t{1} << 32, int64_t{1} << 32}), ErrorCode::kInvalidArgument,
               HasSubstr("63 bits"));
  EXPECT_ERROR(numel({2, -1}), ErrorCode::kInvalidArgument, HasSubstr("-1"));
}

TEST(Box, IntersectsHalfOpenRanges) {
  EXPECT_EQ(intersect({{0, 0}, {4, 4}}, {{2, 3}, {4, 4}}), (Box{{2, 3}, {2, 1}}));
  EXPECT_EQ(intersect({{0}, {4}}, {{4}, {4}}), std::nullopt);
  EXPECT_EQ(intersect({{}, {}}, {{}, {}}), (Box{{}, {}}));
  EXPECT_ERROR(intersect({{0}, {4}}, {{}, {}}), ErrorCode::kInvalidArgument, HasSubstr("dims"));
}

TEST(Box, InsideChecksEveryDim) {
  EXPECT_TRUE(is_inside({{5, 0}, {0, 2}}, {5, 2}));
  EXPECT_FALSE(is_inside({{4, 0}, {2, 2}}, {5, 2}));
  EXPECT_FALSE(is_inside({{0}, {2}}, {5, 2}));
  EXPECT_FALSE(is_inside({{-1, 0}, {1, 1}}, {5, 2}));
  EXPECT_FALSE(is_inside({{1, 0}, {INT64_MAX, 1}}, {5, 2}));
}

TEST(Box, RunsAreAsLongAsBothLayoutsAllow) {
  const Box full = full_box({4, 6});
  EXPECT_EQ(run_walk(full, full, full).num_runs, 1);
  EXPECT_EQ(run_walk(full, full, full).run_numel, 24);
  const Box rows{{1, 0}, {2, 6}};
  EXPECT_EQ(run_walk(rows, rows, full).run_numel, 12);
  const Box columns{{0, 2}, {4, 3}};
  EXPECT_EQ(run_walk(columns, columns, full).num_runs, 4);
  EXPECT_EQ(run_walk(columns, columns, full).run_numel, 3);
}

TEST(Box, RunsVisitEveryElementOnceInOrderInBothLayouts) {
  Rng rng(20240611);
  for (int i = 0; i < 3000; ++i) {
    SCOPED_TRACE(i);
    const Dims sizes = random_sizes(rng);
    const Box a = random_box(rng, sizes);
    const Box b = random_box(rng, sizes);
    const std::optional<Box> region = intersect(a, b);
    if (!region) continue;
    int64_t visited = 0;
    int64_t last_a = -1;
    int64_t last_b = -1;
    // The global index of an element, from its place in a box.
    const auto global_index = [&](const Box& box, int64_t at) {
      int64_t index = 0;
      int64_t scale = 1;
      for (size_t d = sizes.size(); d-- > 0;) {
        index += (box.offsets[d] + at % box.sizes[d]) * scale;
        at /= box.sizes[d];
        scale *= sizes[d];
      }
      return index;
    };
    for_each_run(*region, a, b, [&](int64_t at_a, int64_t at_b, int64_t n) {
      ASSERT_GT(at_a, last_a);
      ASSERT_GT(at_b, last_b);
      for (int64_t k = 0; k < n; ++k)
        ASSERT_EQ(global_index(a, at_a + k), global_index(b, at_b + k));
      last_a = at_a + n - 1;
      last_b = at_b + n - 1;
      visited += n;
    });
    ASSERT_EQ(visited, numel(region->sizes));
  }
}
}  // namespace
}  // namespace muster::checkpoint
