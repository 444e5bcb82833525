#pragma once
/// The model of one rank on the recipe's mesh: cut by tensor parallelism, sharded by FSDP.
///
/// Mesh axes, outermost first: pp, fsdp, tp; those of size 1 are left out, except fsdp. Data
/// differs along fsdp only: ranks of one tp group, and stages of one pipeline, work on the same
/// samples. Shapes come first, on the meta device, then each rank makes its own pieces: no rank
/// ever holds the whole model. Neither data nor optimizer nor records are its business.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/nn/causal_lm.h"
#include "dist/mesh/device_mesh.h"
#include "fsdp/fully_shard.h"
#include "launcher/recipe/recipe.h"

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
  [[nodiscard]] CausalLm& model() noexcept { return *model_; }
  /// This rank's pieces of all parameters.
  [[nodiscard]] const std::vector<fsdp::NamedShard>& shards() const noexcept { return shards_; }

  /// Adds the gradient of sum(loss) / denominator over all microbatches of all ranks, and returns
  /// this rank's part of sum(loss): parts of all ranks add up to the whole.
  /// @collective all ranks of the mesh, with the same number of microbatches
  double forward_backward(std::span<const Microbatch> microbatches, double denominator);
  /// The 2-norm of all gradients. @collective all ranks of the mesh
  double grad_norm();
  void zero_grad();

 private:
  void open_mesh(const std::shared_ptr<ProcessGroup>& world, Deadline deadline);
  void shard();
  [[nodiscard]] int coordinate(const std::string& axis) const;
  [[nodiscard]] bool has_axis(const std::string& axis) const;

  const Recipe recipe_;
  MeshRef mesh_;
  int data_rank_ = 0;
  int data_ranks_ = 1;
  std::unique_ptr<CausalLm> model_;
  std::vector<fsdp::Handle> handles_;  // blocks, then the root
  std::vector<fsdp::NamedShard> shards_;
};

/// The axes of a recipe's mesh for so many ranks, outermost first: as ParallelModel opens them.
std::vector<DeviceMesh::Axis> mesh_axes(const Recipe& recipe, int world_size);

}  // namespace muster
