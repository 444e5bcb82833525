#include "train/parallel_model.h"

#include <optional>

#include "core/autograd/autocast.h"
#include "core/autograd/autograd.h"
#include "core/autograd/checkpoint.h"
#include "core/ops/ops.h"
#include "pipeline/schedule/generate.h"
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

pipeline::Schedule schedule_of(const Recipe& recipe, int64_t num_microbatches) {
  const auto pp = static_cast<int>(recipe.mesh.pp);
  const pipeline::ScheduleShape shape{
      .num_stages = pp * static_cast<int>(recipe.pipeline.stages_per_rank),
      .num_microbatches = static_cast<int>(num_microbatches),
      .num_ranks = pp};
  switch (recipe.pipeline.schedule) {
    case Recipe::Pipeline::Schedule::kGpipe:
      return pipeline::make_gpipe(shape);
    case Recipe::Pipeline::Schedule::k1F1B:
      return pipeline::make_1f1b(shape);
    case Recipe::Pipeline::Schedule::kInterleaved1F1B:
      return pipeline::make_interleaved_1f1b(shape);
  }
  MUSTER_ASSERT(false, "schedule {}", static_cast<int>(recipe.pipeline.schedule));
  return {};
}
}  // namespace

std::vector<DeviceMesh::Axis> mesh_axes(const Recipe& recipe, int world_size) {
  const auto tp = static_cast<int>(recipe.mesh.tp), pp = static_cast<int>(recipe.mesh.pp);
  const auto replicas = static_cast<int>(recipe.mesh.dp_replicate);
  std::vector<DeviceMesh::Axis> axes;
  if (pp > 1) axes.push_back({"pp", pp});
  if (replicas > 1) axes.push_back({"dp_replicate", replicas});
  axes.push_back({"fsdp", world_size / (pp * replicas * tp)});
  if (tp > 1) axes.push_back({"tp", tp});
  return axes;
}

ParallelModel::ParallelModel(const Recipe& recipe, const std::shared_ptr<ProcessGroup>& world)
    : recipe_(recipe) {
  open_mesh(world, Deadline::after(recipe.dist.timeout));
  has_axis("pp") ? build_stages() : build_whole();
}

ParallelModel::~ParallelModel() = default;

void ParallelModel::open_mesh(const std::shared_ptr<ProcessGroup>& world, Deadline deadline) {
  mesh_ = DeviceMesh::open(world, mesh_axes(recipe_, world->world_size()), deadline).value();
  const int shards = mesh_->group("fsdp")->world_size();
  data_rank_ = coordinate("dp_replicate") * shards + coordinate("fsdp");
  data_ranks_ = static_cast<int>(recipe_.mesh.dp_replicate) * shards;
}

void ParallelModel::build_whole() {
  {
    const DeviceGuard meta(kMetaDevice);
    model_ = make_model(recipe_.model);
    model_->to(parse_dtype(recipe_.model.dtype).value());
  }
  model_->set_loss_chunk(recipe_.train.loss_chunk);
  if (has_axis("tp")) {
    parallel::parallelize(*model_, mesh_->slice({"tp"}), tp_options());
  }
  shard(*model_, model_->block_names(), /*keeps_gathered=*/false);
}

void ParallelModel::build_stages() {
  const auto ranks = static_cast<int>(recipe_.mesh.pp);
  const int num_stages = ranks * static_cast<int>(recipe_.pipeline.stages_per_rank);
  for (int stage = coordinate("pp"); stage < num_stages; stage += ranks) {
    std::unique_ptr<StageModule>& module = stages_[stage];
    std::unique_ptr<CausalLm> whole;
    {
      const DeviceGuard meta(kMetaDevice);
      whole = make_model(recipe_.model);
      module = make_stage(*whole, stage, num_stages);
      module->to(parse_dtype(recipe_.model.dtype).value());
    }
    if (has_axis("tp")) {
      const MeshRef tp = mesh_->slice({"tp"});
      parallel::parallelize_part(*module, *whole, tp, tp_options());
      if (stage + 1 == num_stages) module->replace_loss(parallel::loss_of(*whole, tp));
    }
    tied_parameters_.insert(module->tied_parameters().begin(), module->tied_parameters().end());
    tied_copies_.insert(module->tied_copies().begin(), module->tied_copies().end());
    shard(*module, module->block_names(), /*keeps_gathered=*/true);
  }
}

// A stage is used by many microbatches between its first and its last: gathering it for each would
// cost more than keeping it gathered, unless the recipe says so.
void ParallelModel::shard(Module& module, const std::vector<std::string>& blocks,
                          bool keeps_gathered) {
  if (recipe_.train.activation_checkpoint == Recipe::Train::ActivationCheckpoint::kFull) {
    for (const std::string& block : blocks)
      module.module_at(block).set_checkpoint(CheckpointOptions{});
  }
  std::vector<std::string> axes = {"fsdp"};
  if (has_axis("dp_replicate")) axes.insert(axes.begin(), "dp_replicate");
  fsdp::Options options = fsdp_options(recipe_.fsdp, mesh_->slice(axes));
  if (keeps_gathered && !options.reshard_after_forward) options.reshard_after_forward = false;
  for (const std::string& block : blocks) fsdp::fully_shard(module.module_at(block), options);
  roots_.push_back(fsdp::fully_shard(module, options));
  fsdp::init_parameters(module, static_cast<uint64_t>(recipe_.train.seed));
  for (fsdp::NamedShard& shard : fsdp::sharded_parameters(module))
    shards_.push_back(std::move(shard));
}

void ParallelModel::open_pipeline(int64_t num_microbatches) {
  std::vector<pipeline::Stage> stages;
  const bool frees = reshard_of(recipe_.fsdp.reshard_after_forward).value_or(false);
  for (const auto& [index, module] : stages_) {
    stages.push_back({.index = index,
                      .module = module.get(),
                      .hooks = stage_hooks(roots_[stages.size()], frees)});
  }
  pipeline_ = pipeline::Pipeline::open({.schedule = schedule_of(recipe_, num_microbatches),
                                        .group = mesh_->group("pp"),
                                        .stages = std::move(stages)})
                  .value();
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

double ParallelModel::forward_backward(const std::vector<Microbatch>& microbatches,
                                       double denominator) {
  const double loss_sum = stages_.empty() ? run_whole(microbatches, denominator)
                                          : run_pipeline(microbatches, denominator);
  // Ranks of one tp group have the same loss: one of them tells it.
  return coordinate("tp") == 0 ? loss_sum : 0.0;
}

double ParallelModel::run_whole(const std::vector<Microbatch>& microbatches, double denominator) {
  double loss_sum = 0;
  for (size_t i = 0; i < microbatches.size(); ++i) {
    const Microbatch& microbatch = microbatches[i];
    roots_.front().set_requires_gradient_sync(i + 1 == microbatches.size());
    Tensor loss;
    {
      std::optional<AutocastGuard> autocast;
      if (uses_autocast()) autocast.emplace(DeviceType::kCpu, DType::kBF16);
      loss = model_->loss(microbatch.tokens, microbatch.targets).sum;
    }
    loss_sum += microbatch.weight * detach(loss).item();
    backward(mul(loss, microbatch.weight / denominator));
  }
  return loss_sum;
}

double ParallelModel::run_pipeline(const std::vector<Microbatch>& microbatches,
                                   double denominator) {
  if (pipeline_ == nullptr) open_pipeline(static_cast<int64_t>(microbatches.size()));
  pipeline::StepInputs inputs;
  for (const Microbatch& microbatch : microbatches) inputs.inputs.push_back(microbatch.tokens);
  inputs.loss = [&](const Tensor& logits, int microbatch) {
    const Microbatch& own = microbatches[static_cast<size_t>(microbatch)];
    LossSum loss = stages_.rbegin()->second->loss(logits, own.targets);
    if (own.weight != 1) loss.sum = mul(loss.sum, own.weight);
    return loss;
  };
  inputs.grad_scale = 1.0 / denominator;
  std::optional<AutocastGuard> autocast;
  if (uses_autocast()) autocast.emplace(DeviceType::kCpu, DType::kBF16);
  const pipeline::StepResult done = pipeline_->train_step(inputs);
  autocast.reset();
  reduce_tied();
  double loss_sum = 0;
  for (const double sum : done.loss_sums) loss_sum += sum;
  return loss_sum;
}

// Both ends of the model hold a tied embedding and saw half of its gradient.
void ParallelModel::reduce_tied() {
  std::vector<Tensor> leaves;
  for (const fsdp::NamedShard& shard : shards_)
    if (tied_parameters_.contains(shard.name)) leaves.push_back(shard.param->local);
  reduce_tied_gradients(*mesh_->group("pp"), 0, static_cast<int>(recipe_.mesh.pp) - 1, leaves);
}

parallel::ModelOptions ParallelModel::tp_options() const {
  return {.sequence_parallel = recipe_.tp.sequence_parallel};
}

bool ParallelModel::uses_autocast() const noexcept {
  return recipe_.train.autocast == Recipe::Train::Autocast::kBf16;
}

double ParallelModel::grad_norm() {
  std::vector<fsdp::NamedShard> counted;
  for (const fsdp::NamedShard& shard : shards_)
    if (!is_tied_copy(shard.name)) counted.push_back(shard);
  const double norm = fsdp::grad_norm(counted);
  return has_axis("pp") ? norm_over_stages(*mesh_->group("pp"), norm) : norm;
}

fsdp::MemoryPlan ParallelModel::memory_plan() const {
  std::vector<fsdp::GroupMemory> groups;
  for (const fsdp::Handle& root : roots_) {
    for (fsdp::GroupMemory& group : root.memory()) groups.push_back(std::move(group));
  }
  const Recipe::Train& train = recipe_.train;
  fsdp::MemoryOptions options{.prefetch = static_cast<int>(recipe_.fsdp.prefetch)};
  options.accumulates = train.global_batch > train.microbatch * data_ranks_;
  if (recipe_.optimizer.kind == Recipe::Optimizer::Kind::kSgd)
    options.moments = recipe_.optimizer.momentum > 0 ? 1 : 0;
  // The embedding is the root's largest parameter; a tied one has both its uses on this rank.
  if (stages_.empty())
    (recipe_.model.tie_embeddings ? options.summed : options.late) =
        groups.back().largest_gradient();
  return fsdp::plan_memory(groups, options);
}

void ParallelModel::zero_grad() {
  for (const fsdp::NamedShard& shard : shards_) set_grad(shard.param->sharded, {});
}
}  // namespace muster
