#pragma once
/// Fault points: named places at which a drill can make this process fail.
///
/// A point costs one relaxed load while no plan is armed. Plans come from the environment variable
/// MUSTER_FAULTS, which a drill sets from its file; each fires once, in the restart attempt that it
/// names, so that the next attempt passes. Not a test double: the same binary runs.

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/base/time.h"

namespace muster {

/// What to do where. `point` is the name given to MUSTER_FAULT_POINT.
struct Fault {
  enum class Action { kKill, kStop, kExit, kDelay, kTornWrite, kDiverge, kKillAgent };
  std::string point;
  int global_rank = 0;
  std::optional<int64_t> step;  ///< fires at this step only; any step when absent
  Action action = Action::kKill;
  int exit_status = 0;  ///< for kExit
  Duration delay{0};    ///< for kDelay
  int attempt = 0;      ///< fires in this restart attempt only
};

/// The text form in MUSTER_FAULTS: `point=optimizer.before_step;rank=3;step=25;do=kill` joined by
/// '|'.
std::string encode_faults(const std::vector<Fault>& faults);
/// @error kInvalidArgument a malformed plan; the message quotes it
Result<std::vector<Fault>> decode_faults(std::string_view text);

/// Reads MUSTER_FAULTS and keeps the faults of this rank and attempt armed.
/// @thread call once, before threads start
Result<void> arm_faults_from_environment(int global_rank, int attempt);

/// Tells the fault points which training step runs. @thread any
void set_fault_step(int64_t step) noexcept;

namespace internal {
extern std::atomic<bool> faults_armed;
/// True when the action was a torn write or a divergence, which the caller must carry out itself.
bool reach_fault_point(std::string_view point);
}  // namespace internal

}  // namespace muster

/// MUSTER_FAULT_POINT("checkpoint.after_data"): fires what a drill has armed there. Yields true for
/// what only the place itself can perform: a torn write, or another collective than its peers'.
#define MUSTER_FAULT_POINT(point)                                      \
  (::muster::internal::faults_armed.load(std::memory_order_relaxed) && \
   ::muster::internal::reach_fault_point(point))
