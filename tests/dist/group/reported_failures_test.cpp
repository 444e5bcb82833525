// What users of other process groups have reported: hangs, and messages that did not help.
#include <fmt/format.h>

#include <cmath>
#include <csignal>

#include "dist/mesh/device_mesh.h"
#include "tests/dist/group/reported_cases.h"
#include "tests/support_ranks/mesh.h"

namespace muster {
namespace {
using ::testing::AllOf;
using ::testing::ContainsRegex;
using testing::expect_all;
using testing::FailsWith;
using testing::filled;
using ::testing::HasSubstr;
using testing::RankContext;

SUITE_ON_EVERY_BACKEND(ReportedFailures);

// Reported as Megatron-LM#3401: stages of different sizes hung at the first log line.
TEST_P(ReportedFailures, SumsOf14And15ElementsEndBothRanksWithinASecond) {
  run_ranks(2, [](RankContext& ctx) {
    ASSERT_OK(ctx.group().barrier()->wait(ctx.deadline()));
    const TimePoint start = real_clock().now();
    const Result<void> outcome =
        ctx.group().all_reduce(filled(14 + ctx.group_rank(), 1))->wait(ctx.deadline());
    EXPECT_LT(real_clock().now() - start, 1s);
    const auto side = [](int rank, int count) {
      return ContainsRegex(
          fmt::format("group rank {} .global {}.: all_reduce #2 f32.{}. sum in group world at "
                      "tests/dist/group/reported_failures_test.cpp:[0-9]+",
                      rank, rank, count));
    };
    EXPECT_THAT(outcome, FailsWith(ErrorCode::kMismatch, side(0, 14)));
    EXPECT_THAT(outcome, FailsWith(ErrorCode::kMismatch, side(1, 15)));
  });
}

// Reported as pytorch#78022 and #72435: the message lacked the other side and what came before.
TEST_P(ReportedFailures, AMismatchNamesTheMeshAxisBothSitesAndTheLastCalls) {
  run_ranks(4, [](RankContext& ctx) {
    const auto world = testing::world_of(ctx);
    const auto mesh = DeviceMesh::open(world, {{"dp", 2}, {"tp", 2}}, ctx.deadline()).value();
    ProcessGroup& group = *mesh->group("tp");
    for (int round = 0; round < 9; ++round) group.run(group.barrier());
    const Tensor x = filled(8, 1), gathered = filled(16, 0);
    const TimePoint start = real_clock().now();
    const Result<void> outcome = testing::thrown_by([&] {
      group.run(group.group_rank() == 0 ? group.all_reduce(x)
                                        : group.all_gather_into_tensor(gathered, x));
    });
    EXPECT_LT(real_clock().now() - start, 1s);
    const int first = ctx.group_rank() / 2 * 2;
    for (const std::string& part :
         {fmt::format("in group world.tp.{}", first),
          fmt::format("group rank 0 (global {}): all_reduce #10 f32[8] sum", first),
          fmt::format("group rank 1 (global {}): all_gather #10 f32[8]", first + 1),
          std::string("last: barrier #3 in"), std::string("last: barrier #9 in")}) {
      EXPECT_THAT(outcome, FailsWith(ErrorCode::kMismatch, HasSubstr(part)));
    }
  });
}

TEST_P(ReportedFailures, AMismatchOfTwoRanksEndsTheThirdWithinASecond) {
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
    EXPECT_LT(real_clock().now() - start, 1s);
  });
}

// Who is late must not keep the others from hearing what is wrong among themselves.
TEST_P(ReportedFailures, AMismatchOfTwoRanksIsNamedWhileAThirdIsLate) {
  run_ranks(3, [](RankContext& ctx) {
    const int rank = ctx.group_rank();
    static_cast<void>(ctx.group());
    if (rank == 0) {
      for (const char* key : {"named/1", "named/2"}) ctx.store().get(key, ctx.deadline()).value();
    }
    const TimePoint start = real_clock().now();
    EXPECT_THAT(ctx.group().all_reduce(filled(rank == 2 ? 5 : 4, 1))->wait(ctx.deadline()),
                FailsWith(ErrorCode::kMismatch, AllOf(HasSubstr("f32[4]"), HasSubstr("f32[5]"))));
    EXPECT_LT(real_clock().now() - start, 1s);
    ctx.store().set(fmt::format("named/{}", rank), "").value();
  });
}

// Reported as rccl#2191, nccl#195: each rank waits in another group for the other.
TEST_P(ReportedFailures, TwoGroupsInOppositeOrderAreNamedWithBothSites) {
  run_ranks(2, [](RankContext& ctx) {
    const auto a = ctx.group().subgroup("a", {0, 1}, ctx.deadline()).value();
    const auto b = ctx.group().subgroup("b", {0, 1}, ctx.deadline()).value();
    ProcessGroup& first = ctx.group_rank() == 0 ? *a : *b;
    ProcessGroup& second = ctx.group_rank() == 0 ? *b : *a;
    const auto work = first.barrier();
    const std::string other_site =
        fmt::format("in barrier #1 in group {} at tests/dist/group/", second.name());
    Result<void> outcome;
    do {
      outcome = work->wait(Deadline::after(50ms));
      ASSERT_THAT(outcome, FailsWith(ErrorCode::kTimeout,
                                     HasSubstr("group " + first.name() + " at tests/dist/group")));
      ASSERT_THAT(outcome, FailsWith(ErrorCode::kTimeout, HasSubstr("has not arrived")));
    } while (outcome.error().message().find(other_site) == std::string::npos &&
             !ctx.deadline().passed());
    EXPECT_THAT(outcome, FailsWith(ErrorCode::kTimeout, HasSubstr(other_site)));
    // Whoever has read it out goes on, and the circle is open.
    ASSERT_OK(ctx.group().barrier()->wait(ctx.deadline()));
    ASSERT_OK(second.barrier()->wait(ctx.deadline()));
    ASSERT_OK(work->wait(ctx.deadline()));
    EXPECT_EQ(first.recorder().last(1).size(), 1U);
  });
}

RANK_BODY(waits_for_a_first_message) {
  const Tensor x = filled(1 << 16, 0);
  static_cast<void>(ctx.group());
  ctx.hold_at("before recv", ctx.group_rank() == 0);
  ctx.report(ctx.group().recv(x, 0)->wait(ctx.deadline()));
}

TEST_P(ReportedFailures, AKillDuringTheFirstMessageIsNamedByAllWhoWait) {
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

TEST_P(ReportedFailures, AStoppedPeerIsNamedAtTheDeadline) {
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

RANK_BODY(gives_up_at_a_deadline) {
  const Tensor x = filled(1 << 16, 1);
  const auto group = ctx.group().subgroup("all", {0, 1, 2, 3}, ctx.deadline()).value();
  group->run(group->all_reduce(x));
  ctx.hold_at("before all_reduce", ctx.group_rank() == 2);
  const Deadline deadline = ctx.group_rank() == 3 ? Deadline::after(300ms) : ctx.deadline();
  ctx.report(group->all_reduce(x)->wait(deadline));
}

// One rank's deadline is enough for all, and all name who was late, not who left first.
TEST_P(ReportedFailures, ARankThatGivesUpTellsTheOthersWhoWasLate) {
  const auto world = spawn_ranks(4, "gives_up_at_a_deadline");
  for (int rank = 0; rank < 4; ++rank) world->await_hold(rank, "before all_reduce");
  const TimePoint start = real_clock().now();
  for (const int rank : {3, 0, 1}) {
    EXPECT_THAT(world->outcome(rank),
                FailsWith(ErrorCode::kTimeout,
                          HasSubstr("group rank 2 (global 2) has not arrived; its last is #1")));
  }
  EXPECT_LT(real_clock().now() - start, 20s) << "not at their own deadlines";
  world->release_hold(2, "before all_reduce");
}

RANK_BODY(waits_while_one_is_late) {
  const Tensor x = filled(1 << 16, 1);
  ctx.group().run(ctx.group().all_reduce(x));
  ctx.hold_at("before all_reduce", ctx.group_rank() != 1);
  ctx.report(ctx.group().all_reduce(x)->wait(ctx.deadline()));
}

TEST_P(ReportedFailures, AKillIsNamedToARankThatWaitsForAThird) {
  const auto world = spawn_ranks(3, "waits_while_one_is_late");
  for (int rank = 0; rank < 3; ++rank) world->await_hold(rank, "before all_reduce");
  world->kill(2, SIGKILL);
  // Rank 0 has not come yet.
  EXPECT_THAT(world->outcome(1), FailsWith(ErrorCode::kPeerLost, HasSubstr("group rank 2")));
  world->release_hold(0, "before all_reduce");
  EXPECT_THAT(world->outcome(0), FailsWith(ErrorCode::kPeerLost, HasSubstr("group rank 2")));
}

TEST_P(ReportedFailures, AnAbortIsToldToPeersThatWait) {
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

TEST_P(ReportedFailures, AnAbortAmidLargeTransfersLetsGoOfTheirMemory) {
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

TEST_P(ReportedFailures, AKillAmidLargeTransfersIsNamedByAllSurvivors) {
  const auto world = spawn_ranks(3, "reduces_until_it_fails");
  for (int rank = 0; rank < 3; ++rank) world->await_hold(rank, "busy");
  world->kill(1, SIGKILL);
  for (const int rank : {0, 2})
    EXPECT_THAT(world->outcome(rank), FailsWith(ErrorCode::kPeerLost, HasSubstr("group rank 1")));
}

TEST_P(ReportedFailures, AnAbortIsToldToRanksThatWaitForAThird) {
  run_ranks(4, [](RankContext& ctx) {
    const int rank = ctx.group_rank();
    static_cast<void>(ctx.group());
    const Tensor x = filled(8, 1);
    if (rank == 0) {  // late
      for (const char* key : {"told/1", "told/2"}) ctx.store().get(key, ctx.deadline()).value();
    } else if (rank == 3) {
      for (const char* key : {"there/1", "there/2"}) ctx.store().get(key, ctx.deadline()).value();
      ctx.group().abort("the loss is not finite");
    } else {
      const auto work = rank == 1 ? ctx.group().all_reduce(x) : ctx.group().recv(x, 0);
      ctx.store().set(fmt::format("there/{}", rank), "").value();
      EXPECT_THAT(work->wait(ctx.deadline()),
                  FailsWith(ErrorCode::kAborted, HasSubstr("the loss is not finite")));
      ctx.store().set(fmt::format("told/{}", rank), "").value();
    }
  });
}
}  // namespace
}  // namespace muster
