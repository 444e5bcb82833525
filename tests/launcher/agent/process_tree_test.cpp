#include "launcher/agent/process_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>

#include "tests/launcher/agent/run_muster.h"

namespace muster::testing {
namespace {
using ::testing::IsEmpty;

// A child with a grandchild in another session; returns the child once both are there.
pid_t fork_two() {
  std::array<int, 2> ready{};
  EXPECT_EQ(::pipe(ready.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::fork() == 0) ::setsid();
    ::close(ready[0]);
    ::close(ready[1]);
    while (true) ::pause();
  }
  ::close(ready[1]);
  char byte = 0;
  while (::read(ready[0], &byte, 1) > 0) {
  }
  ::close(ready[0]);
  return child;
}

class ProcessTree : public ::testing::Test {
 protected:
  void SetUp() override {
    sigemptyset(&child_signal_);
    sigaddset(&child_signal_, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &child_signal_, nullptr);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  void TearDown() override {
    EXPECT_TRUE(kill_descendants(Deadline::after(5s)).ok());
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
    ::sigprocmask(SIG_UNBLOCK, &child_signal_, nullptr);
  }
  sigset_t child_signal_{};
};

TEST_F(ProcessTree, BothWaysFindTheSameDescendants) {
  const pid_t child = fork_two();
  std::vector<pid_t> listed = internal::descendants_by_children_lists(::getpid());
  std::vector<pid_t> scanned = internal::descendants_by_scan(::getpid());
  EXPECT_EQ(listed.front(), child);
  std::sort(listed.begin(), listed.end());
  std::sort(scanned.begin(), scanned.end());
  EXPECT_EQ(listed.size(), 2U);
  EXPECT_EQ(listed, scanned);
}

TEST_F(ProcessTree, KillEndsOtherSessionsAndStoppedProcessesAndReapsAll) {
  const pid_t first = fork_two();
  const pid_t second = fork_two();
  ::kill(second, SIGSTOP);
  std::vector<pid_t> reaped;
  const Result<int> count = kill_descendants(Deadline::after(5s), [&](pid_t pid, int status) {
    EXPECT_EQ(WTERMSIG(status), SIGKILL);
    reaped.push_back(pid);
  });
  ASSERT_TRUE(count.ok());
  EXPECT_EQ(*count, 4);
  EXPECT_THAT(reaped, ::testing::IsSupersetOf({first, second}));
  EXPECT_THAT(descendants_of(::getpid()), IsEmpty());
}

TEST_F(ProcessTree, KillHasNothingToDoWithoutChildren) {
  EXPECT_EQ(kill_descendants(Deadline::after(0s)).value_or(-1), 0);
}

TEST_F(ProcessTree, KillEndsAChainThatForksWhileItIsKilled) {
  // Each process forks the next and exits, so that every snapshot is old when it is used.
  const pid_t child = ::fork();
  if (child == 0) {
    while (true) {
      const pid_t next = ::fork();
      if (next > 0) ::_exit(0);
    }
  }
  EXPECT_TRUE(kill_descendants(Deadline::after(20s)).ok());
  EXPECT_THAT(internal::descendants_by_scan(::getpid()), IsEmpty());
}

TEST_F(ProcessTree, TokenIdFindsProcessesThatLeftTheTree) {
  MusterProcess muster({.args = std::vector<std::string>{"run"} + child_worker("tree"),
                        .environment = {},
                        .directory = ""});
  ASSERT_TRUE(muster.await_output("ready"));
  const std::vector<pid_t> all = marked_processes(muster.mark());
  // All three supervisors at once: the worker dies with them, its daemons are nobody's.
  const nlohmann::json start = muster.await_event("job_start");
  const pid_t worker = muster.await_event("attempt_start")["pids"][0];
  const std::string path = "/proc/" + std::to_string(worker) + "/environ";
  const Result<std::string> environment = [&]() -> Result<std::string> {
    std::FILE* file = std::fopen(path.c_str(), "re");
    if (file == nullptr) return make_error(ErrorCode::kNotFound, "{}", path);
    std::string text(1 << 17, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), file));
    std::fclose(file);
    return text;
  }();
  ASSERT_TRUE(environment.ok());
  const size_t at = environment->find("MUSTER_JOB_TOKEN_ID=");
  ASSERT_NE(at, std::string::npos);
  const std::string token_id = environment->substr(at + 20, 16);
  for (const char* name : {"guardian", "agent", "launcher"}) ::kill(start[name], SIGSTOP);
  for (const char* name : {"launcher", "guardian", "agent"}) ::kill(start[name], SIGKILL);
  ASSERT_TRUE(await_ends({start["launcher"], start["guardian"], start["agent"], worker},
                         Deadline::after(5s)));
  EXPECT_EQ(marked_processes(muster.mark()).size(), 2U);
  EXPECT_EQ(kill_by_token_id("0000000000000000"), 0);
  EXPECT_EQ(kill_by_token_id(token_id), 2);
  EXPECT_TRUE(await_ends(all, Deadline::after(5s)));
}

}  // namespace
}  // namespace muster::testing
