#pragma once
/// Running a drill: the same recipe twice, once in peace and once under the faults, then the
/// judgement.
///
/// Both runs go through `muster run`, as a user's would; nothing of the trainer is linked in here.
/// What counts is decided in compare.h.

#include <string>
#include <vector>

#include "core/base/result.h"
#include "launcher/drill/drill.h"
#include "launcher/drill/report.h"

namespace muster {

struct DrillOptions {
  std::vector<std::string> launcher;   ///< command that takes the place of `muster`
  std::vector<std::string> tools;      ///< command that takes the place of `muster-tools`
  std::string directory;               ///< takes the folders of both runs; must hold neither yet
  std::vector<std::string> overrides;  ///< for the recipe, as in load_recipe
  bool shows_progress = false;         ///< on stderr
};

struct DrillOutcome {
  DrillReport report;
  int interrupted_by = 0;  ///< the signal that ended the drill early; the report is empty then
};

/// Runs both runs and judges them.
/// @blocks until both have ended: at most twice launch.limit and the grace
/// @thread the main thread only
/// @error  kBadRecipe  recipe and drill do not fit; kFailedPrecondition  the folder holds a drill;
///         kNotFound, kIo  a program or folder
Result<DrillOutcome> run_drill(const Drill& drill, const DrillOptions& options);

/// The folder of the newest complete checkpoint below `directory`; nullopt when there is none.
std::optional<std::string> newest_checkpoint(const std::string& directory);

}  // namespace muster
