#include "train/parallel_model.h"

#include <optional>

#include "core/autograd/autocast.h"
#include "core/autograd/autograd.h"
#include "core/autograd/checkpoint.h"
#include "core/ops/ops.h"
#include "dist/parallel/models.h"
#include "train/model_zoo.h"

namespace muster {
namespace {
std::optional<bool> reshard_of(Recipe::Fsdp::Reshard value) {
  if (value == Recipe::Fsdp::Reshard::kAuto) return std::nullopt;
  return value == Recipe::Fsdp::Reshard::kTrue;
}

fsdp::Options fsdp_options(const Recipe::Fsdp& recipe, MeshRef mesh) {
  fsdp::Options options;
  options.mesh = std::move(mesh);
  options.reshard_after_forward = reshard_of(recipe.reshard_after_forward);
  options.prefetch = static_cast<int>(recipe.prefetch);
  options.reduce_op = ReduceOp::kSum;
  if (recipe.param_dtype != "f32")
    options.mixed_precision.param_dtype = parse_dtype(recipe.param_dtype).value();
  if (recipe.reduce_dtype != recipe.param_dtype)
    options.mixed_precision.reduce_dtype = parse_dtype(recipe.reduce_dtype).value();
  return options;
}
}  // namespace

std::vector<DeviceMesh::Axis> mesh_axes(const Recipe& recipe, int world_size) {
  const auto tp = static_cast<int>(recipe.mesh.tp), pp = static_cast<int>(recipe.mesh.pp);
  std::vector<DeviceMesh::Axis> axes;
  if (pp > 1) axes.push_back({"pp", pp});
  axes.push_back({"fsdp", world_size / (pp * tp)});
  if (tp > 1) axes.push_back({"tp", tp});
  return axes;
}

ParallelModel::ParallelModel(const Recipe& recipe, const std::shared_ptr<ProcessGroup>& world)
    : recipe_(recipe) {
  open_mesh(world, Deadline::after(recipe.dist.timeout));
  {
    const DeviceGuard meta(kMetaDevice);
    model_ = make_model(recipe_.model);
  }
  if (has_axis("tp")) {
    parallel::parallelize(*model_, mesh_->slice({"tp"}),
                          {.sequence_parallel = recipe_.tp.sequence_parallel});
  }
  if (recipe_.train.activation_checkpoint == Recipe::Train::ActivationCheckpoint::kFull) {
    for (const std::string& block : model_->block_names())
      model_->module_at(block).set_checkpoint(CheckpointOptions{});
  }
  shard();
}

ParallelModel::~ParallelModel() = default;

void ParallelModel::open_mesh(const std::shared_ptr<ProcessGroup>& world, Deadline deadline) {
  mesh_ = DeviceMesh::open(world, mesh_axes(recipe_, world->world_size()), deadline).value();
  data_rank_ = coordinate("fsdp");
  data_ranks_ = mesh_->group("fsdp")->world_size();
}

void ParallelModel::shard() {
  const fsdp::Options options = fsdp_options(recipe_.fsdp, mesh_->slice({"fsdp"}));
  for (const std::string& block : model_->block_names())
    handles_.push_back(fsdp::fully_shard(model_->module_at(block), options));
  handles_.push_back(fsdp::fully_shard(*model_, options));
  fsdp::init_parameters(*model_, static_cast<uint64_t>(recipe_.train.seed));
  shards_ = fsdp::sharded_parameters(*model_);
}

bool ParallelModel::has_axis(const std::string& axis) const {
  for (const DeviceMesh::Axis& each : mesh_->axes())
    if (each.name == axis) return true;
  return false;
}

int ParallelModel::coordinate(const std::string& axis) const {
  if (!has_axis(axis)) return 0;
  return mesh_->coordinate()[static_cast<size_t>(mesh_->axis_index(axis))];
}

double ParallelModel::forward_backward(std::span<const Microbatch> microbatches,
                                       double denominator) {
  // Ranks of one tp group have the same loss: one of them tells it.
  const double told = coordinate("tp") == 0 ? 1.0 : 0.0;
  double loss_sum = 0;
  for (size_t i = 0; i < microbatches.size(); ++i) {
    const Microbatch& microbatch = microbatches[i];
    handles_.back().set_requires_gradient_sync(i + 1 == microbatches.size());
    Tensor loss;
    {
      std::optional<AutocastGuard> autocast;
      if (recipe_.train.autocast == Recipe::Train::Autocast::kBf16)
        autocast.emplace(DeviceType::kCpu, DType::kBF16);
      loss = model_->loss(microbatch.tokens, microbatch.targets).sum;
    }
    loss_sum += told * microbatch.weight * detach(loss).item();
    backward(mul(loss, microbatch.weight / denominator));
  }
  return loss_sum;
}

double ParallelModel::grad_norm() { return fsdp::grad_norm(shards_); }

void ParallelModel::zero_grad() {
  for (const fsdp::NamedShard& shard : shards_) set_grad(shard.param->sharded, {});
}
}  // namespace muster
