#pragma once
/// The judgement of a drill: from what two runs recorded to a list of checks.
///
/// Pure functions: no file, process or clock. Each check says what it saw, also when it holds, so
/// that a report can be read without the runs.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/time.h"
#include "launcher/drill/agent_pool.h"
#include "launcher/drill/drill.h"
#include "launcher/drill/records.h"

namespace muster {

/// One thing that must be true.
struct Check {
  std::string name;
  bool ok = false;
  std::string detail;  ///< what was seen; where it differs, the first difference
};

/// How one run went, apart from what it recorded.
struct RunFacts {
  std::string name;       ///< "reference" or "faulted"
  std::string directory;  ///< its run.dir
  int exit_status = 0;    ///< 128 + n for a signal
  bool timed_out = false;
  std::vector<AgentPoolFacts>
      agents;  ///< of those beside the first, by launch; where there are any
  std::vector<std::string> leftovers;  ///< processes left: "pid 123 muster-train"
  std::optional<std::string> newest_checkpoint;
  /// When the first step of an attempt was seen, for records that carry no time of their own.
  std::map<int64_t, int64_t> first_step_seen_ns;
  RunRecords records;
};

/// What comparing the newest checkpoints of both runs has found.
struct CheckpointVerdict {
  bool ok = false;
  std::string detail;
};

/// Everything that a drill is judged by.
struct DrillEvidence {
  RunFacts reference;
  RunFacts faulted;
  int64_t steps = 0;                       ///< steps that the recipe asks for
  int64_t killed_agents = 0;               ///< agents beside the first that the drill's faults kill
  bool is_resized = false;                 ///< the faulted run went on with other workers
  int64_t num_faults = 0;                  ///< that the drill asks for
  std::vector<std::string> missed_faults;  ///< those that never fired, as texts
  std::optional<CheckpointVerdict> checkpoints;  ///< absent where the drill does not compare them
};

/// The last record of each step: the curve that counts, after replays.
std::map<int64_t, StepRecord> final_curve(const std::vector<StepRecord>& steps);

/// Loss, gradient norm and learning rate of every step from 1 to `steps`, to the last bit.
Check compare_loss_curves(const RunRecords& reference, const RunRecords& faulted, int64_t steps);

/// Steps that ran again after a restart give what they gave before it.
Check compare_replays(const RunRecords& faulted);

/// Restarts of the job: what the agent said at its end, else its attempts less one.
int64_t count_restarts(const RunRecords& records);

/// The steps from which attempts 1, 2, ... went on: the trainer's word, else the step before the
/// attempt's first record.
std::vector<int64_t> resumed_steps(const RunRecords& records);

/// For each restart the time from the first worker exit of the old attempt to the first completed
/// step of the new one; nullopt where one of the two was not recorded.
std::vector<std::optional<Duration>> recovery_times(const RunFacts& faulted);

/// The agents beside the first in one launch: as many killed as the faults of the drill kill, the
/// rest ended with `expected_exit`.
Check check_agents(const std::string& name, const AgentPoolFacts& agents, int64_t expected_kills,
                   int64_t expected_exit);

/// All checks of a drill, in the order of its report.
std::vector<Check> judge(const Drill::Expect& expect, const DrillEvidence& evidence);

}  // namespace muster
