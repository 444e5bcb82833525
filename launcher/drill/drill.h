#pragma once
/// A drill: a recipe, the faults to inject into its run, and what must be true afterwards.
///
/// Files are read as strictly as recipes (launcher/recipe/yaml_document.h): all faults of a file
/// are told at once, with line and column. A plain value; running it is drill_runner.h's job.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/fault.h"
#include "core/base/result.h"
#include "core/base/time.h"

namespace muster {

struct Drill {
  std::string source;  ///< path of the drill file
  std::string recipe;  ///< path of the recipe; in the file relative to the file's folder

  /// "section.key=value" for both runs, before those of the command line; key `set`, a map.
  std::vector<std::string> overrides;

  struct Launch {
    int64_t nproc = 1;   ///< workers of each agent
    int64_t agents = 1;  ///< key `agents`: so many agents on this machine, as if they were nodes
    /// key `min_agents`: with so many left the job goes on; `agents` of them when absent, and then
    /// each that is killed is replaced.
    int64_t min_agents = 1;
    /// key `then_nproc`: when the faulted run has ended, its run goes on with so many workers.
    std::optional<int64_t> then_nproc;
    int64_t max_restarts = 0;
    Duration limit = 30min;  ///< key `limit`: the longest that one of the two runs may take
    [[nodiscard]] int64_t world_size() const noexcept { return nproc * agents; }
  } launch;

  std::vector<Fault> faults;

  /// A rank whose fault must be named: by all others that say anything, and in time.
  struct Named {
    int64_t global_rank = 0;
    int64_t by = 1;                 ///< the least number of other ranks
    std::optional<Duration> limit;  ///< key `within: under 5 s`; since the last step that completed
  };

  /// What is absent is not checked. That both runs leave no process is always checked.
  struct Expect {
    int64_t exit_status = 0;  ///< key `exit`: of the faulted run; the reference exits 0
    /// key `agents_exit`: of each agent beside the first that is not killed; 0 when absent, and for
    /// a drill with `then_nproc` what the first launch ends with.
    std::optional<int64_t> agents_exit;
    std::optional<Named> named;        ///< in the errors of an incident
    std::optional<int64_t> slow_rank;  ///< named by the group as late, and not ended
    std::optional<int64_t> restarts;
    std::vector<int64_t> resumed_from_steps;   ///< key `resumed_from_step`: one, or one a restart
    std::vector<int64_t> skipped_checkpoints;  ///< key `checkpoint_skipped`: steps passed over
    bool is_bit_identical = false;             ///< key `loss_curve: bit_identical`
    std::optional<Duration> recovery_limit;    ///< key `recovery: under 10 s`; each restart
    std::optional<double> loss_limit;          ///< key `loss_below`: loss of the last step
  } expect;
};

/// The fault points of the trainer, by the names that a drill may use.
const std::vector<std::string>& known_fault_points();

/// Reads a drill file. @error kBadRecipe what is wrong, all at once; kNotFound, kIo
Result<Drill> load_drill(const std::string& path);

/// load_drill of a text that is already in memory; `path` names it and anchors `recipe`.
Result<Drill> parse_drill(std::string_view text, const std::string& path);

}  // namespace muster
