#pragma once
/// What the two runs of a drill have left behind, read into plain values.
///
/// metrics.jsonl and events.jsonl come from the trainer, the agent's events from the file that
/// MUSTER_EVENTS named. A process that is killed may leave half a line; such lines are counted and
/// passed over, so that what they held is missing and the comparison says so. Pure: text to values.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

/// One completed step: a line of metrics.jsonl.
struct StepRecord {
  int64_t step = 0;
  int64_t attempt = 0;
  double loss = 0;
  std::string loss_hex;  ///< the loss to the last bit
  double grad_norm = 0;
  double lr = 0;
  double tokens_per_s = 0;
  std::optional<int64_t> time_ns;  ///< monotonic, when the step completed
};

/// What the trainer did about checkpoints: a line of events.jsonl.
struct ResumeRecord {
  int64_t from_step = 0;
  int64_t attempt = 0;
  std::string digest = {};  ///< of the tensors that were loaded
};
struct SaveRecord {
  int64_t step = 0;
  std::string digest;
};
struct SkipRecord {
  int64_t step = 0;
  int64_t attempt = 0;
  std::string reason;
};

/// A rank that the others waited for longer than they should: a line of events.jsonl.
struct SlowRecord {
  int64_t global_rank = 0;
  std::string text;
};

/// What one rank said when it failed: from an incident file.
struct RankError {
  int64_t global_rank = 0;
  int64_t attempt = 0;
  std::string message;
};

/// A line of the agent's events.
struct AgentEvent {
  std::string name;  ///< job_start, attempt_start, worker_exit, decision, respawned, job_end
  int64_t time_ns = 0;
  int64_t attempt = 0;  ///< of the latest attempt_start up to this line
  std::optional<int64_t> exit;
  std::optional<int64_t> restarts;
};

/// Everything that one run has recorded.
struct RunRecords {
  std::vector<StepRecord> steps;  ///< in file order; replayed steps appear again
  std::vector<ResumeRecord> resumes;
  std::vector<SkipRecord> skips;
  std::vector<SaveRecord> saves;
  std::vector<SlowRecord> slow_ranks;
  std::vector<RankError> errors;
  std::vector<AgentEvent> agent_events;
  int64_t damaged_lines = 0;
};

/// Adds the lines of metrics.jsonl to `records`.
void read_metrics(std::string_view text, RunRecords& records);
/// Adds the lines of the trainer's events.jsonl.
void read_train_events(std::string_view text, RunRecords& records);
/// Adds the errors that the ranks of an incident file left.
void read_incident(std::string_view text, RunRecords& records);
/// Adds the lines of the agent's events.
void read_agent_events(std::string_view text, RunRecords& records);

/// One line of metrics.jsonl; nullopt for half a line.
std::optional<StepRecord> read_step_record(std::string_view line);

}  // namespace muster
