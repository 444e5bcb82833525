// What users of other process groups have reported, as cases for every backend.
#include <fmt/format.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <random>
#include <tuple>

#include "dist/group/reduce.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using testing::BackendMember;
using testing::FailsWith;
using ::testing::HasSubstr;
using testing::RankContext;

class ReportedCases : public ::testing::TestWithParam<BackendMember> {
 protected:
  static void run_ranks(int world, const std::function<void(RankContext&)>& body) {
    testing::run_ranks(world, body, 60s, GetParam().name);
  }
  static std::unique_ptr<testing::World> spawn_ranks(int world, const std::string& body) {
    return std::make_unique<testing::World>(world, body, 60s, GetParam().name);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, ReportedCases, ::testing::ValuesIn(testing::backend_members()),
                         [](const auto& p) { return p.param.name; });

Tensor filled(int64_t count, float value) {
  Tensor tensor = empty_from_spec(TensorSpec::contiguous({count}, DType::kF32));
  std::fill_n(tensor.data<float>(), count, value);
  return tensor;
}

void expect_all(const Tensor& tensor, float value) {
  for (int64_t i = 0; i < tensor.numel(); ++i)
    ASSERT_EQ(tensor.data<float>()[i], value) << "element " << i;
}

TEST_P(ReportedCases, ReduceScatterAppliesTheOperationThatWasAsked) {
  run_ranks(2, [](RankContext& ctx) {
    const int rank = ctx.group_rank();
    const std::tuple<ReduceOp, float, float> cases[] = {
        {ReduceOp::kSum, 6, 12}, {ReduceOp::kAvg, 3, 6},      {ReduceOp::kMin, 2, 4},
        {ReduceOp::kMax, 4, 8},  {ReduceOp::kProduct, 8, 32},
    };
    for (const auto& [op, first, second] : cases) {
      const Tensor in = filled(2, 0), out = filled(1, 0);
      in.data<float>()[0] = rank == 0 ? 2.0F : 4.0F;
      in.data<float>()[1] = rank == 0 ? 4.0F : 8.0F;
      ASSERT_OK(ctx.group().reduce_scatter_tensor(out, in, op)->wait(ctx.deadline()));
      EXPECT_EQ(out.data<float>()[0], rank == 0 ? first : second) << to_string(op);
    }
  });
}

TEST_P(ReportedCases, EveryWorkOfABatchOfMessagesArrives) {
  run_ranks(2, [](RankContext& ctx) {
    ProcessGroup& group = ctx.group();
    const int rank = ctx.group_rank(), other = 1 - rank;
    const Tensor in[] = {filled(3, -1), filled(100000, -1)};
    std::vector<ProcessGroup::WorkPtr> works;
    for (const Tensor& tensor : in) works.push_back(group.recv(tensor, other, true));
    works.push_back(group.send(filled(3, static_cast<float>(rank)), other, true));
    works.push_back(group.send(filled(100000, static_cast<float>(10 + rank)), other, true));
    for (const auto& work : works) ASSERT_OK(work->wait(ctx.deadline()));
    expect_all(in[0], static_cast<float>(other));
    expect_all(in[1], static_cast<float>(10 + other));
  });
}

TEST_P(ReportedCases, MessagesMayBeTheFirstCallsOfAGroupAndOnlySomeRanksTakePart) {
  run_ranks(4, [](RankContext& ctx) {
    const int rank = ctx.group_rank();
    const auto fresh = ctx.group().subgroup("fresh", {0, 1, 2, 3}, ctx.deadline()).value();
    if (rank == 1) {
      ASSERT_OK(fresh->send(filled(2, 7), 3)->wait(ctx.deadline()));
    } else if (rank == 3) {
      const Tensor x = filled(2, 0);
      ASSERT_OK(fresh->recv(x, 1)->wait(ctx.deadline()));
      expect_all(x, 7);
    }
    for (int distance = 1; distance < 4; ++distance) {
      const int to = (rank + distance) % 4, from = (rank + 4 - distance) % 4;
      const Tensor x = filled(5000, -1);
      const auto sent = fresh->send(filled(5000, static_cast<float>(rank)), to);
      const auto received = fresh->recv(x, from);
      ASSERT_OK(sent->wait(ctx.deadline()));
      ASSERT_OK(received->wait(ctx.deadline()));
      expect_all(x, static_cast<float>(from));
    }
  });
}

TEST_P(ReportedCases, SubgroupsMessagesAndBarriersMix) {
  run_ranks(4, [](RankContext& ctx) {
    ProcessGroup& world = ctx.group();
    const int rank = ctx.group_rank();
    const std::vector<int> members = rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
    const auto half = world.subgroup(rank < 2 ? "low" : "high", members, ctx.deadline()).value();
    for (int round = 0; round < 20; ++round) {
      ASSERT_OK(world.barrier()->wait(ctx.deadline()));
      const Tensor x = filled(17 + round * 300, 1);
      ASSERT_OK(half->all_reduce(x)->wait(ctx.deadline()));
      expect_all(x, 2);
      if (rank == 0) world.run(world.send(x, 3));
      if (rank == 3) world.run(world.recv(x, 0));
      ASSERT_OK(half->barrier()->wait(ctx.deadline()));
    }
  });
}

RANK_BODY(waits_for_a_first_message) {
  const Tensor x = filled(1 << 16, 0);
  static_cast<void>(ctx.group());
  ctx.hold_at("before recv", ctx.group_rank() == 0);
  ctx.report(ctx.group().recv(x, 0)->wait(ctx.deadline()));
}

TEST_P(ReportedCases, AKillDuringTheFirstMessageIsNamedByAllWhoWait) {
  const auto world = spawn_ranks(3, "waits_for_a_first_message");
  for (int rank = 0; rank < 3; ++rank) world->await_hold(rank, "before recv");
  world->kill(0, SIGKILL);
  for (const int rank : {1, 2})
    EXPECT_THAT(world->outcome(rank), FailsWith(ErrorCode::kPeerLost, HasSubstr("group rank 0")));
}

RANK_BODY(meets_a_deadline) {
  const Tensor x = filled(1 << 16, 1);
  ctx.group().run(ctx.group().all_reduce(x));
  ctx.hold_at("before all_reduce", ctx.group_rank() == 2);
  ctx.report(ctx.group().all_reduce(x)->wait(Deadline::after(300ms)));
}

TEST_P(ReportedCases, AStoppedPeerIsNamedAtTheDeadline) {
  const auto world = spawn_ranks(3, "meets_a_deadline");
  for (int rank = 0; rank < 3; ++rank) world->await_hold(rank, "before all_reduce");
  world->kill(2, SIGSTOP);
  for (const int rank : {0, 1}) {
    EXPECT_THAT(world->outcome(rank),
                FailsWith(ErrorCode::kTimeout,
                          HasSubstr("group rank 2 (global 2) has not arrived; its last is #1")));
  }
  world->kill(2, SIGCONT);
  world->release_hold(2, "before all_reduce");
}

TEST_P(ReportedCases, TwoGroupsInOppositeOrderEndAtTheDeadlineWithBothSites) {
  run_ranks(2, [](RankContext& ctx) {
    const auto a = ctx.group().subgroup("a", {0, 1}, ctx.deadline()).value();
    const auto b = ctx.group().subgroup("b", {0, 1}, ctx.deadline()).value();
    ProcessGroup& first = ctx.group_rank() == 0 ? *a : *b;
    EXPECT_THAT(first.barrier()->wait(Deadline::after(100ms)),
                FailsWith(ErrorCode::kTimeout, HasSubstr(first.name() + " at tests/dist/group")));
    ASSERT_OK(ctx.group().barrier()->wait(ctx.deadline()));
  });
}

TEST_P(ReportedCases, AMismatchOfTwoRanksEndsTheThirdToo) {
  run_ranks(3, [](RankContext& ctx) {
    const int rank = ctx.group_rank();
    std::vector<Tensor> in, out;
    for (int peer = 0; peer < 3; ++peer) {
      in.push_back(filled(4, 0));
      out.push_back(filled(rank == 0 && peer == 1 ? 5 : 4, 0));
    }
    const TimePoint start = real_clock().now();
    EXPECT_THAT(ctx.group().all_to_all(out, in)->wait(ctx.deadline()),
                FailsWith(ErrorCode::kMismatch, HasSubstr("sends 16 bytes to group rank 0")));
    // All know at once; the margin is for a machine that is busy.
    EXPECT_LT(real_clock().now() - start, 10s);
  });
}

TEST_P(ReportedCases, AnAbortIsToldToPeersThatWait) {
  run_ranks(2, [](RankContext& ctx) {
    const Tensor x = filled(8, 1);
    static_cast<void>(ctx.group());
    if (ctx.group_rank() == 0) {
      ctx.group().abort("the loss is not finite");
      return;
    }
    EXPECT_THAT(ctx.group().all_reduce(x)->wait(ctx.deadline()),
                FailsWith(ErrorCode::kAborted, HasSubstr("the loss is not finite")));
  });
}

TEST_P(ReportedCases, AnAbortAmidLargeTransfersLetsGoOfTheirMemory) {
  run_ranks(2, [](RankContext& ctx) {
    for (int round = 0; round < 8; ++round) {
      const auto group =
          ctx.group().subgroup(fmt::format("round{}", round), {0, 1}, ctx.deadline()).value();
      std::vector<ProcessGroup::WorkPtr> works;
      for (int i = 0; i < 3; ++i)
        works.push_back(group->all_reduce(filled(1 << 20, 1), ReduceOp::kSum, true));
      if (ctx.group_rank() == round % 2) group->abort("in the middle");
      for (const auto& work : works) {
        const Result<void> outcome = work->wait(ctx.deadline());
        if (!outcome.ok()) {
          EXPECT_THAT(outcome, FailsWith(ErrorCode::kAborted, HasSubstr("in the middle")));
        }
      }
      static_cast<void>(filled(3 << 20, NAN));  // takes the memory
    }
    ASSERT_OK(ctx.group().barrier()->wait(ctx.deadline()));
  });
}

RANK_BODY(reduces_until_it_fails) {
  const Tensor x = filled(4 << 20, 1);
  ctx.group().run(ctx.group().all_reduce(x));
  ctx.hold_at("busy", false);
  Result<void> outcome;
  while (outcome.ok()) outcome = ctx.group().all_reduce(x)->wait(ctx.deadline());
  ctx.report(outcome);
}

TEST_P(ReportedCases, AKillAmidLargeTransfersIsNamedByAllSurvivors) {
  const auto world = spawn_ranks(3, "reduces_until_it_fails");
  for (int rank = 0; rank < 3; ++rank) world->await_hold(rank, "busy");
  world->kill(1, SIGKILL);
  for (const int rank : {0, 2})
    EXPECT_THAT(world->outcome(rank), FailsWith(ErrorCode::kPeerLost, HasSubstr("group rank 1")));
}

TEST_P(ReportedCases, BuffersLiveUntilAnAsyncOperationIsDone) {
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

// Reductions run in group order on every backend: this is the reference, bit for bit.
TEST_P(ReportedCases, ReductionsHaveTheSameBitsOnEveryBackend) {
  constexpr int kWorld = 3;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t count : {int64_t{500}, int64_t{300001}}) {
      std::vector<Tensor> inputs;
      for (int rank = 0; rank < kWorld; ++rank) {
        std::mt19937 random(static_cast<uint32_t>(1000 + rank));
        std::uniform_real_distribution<float> uniform(-1, 1);
        inputs.push_back(empty_from_spec(TensorSpec::contiguous({kWorld * count}, dtype)));
        for (int64_t i = 0; i < kWorld * count; ++i) {
          if (dtype == DType::kF32) {
            inputs.back().data<float>()[i] = uniform(random);
          } else {
            inputs.back().data<BFloat16>()[i] = BFloat16(uniform(random));
          }
        }
      }
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        const Tensor expected = empty_from_spec(TensorSpec::contiguous({kWorld * count}, dtype));
        std::vector<const std::byte*> sources;
        for (const Tensor& input : inputs)
          sources.push_back(static_cast<const std::byte*>(input.data_ptr()));
        reduce_buffers(op, dtype, static_cast<std::byte*>(expected.data_ptr()), sources,
                       kWorld * count);
        run_ranks(kWorld, [&](RankContext& ctx) {
          const auto rank = static_cast<size_t>(ctx.group_rank());
          const Tensor whole = empty_from_spec(TensorSpec::of(inputs[rank]));
          const Tensor piece = empty_from_spec(TensorSpec::contiguous({count}, dtype));
          std::memcpy(whole.data_ptr(), inputs[rank].data_ptr(),
                      static_cast<size_t>(whole.nbytes()));
          ASSERT_OK(ctx.group().reduce_scatter_tensor(piece, whole, op)->wait(ctx.deadline()));
          ASSERT_OK(ctx.group().all_reduce(whole, op)->wait(ctx.deadline()));
          EXPECT_EQ(std::memcmp(whole.data_ptr(), expected.data_ptr(),
                                static_cast<size_t>(whole.nbytes())),
                    0);
          const auto* own = static_cast<const std::byte*>(expected.data_ptr()) +
                            static_cast<int64_t>(rank) * piece.nbytes();
          EXPECT_EQ(std::memcmp(piece.data_ptr(), own, static_cast<size_t>(piece.nbytes())), 0);
        });
      }
    }
  }
}
}  // namespace
}  // namespace muster
