#include "launcher/rendezvous/decide.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace muster {
namespace {
using Action = Decision::Action;

constexpr TimePoint kNow{1h};

RankExit exited(int global_rank, int status, TimePoint at = kNow) {
  return {.global_rank = global_rank, .exit = {.status = status}, .at = at};
}
RankExit killed(int global_rank, int signal, bool oom = false) {
  return {.global_rank = global_rank, .exit = {.signal = signal, .oom_killed = oom}, .at = kNow};
}
JobView running(std::vector<RankExit> exits, int attempt = 0, int data_restarts = 0) {
  return {.world_size = 4,
          .started = true,
          .attempt = attempt,
          .data_restarts = data_restarts,
          .exits = std::move(exits),
          .stop_signal = std::nullopt};
}

struct Row {
  JobView job;
  Action action;
  std::string reason;
  int exit_status;
};

TEST(Decide, FollowsTheErrorTable) {
  const RestartPolicy policy{.max_restarts = 3};
  const std::vector<Row> rows = {
      {running({}), Action::kWait, "wait: 4 of 4 ranks run", 0},
      {running({exited(2, 0)}), Action::kWait, "wait: 3 of 4 ranks run", 0},
      {running({exited(0, 0), exited(1, 0), exited(2, 0), exited(3, 0)}), Action::kFinish,
       "finish: all 4 ranks exited 0", 0},
      {running({exited(1, 64)}), Action::kGiveUp,
       "give up: global rank 1 exited 64 (user); a restart cannot help", 64},
      {running({exited(1, 78)}), Action::kGiveUp,
       "give up: global rank 1 exited 78 (user); a restart cannot help", 78},
      {running({exited(1, 70)}), Action::kGiveUp,
       "give up: global rank 1 exited 70 (bug); a bug does not go away by a restart", 70},
      {running({exited(2, 75, kNow - 1s)}, 1), Action::kRestartGroup,
       "restart 2 of 3: global rank 2 exited 75 (peer)", 0},
      {running({exited(0, 66)}), Action::kRestartGroup,
       "restart 1 of 3: global rank 0 exited 66 (data); from the previous complete checkpoint", 0},
      {running({exited(0, 66)}, 1, 1), Action::kGiveUp,
       "give up: global rank 0 exited 66 (data); the restart from the previous checkpoint did not "
       "help",
       66},
      {running({exited(3, 71)}), Action::kRestartGroup,
       "restart 1 of 3: global rank 3 exited 71 (resource)", 0},
      {running({exited(3, 74)}, 3), Action::kGiveUp,
       "give up: global rank 3 exited 74 (resource); all 3 restarts are used", 74},
      {running({killed(3, SIGSEGV)}, 2), Action::kRestartGroup,
       "restart 3 of 3: global rank 3 was killed by SIGSEGV (signal)", 0},
      {running({killed(3, SIGKILL)}, 3), Action::kGiveUp,
       "give up: global rank 3 was killed by SIGKILL (signal); all 3 restarts are used", 137},
      {running({killed(3, SIGKILL, true)}, 3), Action::kGiveUp,
       "give up: global rank 3 was killed by SIGKILL at the memory limit (resource); all 3 "
       "restarts are used",
       71},
      {running({exited(0, 1)}), Action::kRestartGroup,
       "restart 1 of 3: global rank 0 exited 1 (unknown)", 0},
      {running({exited(0, 0), exited(1, 0), exited(2, 0), exited(3, 5)}, 3), Action::kGiveUp,
       "give up: global rank 3 exited 5 (unknown); all 3 restarts are used", 1},
  };
  for (const Row& row : rows) {
    const Decision decision = decide(row.job, policy, kNow);
    EXPECT_EQ(decision.reason, row.reason);
    EXPECT_EQ(decision.action, row.action) << row.reason;
    EXPECT_EQ(decision.exit_status, row.exit_status) << row.reason;
  }
}

TEST(Decide, StartsAnAttemptThatHasNotStarted) {
  const Decision decision = decide({.world_size = 2, .attempt = 1}, {}, kNow);
  EXPECT_EQ(decision.action, Action::kStart);
  EXPECT_EQ(decision.reason, "start: attempt 1 with 2 ranks");
}

TEST(Decide, WithoutRestartsNamesTheOption) {
  const Decision decision = decide(running({exited(1, 3)}), {.max_restarts = 0}, kNow);
  EXPECT_EQ(decision.action, Action::kGiveUp);
  EXPECT_EQ(decision.reason,
            "give up: global rank 1 exited 3 (unknown); no restarts are allowed (--max-restarts "
            "0)");
}

TEST(Decide, AStopRequestEndsTheJobWhateverRestartsAreLeft) {
  JobView job = running({exited(1, 1)});
  job.stop_signal = SIGTERM;
  const Decision decision = decide(job, {.max_restarts = 9, .grace = 7s}, kNow);
  EXPECT_EQ(decision.action, Action::kGiveUp);
  EXPECT_EQ(decision.reason, "give up: stopped by SIGTERM");
  EXPECT_EQ(decision.exit_status, 143);
  EXPECT_EQ(decision.grace, 7s);
}

TEST(Decide, AStopRequestBeforeTheStartStartsNothing) {
  const Decision decision = decide({.world_size = 2, .stop_signal = SIGINT}, {}, kNow);
  EXPECT_EQ(decision.action, Action::kGiveUp);
  EXPECT_EQ(decision.exit_status, 130);
}

TEST(Decide, WaitsShortlyForTheExitBehindALostPeer) {
  const RestartPolicy policy{.max_restarts = 1, .settle = 10ms};
  const JobView victim = running({exited(0, 75, kNow - 4ms)});
  const Decision wait = decide(victim, policy, kNow);
  EXPECT_EQ(wait.action, Action::kWait);
  EXPECT_EQ(wait.reason,
            "wait: global rank 0 exited 75 (peer); the lost peer's own exit is awaited");
  ASSERT_TRUE(wait.ask_again.has_value());
  EXPECT_EQ(*wait.ask_again, kNow + 6ms);
  const Decision settled = decide(victim, policy, kNow + 6ms);
  EXPECT_EQ(settled.action, Action::kRestartGroup);
  EXPECT_EQ(settled.cause, 0U);
}

TEST(Decide, NamesTheCrashAndNotTheVictimThatWasSeenBeforeIt) {
  const JobView job = running({exited(0, 75), exited(1, 75), killed(3, SIGSEGV)});
  const Decision decision = decide(job, {.max_restarts = 1}, kNow);
  EXPECT_EQ(decision.reason, "restart 1 of 1: global rank 3 was killed by SIGSEGV (signal)");
  EXPECT_EQ(decision.cause, 2U);
}

TEST(Decide, GivesTheGraceOfACrashToCrashesOnly) {
  const RestartPolicy policy{.max_restarts = 1, .grace = 30s, .crash_grace = 0s};
  EXPECT_EQ(decide(running({killed(1, SIGABRT)}), policy, kNow).grace, 0s);
  EXPECT_EQ(decide(running({exited(1, 71)}), policy, kNow).grace, 0s);
  EXPECT_EQ(decide(running({exited(1, 1)}), policy, kNow).grace, 30s);
  EXPECT_EQ(decide(running({exited(1, 70)}), policy, kNow).grace, 30s);
}

TEST(WorkerExit, NamesSignalsBothWays) {
  EXPECT_EQ(signal_name(SIGTERM), "SIGTERM");
  EXPECT_EQ(signal_name(0), "signal 0");
  EXPECT_EQ(signal_number("SIGUSR1"), SIGUSR1);
  EXPECT_EQ(signal_number("HUP"), SIGHUP);
  EXPECT_EQ(signal_number("SIGNOPE"), 0);
  EXPECT_EQ(signal_number(""), 0);
}

}  // namespace
}  // namespace muster
