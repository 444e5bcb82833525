// The suite that every backend with real peers passes; shm joins here.
#include <fmt/format.h>

#include <cmath>
#include <csignal>

#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using testing::RankContext;
using testing::run_ranks;

Tensor values(Dims sizes, DType dtype, const std::function<double(int64_t)>& at,
              Allocator* allocator = nullptr) {
  Tensor tensor = empty_from_spec(TensorSpec::contiguous(sizes, dtype), allocator);
  visit_dtype(dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
        tensor.data<T>()[i] = T(static_cast<float>(at(i)));
      } else {
        tensor.data<T>()[i] = static_cast<T>(at(i));
      }
    }
  });
  return tensor;
}

double element(const Tensor& tensor, int64_t i) {
  return visit_dtype(tensor.dtype(), [&](auto type) {
    using T = decltype(type);
    const T value = static_cast<const T*>(tensor.data_ptr())[i];
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
      return static_cast<double>(static_cast<float>(value));
    } else {
      return static_cast<double>(value);
    }
  });
}

void expect_values(const Tensor& tensor, const std::function<double(int64_t)>& at) {
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    ASSERT_DOUBLE_EQ(element(tensor, i), at(i)) << "element " << i << " of " << tensor.describe();
  }
}

// Sizes around the inline limit and the tile, in the arena and outside.
struct Case {
  int world;
  int64_t count;
  bool in_arena;
};
class Sizes : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Shm, Sizes,
                         ::testing::Values(Case{1, 10, false}, Case{2, 0, false}, Case{2, 1, false},
                                           Case{3, 100, false}, Case{2, 5000, false},
                                           Case{4, 10007, true}, Case{3, 100003, false}),
                         [](const auto& p) {
                           return fmt::format("w{}_n{}_{}", p.param.world, p.param.count,
                                              p.param.in_arena ? "arena" : "heap");
                         });

TEST_P(Sizes, AllReduceSumsWhatEachRankContributed) {
  const Case param = GetParam();
  run_ranks(param.world, [&](RankContext& ctx) {
    Allocator* allocator = param.in_arena ? &ctx.group().communication_allocator() : nullptr;
    const int rank = ctx.group_rank();
    for (int round = 0; round < 3; ++round) {
      const Tensor x = values(
          {param.count}, DType::kF32,
          [&](int64_t i) { return (rank + 1) * double(i % 97) + round; }, allocator);
      ASSERT_OK(ctx.group().all_reduce(x)->wait(ctx.deadline()));
      const int ranks = param.world * (param.world + 1) / 2;
      expect_values(x, [&](int64_t i) { return ranks * double(i % 97) + param.world * round; });
    }
  });
}

TEST_P(Sizes, AllGatherConcatenatesInRankOrder) {
  const Case param = GetParam();
  run_ranks(param.world, [&](RankContext& ctx) {
    Allocator* allocator = param.in_arena ? &ctx.group().communication_allocator() : nullptr;
    const int rank = ctx.group_rank();
    const Tensor in = values(
        {param.count}, DType::kI64, [&](int64_t i) { return rank * 1000000 + i; }, allocator);
    const Tensor out = values(
        {param.world * param.count}, DType::kI64, [](int64_t) { return -1; }, allocator);
    ASSERT_OK(ctx.group().all_gather_into_tensor(out, in)->wait(ctx.deadline()));
    expect_values(out, [&](int64_t i) {
      return i / std::max<int64_t>(param.count, 1) * 1000000 +
             i % std::max<int64_t>(param.count, 1);
    });
  });
}

TEST_P(Sizes, ReduceScatterGivesEachRankItsPieceReduced) {
  const Case param = GetParam();
  run_ranks(param.world, [&](RankContext& ctx) {
    const int rank = ctx.group_rank();
    const Tensor in = values({param.world * param.count}, DType::kF64,
                             [&](int64_t i) { return (rank + 1) * double(i % 1009); });
    const Tensor out = values({param.count}, DType::kF64, [](int64_t) { return -1; });
    ASSERT_OK(ctx.group().reduce_scatter_tensor(out, in, ReduceOp::kAvg)->wait(ctx.deadline()));
    expect_values(out, [&](int64_t i) {
      return (param.world + 1) / 2.0 * double((rank * param.count + i) % 1009);
    });
  });
}

TEST_P(Sizes, BroadcastReduceGatherAndScatterAgree) {
  const Case param = GetParam();
  run_ranks(param.world, [&](RankContext& ctx) {
    const int rank = ctx.group_rank(), root = param.world - 1;
    ProcessGroup& group = ctx.group();
    const Tensor x = values({param.count}, DType::kI32, [&](int64_t i) { return rank * 100 + i; });
    ASSERT_OK(group.broadcast(x, root)->wait(ctx.deadline()));
    expect_values(x, [&](int64_t i) { return double(root * 100 + i); });
    const Tensor y = values({param.count}, DType::kI32, [&](int64_t i) { return rank + i; });
    ASSERT_OK(group.reduce(y, root, ReduceOp::kMax)->wait(ctx.deadline()));
    expect_values(y, [&](int64_t i) { return double(rank == root ? root + i : rank + i); });
    std::vector<Tensor> pieces;
    for (int r = 0; r < param.world && rank == root; ++r)
      pieces.push_back(values({param.count}, DType::kI32, [](int64_t) { return -1; }));
    const Tensor mine = values({param.count}, DType::kI32, [&](int64_t i) { return rank * 7 + i; });
    ASSERT_OK(group.gather(pieces, mine, root)->wait(ctx.deadline()));
    for (int r = 0; r < static_cast<int>(pieces.size()); ++r)
      expect_values(pieces[static_cast<size_t>(r)], [&](int64_t i) { return double(r * 7 + i); });
    const Tensor back = values({param.count}, DType::kI32, [](int64_t) { return -1; });
    ASSERT_OK(group.scatter(back, pieces, root)->wait(ctx.deadline()));
    expect_values(back, [&](int64_t i) { return double(rank * 7 + i); });
  });
}

TEST(AllReduce, AveragesBf16InF32) {
  run_ranks(3, [](RankContext& ctx) {
    // 1 + 2^-8 + 2^-8 needs nine bits: rounding after each addition would lose it.
    const double mine[] = {1.0, 0x1p-8, 0x1p-8};
    const Tensor x = values({5000}, DType::kBF16, [&](int64_t) { return mine[ctx.group_rank()]; });
    ASSERT_OK(ctx.group().all_reduce(x)->wait(ctx.deadline()));
    expect_values(x, [](int64_t) { return 1.0078125; });
  });
}

TEST(AllReduce, KeepsNanInMinAndMax) {
  run_ranks(2, [](RankContext& ctx) {
    const Tensor x = values({4}, DType::kF32, [&](int64_t i) {
      return i == 2 && ctx.group_rank() == 1 ? NAN : double(i);
    });
    ASSERT_OK(ctx.group().all_reduce(x, ReduceOp::kMax)->wait(ctx.deadline()));
    EXPECT_TRUE(std::isnan(element(x, 2)));
    EXPECT_EQ(element(x, 3), 3.0);
  });
}

TEST(AllGather, TakesPiecesOfDifferentSizes) {
  run_ranks(3, [](RankContext& ctx) {
    const int64_t counts[] = {3, 0, 2};
    const int rank = ctx.group_rank();
    const Tensor in =
        values({counts[rank]}, DType::kF32, [&](int64_t i) { return rank * 10 + double(i); });
    std::vector<Tensor> outs;
    for (const int64_t count : counts)
      outs.push_back(values({count}, DType::kF32, [](int64_t) { return -1; }));
    ASSERT_OK(ctx.group().all_gather(outs, in)->wait(ctx.deadline()));
    for (int r = 0; r < 3; ++r)
      expect_values(outs[static_cast<size_t>(r)], [&](int64_t i) { return r * 10 + double(i); });
  });
}

TEST(AllToAll, ExchangesUnevenPieces) {
  run_ranks(3, [](RankContext& ctx) {
    const int rank = ctx.group_rank();
    std::vector<Tensor> in, out;
    for (int r = 0; r < 3; ++r) {
      in.push_back(values({rank + r}, DType::kF32, [&](int64_t) { return rank * 10 + r; }));
      out.push_back(values({rank + r}, DType::kF32, [](int64_t) { return -1; }));
    }
    ASSERT_OK(ctx.group().all_to_all(out, in)->wait(ctx.deadline()));
    for (int r = 0; r < 3; ++r)
      expect_values(out[static_cast<size_t>(r)], [&](int64_t) { return r * 10 + rank; });
  });
}

TEST(SendRecv, BothSidesMaySendFirst) {
  run_ranks(2, [](RankContext& ctx) {
    const int rank = ctx.group_rank(), other = 1 - rank;
    const int64_t count = int64_t{1} << 22;
    const Tensor mine =
        values({count}, DType::kF32, [&](int64_t i) { return rank + double(i % 5); });
    const Tensor theirs = values({count}, DType::kF32, [](int64_t) { return -1; });
    ASSERT_OK(ctx.group().send(mine, other)->wait(ctx.deadline()));
    ASSERT_OK(ctx.group().recv(theirs, other)->wait(ctx.deadline()));
    expect_values(theirs, [&](int64_t i) { return other + double(i % 5); });
  });
}

TEST(SendRecv, KeepsOrderOverManyMessages) {
  run_ranks(2, [](RankContext& ctx) {
    for (int round = 0; round < 100; ++round) {
      const Tensor x = values({round % 7}, DType::kI64, [&](int64_t i) { return round * 10 + i; });
      if (ctx.group_rank() == 0) {
        ASSERT_OK(ctx.group().send(x, 1)->wait(ctx.deadline()));
      } else {
        const Tensor y = values({round % 7}, DType::kI64, [](int64_t) { return -1; });
        ASSERT_OK(ctx.group().recv(y, 0)->wait(ctx.deadline()));
        expect_values(y, [&](int64_t i) { return double(round * 10 + i); });
      }
    }
  });
}

TEST(Async, WorksOfTwoGroupsMayBeAwaitedInAnyOrder) {
  run_ranks(2, [](RankContext& ctx) {
    const auto second = ctx.group().subgroup("second", {0, 1}, ctx.deadline()).value();
    const Tensor a = values({1000}, DType::kF32, [](int64_t) { return 1; });
    const Tensor b = values({1000}, DType::kF32, [](int64_t) { return 2; });
    const auto first_work = ctx.group().all_reduce(a, ReduceOp::kSum, true);
    const auto second_work = second->all_reduce(b, ReduceOp::kSum, true);
    if (ctx.group_rank() == 0) {
      ASSERT_OK(second_work->wait(ctx.deadline()));
      ASSERT_OK(first_work->wait(ctx.deadline()));
    } else {
      ASSERT_OK(first_work->wait(ctx.deadline()));
      ASSERT_OK(second_work->wait(ctx.deadline()));
    }
    expect_values(a, [](int64_t) { return 2; });
    expect_values(b, [](int64_t) { return 4; });
  });
}

TEST(Subgroup, NumbersAndRanksAreItsOwn) {
  run_ranks(4, [](RankContext& ctx) {
    const int rank = ctx.group_rank();
    const std::vector<int> members =
        rank % 2 == 0 ? std::vector<int>{2, 0} : std::vector<int>{1, 3};
    const auto group =
        ctx.group().subgroup(rank % 2 == 0 ? "even" : "odd", members, ctx.deadline()).value();
    EXPECT_EQ(group->group_rank(), rank == 2 || rank == 1 ? 0 : 1);
    const Tensor in = values({1}, DType::kI64, [&](int64_t) { return rank; });
    const Tensor out = values({2}, DType::kI64, [](int64_t) { return -1; });
    ASSERT_OK(group->all_gather_into_tensor(out, in)->wait(ctx.deadline()));
    expect_values(out, [&](int64_t i) { return double(members[static_cast<size_t>(i)]); });
  });
}

// The contract check: each pair diverges in one respect, and both sides name both sites.
struct Divergence {
  const char* name;
  std::function<ProcessGroup::WorkPtr(ProcessGroup&)> first, second;
};

class Contract : public ::testing::TestWithParam<Divergence> {};

Tensor zeros(int64_t count, DType dtype = DType::kF32) {
  return values({count}, dtype, [](int64_t) { return 0; });
}

INSTANTIATE_TEST_SUITE_P(
    Shm, Contract,
    ::testing::Values(
        Divergence{"kind", [](ProcessGroup& g) { return g.all_reduce(zeros(4)); },
                   [](ProcessGroup& g) { return g.all_gather_into_tensor(zeros(8), zeros(4)); }},
        Divergence{"size", [](ProcessGroup& g) { return g.all_reduce(zeros(14)); },
                   [](ProcessGroup& g) { return g.all_reduce(zeros(15)); }},
        Divergence{"dtype", [](ProcessGroup& g) { return g.all_reduce(zeros(4)); },
                   [](ProcessGroup& g) { return g.all_reduce(zeros(4, DType::kF64)); }},
        Divergence{"reduce_op", [](ProcessGroup& g) { return g.all_reduce(zeros(4)); },
                   [](ProcessGroup& g) { return g.all_reduce(zeros(4), ReduceOp::kMax); }},
        Divergence{"root", [](ProcessGroup& g) { return g.broadcast(zeros(4), 0); },
                   [](ProcessGroup& g) { return g.broadcast(zeros(4), 1); }},
        Divergence{"large", [](ProcessGroup& g) { return g.all_reduce(zeros(1 << 20)); },
                   [](ProcessGroup& g) {
                     return g.reduce_scatter_tensor(zeros(1 << 19), zeros(1 << 20));
                   }}),
    [](const auto& p) { return std::string(p.param.name); });

TEST_P(Contract, BothSidesNameBothCallSites) {
  const Divergence& param = GetParam();
  run_ranks(2, [&](RankContext& ctx) {
    ASSERT_OK(ctx.group().barrier()->wait(ctx.deadline()));
    const auto work = ctx.group_rank() == 0 ? param.first(ctx.group()) : param.second(ctx.group());
    const Result<void> outcome = work->wait(ctx.deadline());
    EXPECT_THAT(outcome,
                testing::FailsWith(ErrorCode::kMismatch, ::testing::HasSubstr("ranks diverged")));
    EXPECT_THAT(
        outcome,
        testing::FailsWith(
            ErrorCode::kMismatch,
            ::testing::ContainsRegex("group rank 0 .*tests/dist/group/backend_suite.cpp:[0-9]+")));
    EXPECT_THAT(
        outcome,
        testing::FailsWith(
            ErrorCode::kMismatch,
            ::testing::ContainsRegex("group rank 1 .*tests/dist/group/backend_suite.cpp:[0-9]+")));
    // The group is done for: the next operation says so at once instead of hanging.
    EXPECT_THAT(ctx.group().barrier()->wait(ctx.deadline()),
                testing::FailsWith(ErrorCode::kMismatch, ::testing::HasSubstr("diverged")));
  });
}

TEST(Contract, RecvOfAnotherSizeIsRefused) {
  run_ranks(2, [](RankContext& ctx) {
    if (ctx.group_rank() == 0) {
      ASSERT_OK(ctx.group().send(zeros(4), 1)->wait(ctx.deadline()));
    } else {
      EXPECT_THAT(ctx.group().recv(zeros(5), 0)->wait(ctx.deadline()),
                  testing::FailsWith(ErrorCode::kMismatch, ::testing::HasSubstr("f32[4]")));
    }
  });
}

TEST(Deadline, NamesTheLateRankAndLeavesTheWorkPending) {
  run_ranks(2, [](RankContext& ctx) {
    const Tensor x = values({8}, DType::kF32, [](int64_t) { return 1; });
    static_cast<void>(ctx.group());
    if (ctx.group_rank() == 0) {
      const auto work = ctx.group().all_reduce(x);
      EXPECT_THAT(
          work->wait(muster::Deadline::after(20ms)),
          testing::FailsWith(ErrorCode::kTimeout,
                             ::testing::HasSubstr("group rank 1 (global 1) has not arrived")));
      ctx.store().set("late", "").value();
      ASSERT_OK(work->wait(ctx.deadline()));
    } else {
      ctx.store().get("late", ctx.deadline()).value();
      ASSERT_OK(ctx.group().all_reduce(x)->wait(ctx.deadline()));
    }
    expect_values(x, [](int64_t) { return 2; });
  });
}

TEST(Abort, EndsAWaitingOperationAtOnce) {
  run_ranks(2, [](RankContext& ctx) {
    if (ctx.group_rank() == 1) {
      static_cast<void>(ctx.group());
      ctx.store().get("entered", ctx.deadline()).value();
      return;
    }
    const auto work = ctx.group().all_reduce(zeros(4), ReduceOp::kSum, true);
    ctx.group().abort("the test asks for it");
    EXPECT_THAT(work->wait(ctx.deadline()),
                testing::FailsWith(ErrorCode::kAborted, ::testing::HasSubstr("the test asks")));
    EXPECT_THAT(ctx.group().barrier()->wait(ctx.deadline()),
                testing::FailsWith(ErrorCode::kAborted, ::testing::HasSubstr("the test asks")));
    ctx.store().set("entered", "").value();
  });
}

RANK_BODY(survivor) {
  const Tensor x = zeros(1 << 20);
  static_cast<void>(ctx.group());
  ctx.hold_at("before all_reduce", ctx.group_rank() == 0);
  ctx.report(ctx.group().all_reduce(x)->wait(ctx.deadline()));
}

TEST(AllReduce, SurvivorsNameTheDeadPeerWithinTheirDeadline) {
  testing::World world(3, "survivor");
  for (int rank = 0; rank < 3; ++rank) world.await_hold(rank, "before all_reduce");
  world.kill(0, SIGKILL);
  for (const int rank : {1, 2}) {
    EXPECT_THAT(world.outcome(rank),
                testing::FailsWith(ErrorCode::kPeerLost, ::testing::HasSubstr("group rank 0")));
  }
}

RANK_BODY(sums_in_processes) {
  for (int round = 0; round < 50; ++round) {
    const Tensor x = values({4096}, DType::kF32,
                            [&](int64_t i) { return ctx.group_rank() + double(i % 3) + round; });
    ctx.group().run(ctx.group().all_reduce(x));
    expect_values(x, [&](int64_t i) { return 3 + 3 * (double(i % 3) + round); });
  }
  ctx.report(Result<void>());
}

TEST(AllReduce, WorksBetweenProcesses) {
  testing::World world(3, "sums_in_processes");
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_OK(world.outcome(rank));
    EXPECT_EQ(world.exit_status(rank), 0);
  }
}
}  // namespace
}  // namespace muster
