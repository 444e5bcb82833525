// What users of other process groups have reported: operations that overlap.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <random>

#include "tests/dist/group/reported_cases.h"

namespace muster {
namespace {
using testing::expect_all;
using testing::filled;
using testing::RankContext;

SUITE_ON_EVERY_BACKEND(ReportedOverlap);

// Reported as pytorch#172668: a receive that was posted early blocked what had nothing to do with
// it.
TEST_P(ReportedOverlap, AReceiveThatWaitsHoldsUpNoOtherOperation) {
  run_ranks(3, [](RankContext& ctx) {
    ProcessGroup& group = ctx.group();
    const int rank = ctx.group_rank();
    const Tensor x = filled(100000, 1), y = filled(3, 0), z = filled(3, 0);
    if (rank == 0) {
      const auto from_two = group.recv(z, 2, true);
      const auto from_one = group.recv(y, 1, true);
      const auto sum = group.all_reduce(x, ReduceOp::kSum, true);
      // Rank 1 sends after the sum, and rank 2 after it has heard that the message of rank 1 came.
      ASSERT_OK(from_one->wait(ctx.deadline()));
      ctx.store().set("one has come", "").value();
      ASSERT_OK(from_two->wait(ctx.deadline()));
      ASSERT_OK(sum->wait(ctx.deadline()));
      expect_all(y, 7);
      expect_all(z, 8);
    } else {
      ASSERT_OK(group.all_reduce(x)->wait(ctx.deadline()));
      if (rank == 2) ctx.store().get("one has come", ctx.deadline()).value();
      ASSERT_OK(group.send(filled(3, 6.0F + static_cast<float>(rank)), 0)->wait(ctx.deadline()));
    }
    expect_all(x, 3);
  });
}

// More messages than a backend may keep before the receiver takes some.
TEST_P(ReportedOverlap, SendsThatWaitForTheReceiverHoldUpNoOtherOperation) {
  run_ranks(2, [](RankContext& ctx) {
    ProcessGroup& group = ctx.group();
    constexpr int kMessages = 200;
    const Tensor x = filled(100000, 1);
    if (ctx.group_rank() == 0) {
      std::vector<ProcessGroup::WorkPtr> works;
      for (int i = 0; i < kMessages; ++i)
        works.push_back(group.send(filled(5, static_cast<float>(i)), 1, true));
      works.push_back(group.all_reduce(x, ReduceOp::kSum, true));
      ASSERT_OK(works[kMessages - 1]->wait(ctx.deadline()));
      for (const auto& work : works) ASSERT_OK(work->wait(ctx.deadline()));
    } else {
      ASSERT_OK(group.all_reduce(x)->wait(ctx.deadline()));
      for (int i = 0; i < kMessages; ++i) {
        const Tensor y = filled(5, -1);
        ASSERT_OK(group.recv(y, 0)->wait(ctx.deadline()));
        expect_all(y, static_cast<float>(i));
      }
    }
    expect_all(x, 2);
  });
}

TEST_P(ReportedOverlap, BuffersLiveUntilAnAsyncOperationIsDone) {
  run_ranks(2, [](RankContext& ctx) {
    std::vector<std::pair<ProcessGroup::WorkPtr, Tensor>> flying;
    for (int round = 0; round < 40; ++round) {
      const int64_t count = 1 + (round * 7919) % 50000;
      Tensor kept = filled(count, static_cast<float>(round + 1));
      {
        // No handle but the operation's own is left.
        const Tensor in = filled(count, static_cast<float>(round));
        const Tensor out = filled(2 * count, -1);
        static_cast<void>(ctx.group().all_gather_into_tensor(out, in, true));
      }
      static_cast<void>(filled(count, NAN));  // takes the memory if it was freed
      flying.emplace_back(ctx.group().all_reduce(kept, ReduceOp::kSum, true), kept);
    }
    for (int round = 0; round < 40; ++round) {
      auto& [work, tensor] = flying[static_cast<size_t>(round)];
      ASSERT_OK(work->wait(ctx.deadline()));
      expect_all(tensor, static_cast<float>(2 * (round + 1)));
    }
  });
}

// A delay of a random length without a clock: nothing, or up to some hundred microseconds of work.
void dawdle(std::mt19937& random) {
  const bool at_all = random() % 2 == 0;
  random.discard(at_all ? random() % 100000 : 0);
}

Tensor random_values(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Tensor tensor = filled(count, 0);
  for (int64_t i = 0; i < count; ++i) tensor.data<float>()[i] = uniform(random);
  return tensor;
}

struct Launched {
  ProcessGroup::WorkPtr work;
  Tensor result;
};

// The n-th operation of a round; all ranks have the same n and count, each its own values.
Launched launch_one(ProcessGroup& group, uint32_t n, uint32_t seed, bool async_op) {
  const int64_t count = 1 + static_cast<int64_t>(seed % 40000);
  const int world = group.world_size();
  const uint32_t own = seed + static_cast<uint32_t>(group.group_rank());
  switch (n % 3) {
    case 0: {
      const Tensor x = random_values(count, own);
      return {group.all_reduce(x, ReduceOp::kAvg, async_op), x};
    }
    case 1: {
      const Tensor out = filled(count, NAN);
      return {group.reduce_scatter_tensor(out, random_values(world * count, own), ReduceOp::kSum,
                                          async_op),
              out};
    }
    default: {
      const Tensor out = filled(world * count, NAN);
      return {group.all_gather_into_tensor(out, random_values(count, own), async_op), out};
    }
  }
}

// Reported as DeepSpeed#8061, #5545, #7965, #7188: gradients were corrupt with overlap.
TEST_P(ReportedOverlap, RandomDelaysChangeNoBitOfWhatIsInFlight) {
  const uint32_t seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  SCOPED_TRACE(seed);
  run_ranks(3, [seed](RankContext& ctx) {
    std::mt19937 common(seed), own(seed + 1000 + static_cast<uint32_t>(ctx.group_rank()));
    for (int round = 0; round < 12; ++round) {
      std::vector<uint32_t> seeds(9);
      for (uint32_t& value : seeds) value = static_cast<uint32_t>(common());
      std::vector<Tensor> expected;
      for (uint32_t n = 0; n < seeds.size(); ++n) {
        const Launched one = launch_one(ctx.group(), n, seeds[n], false);
        ASSERT_OK(one.work->wait(ctx.deadline()));
        expected.push_back(one.result);
      }
      std::vector<Launched> flying;
      std::vector<uint32_t> order(seeds.size());
      for (uint32_t n = 0; n < seeds.size(); ++n) {
        order[n] = n;
        flying.push_back(launch_one(ctx.group(), n, seeds[n], true));
        static_cast<void>(filled(1 + own() % 100000, NAN));  // takes memory that was freed
        dawdle(own);
      }
      std::shuffle(order.begin(), order.end(), own);
      for (const uint32_t n : order) {
        ASSERT_OK(flying[n].work->wait(ctx.deadline()));
        ASSERT_EQ(std::memcmp(flying[n].result.data_ptr(), expected[n].data_ptr(),
                              static_cast<size_t>(expected[n].nbytes())),
                  0)
            << "round " << round << ", operation " << n;
        dawdle(own);
      }
    }
  });
}

Tensor slice_of(const Tensor& tensor, int64_t begin, int64_t count) {
  Layout layout = tensor.layout();
  layout.sizes[0] = count;
  layout.offset += begin;
  return alias_with_layout(tensor, std::move(layout));
}

// Steps that pull weights to each rank's own values; gradients are averaged in buckets.
std::vector<float> losses_of(RankContext& ctx, int64_t bucket_nbytes, bool overlap) {
  constexpr int64_t kCount = 300001;
  const Tensor goal = random_values(kCount, 5 + static_cast<uint32_t>(ctx.group_rank()));
  const Tensor weights = random_values(kCount, 4), grad = filled(kCount, 0);
  const int64_t bucket = std::min(kCount, std::max<int64_t>(1, bucket_nbytes / 4));
  std::vector<float> losses;
  for (int step = 0; step < 4; ++step) {
    const Tensor loss = filled(1, 0);
    std::vector<ProcessGroup::WorkPtr> works;
    for (int64_t begin = 0; begin < kCount; begin += bucket) {
      const int64_t end = std::min(kCount, begin + bucket);
      for (int64_t i = begin; i < end; ++i) {
        const float pull = weights.data<float>()[i] - goal.data<float>()[i];
        loss.data<float>()[0] += pull * pull;
        grad.data<float>()[i] = 2 * pull;
      }
      works.push_back(
          ctx.group().all_reduce(slice_of(grad, begin, end - begin), ReduceOp::kAvg, overlap));
      if (!overlap) ctx.group().run(works.back());
    }
    for (const auto& work : works) ctx.group().run(work);
    for (int64_t i = 0; i < kCount; ++i) weights.data<float>()[i] -= 0.1F * grad.data<float>()[i];
    ctx.group().run(ctx.group().all_reduce(loss, ReduceOp::kAvg));
    losses.push_back(loss.data<float>()[0]);
  }
  return losses;
}

// Reported as DeepSpeed#6351, #5523, gpt-neox#1004.
TEST_P(ReportedOverlap, NeitherBucketSizesNorOverlapChangeALoss) {
  run_ranks(3, [](RankContext& ctx) {
    const std::vector<float> expected = losses_of(ctx, int64_t{1} << 40, false);
    ASSERT_LT(expected.back(), expected.front());
    for (const int64_t bucket_nbytes : {int64_t{1} << 10, int64_t{1} << 20, int64_t{1} << 40}) {
      for (const bool overlap : {false, true}) {
        EXPECT_EQ(losses_of(ctx, bucket_nbytes, overlap), expected)
            << bucket_nbytes << (overlap ? " overlapped" : "");
      }
    }
  });
}
}  // namespace
}  // namespace muster
