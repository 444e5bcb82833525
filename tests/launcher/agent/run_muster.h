#pragma once
/// The `muster` binary beside the test binary, run as a process and observed.
///
/// Output and events come through pipes, so a test waits for what it expects with a deadline and
/// never sleeps. Every process of a run carries a mark in its environment, by which a test counts
/// what is left.

#include <sys/types.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/file_system.h"
#include "core/base/time.h"

namespace muster::testing {

/// Folder of the test binary, where `muster` lies too.
std::string binary_directory();
/// The command that runs a registered child body of this test binary as a worker.
std::vector<std::string> child_worker(const std::string& name);
/// The root of the source tree.
std::string source_directory();

/// Processes whose environment holds `NAME=value` of this mark, zombies left out.
std::vector<pid_t> marked_processes(std::string_view mark);
/// Waits until all of these have ended; false when the deadline passed first.
bool await_ends(const std::vector<pid_t>& pids, Deadline deadline);

/// A limit that holds where a core is free, stretched for this machine as it is now: where more
/// processes want to run than there are cores each waits for its turn, and sanitizers are slow.
Duration patient(Duration limit);

struct Outcome {
  int status = -1;  ///< exit status; 128+n when signal n killed it; -1: it did not end in time
  std::string out;
  std::string err;
};

class MusterProcess {
 public:
  struct Options {
    std::vector<std::string> args;  ///< after `muster`
    std::map<std::string, std::string> environment;
    std::string directory;  ///< to run in; "" = here
    std::string binary{};   ///< "" = the one beside the test binary
  };

  explicit MusterProcess(Options options);
  /// Kills what is left.
  ~MusterProcess();
  MusterProcess(const MusterProcess&) = delete;
  MusterProcess& operator=(const MusterProcess&) = delete;

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  [[nodiscard]] const std::string& mark() const noexcept { return mark_; }
  void signal(int number) const;

  /// Waits until `text` has been printed on stdout or stderr, `count` times in all.
  bool await_output(std::string_view text, int count = 1, Duration limit = 20s);
  /// Waits for the next event of this name; null when it does not come.
  nlohmann::json await_event(std::string_view name, Duration limit = 20s);
  /// Waits for the end.
  Outcome wait(Duration limit = 30s);

  [[nodiscard]] const std::string& out() const noexcept { return out_; }
  [[nodiscard]] const std::string& err() const noexcept { return err_; }
  /// All events so far.
  [[nodiscard]] const std::vector<nlohmann::json>& events() const noexcept { return events_; }

 private:
  void pump(Deadline deadline);
  void read_events();

  TempDirectory directory_{"muster_test"};
  std::string mark_;
  pid_t pid_ = -1;
  int pidfd_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  int event_fd_ = -1;
  std::string out_;
  std::string err_;
  std::string event_text_;
  std::vector<nlohmann::json> events_;
  size_t next_event_ = 0;
  int status_ = -1;
};

/// Runs `muster` to its end.
Outcome run_muster(const std::vector<std::string>& args,
                   const std::map<std::string, std::string>& environment = {});

/// Appends: `{"run", "-t", "3"} + child_worker("x")`.
std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b);

}  // namespace muster::testing
