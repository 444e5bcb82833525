#pragma once
/// The pipeline schedule of a run, drawn as text. Pure.

#include <optional>
#include <string>

#include "launcher/report/run_folder.h"

namespace muster {

struct PipelineDrawing {
  std::string title;    ///< schedule, stages, microbatches and the share of time that is idle
  std::string drawing;  ///< one line a rank or stage; or why nothing can be drawn
};

/// The schedule that the recipe and the number of ranks give; nullopt when mesh.pp is 1 or nothing
/// is known of the run's layout.
std::optional<PipelineDrawing> draw_pipeline(const RunFolder& run);

}  // namespace muster
