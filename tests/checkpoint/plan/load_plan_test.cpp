#include "checkpoint/plan/load_plan.h"

#include <numeric>

#include "tests/checkpoint/random_layout.h"
#include "tests/support/matchers.h"

namespace muster::checkpoint {
namespace {
using ::testing::HasSubstr;
using ::testing::Optional;

// The values of a box of a tensor whose element i has the value i.
std::vector<int32_t> values_of(const Dims& sizes, const Box& box) {
  std::vector<int32_t> values(static_cast<size_t>(numel(box.sizes)));
  if (values.empty()) return values;
  for_each_run(box, box, full_box(sizes), [&](int64_t at, int64_t global, int64_t n) {
    std::iota(values.begin() + at, values.begin() + at + n, static_cast<int32_t>(global));
  });
  return values;
}

TEST(LoadPlan, TakesFromEachSavedBoxWhatItHolds) {
  const std::vector<Box> saved{{{0}, {3}}, {{3}, {3}}, {{6}, {1}}};
  EXPECT_EQ(plan_load({{2}, {3}}, saved),
            (std::vector<LoadPiece>{{0, {{2}, {1}}}, {1, {{3}, {2}}}}));
  EXPECT_EQ(coverage_fault({{2}, {3}}, saved), std::nullopt);
  EXPECT_THAT(coverage_fault({{5}, {3}}, saved),
              Optional(HasSubstr("2 of 3 elements of box [5:8]")));
}

TEST(LoadPlan, AnyTilingLoadsIntoAnyOther) {
  Rng rng(4242);
  for (int i = 0; i < 3000; ++i) {
    SCOPED_TRACE(i);
    const Dims sizes = random_sizes(rng);
    const std::vector<Box> saved = random_tiling(rng, sizes);
    std::vector<std::vector<int32_t>> stored;
    for (const Box& box : saved) stored.push_back(values_of(sizes, box));
    for (const Box& wanted : random_tiling(rng, sizes)) {
      ASSERT_EQ(coverage_fault(wanted, saved), std::nullopt);
      std::vector<int32_t> loaded(static_cast<size_t>(numel(wanted.sizes)), -1);
      for (const LoadPiece& piece : plan_load(wanted, saved)) {
        for_each_run(piece.overlap, saved[piece.saved], wanted,
                     [&](int64_t from, int64_t to, int64_t n) {
                       std::copy_n(stored[piece.saved].begin() + from, n, loaded.begin() + to);
                     });
      }
      ASSERT_EQ(loaded, values_of(sizes, wanted)) << to_string(wanted);
    }
  }
}

TEST(LoadPlan, AMissingBoxIsNoticedExactlyByThoseWhoNeedIt) {
  Rng rng(5);
  for (int i = 0; i < 2000; ++i) {
    const Dims sizes = random_sizes(rng);
    std::vector<Box> saved = random_tiling(rng, sizes);
    const Box lost = saved.back();
    saved.pop_back();
    const Box wanted = random_box(rng, sizes);
    ASSERT_EQ(coverage_fault(wanted, saved).has_value(), intersect(wanted, lost).has_value()) << i;
  }
}
}  // namespace
}  // namespace muster::checkpoint
