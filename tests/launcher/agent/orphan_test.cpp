// kill -9 of any supervisor, a worker's failure, a restart and a success: no process is ever left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <fstream>
#include <random>

#include "tests/launcher/agent/run_muster.h"

namespace muster::testing {
namespace {

constexpr int kRounds = 20;
constexpr int kRanks = 8;
constexpr Duration kLimit = 100ms;

struct Tree {
  pid_t launcher = 0;
  pid_t guardian = 0;
  pid_t agent = 0;
  std::vector<pid_t> workers;
  std::vector<pid_t> all;
};

Tree start_tree(MusterProcess& muster) {
  Tree tree;
  const nlohmann::json start = muster.await_event("job_start");
  if (start.is_null()) return tree;
  tree.launcher = start["launcher"];
  tree.guardian = start["guardian"];
  tree.agent = start["agent"];
  tree.workers = muster.await_event("attempt_start")["pids"].get<std::vector<pid_t>>();
  EXPECT_TRUE(muster.await_output("ready ", kRanks)) << muster.err();
  tree.all = marked_processes(muster.mark());
  EXPECT_EQ(tree.all.size(), 3U + 3U * kRanks);  // three supervisors, a worker and its two daemons
  return tree;
}

template <typename Kill>
void expect_nothing_left(Kill&& kill) {
  Duration longest{0};
  for (int round = 0; round < kRounds; ++round) {
    MusterProcess muster(
        {.args = std::vector<std::string>{"run", "--nproc-per-node", std::to_string(kRanks)} +
                 child_worker("tree"),
         .environment = {},
         .directory = ""});
    const Tree tree = start_tree(muster);
    ASSERT_FALSE(::testing::Test::HasFailure());
    const Duration limit = patient(kLimit);
    const TimePoint killed = real_clock().now();
    kill(tree);
    EXPECT_TRUE(await_ends(tree.all, Deadline::after(limit))) << "round " << round;
    longest = std::max<Duration>(longest, real_clock().now() - killed);
    EXPECT_THAT(marked_processes(muster.mark()), ::testing::IsEmpty()) << "round " << round;
    ASSERT_FALSE(::testing::Test::HasFailure()) << muster.wait(1s).err;
  }
  std::printf("longest of %d: %s\n", kRounds, format_duration(longest).c_str());
}

TEST(Orphans, NoneAfterTheAgentIsKilled) {
  expect_nothing_left([](const Tree& tree) { ::kill(tree.agent, SIGKILL); });
}

TEST(Orphans, NoneAfterTheGuardianIsKilled) {
  expect_nothing_left([](const Tree& tree) { ::kill(tree.guardian, SIGKILL); });
}

TEST(Orphans, NoneAfterTheLauncherIsKilled) {
  expect_nothing_left([](const Tree& tree) { ::kill(tree.launcher, SIGKILL); });
}

TEST(Orphans, NoneAfterTheLauncherIsKilledWhileAWorkerIsStopped) {
  expect_nothing_left([](const Tree& tree) {
    ::kill(tree.workers[3], SIGSTOP);
    ::kill(tree.launcher, SIGKILL);
  });
}

TEST(Orphans, NoneAfterTheAgentIsKilledWhileAWorkerIsStopped) {
  expect_nothing_left([](const Tree& tree) {
    ::kill(tree.workers[0], SIGSTOP);
    ::kill(tree.agent, SIGKILL);
  });
}

TEST(Orphans, NoneAfterTheLauncherIsKilledWhileTheAgentIsStopped) {
  expect_nothing_left([](const Tree& tree) {
    ::kill(tree.agent, SIGSTOP);
    ::kill(tree.launcher, SIGKILL);
  });
}

TEST(Orphans, NoneAfterLauncherAndGuardianAreKilledTogether) {
  expect_nothing_left([](const Tree& tree) {
    ::kill(tree.guardian, SIGKILL);
    ::kill(tree.launcher, SIGKILL);
  });
}

TEST(Orphans, NoneAfterGuardianAndAgentAreKilledTogether) {
  expect_nothing_left([](const Tree& tree) {
    ::kill(tree.agent, SIGKILL);
    ::kill(tree.guardian, SIGKILL);
  });
}

TEST(Orphans, NoneOfAFailedAttemptLivesWhenTheNextStartsAndNoneAfterSuccess) {
  const TempDirectory directory;
  const std::string hold = directory.file("hold");
  ASSERT_EQ(::mkfifo(hold.c_str(), 0600), 0);
  MusterProcess muster(
      {.args = std::vector<std::string>{"run", "--nproc-per-node", "4", "--max-restarts", "1"} +
               child_worker("tree_then_fail"),
       .environment = {{"HOLD", hold}},
       .directory = ""});
  const nlohmann::json start = muster.await_event("job_start");
  ASSERT_FALSE(start.is_null());
  ASSERT_TRUE(muster.await_output("attempt 0", 4));
  const std::vector<pid_t> before = marked_processes(muster.mark());
  EXPECT_EQ(before.size(), 3U + 3U * 4U);
  std::ofstream(hold) << "x" << std::flush;
  const nlohmann::json respawned = muster.await_event("respawned");
  ASSERT_FALSE(respawned.is_null());
  for (const pid_t pid : before) {
    const bool is_supervisor =
        pid == start["launcher"] || pid == start["guardian"] || pid == start["agent"];
    EXPECT_EQ(::kill(pid, 0) == 0, is_supervisor) << "pid " << pid;
  }
  const Outcome outcome = muster.wait();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(marked_processes(muster.mark()), ::testing::IsEmpty());
}

// Supervisors die while workers are being started, told to stop or swept.
TEST(Orphans, NoneWhenAnySupervisorIsKilledAtAnyTime) {
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (int round = 0; round < 40; ++round) {
    MusterProcess muster(
        {.args = std::vector<std::string>{"run", "--nproc-per-node", "4", "--max-restarts", "1000",
                                          "--", "/bin/sh", "-c",
                                          "setsid sleep 100 & [ $RANK = 3 ] && exit "
                                          "1; exec sleep 100"},
         .environment = {},
         .directory = ""});
    const nlohmann::json start = muster.await_event("job_start");
    ASSERT_FALSE(start.is_null());
    // The job restarts for ever; a number of events is a random point of its life.
    for (int events = static_cast<int>(random() % 8); events > 0; --events) {
      muster.await_event("worker_exit");
    }
    const char* victim = std::array{"launcher", "guardian", "agent"}[random() % 3];
    ::kill(start[victim].get<pid_t>(), SIGKILL);
    std::vector<pid_t> left = marked_processes(muster.mark());
    EXPECT_TRUE(await_ends(left, Deadline::after(2s))) << victim << " in round " << round;
    muster.wait(5s);
    left = marked_processes(muster.mark());
    EXPECT_THAT(left, ::testing::IsEmpty()) << victim << " in round " << round;
  }
}

TEST(Orphans, TheLauncherSaysWhatDiedAndFails) {
  MusterProcess muster(
      {.args = std::vector<std::string>{"run", "--nproc-per-node", "8"} + child_worker("tree"),
       .environment = {},
       .directory = ""});
  const Tree tree = start_tree(muster);
  ::kill(tree.agent, SIGKILL);
  const Outcome outcome = muster.wait();
  EXPECT_EQ(outcome.status, 137);
  EXPECT_THAT(outcome.err, ::testing::HasSubstr("the agent was killed by SIGKILL"));
}

}  // namespace
}  // namespace muster::testing
