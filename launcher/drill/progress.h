#pragma once
/// Following a run while it goes: new lines of metrics.jsonl, and one line for people.
///
/// The follower reads what has been appended since its last look and keeps half a line for the next
/// one. The meter is pure. Neither writes to a terminal.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/time.h"
#include "launcher/drill/records.h"

namespace muster {

/// Reads a growing file of step records.
class MetricsFollower {
 public:
  explicit MetricsFollower(std::string path) : path_(std::move(path)) {}

  /// The records that have been completed since the last call; none while there is no file.
  std::vector<StepRecord> read_new();

 private:
  std::string path_;
  int64_t offset_ = 0;
  std::string half_line_;
};

/// What is known of the progress of one run.
class ProgressMeter {
 public:
  ProgressMeter(std::string name, int64_t steps) : name_(std::move(name)), steps_(steps) {}

  /// A step was seen at `now_ns` (monotonic).
  void saw(const StepRecord& step, int64_t now_ns);

  /// "faulted: step 120 of 300, loss 2.8123, 54.1 k tokens/s, 42 s left, attempt 1"; before the
  /// first step "faulted: starting".
  [[nodiscard]] std::string line() const;

  /// When the first step of each attempt was seen.
  [[nodiscard]] const std::map<int64_t, int64_t>& first_step_seen_ns() const noexcept {
    return first_step_seen_ns_;
  }

 private:
  std::string name_;
  int64_t steps_;
  std::map<int64_t, int64_t> first_step_seen_ns_;  // by attempt
  StepRecord last_;
  int64_t attempt_first_step_ = 0;
  int64_t last_seen_ns_ = 0;
  bool has_step_ = false;
};

}  // namespace muster
