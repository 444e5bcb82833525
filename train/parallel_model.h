#pragma once
/// The model of one rank on the recipe's mesh: staged by the pipeline, cut by tensor parallelism,
/// sharded by FSDP.
///
/// Mesh axes, outermost first: pp, dp_replicate, fsdp, tp; those of size 1 are left out, except
/// fsdp. Data differs along dp_replicate and fsdp: ranks of one tp group, and stages of one
/// pipeline, work on the same samples. Shapes come first, on the meta device, then each rank makes
/// its own pieces: no rank ever holds the whole model. Neither data nor optimizer nor records are
/// its business.

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/nn/causal_lm.h"
#include "dist/mesh/device_mesh.h"
#include "dist/parallel/models.h"
#include "fsdp/fully_shard.h"
#include "launcher/recipe/recipe.h"
#include "pipeline/runtime/pipeline.h"
#include "train/stages.h"

namespace muster {

/// Some samples that go through the model together.
struct Microbatch {
  Tensor tokens;      ///< i64 [B, T]
  Tensor targets;     ///< i64 [B, T]
  double weight = 1;  ///< 0: takes part so that collectives pair up, and counts nothing
};

class ParallelModel {
 public:
  /// @collective all ranks of `world` @error throws what the parts report
  ParallelModel(const Recipe& recipe, const std::shared_ptr<ProcessGroup>& world);
  ~ParallelModel();
  ParallelModel(const ParallelModel&) = delete;
  ParallelModel& operator=(const ParallelModel&) = delete;

  /// Position among the ranks that read different data, and their number.
  [[nodiscard]] int data_rank() const noexcept { return data_rank_; }
  [[nodiscard]] int data_ranks() const noexcept { return data_ranks_; }
  [[nodiscard]] const MeshRef& mesh() const noexcept { return mesh_; }
  /// This rank's pieces of the parameters that it trains.
  [[nodiscard]] const std::vector<fsdp::NamedShard>& shards() const noexcept { return shards_; }
  /// True for a parameter whose first copy another stage holds: the embedding of a tied head. It is
  /// trained here too, and counts there.
  [[nodiscard]] bool is_tied_copy(const std::string& name) const {
    return tied_copies_.contains(name);
  }

  /// Adds the gradient of sum(loss) / denominator over all microbatches of all ranks, and returns
  /// this rank's part of sum(loss): parts of all ranks add up to the whole.
  /// @collective all ranks of the mesh, with the same number of microbatches, each time
  double forward_backward(const std::vector<Microbatch>& microbatches, double denominator);
  /// The 2-norm of all gradients. @collective all ranks of the mesh
  double grad_norm();
  void zero_grad();
  /// What this rank's parameters, gradients and moments will need at most, without activations.
  [[nodiscard]] fsdp::MemoryPlan memory_plan() const;

 private:
  void open_mesh(const std::shared_ptr<ProcessGroup>& world, Deadline deadline);
  void build_whole();
  void build_stages();
  void shard(Module& module, const std::vector<std::string>& blocks, bool keeps_gathered);
  void open_pipeline(int64_t num_microbatches);
  double run_pipeline(const std::vector<Microbatch>& microbatches, double denominator);
  void reduce_tied();
  [[nodiscard]] bool uses_autocast() const noexcept;
  [[nodiscard]] parallel::ModelOptions tp_options() const;
  double run_whole(const std::vector<Microbatch>& microbatches, double denominator);
  [[nodiscard]] int coordinate(const std::string& axis) const;
  [[nodiscard]] bool has_axis(const std::string& axis) const;

  const Recipe recipe_;
  MeshRef mesh_;
  int data_rank_ = 0;
  int data_ranks_ = 1;
  std::unique_ptr<CausalLm> model_;                     // without a pipeline
  std::map<int, std::unique_ptr<StageModule>> stages_;  // of this rank, by position in the model
  std::vector<fsdp::Handle> roots_;                     // of the model, or of each stage
  std::unique_ptr<pipeline::Pipeline> pipeline_;
  std::set<std::string> tied_parameters_, tied_copies_;
  std::vector<fsdp::NamedShard> shards_;
};

/// The axes of a recipe's mesh for so many ranks, outermost first: as ParallelModel opens them.
std::vector<DeviceMesh::Axis> mesh_axes(const Recipe& recipe, int world_size);

}  // namespace muster
