#pragma once
/// What a run has left in its folder, read into plain values.
///
/// Any file may be missing, and a killed process may leave half a line: such lines are counted by
/// file and passed over. Texts that workers wrote (logs, incidents) are kept as they are; whoever
/// shows them must escape them. Reads only, so a run that still goes can be read, too.

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "launcher/recipe/recipe.h"

namespace muster {

/// metrics.jsonl by columns; all columns have one entry a line.
struct MetricTable {
  static constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();

  std::vector<int64_t> step;
  std::vector<int64_t> attempt;
  std::vector<std::optional<int64_t>> generation;
  std::vector<std::optional<int64_t>> time_ns;  ///< monotonic, when the step completed
  std::vector<std::string> loss_hex;            ///< the loss to the last bit, also nan and inf
  /// Every other numeric field, in order of appearance in the map's order; kAbsent where a line
  /// has none or null.
  std::map<std::string, std::vector<double>> columns;

  [[nodiscard]] size_t rows() const noexcept { return step.size(); }
};

/// A line of events.jsonl: group_ready, saved, checkpoint_skipped, resumed, finished, ...
struct RunEvent {
  std::string event;
  int64_t attempt = 0;
  std::optional<int64_t> step;
  std::optional<int64_t> time_ns;
  std::string detail;  ///< a digest, a reason, or the fields that have no place here, as JSON
};

/// A line of the agent's events (agent_events.jsonl, or what `muster run --events` named).
struct AgentRecord {
  std::string event;
  int64_t attempt = 0;  ///< of the latest attempt_start up to this line
  int64_t time_ns = 0;
  std::optional<int64_t> generation = {};  ///< of an attempt_start
  std::string text;  ///< "rank 1: SIGKILL (signal)" or the reason of a decision
};

/// An incident-<n>.json.
struct IncidentRecord {
  std::string file;
  std::string text;  ///< the record, valid JSON unless `is_damaged`
  bool is_damaged = false;
  int64_t attempt = 0;
  std::optional<int64_t> generation;
  std::optional<int64_t> world_size;
  std::string reason;  ///< what was decided and why
};

/// The end of one stream of one worker of the latest attempt.
struct LogTail {
  int64_t attempt = 0;
  int64_t global_rank = 0;
  std::string stream;  ///< "stdout" or "stderr"
  std::vector<std::string> lines;
  bool is_cut = false;  ///< there is more before
};

struct DamagedFile {
  std::string file;
  int64_t lines = 0;
};

struct RunFolder {
  std::string path;
  std::string recipe_text;       ///< recipe.resolved.yaml; "" when missing
  std::optional<Recipe> recipe;  ///< when the text is a recipe of this version
  std::string recipe_error;
  MetricTable metrics;
  std::vector<RunEvent> events;
  std::vector<AgentRecord> agent_records;
  std::vector<IncidentRecord> incidents;
  std::vector<LogTail> logs;
  std::vector<int64_t> checkpoints_on_disk;  ///< steps with a committed manifest
  std::optional<int64_t> world_size;
  std::string world_size_source;  ///< the file that told it
  std::vector<DamagedFile> damaged;
};

/// Reads a run's folder. `agent_events` is the file of the agent's events; "" looks for
/// DIRECTORY/agent_events.jsonl and DIRECTORY.agent_events.jsonl.
/// @error kNotFound no such folder, or nothing of a run in it; kIo
Result<RunFolder> read_run_folder(const std::string& directory,
                                  const std::string& agent_events = "");

/// The lines of metrics.jsonl; returns how many were damaged.
int64_t read_metric_lines(std::string_view text, MetricTable& into);
/// The lines of events.jsonl; returns how many were damaged.
int64_t read_event_lines(std::string_view text, std::vector<RunEvent>& into);
/// The lines of the agent's events; returns how many were damaged.
int64_t read_agent_lines(std::string_view text, std::vector<AgentRecord>& into);
/// One incident record; a text that is no JSON object comes back as damaged.
IncidentRecord read_incident(const std::string& file, std::string text);

}  // namespace muster
