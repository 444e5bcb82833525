#pragma once
/// A registered child body (tests/support/child_process.h) running in a process of its own.

#include <sys/types.h>

#include <map>
#include <string>

namespace muster::testing {

class ChildOfTest {
 public:
  /// Starts the body `name` with these environment variables more.
  explicit ChildOfTest(const std::string& name,
                       const std::map<std::string, std::string>& environment = {});
  /// Kills it if it runs still.
  ~ChildOfTest();
  ChildOfTest(const ChildOfTest&) = delete;
  ChildOfTest& operator=(const ChildOfTest&) = delete;

  /// The next line of its standard output, without the line end; "" at the end.
  std::string read_line();
  /// Sends SIGSTOP and returns when it has stopped.
  void freeze();
  void thaw();
  /// Sends SIGKILL and reaps it.
  void kill();
  /// Waits for its end; its exit status, or 128 + signal.
  int wait();

 private:
  pid_t pid_ = -1;
  int out_ = -1;
};

}  // namespace muster::testing
