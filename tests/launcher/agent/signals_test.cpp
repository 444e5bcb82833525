// Signals to the launcher: forwarded, with a grace, and a way out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "launcher/agent/proc_file.h"
#include "tests/launcher/agent/run_muster.h"

namespace muster::testing {
namespace {
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

MusterProcess::Options job(std::vector<std::string> options, int stop_on,
                           const std::string& worker = "signals") {
  return {.args = std::vector<std::string>{"run", "--nproc-per-node", "2"} + std::move(options) +
                  child_worker(worker),
          .environment = {{"STOP_ON", std::to_string(stop_on)}},
          .directory = ""};
}

TEST(Signals, AreForwardedAndEndTheJobWithTheirNumber) {
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
    MusterProcess muster(job({"--max-restarts", "3"}, number));
    ASSERT_TRUE(muster.await_output("ready ", 2));
    muster.signal(number);
    const Outcome outcome = muster.wait();
    EXPECT_EQ(outcome.status, 128 + number);
    const std::string line = std::string("got ") + sigabbrev_np(number);
    EXPECT_THAT(outcome.out, HasSubstr(line + " rank 0\n"));
    EXPECT_THAT(outcome.out, HasSubstr(line + " rank 1\n"));
    EXPECT_EQ(muster.events().back()["restarts"], 0) << "a stopped job must not restart";
    EXPECT_THAT(marked_processes(muster.mark()), IsEmpty());
  }
}

TEST(Signals, TheDefaultActionOfAWorkerIsFine) {
  MusterProcess muster({.args = {"run", "--nproc-per-node", "2", "--", "/bin/sh", "-c",
                                 "echo ready; exec sleep 100"},
                        .environment = {},
                        .directory = ""});
  ASSERT_TRUE(muster.await_output("ready", 2));
  muster.signal(SIGTERM);
  EXPECT_EQ(muster.wait().status, 143);
}

TEST(Signals, AWorkerThatIgnoresTermIsKilledAfterTheShutdownTimeout) {
  MusterProcess muster(job({"--shutdown-timeout", "1"}, 0));
  ASSERT_TRUE(muster.await_output("ready ", 2));
  const TimePoint sent = real_clock().now();
  muster.signal(SIGTERM);
  const Outcome outcome = muster.wait();
  const Duration took = real_clock().now() - sent;
  EXPECT_EQ(outcome.status, 143);
  EXPECT_GE(took, 1s);
  EXPECT_LT(took, 1s + patient(2s));
  EXPECT_THAT(outcome.err, HasSubstr("no end within 1 s: killing"));
  EXPECT_THAT(marked_processes(muster.mark()), IsEmpty());
}

TEST(Signals, TheShutdownTimeoutHoldsAfterAFailureToo) {
  MusterProcess muster(
      {.args = {"run", "--nproc-per-node", "2", "--shutdown-timeout", "1", "--", "/bin/sh", "-c",
                "[ $RANK = 1 ] && exit 1; trap '' TERM; while true; do sleep 0.1; "
                "done"},
       .environment = {},
       .directory = ""});
  const TimePoint started = real_clock().now();
  EXPECT_EQ(muster.wait().status, 1);
  EXPECT_LT(real_clock().now() - started, 1s + patient(2s));
}

TEST(Signals, ASecondInterruptKillsAtOnce) {
  MusterProcess muster(job({"--shutdown-timeout", "600"}, 0));
  ASSERT_TRUE(muster.await_output("ready ", 2));
  muster.signal(SIGINT);
  ASSERT_TRUE(muster.await_output("got INT", 2));
  const TimePoint second = real_clock().now();
  muster.signal(SIGINT);
  const Outcome outcome = muster.wait();
  EXPECT_LT(real_clock().now() - second, patient(1s));
  EXPECT_EQ(outcome.status, 130);
  EXPECT_THAT(outcome.err, HasSubstr("second SIGINT: killing"));
  EXPECT_THAT(marked_processes(muster.mark()), IsEmpty());
}

TEST(Signals, ASecondInterruptWorksWhenTheAgentIsStuck) {
  MusterProcess muster(job({}, 0));
  const nlohmann::json start = muster.await_event("job_start");
  ASSERT_TRUE(muster.await_output("ready ", 2));
  ::kill(start["agent"].get<pid_t>(), SIGSTOP);
  muster.signal(SIGINT);
  // Two signals of one number may arrive as one, so the second waits until the first was taken.
  const std::string status = "/proc/" + std::to_string(muster.pid()) + "/status";
  const Deadline deadline = Deadline::after(10s);
  while (!deadline.passed() &&
         read_kernel_file(status.c_str()).find("ShdPnd:\t0000000000000000") == std::string::npos) {
  }
  muster.signal(SIGINT);
  const Outcome outcome = muster.wait();
  EXPECT_THAT(outcome.err, HasSubstr("did not answer the second SIGINT"));
  EXPECT_THAT(marked_processes(muster.mark()), IsEmpty());
}

TEST(Signals, UserSignalsAreNoticesAndTheJobGoesOn) {
  MusterProcess muster(job({}, SIGTERM));
  ASSERT_TRUE(muster.await_output("ready ", 2));
  muster.signal(SIGUSR1);
  ASSERT_TRUE(muster.await_output("got USR1", 2));
  muster.signal(SIGUSR2);
  ASSERT_TRUE(muster.await_output("got USR2", 2));
  muster.signal(SIGTERM);
  const Outcome outcome = muster.wait();
  EXPECT_EQ(outcome.status, 143);
  EXPECT_THAT(outcome.out, Not(HasSubstr("got USR1 rank 0\ngot USR1 rank 0")));
}

TEST(Signals, AUserSignalStopsWhenItIsNamed) {
  MusterProcess muster(job({"--signals-to-handle", "SIGTERM,SIGUSR1"}, SIGUSR1));
  ASSERT_TRUE(muster.await_output("ready ", 2));
  muster.signal(SIGUSR1);
  EXPECT_EQ(muster.wait().status, 128 + SIGUSR1);
}

TEST(Signals, AStoppedWorkerIsWokenToEnd) {
  MusterProcess muster(job({"--shutdown-timeout", "600"}, SIGTERM));
  const nlohmann::json start = muster.await_event("attempt_start");
  ASSERT_TRUE(muster.await_output("ready ", 2));
  ::kill(start["pids"][1].get<pid_t>(), SIGSTOP);
  muster.signal(SIGTERM);
  EXPECT_EQ(muster.wait(10s).status, 143);
}

TEST(Signals, OneToAWorkerFromOutsideCountsAsItsFailure) {
  MusterProcess muster(job({"--max-restarts", "1"}, SIGTERM, "tree"));
  const nlohmann::json start = muster.await_event("attempt_start");
  ASSERT_TRUE(muster.await_output("ready ", 2));
  ::kill(start["pids"][1].get<pid_t>(), SIGTERM);
  EXPECT_FALSE(muster.await_event("respawned").is_null());
  ASSERT_TRUE(muster.await_output("ready ", 4));
  muster.signal(SIGTERM);
  EXPECT_EQ(muster.wait().status, 143);
}

TEST(Signals, AHangUpIgnoredByNohupStaysIgnored) {
  MusterProcess muster({.args = {"run", "--", "/bin/sh", "-c", "echo ready; exec sleep 100"},
                        .environment = {},
                        .directory = ""});
  ASSERT_TRUE(muster.await_output("ready"));
  muster.signal(SIGHUP);
  EXPECT_EQ(muster.wait().status, 129);
  std::signal(SIGHUP, SIG_IGN);  // inherited, as under nohup
  MusterProcess under_nohup({.args = {"run", "--", "/bin/sh", "-c", "echo ready; exec sleep 100"},
                             .environment = {},
                             .directory = ""});
  std::signal(SIGHUP, SIG_DFL);
  ASSERT_TRUE(under_nohup.await_output("ready"));
  under_nohup.signal(SIGHUP);
  under_nohup.signal(SIGTERM);
  EXPECT_EQ(under_nohup.wait().status, 143);
}

}  // namespace
}  // namespace muster::testing
