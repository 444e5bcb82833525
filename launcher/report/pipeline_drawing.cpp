#include "launcher/report/pipeline_drawing.h"

#include <fmt/format.h>

#include "launcher/report/timeline.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/render.h"
#include "pipeline/schedule/simulate.h"

namespace muster {
namespace {
constexpr int64_t kMostCells = 20000;

const char* name_of(Recipe::Pipeline::Schedule schedule) {
  switch (schedule) {
    case Recipe::Pipeline::Schedule::kGpipe:
      return "GPipe";
    case Recipe::Pipeline::Schedule::k1F1B:
      return "1F1B";
    case Recipe::Pipeline::Schedule::kInterleaved1F1B:
      break;
  }
  return "Interleaved1F1B";
}
}  // namespace

std::optional<PipelineDrawing> draw_pipeline(const RunFolder& run) {
  if (!run.recipe || run.recipe->mesh.pp <= 1) return std::nullopt;
  const Recipe& recipe = *run.recipe;
  const int64_t num_stages = recipe.mesh.pp * recipe.pipeline.stages_per_rank;
  const std::vector<MeshAxis> axes = mesh_axes(run);
  const int64_t data_ranks = axes[1].size * axes[2].size;  // dp_replicate, fsdp
  const int64_t samples = data_ranks * recipe.train.microbatch;
  const int64_t microbatches = samples > 0 ? recipe.train.global_batch / samples : 0;
  PipelineDrawing result;
  result.title =
      fmt::format("{}, {} stages on {} ranks, {} microbatches a step",
                  name_of(recipe.pipeline.schedule), num_stages, recipe.mesh.pp, microbatches);
  if (microbatches <= 0 || num_stages * microbatches > kMostCells) {
    result.drawing = microbatches <= 0 ? "the number of data ranks is not known" : "too large";
    return result;
  }
  const Result<pipeline::Schedule> schedule =
      pipeline::make_schedule(name_of(recipe.pipeline.schedule),
                              {static_cast<int>(num_stages), static_cast<int>(microbatches),
                               static_cast<int>(recipe.mesh.pp)});
  const Result<void> drawn = catch_error([&] {
    result.drawing = pipeline::render(schedule.value());
    result.title += fmt::format("; {:.0f} % of the time idle where a backward takes two forwards",
                                pipeline::bubble_fraction(*schedule) * 100);
  });
  if (!drawn.ok()) result.drawing = drawn.error().what();
  if (result.drawing.starts_with('\n')) result.drawing.erase(0, 1);
  return result;
}
}  // namespace muster
