#include "core/tensor/caching_allocator.h"

#include <gmock/gmock.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <vector>

#include "core/tensor/internal/size_classes.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Block {
  void* data = nullptr;
  int64_t nbytes = 0;
};

TEST(SizeClasses, EveryRequestFitsItsClassAndTheClassBelowDoesNot) {
  for (int64_t nbytes = 1; nbytes <= internal::kMaxSmallNbytes; nbytes += nbytes < 5000 ? 1 : 61) {
    const size_t size_class = internal::size_class_of(nbytes);
    ASSERT_LT(size_class, internal::kNumSizeClasses);
    ASSERT_LE(nbytes, internal::class_nbytes(size_class));
    if (size_class > 0) {
      ASSERT_GT(nbytes, internal::class_nbytes(size_class - 1));
    }
  }
  EXPECT_EQ(internal::class_nbytes(internal::kNumSizeClasses - 1), internal::kMaxSmallNbytes);
}

TEST(SizeClasses, AtMostAnEighthIsWastedAboveHalfAKibibyte) {
  for (size_t i = 0; i < internal::kNumSizeClasses; ++i) {
    const int64_t nbytes = internal::class_nbytes(i);
    EXPECT_EQ(nbytes % 64, 0);
    if (nbytes > 512) {
      EXPECT_LE((nbytes - internal::class_nbytes(i - 1) - 1) * 8, nbytes);
    }
    const int64_t used = internal::blocks_per_span(i) * nbytes;
    EXPECT_LE((internal::span_nbytes(i) - used) * 8, internal::span_nbytes(i)) << nbytes;
  }
}

TEST(CachingAllocator, BlocksAreAlignedDistinctAndWritable) {
  CachingAllocator allocator;
  std::vector<Block> blocks;
  for (int64_t nbytes :
       {int64_t{1}, int64_t{63}, int64_t{64}, int64_t{65}, int64_t{4096}, int64_t{100'000},
        int64_t{1} << 20, (int64_t{1} << 20) + 1, int64_t{40} << 20}) {
    for (int copy = 0; copy < 3; ++copy) blocks.push_back({allocator.allocate(nbytes), nbytes});
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    ASSERT_EQ(reinterpret_cast<uintptr_t>(blocks[i].data) % 64, 0u);
    std::memset(blocks[i].data, static_cast<int>(i), static_cast<size_t>(blocks[i].nbytes));
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto* bytes = static_cast<const unsigned char*>(blocks[i].data);
    ASSERT_EQ(bytes[0], i);
    ASSERT_EQ(bytes[blocks[i].nbytes - 1], i);
    allocator.deallocate(blocks[i].data, blocks[i].nbytes);
  }
  EXPECT_EQ(allocator.stats().allocated.count, 0);
}

TEST(CachingAllocator, ZeroBytesIsNullAndNegativeIsRefused) {
  CachingAllocator allocator;
  EXPECT_EQ(allocator.allocate(0), nullptr);
  allocator.deallocate(nullptr, 0);
  EXPECT_ERROR(allocator.allocate(-1), ErrorCode::kInvalidArgument, HasSubstr("got -1 bytes"));
}

TEST(CachingAllocator, ASteadyLoopMakesNoSystemCall) {
  CachingAllocator allocator;
  // Sizes as of a training step, freed in another order than allocated.
  const auto step = [&allocator] {
    std::vector<Block> live;
    for (int layer = 0; layer < 8; ++layer) {
      for (int64_t nbytes : {int64_t{40}, int64_t{3 << 10}, int64_t{700 << 10}, int64_t{3 << 20},
                             int64_t{9 << 20}, int64_t{9 << 20} + 4096}) {
        live.push_back({allocator.allocate(nbytes), nbytes});
      }
      const Block middle = live[live.size() - 3];
      allocator.deallocate(middle.data, middle.nbytes);
      live.erase(live.end() - 3);
    }
    for (size_t i = 0; i < live.size(); i += 2) allocator.deallocate(live[i].data, live[i].nbytes);
    for (size_t i = 1; i < live.size(); i += 2) allocator.deallocate(live[i].data, live[i].nbytes);
  };
  step();
  step();
  const AllocatorStats before = allocator.stats();
  for (int i = 0; i < 100; ++i) step();
  const AllocatorStats after = allocator.stats();
  EXPECT_EQ(after.system_calls, before.system_calls);
  EXPECT_EQ(after.reserved, before.reserved);
  EXPECT_EQ(after.allocated.count, 0);
  EXPECT_EQ(after.allocations - before.allocations, 100 * 8 * 6);
}

TEST(CachingAllocator, AFreedLargeBlockServesTheSameSizeAgain) {
  CachingAllocator allocator;
  const int64_t nbytes = 50 << 20;
  void* const first = allocator.allocate(nbytes);
  allocator.deallocate(first, nbytes);
  EXPECT_EQ(allocator.allocate(nbytes), first);
  EXPECT_EQ(allocator.stats().system_calls, 1);
  allocator.deallocate(first, nbytes);
}

TEST(CachingAllocator, LargeBlocksAreSplitAndMergedAgain) {
  CachingAllocator allocator;
  const int64_t whole = 64 << 20;
  void* const block = allocator.allocate(whole);
  allocator.deallocate(block, whole);
  // Four quarters fit where the whole one was; freed in any order they make a whole one again.
  std::vector<void*> quarters;
  for (int i = 0; i < 4; ++i) quarters.push_back(allocator.allocate(whole / 4));
  for (int i : {2, 0, 3, 1}) allocator.deallocate(quarters[static_cast<size_t>(i)], whole / 4);
  EXPECT_EQ(allocator.allocate(whole), block);
  EXPECT_EQ(allocator.stats().system_calls, 1);
  allocator.deallocate(block, whole);
}

TEST(CachingAllocator, ALargeBlockWastesLessThanAQuarter) {
  CachingAllocator allocator;
  std::mt19937 random(1);
  std::vector<Block> live;
  int64_t asked = 0;
  for (int i = 0; i < 200; ++i) {
    const auto nbytes = static_cast<int64_t>((1u << 20) + 1 + random() % (12u << 20));
    live.push_back({allocator.allocate(nbytes), nbytes});
    asked += nbytes;
    if (i % 3 == 2) {
      const size_t victim = random() % live.size();
      allocator.deallocate(live[victim].data, live[victim].nbytes);
      asked -= live[victim].nbytes;
      live.erase(live.begin() + static_cast<int64_t>(victim));
    }
    ASSERT_LE(allocator.stats().allocated.count, asked + asked / 4);
  }
  for (const Block& block : live) allocator.deallocate(block.data, block.nbytes);
  EXPECT_EQ(allocator.stats().allocated.count, 0);
}

TEST(CachingAllocator, TrimGivesUnusedMemoryBackAndKeepsWhatIsLive) {
  CachingAllocator allocator;
  void* const kept = allocator.allocate(100);
  std::memset(kept, 7, 100);
  for (int64_t nbytes : {int64_t{100}, int64_t{20'000}, int64_t{900'000}, int64_t{30} << 20}) {
    std::vector<void*> blocks;
    for (int i = 0; i < 10; ++i) blocks.push_back(allocator.allocate(nbytes));
    for (void* block : blocks) allocator.deallocate(block, nbytes);
  }
  EXPECT_GT(allocator.stats().reserved.count, 300 << 20);
  allocator.trim();
  EXPECT_EQ(allocator.stats().reserved, 2_MiB);  // the slab with the live block
  EXPECT_EQ(static_cast<unsigned char*>(kept)[99], 7);
  allocator.deallocate(kept, 100);
  allocator.trim();
  EXPECT_EQ(allocator.stats().reserved, 0_B);
  void* const again = allocator.allocate(100);
  std::memset(again, 8, 100);
  allocator.deallocate(again, 100);
}

TEST(CachingAllocator, StatsCountLiveBytesAndTheirPeak) {
  CachingAllocator allocator;
  void* const a = allocator.allocate(8 << 20);
  void* const b = allocator.allocate(4 << 20);
  EXPECT_EQ(allocator.stats().allocated, 12_MiB);
  allocator.deallocate(a, 8 << 20);
  EXPECT_EQ(allocator.stats().allocated, 4_MiB);
  EXPECT_EQ(allocator.stats().peak_allocated, 12_MiB);
  allocator.reset_peak();
  EXPECT_EQ(allocator.stats().peak_allocated, 4_MiB);
  EXPECT_EQ(allocator.stats().allocations, 2);
  allocator.deallocate(b, 4 << 20);

  std::vector<void*> small;
  for (int i = 0; i < 10'000; ++i) small.push_back(allocator.allocate(1000));
  EXPECT_EQ(allocator.stats().allocated.count, 10'000 * 1024);
  for (void* block : small) allocator.deallocate(block, 1000);
  EXPECT_EQ(allocator.stats().allocated.count, 0);
  EXPECT_GE(allocator.stats().peak_allocated.count, 10'000 * 1024 - (64 << 10));
  EXPECT_EQ(allocator.stats().allocations, 10'002);
}

TEST(CachingAllocator, ACapRefusesAndNamesWhatHoldsTheMemory) {
  CachingAllocator allocator;
  allocator.set_cap(64_MiB);
  void* const a = allocator.allocate(16 << 20);
  void* const b = allocator.allocate(16 << 20);
  void* const c = allocator.allocate(3000);
  EXPECT_ERROR(
      allocator.allocate(40 << 20), ErrorCode::kOutOfMemory,
      AllOf(HasSubstr("40 MiB must be available"), HasSubstr("got 32 MiB live"),
            HasSubstr("under a cap of 64 MiB"), HasSubstr("16 MiB x2"), HasSubstr("3 KiB")));
  // The refusal harms nothing: what fits still succeeds, also from memory that was cached.
  allocator.deallocate(a, 16 << 20);
  allocator.deallocate(b, 16 << 20);
  void* const d = allocator.allocate(40 << 20);
  EXPECT_NE(d, nullptr);
  EXPECT_LE(allocator.stats().reserved, 64_MiB);
  allocator.clear_cap();
  void* const e = allocator.allocate(100 << 20);
  allocator.deallocate(d, 40 << 20);
  allocator.deallocate(e, 100 << 20);
  allocator.deallocate(c, 3000);
}

TEST(CachingAllocator, ACapHoldsForSmallBlocksToo) {
  CachingAllocator allocator;
  allocator.set_cap(4_MiB);
  std::vector<void*> blocks;
  EXPECT_ERROR(while (true) blocks.push_back(allocator.allocate(4096)), ErrorCode::kOutOfMemory,
               HasSubstr("4 KiB must be available"));
  EXPECT_EQ(blocks.size(), 1024u);
  for (void* block : blocks) allocator.deallocate(block, 4096);
}

TEST(CachingAllocator, ASizeBeyondTheAddressSpaceIsOutOfMemory) {
  CachingAllocator allocator;
  EXPECT_ERROR(allocator.allocate(INT64_MAX), ErrorCode::kOutOfMemory, HasSubstr("8.59e+09 GiB"));
}

TEST(CachingAllocator, BlocksMayBeFreedOnAnotherThread) {
  CachingAllocator allocator;
  int64_t system_calls = 0;
  for (int round = 0; round < 50; ++round) {
    std::vector<Block> blocks;
    for (int i = 0; i < 500; ++i) {
      const int64_t nbytes = 64 + (i % 40) * 500;
      blocks.push_back({allocator.allocate(nbytes), nbytes});
      std::memset(blocks.back().data, i, static_cast<size_t>(nbytes));
    }
    std::thread([&] {
      for (const Block& block : blocks) allocator.deallocate(block.data, block.nbytes);
    }).join();
    ASSERT_EQ(allocator.stats().allocated.count, 0);
    if (round == 1) system_calls = allocator.stats().system_calls;
  }
  // What a thread kept is back in the pool when it ends, so the rounds reuse it.
  EXPECT_EQ(allocator.stats().system_calls, system_calls);
  EXPECT_EQ(allocator.stats().allocations, 50 * 500);
}

TEST(CachingAllocator, ThreadsAllocateAtOnceWithoutSharingABlock) {
  CachingAllocator allocator;
  std::vector<std::thread> threads;
  std::atomic<bool> is_clean = true;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      std::vector<Block> live;
      for (int i = 0; i < 3000; ++i) {
        const auto nbytes = static_cast<int64_t>(8 + random() % (i % 50 == 0 ? 3'000'000 : 6000));
        live.push_back({allocator.allocate(nbytes), nbytes});
        std::memcpy(live.back().data, &seed, sizeof(seed));
        if (live.size() < 40) continue;
        const size_t victim = random() % live.size();
        unsigned found = 0;
        std::memcpy(&found, live[victim].data, sizeof(found));
        if (found != seed) is_clean = false;
        allocator.deallocate(live[victim].data, live[victim].nbytes);
        live.erase(live.begin() + static_cast<int64_t>(victim));
      }
      for (const Block& block : live) allocator.deallocate(block.data, block.nbytes);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(is_clean);
  EXPECT_EQ(allocator.stats().allocated.count, 0);
  allocator.trim();
  EXPECT_EQ(allocator.stats().reserved.count, 0);
}

TEST(CachingAllocator, MoreAllocatorsThanThreadTablesStillWork) {
  std::vector<std::unique_ptr<CachingAllocator>> allocators;
  for (int i = 0; i < 12; ++i) allocators.push_back(std::make_unique<CachingAllocator>());
  for (auto& allocator : allocators) {
    void* const small = allocator->allocate(100);
    void* const large = allocator->allocate(2 << 20);
    EXPECT_EQ(allocator->stats().allocated.count, 128 + (2 << 20));
    allocator->deallocate(small, 100);
    allocator->deallocate(large, 2 << 20);
    EXPECT_EQ(allocator->stats().allocated.count, 0);
    EXPECT_EQ(allocator->stats().allocations, 2);
  }
}

TEST(CachingAllocator, SnapshotListsSegmentsAndBlocks) {
  CachingAllocator allocator;
  void* const large = allocator.allocate(5 << 20);
  void* const small = allocator.allocate(1000);
  const auto snapshot = nlohmann::json::parse(allocator.snapshot());
  EXPECT_EQ(snapshot["allocated"], (5 << 20) + 1024);
  EXPECT_EQ(snapshot["reserved"], allocator.stats().reserved.count);
  ASSERT_EQ(snapshot["segments"].size(), 2u);
  const auto& first = snapshot["segments"][0];
  EXPECT_EQ(first["type"], "large");
  EXPECT_EQ(first["nbytes"], 32 << 20);
  EXPECT_EQ(first["address"], reinterpret_cast<uintptr_t>(large));
  EXPECT_EQ(first["blocks"][0]["nbytes"], 5 << 20);
  EXPECT_EQ(first["blocks"][0]["state"], "live");
  EXPECT_EQ(first["blocks"][1]["offset"], 5 << 20);
  EXPECT_EQ(first["blocks"][1]["state"], "free");
  const auto& second = snapshot["segments"][1];
  EXPECT_EQ(second["type"], "small");
  EXPECT_EQ(second["block_nbytes"], 1024);
  EXPECT_GE(second["carved"], 1);
  allocator.deallocate(large, 5 << 20);
  allocator.deallocate(small, 1000);
}

TEST(CachingAllocator, IsWhatCpuTensorsUse) {
  EXPECT_EQ(&cpu_allocator(), &cpu_caching_allocator());
  EXPECT_EQ(cpu_allocator().device(), kCpuDevice);
}

#if defined(__SANITIZE_ADDRESS__)
TEST(CachingAllocatorDeathTest, AWriteToACachedBlockIsReported) {
  CachingAllocator allocator;
  auto* const data = static_cast<char*>(allocator.allocate(100));
  allocator.deallocate(data, 100);
  EXPECT_DEATH(data[50] = 1, "use-after-poison");
}

TEST(CachingAllocatorDeathTest, AWriteBehindTheRequestIsReported) {
  CachingAllocator allocator;
  auto* const data = static_cast<char*>(allocator.allocate(100));
  EXPECT_DEATH(data[104] = 1, "use-after-poison");
  allocator.deallocate(data, 100);
}
#endif
}  // namespace
}  // namespace muster
