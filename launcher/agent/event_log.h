#pragma once
/// Machine-readable events of a job, one JSON object a line, for reports, drills and tests.
///
/// Each line has "event" and "t_ns", the monotonic clock in nanoseconds. Lines are appended with
/// one write(2) each. Not for people: they read the log and the incident file.
///
/// job_start {run_id, world_size, launcher, guardian, agent}; attempt_start {attempt, generation,
/// port, pids}; respawned {attempt, ms}; worker_exit {rank, pid, status or signal, class, told},
/// with `node` and without a pid where another node told of it; decision {action, reason}; incident
/// {path}; job_end {exit, restarts}.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/base/result.h"
#include "launcher/agent/unique_fd.h"

namespace muster {

class EventLog {
 public:
  /// A log that drops everything.
  EventLog() = default;
  /// Appends to `path`, which is created. @error kIo
  static Result<EventLog> open(const std::string& path);
  /// Keeps its lines until open_file() tells where they go.
  static EventLog waiting();

  /// Where the lines of a log go that waits; others go on as they are. @error kIo
  Result<void> open_file(const std::string& path);

  /// Writes one line: `event`, the time and the fields of the object.
  void emit(const char* event, const nlohmann::ordered_json& fields);

 private:
  UniqueFd fd_;
  bool is_waiting_ = false;
  std::string kept_;
};

}  // namespace muster
