#pragma once
/// From the records of a run to its attempts on a time axis, and to the layout of its ranks. Pure.
///
/// An attempt is one start of all workers. Its number counts restarts and begins at 0 again when
/// the job is started anew in the same folder; its generation never repeats.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/report/run_folder.h"

namespace muster {

struct Attempt {
  int64_t attempt = 0;
  std::optional<int64_t> generation;
  std::optional<int64_t> first_row;  ///< of MetricTable; absent when no step was completed
  std::optional<int64_t> last_row;
  std::optional<int64_t> ready_ns;  ///< monotonic, when all ranks had joined
  std::optional<int64_t> resumed_from;
  bool is_finished = false;
  std::string ended;  ///< one line for people: why it is over, or that nothing is known
  /// From the failure before it (or the last step before it, without the agent's events) to its
  /// first step.
  std::optional<double> recovery_s;
};

struct Timeline {
  std::vector<Attempt> attempts;
  /// By row: seconds since the first thing that is known of the run. Never falls: where the clock
  /// began anew (a reboot), the row keeps the time of the row before.
  std::vector<std::optional<double>> seconds;
  int64_t clock_restarts = 0;
};

Timeline make_timeline(const RunFolder& run);

/// One axis of the device mesh.
struct MeshAxis {
  std::string name;
  int64_t size = 1;
};

/// The axes of the run's mesh, outermost first, with "all that are left" resolved; sizes that
/// nothing tells are 0. Empty without a recipe.
std::vector<MeshAxis> mesh_axes(const RunFolder& run);

}  // namespace muster
