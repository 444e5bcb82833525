#include "core/kernels/cpu/iterate.h"

#include "tests/core/kernels/test_view.h"
#include "tests/support/matchers.h"

namespace muster::kernels::cpu {
namespace {
LoopNest nest_of(Dims sizes, std::initializer_list<Dims> strides,
                 LoopNest::Order order = LoopNest::Order::kByStride) {
  return {sizes, std::span<const Dims>(strides.begin(), strides.size()), order};
}

std::vector<int64_t> offsets(const LoopNest& nest, int operand, int64_t begin, int64_t end) {
  std::vector<int64_t> out;
  for_each_row(nest, operand, begin, end, [&](int64_t offset, int64_t count) {
    for (int64_t i = 0; i < count; ++i) out.push_back(offset + i * nest.inner_stride(operand));
  });
  return out;
}

TEST(LoopNest, ContiguousOperandsMergeToOneDim) {
  const LoopNest nest = nest_of({2, 3, 4}, {{12, 4, 1}, {12, 4, 1}});
  EXPECT_EQ(nest.ndim, 1);
  EXPECT_EQ(nest.sizes[0], 24);
  EXPECT_TRUE(nest.is_contiguous(1));
}

TEST(LoopNest, OneTransposedOperandKeepsTwoDims) {
  const LoopNest nest = nest_of({2, 3}, {{3, 1}, {1, 2}});
  EXPECT_EQ(nest.ndim, 2);
  EXPECT_TRUE(nest.is_contiguous(0));
  EXPECT_FALSE(nest.is_contiguous(1));
}

TEST(LoopNest, EqualTransposesMergeUnlessTheOrderIsRowMajor) {
  EXPECT_EQ(nest_of({2, 3}, {{1, 2}, {1, 2}}).ndim, 1);
  EXPECT_EQ(nest_of({2, 3}, {{1, 2}, {1, 2}}, LoopNest::Order::kRowMajor).ndim, 2);
}

TEST(LoopNest, BroadcastDimsAndOnesAreRecognised) {
  const LoopNest nest = nest_of({4, 1, 5}, {{5, 99, 1}, {0, 0, 0}});
  EXPECT_EQ(nest.ndim, 1);
  EXPECT_TRUE(nest.is_broadcast(1));
  EXPECT_EQ(nest_of({}, {{}}).numel, 1);
  EXPECT_EQ(nest_of({3, 0}, {{0, 1}}).numel, 0);
}

TEST(LoopNest, RowsOfAnyRangeVisitEachElementOnceInOrder) {
  const LoopNest nest = nest_of({2, 3, 4}, {{100, -10, 3}}, LoopNest::Order::kRowMajor);
  const std::vector<int64_t> all = offsets(nest, 0, 0, 24);
  ASSERT_EQ(all.size(), 24u);
  for (int64_t i = 0; i < 24; ++i) {
    EXPECT_EQ(all[static_cast<size_t>(i)], i / 12 * 100 - i / 4 % 3 * 10 + i % 4 * 3);
    EXPECT_EQ(nest.offset_of(0, i), all[static_cast<size_t>(i)]);
  }
  for (int64_t begin = 0; begin < 24; begin += 5) {
    const int64_t end = std::min<int64_t>(24, begin + 7);
    EXPECT_EQ(offsets(nest, 0, begin, end),
              std::vector<int64_t>(all.begin() + begin, all.begin() + end));
  }
}

TEST(LoopNest, AllOperandsMoveTogether) {
  const LoopNest nest = nest_of({3, 2}, {{2, 1}, {1, 3}, {0, 0}});
  std::vector<std::vector<int64_t>> seen;
  for_each_row(nest, 1, 5, [&](const int64_t* at, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      seen.push_back({at[0] + i * nest.inner_stride(0), at[1] + i * nest.inner_stride(1),
                      at[2] + i * nest.inner_stride(2)});
    }
  });
  EXPECT_EQ(seen, (std::vector<std::vector<int64_t>>{{1, 3, 0}, {2, 1, 0}, {3, 4, 0}, {4, 2, 0}}));
}

TEST(LoopNest, TooManyDimsAreRefusedByNumber) {
  const DimVector sizes(18, 2);
  DimVector strides(18, 0);
  for (size_t d = 0; d < 18; ++d) strides[d] = int64_t{3} << (2 * d);
  EXPECT_ERROR(nest_of(sizes.span(), {strides.span()}), ErrorCode::kUnimplemented,
               ::testing::HasSubstr("at most 16 dims"));
}
}  // namespace
}  // namespace muster::kernels::cpu
