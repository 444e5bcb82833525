// Bodies of workers: this test binary, started by `muster run -- env MUSTER_TEST_CHILD=name`.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/support/child_process.h"

namespace muster::testing {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void say(const std::string& line) {
  const std::string text = line + "\n";
  const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
  static_cast<void>(written);
}

[[noreturn]] void wait_for_ever() {
  while (true) ::pause();
}

// A child in a session of its own that stays, and holds the worker's descriptors.
void leave_a_daemon() {
  std::array<int, 2> ready{};
  if (::pipe(ready.data()) != 0) return;
  if (::fork() == 0) {
    ::setsid();
    ::close(ready[0]);
    ::close(ready[1]);
    wait_for_ever();
  }
  ::close(ready[1]);
  char byte = 0;
  while (::read(ready[0], &byte, 1) > 0) {
  }
  ::close(ready[0]);
}

// Two daemons, then "ready RANK"; waits for ever.
int tree() {
  leave_a_daemon();
  leave_a_daemon();
  say("ready " + variable("RANK"));
  wait_for_ever();
}

// Rank 1 leaves daemons and fails in attempt 0; in attempt 1 all leave daemons and succeed.
int tree_then_fail() {
  leave_a_daemon();
  leave_a_daemon();
  say("ready " + variable("RANK") + " attempt " + variable("TORCHELASTIC_RESTART_COUNT"));
  if (variable("TORCHELASTIC_RESTART_COUNT") == "0") {
    if (variable("RANK") == "1") {
      // The others must have said that they are there: the test waits for their lines.
      char byte = 0;
      const int fd = ::open(variable("HOLD").c_str(), O_RDONLY);
      const ssize_t n = ::read(fd, &byte, 1);
      return n < 0 ? 2 : 3;
    }
    wait_for_ever();
  }
  return 0;
}

// Says which signals come; exits 0 on the one that STOP_ON names.
volatile std::sig_atomic_t stop_on = 0;
void report_signal(int number) {
  const char* name = sigabbrev_np(number);
  std::array<char, 64> line{};
  const char* rank = std::getenv("RANK");
  size_t length = 0;
  for (const char* part : {"got ", name, " rank ", rank, "\n"}) {
    const size_t n = std::strlen(part);
    std::memcpy(line.data() + length, part, n);
    length += n;
  }
  const ssize_t written = ::write(STDOUT_FILENO, line.data(), length);
  static_cast<void>(written);
  if (number == stop_on) ::_exit(0);
}

int signals() {
  stop_on = std::atoi(variable("STOP_ON").c_str());
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    std::signal(number, report_signal);
  }
  say("ready " + variable("RANK"));
  wait_for_ever();
}

// 100000 lines on stdout and some on stderr, then SIGKILL.
int many_lines() {
  for (int i = 0; i < 100000; ++i) {
    std::printf("line %d of rank %s\n", i, variable("RANK").c_str());
  }
  std::fflush(stdout);
  std::fprintf(stderr, "last words");
  std::fflush(stderr);
  ::raise(SIGKILL);
  return 0;
}

const bool kRegistered =
    register_child("tree", tree) && register_child("tree_then_fail", tree_then_fail) &&
    register_child("signals", signals) && register_child("many_lines", many_lines);
}  // namespace

// Keeps this file linked.
bool workers_are_registered() { return kRegistered; }
}  // namespace muster::testing
