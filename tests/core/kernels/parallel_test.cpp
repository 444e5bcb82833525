#include "core/kernels/parallel.h"

#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>

#include "tests/core/kernels/test_view.h"
#include "tests/support/matchers.h"

namespace muster::kernels {
namespace {
using Tile = std::pair<int64_t, int64_t>;

std::set<Tile> tiles_seen(int threads, int64_t count, int64_t grain) {
  const int before = num_threads();
  set_num_threads(threads);
  std::mutex mutex;
  std::set<Tile> tiles;
  parallel_tiles(count, grain, [&](int64_t begin, int64_t end) {
    const std::lock_guard<std::mutex> lock(mutex);
    EXPECT_TRUE(tiles.insert({begin, end}).second) << "tile " << begin << " ran twice";
  });
  set_num_threads(before);
  return tiles;
}

TEST(ParallelTiles, BoundariesDoNotDependOnTheNumberOfThreads) {
  const std::set<Tile> expected = {{0, 4}, {4, 8}, {8, 10}};
  for (const int threads : {1, 2, 3, 16}) EXPECT_EQ(tiles_seen(threads, 10, 4), expected);
  EXPECT_EQ(tiles_seen(2, 4, 4), (std::set<Tile>{{0, 4}}));
  EXPECT_EQ(tiles_seen(2, 8, 4), (std::set<Tile>{{0, 4}, {4, 8}}));
}

TEST(ParallelTiles, EmptyRangeNeverCallsTheBody) { EXPECT_TRUE(tiles_seen(4, 0, 8).empty()); }

TEST(ParallelTiles, NestedCallsRunInlineAndCoverEverything) {
  const int before = num_threads();
  set_num_threads(3);
  std::atomic<int64_t> sum{0};
  parallel_tiles(6, 1, [&](int64_t outer, int64_t) {
    parallel_tiles(10, 1, [&](int64_t inner, int64_t) { sum += outer * 10 + inner; });
  });
  EXPECT_EQ(sum.load(), 59 * 60 / 2);
  set_num_threads(before);
}

TEST(ParallelTiles, TheExceptionOfTheLowestTileIsPassedOn) {
  const int before = num_threads();
  for (const int threads : {1, 4}) {
    set_num_threads(threads);
    std::string caught;
    try {
      parallel_tiles(100, 1, [&](int64_t begin, int64_t) {
        if (begin >= 7) throw std::runtime_error(std::to_string(begin));
      });
    } catch (const std::runtime_error& error) {
      caught = error.what();
    }
    EXPECT_EQ(caught, "7");
  }
  set_num_threads(before);
}

TEST(ParallelTiles, AtLeastOneThreadIsKept) {
  const int before = num_threads();
  set_num_threads(0);
  EXPECT_EQ(num_threads(), 1);
  set_num_threads(before);
}

TEST(CombineInTree, PairsNeighboursAlongABinaryTree) {
  std::string parts[] = {"a", "b", "c", "d", "e"};
  combine_in_tree(parts, 5, [](std::string& a, const std::string& b) { a = "(" + a + b + ")"; });
  EXPECT_EQ(parts[0], "(((ab)(cd))e)");
}

TEST(ReduceTiles, GivesTheSameBitsOnAnyNumberOfThreads) {
  testing::expect_same_on_any_threads([] {
    return reduce_tiles(
        100000, 64, 0.0f,
        [](int64_t begin, int64_t end) {
          float sum = 0;
          for (int64_t i = begin; i < end; ++i) sum += 1.0f / static_cast<float>(i + 1);
          return sum;
        },
        [](float& a, const float& b) { a += b; });
  });
  EXPECT_EQ(reduce_tiles(
                0, 8, 42, [](int64_t, int64_t) { return 1; }, [](int& a, int b) { a += b; }),
            42);
}
// A product below the smallest normal float, on every thread of the pool and on the caller's.
TEST(FlushDenormal, HoldsOnEveryThreadUntilItIsTakenBack) {
  const int before = num_threads();
  set_num_threads(4);
  constexpr int64_t kTiles = 64;
  const auto products = [&] {
    std::vector<float> values(kTiles, -1.0f);
    std::vector<char> flushes(kTiles, 2);
    parallel_tiles(kTiles, 1, [&](int64_t begin, int64_t) {
      volatile float small = 1e-30f, factor = 1e-10f;
      values[static_cast<size_t>(begin)] = small * factor;
      flushes[static_cast<size_t>(begin)] = flushes_denormals() ? 1 : 0;
    });
    for (const char flag : flushes) EXPECT_EQ(flag != 0, flushes_denormals());
    return values;
  };
  for (const float value : products()) EXPECT_GT(value, 0.0f);
  if (!set_flush_denormal(true)) GTEST_SKIP() << "this CPU cannot flush denormals";
  EXPECT_TRUE(flushes_denormals());
  for (const float value : products()) EXPECT_EQ(value, 0.0f);
  volatile float tiny = 1e-40f;  // a denormal operand counts as zero
  EXPECT_EQ(tiny * 1e10f, 0.0f);
  EXPECT_TRUE(set_flush_denormal(false));
  EXPECT_FALSE(flushes_denormals());
  for (const float value : products()) EXPECT_GT(value, 0.0f);
  set_num_threads(before);
}

}  // namespace
}  // namespace muster::kernels
