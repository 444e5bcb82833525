#include "tests/dist/store/child_of_test.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace muster::testing {

ChildOfTest::ChildOfTest(const std::string& name,
                         const std::map<std::string, std::string>& environment) {
  std::array<int, 2> ends{};
  MUSTER_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0, ErrorCode::kIo, "pipe2: {}",
               errno_text(errno));
  std::vector<std::string> variables{"MUSTER_TEST_CHILD=" + name};
  for (const auto& [key, value] : environment) variables.push_back(key + "=" + value);
  std::vector<char*> envp;
  for (std::string& variable : variables) envp.push_back(variable.data());
  for (char** at = environ; *at != nullptr; ++at) envp.push_back(*at);
  envp.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::string program = "/proc/self/exe";
  std::array<char*, 2> argv{program.data(), nullptr};
  const int status =
      ::posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  out_ = ends[0];
  MUSTER_CHECK(status == 0, ErrorCode::kIo, "posix_spawn: {}", errno_text(status));
}

ChildOfTest::~ChildOfTest() {
  kill();
  ::close(out_);
}

std::string ChildOfTest::read_line() {
  std::string line;
  char c = 0;
  while (::read(out_, &c, 1) == 1 && c != '\n') line.push_back(c);
  return line;
}

void ChildOfTest::freeze() {
  ::kill(pid_, SIGSTOP);
  ::waitpid(pid_, nullptr, WUNTRACED);
}

void ChildOfTest::thaw() { ::kill(pid_, SIGCONT); }

void ChildOfTest::kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  wait();
}

int ChildOfTest::wait() {
  int status = 0;
  ::waitpid(std::exchange(pid_, -1), &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace muster::testing
