// What users of other process groups have reported: messages that never come, and ranks that wait
// for each other.
#include <fmt/format.h>

#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "dist/mesh/device_mesh.h"
#include "tests/dist/group/reported_cases.h"
#include "tests/support_ranks/mesh.h"

namespace muster {
namespace {
using ::testing::AllOf;
using testing::expect_all;
using testing::FailsWith;
using testing::filled;
using ::testing::HasSubstr;
using testing::RankContext;

SUITE_ON_EVERY_BACKEND(ReportedWaits);

// Reported as pytorch#172668: both sides send first, and neither takes.
TEST_P(ReportedWaits, BothSidesMaySend64MiBBeforeEitherReceives) {
  run_ranks(2, [](RankContext& ctx) {
    const int own = ctx.group_rank(), other = 1 - own;
    const Tensor mine = filled(int64_t{1} << 24, static_cast<float>(own + 1));
    const Tensor theirs = filled(int64_t{1} << 24, -1);
    ASSERT_OK(ctx.group().send(mine, other)->wait(ctx.deadline()));
    ASSERT_OK(ctx.group().recv(theirs, other)->wait(ctx.deadline()));
    std::fill_n(mine.data<float>(), mine.numel(), static_cast<float>(other + 1));
    EXPECT_EQ(std::memcmp(theirs.data_ptr(), mine.data_ptr(), static_cast<size_t>(mine.nbytes())),
              0);
  });
}

RANK_BODY(takes_messages_until_the_sender_is_gone) {
  const Tensor x = filled(1 << 20, 1);
  static_cast<void>(ctx.group());
  bool is_busy = false;
  Result<void> outcome;
  while (outcome.ok()) {
    if (ctx.group_rank() == 0) {
      for (const int peer : {1, 2}) ctx.group().run(ctx.group().send(x, peer));
      ctx.group().run(ctx.group().recv(x, 1));
    } else {
      outcome = ctx.group().recv(x, 0)->wait(ctx.deadline());
      if (outcome.ok() && ctx.group_rank() == 1)
        outcome = ctx.group().send(x, 0)->wait(ctx.deadline());
    }
    if (!std::exchange(is_busy, true)) ctx.hold_at("busy", false);
  }
  ctx.report(outcome);
}

// Reported as pytorch#113281: a message whose other side had gone never ended.
TEST_P(ReportedWaits, AKillAmidMessagesIsNamedByAllWhoReceive) {
  const auto world = spawn_ranks(3, "takes_messages_until_the_sender_is_gone");
  for (int rank = 0; rank < 3; ++rank) world->await_hold(rank, "busy");
  world->kill(0, SIGKILL);
  for (const int rank : {1, 2})
    EXPECT_THAT(world->outcome(rank), FailsWith(ErrorCode::kPeerLost, HasSubstr("group rank 0")));
}

RANK_BODY(receives_from_the_dead) {
  const Tensor x = filled(1 << 20, 1);
  static_cast<void>(ctx.group());
  if (ctx.group_rank() == 0) ctx.group().run(ctx.group().send(x, 1));
  ctx.hold_at("sent, or about to receive");
  ctx.report(ctx.group().recv(x, 0)->wait(ctx.deadline()));
}

// A large message may lie with its sender until it is asked for.
TEST_P(ReportedWaits, AMessageWhoseSenderEndedBeforeItWasAskedForComesOrIsLost) {
  const auto world = spawn_ranks(2, "receives_from_the_dead");
  for (int rank = 0; rank < 2; ++rank) world->await_hold(rank, "sent, or about to receive");
  world->kill(0, SIGKILL);
  EXPECT_EQ(world->exit_status(0), 128 + SIGKILL);
  world->release_hold(1, "sent, or about to receive");
  const Result<void> outcome = world->outcome(1);
  if (!outcome.ok()) {
    EXPECT_THAT(outcome, FailsWith(ErrorCode::kPeerLost, HasSubstr("group rank 0")));
  }
}

RANK_BODY(sends_to_one_that_does_not_take) {
  const Tensor x = filled(1 << 14, 1);
  static_cast<void>(ctx.group());
  ctx.hold_at("before the first message", ctx.group_rank() == 0);
  Result<void> outcome;
  while (outcome.ok()) outcome = ctx.group().send(x, 0)->wait(ctx.deadline());
  ctx.report(outcome);
}

TEST_P(ReportedWaits, AKilledReceiverIsNamedByAllWhoSend) {
  const auto world = spawn_ranks(3, "sends_to_one_that_does_not_take");
  for (int rank = 0; rank < 3; ++rank) world->await_hold(rank, "before the first message");
  world->kill(0, SIGKILL);
  for (const int rank : {1, 2})
    EXPECT_THAT(world->outcome(rank), FailsWith(ErrorCode::kPeerLost, HasSubstr("group rank 0")));
}

RANK_BODY(opens_a_group_for_its_first_message) {
  static_cast<void>(ctx.group());
  ctx.hold_at("before the group", ctx.group_rank() == 0);
  const auto group = ctx.group().subgroup("first", {0, 1, 2}, ctx.deadline());
  if (!group.ok()) return ctx.report(group.error());
  const Tensor x = filled(4, 0);
  ctx.report((*group)->recv(x, 0)->wait(ctx.deadline()));
}

TEST_P(ReportedWaits, AKillBeforeTheGroupOfAFirstMessageOpensIsNamedByAll) {
  const auto world = spawn_ranks(3, "opens_a_group_for_its_first_message");
  for (int rank = 0; rank < 3; ++rank) world->await_hold(rank, "before the group");
  world->kill(0, SIGKILL);
  for (const int rank : {1, 2})
    EXPECT_THAT(world->outcome(rank), FailsWith(ErrorCode::kPeerLost, HasSubstr("rank 0")));
}

TEST_P(ReportedWaits, OnesOwnAbortEndsAFirstMessageThatNeverComes) {
  run_ranks(2, [](RankContext& ctx) {
    const auto fresh = ctx.group().subgroup("fresh", {0, 1}, ctx.deadline()).value();
    if (ctx.group_rank() == 0) {
      const Tensor x = filled(1 << 16, 0);
      const auto work = fresh->recv(x, 1);
      std::thread aborter([&] { fresh->abort("the watchdog says so"); });
      EXPECT_THAT(work->wait(ctx.deadline()),
                  FailsWith(ErrorCode::kAborted, HasSubstr("the watchdog says so")));
      aborter.join();
      EXPECT_THAT(fresh->recv(x, 1)->wait(ctx.deadline()),
                  FailsWith(ErrorCode::kAborted, HasSubstr("the watchdog says so")));
    }
    ASSERT_OK(ctx.group().barrier()->wait(ctx.deadline()));
  });
}

// Reported as torchrec#4149: two groups, each rank blocked in the one that the other comes to
// later. Here one of the calls is a receive.
TEST_P(ReportedWaits, AReceiveNamesTheGroupWhereTheSenderWaitsForIt) {
  run_ranks(2, [](RankContext& ctx) {
    const auto a = ctx.group().subgroup("a", {0, 1}, ctx.deadline()).value();
    const auto b = ctx.group().subgroup("b", {0, 1}, ctx.deadline()).value();
    const Tensor x = filled(3, 1);
    if (ctx.group_rank() == 1) {
      ASSERT_OK(b->all_reduce(x)->wait(ctx.deadline()));
      ASSERT_OK(a->send(x, 0)->wait(ctx.deadline()));
      return;
    }
    const auto work = a->recv(x, 1);
    const std::string place = "all_reduce #1 f32[3] sum in group b at tests/dist/group/reported";
    Result<void> outcome;
    do {
      outcome = work->wait(Deadline::after(50ms));
      ASSERT_THAT(outcome, FailsWith(ErrorCode::kTimeout, HasSubstr("group rank 1 (global 1)")));
    } while (outcome.error().message().find(place) == std::string::npos &&
             !ctx.deadline().passed());
    EXPECT_THAT(outcome, FailsWith(ErrorCode::kTimeout,
                                   AllOf(HasSubstr("recv"), HasSubstr("in group a at tests/"),
                                         HasSubstr("it waits for this rank in " + place))));
    const Tensor y = filled(3, 2);
    ASSERT_OK(b->all_reduce(y)->wait(ctx.deadline()));
    ASSERT_OK(work->wait(ctx.deadline()));
    expect_all(x, 3);
  });
}

// Reported as trl#6798: sharding on one axis, tensor parallelism on the other, and a circle through
// four ranks. Each names its own group and call and the rank that it waits for: 0, 1, 3, 2 and 0
// again.
TEST_P(ReportedWaits, ACircleThroughTwoAxesOfAMeshIsNamedByEveryRank) {
  run_ranks(4, [](RankContext& ctx) {
    const int rank = ctx.group_rank();
    const auto world = testing::world_of(ctx);
    const auto mesh = DeviceMesh::open(world, {{"dp", 2}, {"tp", 2}}, ctx.deadline()).value();
    const bool tp_first = rank == 0 || rank == 3;
    ProcessGroup& first = *mesh->group(tp_first ? "tp" : "dp");
    ProcessGroup& second = *mesh->group(tp_first ? "dp" : "tp");
    const Tensor x = filled(100000, 1), y = filled(100000, 1);
    const auto work = first.all_reduce(x);
    const Result<void> outcome = work->wait(Deadline::after(100ms));
    const int awaited[] = {1, 3, 0, 2};
    EXPECT_THAT(outcome,
                FailsWith(ErrorCode::kTimeout,
                          AllOf(HasSubstr(fmt::format("all_reduce #1 f32[100000] sum in group {} "
                                                      "at tests/dist/group/reported_waits",
                                                      first.name())),
                                HasSubstr(fmt::format("(global {}) has not arrived; its last is #0",
                                                      awaited[rank])))));
    ASSERT_OK(world->barrier()->wait(ctx.deadline()));
    const auto later = second.all_reduce(y, ReduceOp::kSum, true);
    ASSERT_OK(work->wait(ctx.deadline()));
    ASSERT_OK(later->wait(ctx.deadline()));
    expect_all(x, 2);
    expect_all(y, 2);
  });
}

// The same calls, begun in one order and finished when they are needed, pass.
TEST_P(ReportedWaits, TwoAxesOverlapWhereAllBeginInOneOrder) {
  run_ranks(4, [](RankContext& ctx) {
    const auto world = testing::world_of(ctx);
    const auto mesh = DeviceMesh::open(world, {{"dp", 2}, {"tp", 2}}, ctx.deadline()).value();
    const bool tp_first = ctx.group_rank() == 0 || ctx.group_rank() == 3;
    for (int round = 0; round < 20; ++round) {
      const Tensor x = filled(1 + round * 5000, 1), y = filled(1 + round * 5000, 2);
      const auto tp = mesh->group("tp")->all_reduce(x, ReduceOp::kSum, true);
      const auto dp = mesh->group("dp")->all_reduce(y, ReduceOp::kSum, true);
      ASSERT_OK((tp_first ? tp : dp)->wait(ctx.deadline()));
      ASSERT_OK((tp_first ? dp : tp)->wait(ctx.deadline()));
      expect_all(x, 2);
      expect_all(y, 4);
    }
  });
}
}  // namespace
}  // namespace muster
