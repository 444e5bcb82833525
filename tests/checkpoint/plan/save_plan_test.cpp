#include "checkpoint/plan/save_plan.h"

#include <numeric>

#include "checkpoint/plan/shard_map.h"
#include "tests/checkpoint/random_layout.h"
#include "tests/support/matchers.h"

namespace muster::checkpoint {
namespace {
using ::testing::HasSubstr;

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

int64_t total_nbytes(const std::vector<SaveItem>& items) {
  int64_t total = 0;
  for (const SaveItem& item : items) total += item.nbytes;
  return total;
}

TEST(SavePlan, AnOwnBoxIsWrittenWholeAndAnEmptyOneNot) {
  const std::vector<HeldBox> held{{"a", {5, 2}, {{2, 0}, {2, 2}}, 4, {}},
                                  {"b", {3, 2}, {{3, 0}, {0, 2}}, 4, {}},
                                  {"none", {0, 2}, {{0, 0}, {0, 2}}, 4, {}},
                                  {"scalar", {}, {{}, {}}, 8, {}}};
  EXPECT_EQ(plan_save(held, 1),
            (std::vector<SaveItem>{
                {0, {{2, 0}, {2, 2}}, 0, 16}, {2, {{0, 0}, {0, 2}}, 0, 0}, {3, {{}, {}}, 0, 8}}));
}

TEST(SavePlan, OneHugeAndFiftySmallTensorsAreBalancedOverFourReplicas) {
  std::vector<HeldBox> held{{"huge", {1000, 1000}, full_box({1000, 1000}), 4, first_ranks(4)}};
  for (int i = 0; i < 50; ++i) {
    const Dims sizes{10 + i, 64};
    held.push_back({"small." + std::to_string(i), sizes, full_box(sizes), 4, first_ranks(4)});
  }
  int64_t total = 0;
  for (const HeldBox& box : held) total += numel(box.global_sizes) * 4;
  for (int global_rank = 0; global_rank < 4; ++global_rank) {
    const int64_t share = total_nbytes(plan_save(held, global_rank));
    EXPECT_NEAR(static_cast<double>(share), static_cast<double>(total) / 4,
                static_cast<double>(total) / 40)
        << "global rank " << global_rank;
  }
}

TEST(SavePlan, HoldersMustBeAscendingAndIncludeTheRank) {
  const std::vector<HeldBox> backwards{{"a", {2}, full_box({2}), 4, {1, 0}}};
  EXPECT_ERROR(plan_save(backwards, 0), ErrorCode::kInvalidArgument, HasSubstr("[1, 0]"));
  const std::vector<HeldBox> absent{{"a", {2}, full_box({2}), 4, {0, 1}}};
  EXPECT_ERROR(plan_save(absent, 2), ErrorCode::kInvalidArgument, HasSubstr("global rank 2"));
}

// Each tensor: a random tiling, each box held by a random set of ranks. Whatever the ranks derive
// alone must tile every tensor, be contiguous in the source and give no rank two boxes that a
// holder group could have merged.
TEST(SavePlan, WhatTheRanksDeriveAloneTilesEveryTensor) {
  Rng rng(99);
  for (int i = 0; i < 2500; ++i) {
    SCOPED_TRACE(i);
    const int world_size = static_cast<int>(uniform(rng, 1, 6));
    std::vector<std::vector<HeldBox>> held(static_cast<size_t>(world_size));
    std::vector<Dims> shapes;
    const int num_tensors = static_cast<int>(uniform(rng, 1, 5));
    for (int t = 0; t < num_tensors; ++t) {
      Dims sizes = random_sizes(rng);
      // Large enough at times to be cut into slabs.
      if (!sizes.empty() && uniform(rng, 0, 2) == 0) sizes[0] *= uniform(rng, 50, 400);
      shapes.push_back(sizes);
      for (const Box& box : random_tiling(rng, sizes, 4)) {
        std::vector<int> holders;
        for (int r = 0; r < world_size; ++r)
          if (uniform(rng, 0, 1) == 1) holders.push_back(r);
        if (holders.empty()) holders.push_back(static_cast<int>(uniform(rng, 0, world_size - 1)));
        for (const int r : holders)
          held[static_cast<size_t>(r)].push_back({std::to_string(t), sizes, box, 4, holders});
      }
    }
    std::vector<std::vector<Box>> written(shapes.size());
    for (int r = 0; r < world_size; ++r) {
      const std::vector<HeldBox>& mine = held[static_cast<size_t>(r)];
      for (const SaveItem& item : plan_save(mine, r)) {
        const HeldBox& source = mine[item.held];
        written[std::stoul(source.name)].push_back(item.box);
        ASSERT_EQ(item.nbytes, numel(item.box.sizes) * 4);
        if (item.nbytes == 0) continue;
        const RunWalk walk = run_walk(item.box, source.box, item.box);
        ASSERT_EQ(walk.num_runs, 1) << to_string(item.box) << " of " << to_string(source.box);
        ASSERT_EQ(walk.begin_a * 4, item.source_nbytes);
      }
    }
    for (size_t t = 0; t < shapes.size(); ++t)
      ASSERT_EQ(tiling_fault(shapes[t], written[t]), std::nullopt) << "tensor " << t;
  }
}
}  // namespace
}  // namespace muster::checkpoint
