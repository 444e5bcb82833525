#include "train/trainer.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/autograd/autograd.h"
#include "core/base/fault.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/ops/ops.h"
#include "dist/backend/fake/fake_backend.h"
#include "dist/backend/shm/shm_backend.h"

namespace muster {
namespace {
std::unique_ptr<Backend> open_backend(const Recipe& recipe, const WorkerEnv& env,
                                      const std::shared_ptr<Store>& store, Deadline deadline) {
  switch (recipe.dist.backend) {
    case Recipe::Dist::Backend::kFake:
      return std::make_unique<FakeBackend>(env.global_rank, env.world_size);
    case Recipe::Dist::Backend::kShm:
      return ShmBackend::open_world(
                 {.store = store, .global_rank = env.global_rank, .world_size = env.world_size},
                 deadline)
          .value();
    case Recipe::Dist::Backend::kGloo:
      break;
  }
  throw_error(ErrorCode::kUnimplemented,
              "dist.backend: gloo is not built into this version; use shm");
}

LrSchedule schedule_of(const Recipe& recipe) {
  LrSchedule schedule;
  switch (recipe.optimizer.schedule) {
    case Recipe::Optimizer::Schedule::kCosine:
      schedule.kind = LrSchedule::Kind::kCosine;
      break;
    case Recipe::Optimizer::Schedule::kLinear:
      schedule.kind = LrSchedule::Kind::kLinear;
      break;
    case Recipe::Optimizer::Schedule::kConstant:
      schedule.kind = LrSchedule::Kind::kConstant;
      break;
  }
  schedule.warmup_steps = recipe.optimizer.warmup_steps;
  schedule.total_steps = recipe.train.steps;
  schedule.min_factor = recipe.optimizer.min_lr_ratio;
  return schedule;
}

std::optional<bool> reshard_of(Recipe::Fsdp::Reshard value) {
  if (value == Recipe::Fsdp::Reshard::kAuto) return std::nullopt;
  return value == Recipe::Fsdp::Reshard::kTrue;
}
}  // namespace

Trainer::Trainer(const Recipe& recipe, const WorkerEnv& env, std::shared_ptr<Store> store)
    : recipe_(recipe),
      env_(env),
      store_(std::move(store)),
      data_(TextData::open(recipe.data, recipe.model.sequence).value()),
      schedule_(schedule_of(recipe)) {
  open_group();
  build_model();
  build_optimizer();
  open_records();
  resume();
}

Trainer::~Trainer() = default;

void Trainer::open_group() {
  const Deadline deadline = Deadline::after(recipe_.dist.timeout);
  ProcessGroup::Options options;
  options.group_rank = env_.global_rank;
  options.timeout = recipe_.dist.timeout;
  for (int rank = 0; rank < env_.world_size; ++rank) options.global_ranks.push_back(rank);
  group_ = std::make_shared<ProcessGroup>(std::move(options),
                                          open_backend(recipe_, env_, store_, deadline));
  mesh_ = DeviceMesh::open(group_, {{"fsdp", env_.world_size}}, deadline).value();
  group_->run(group_->barrier());
  group_ready_ns_ = real_clock().now().time_since_epoch().count();
}

void Trainer::build_model() {
  GptConfig config;
  config.vocab_size = recipe_.model.vocab;
  config.max_positions = recipe_.model.sequence;
  config.dim = recipe_.model.dim;
  config.layers = recipe_.model.layers;
  config.heads = recipe_.model.heads;
  config.dropout = recipe_.model.dropout;
  config.tied_head = recipe_.model.tie_embeddings;
  config.init_std = recipe_.model.init_std;
  {
    // No rank ever holds the whole model: shapes first, then only its own rows get memory and
    // values.
    const DeviceGuard meta(kMetaDevice);
    model_ = std::make_unique<Gpt>(config);
  }
  fsdp::Options options;
  options.mesh = mesh_;
  options.reshard_after_forward = reshard_of(recipe_.fsdp.reshard_after_forward);
  options.prefetch = static_cast<int>(recipe_.fsdp.prefetch);
  options.reduce_op = ReduceOp::kSum;
  if (recipe_.fsdp.param_dtype != "f32")
    options.mixed_precision.param_dtype = parse_dtype(recipe_.fsdp.param_dtype).value();
  if (recipe_.fsdp.reduce_dtype != recipe_.fsdp.param_dtype) {
    options.mixed_precision.reduce_dtype = parse_dtype(recipe_.fsdp.reduce_dtype).value();
  }
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    handles_.push_back(fsdp::fully_shard(model_->module_at(fmt::format("h.{}", layer)), options));
  }
  handles_.push_back(fsdp::fully_shard(*model_, options));
  fsdp::init_parameters(*model_, static_cast<uint64_t>(recipe_.train.seed));
  shards_ = fsdp::sharded_parameters(*model_);
}

void Trainer::build_optimizer() {
  // GPT-2's rule: matrices decay, vectors do not.
  std::vector<NamedTensor> matrices, vectors;
  for (const fsdp::NamedShard& shard : shards_) {
    auto& list = shard.param->sizes.size() >= 2 ? matrices : vectors;
    list.push_back({shard.name, shard.param->local});
  }
  const Recipe::Optimizer& chosen = recipe_.optimizer;
  if (chosen.kind == Recipe::Optimizer::Kind::kAdamW) {
    AdamWOptions options{
        .lr = chosen.lr, .beta1 = chosen.betas[0], .beta2 = chosen.betas[1], .eps = chosen.eps};
    options.weight_decay = chosen.weight_decay;
    AdamWOptions plain = options;
    plain.weight_decay = 0;
    optimizer_ = std::make_unique<AdamW>(
        std::vector<ParameterGroup<AdamWOptions>>{{matrices, options}, {vectors, plain}});
  } else {
    SgdOptions options{.lr = chosen.lr, .momentum = chosen.momentum};
    options.weight_decay = chosen.weight_decay;
    SgdOptions plain = options;
    plain.weight_decay = 0;
    optimizer_ = std::make_unique<Sgd>(
        std::vector<ParameterGroup<SgdOptions>>{{matrices, options}, {vectors, plain}});
  }
  optimizer_->materialize_state();
}

void Trainer::open_records() {
  checkpoint::CheckpointerOptions options;
  options.directory = recipe_.checkpoint_dir();
  options.keep = static_cast<int>(recipe_.checkpoint.keep);
  options.store = store_.get();
  options.global_rank = env_.global_rank;
  options.world_size = env_.world_size;
  FileSystem& files = real_file_system();
  if (is_first_rank()) {
    files.make_directories(recipe_.run.dir).value();
    write_file_durably(files, path_join(recipe_.run.dir, "recipe.resolved.yaml"), to_yaml(recipe_))
        .value();
    metrics_ = std::make_unique<LineFile>(
        LineFile::open(path_join(recipe_.run.dir, "metrics.jsonl")).value());
    events_ = std::make_unique<LineFile>(
        LineFile::open(path_join(recipe_.run.dir, "events.jsonl")).value());
  }
  checkpointer_ = checkpoint::Checkpointer::open(options).value();
  event(
      nlohmann::json{{"event", "group_ready"}, {"attempt", env_.attempt}, {"t_ns", group_ready_ns_}}
          .dump());
}

double Trainer::forward_backward(int64_t first_sample, int64_t* tokens) {
  const int world = env_.world_size;
  const int64_t global_batch = recipe_.train.global_batch;
  const std::vector<int64_t> samples =
      samples_of_rank(first_sample, global_batch, env_.global_rank, world);
  const auto size = static_cast<size_t>(recipe_.train.microbatch);
  // All ranks run as many microbatches as the fullest one: gathers must pair up.
  const size_t most = static_cast<size_t>((global_batch + world - 1) / world);
  const size_t count = (most + size - 1) / size;
  const double denominator = static_cast<double>(global_batch * recipe_.model.sequence);
  double loss_sum = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = std::min(samples.size(), i * size);
    const size_t end = std::min(samples.size(), begin + size);
    std::vector<int64_t> mine(samples.begin() + static_cast<std::ptrdiff_t>(begin),
                              samples.begin() + static_cast<std::ptrdiff_t>(end));
    const double weight = mine.empty() ? 0.0 : 1.0;
    if (mine.empty()) mine.push_back(first_sample);  // counts nothing, but takes part
    const TextData::Batch batch = data_.batch(mine);
    handles_.back().set_requires_gradient_sync(i + 1 == count);
    const LossSum loss = model_->loss(batch.tokens, batch.targets);
    loss_sum += weight * detach(loss.sum).item();
    backward(mul(loss.sum, weight / denominator));
  }
  const Tensor total = from_vector(std::vector<double>{loss_sum});
  group_->run(group_->all_reduce(total));
  *tokens = global_batch * recipe_.model.sequence;
  return total.item() / denominator;
}

StepMetrics Trainer::train_step() {
  const TimePoint started = real_clock().now();
  set_fault_step(step_ + 1);
  MUSTER_FAULT_POINT("train.step_begin");
  // Dropout: its numbers depend on the step and the rank's samples, not on what ran before.
  manual_seed(hash_combine(
      hash_combine(static_cast<uint64_t>(recipe_.train.seed), static_cast<uint64_t>(step_)),
      static_cast<uint64_t>(env_.global_rank)));
  StepMetrics metrics;
  metrics.loss = forward_backward(step_ * recipe_.train.global_batch, &metrics.tokens);
  metrics.grad_norm = fsdp::grad_norm(shards_);
  const double max_norm = recipe_.optimizer.max_grad_norm;
  const double scale = max_norm > 0 ? std::min(1.0, max_norm / (metrics.grad_norm + 1e-6)) : 1.0;
  metrics.lr = recipe_.optimizer.lr * schedule_.factor(step_);
  MUSTER_CHECK(std::isfinite(metrics.loss) && std::isfinite(metrics.grad_norm),
               ErrorCode::kFailedPrecondition,
               "step {}: loss and gradient norm must be finite; got {} and {}", step_ + 1,
               metrics.loss, metrics.grad_norm);
  MUSTER_FAULT_POINT("optimizer.before_step");
  optimizer_->set_lr(metrics.lr);
  optimizer_->step({.grad_scale = scale});
  optimizer_->zero_grad();
  for (const fsdp::NamedShard& shard : shards_) set_grad(shard.param->sharded, {});
  ++step_;
  tokens_seen_ += metrics.tokens;
  metrics.step = step_;
  metrics.attempt = env_.attempt;
  metrics.generation = env_.generation;
  metrics.tokens_per_s =
      static_cast<double>(metrics.tokens) / to_seconds(real_clock().now() - started);
  MUSTER_FAULT_POINT("train.step_end");
  return metrics;
}

void Trainer::run() {
  while (step_ < recipe_.train.steps) {
    report(train_step());
    const int64_t every = recipe_.checkpoint.every_steps;
    if (every > 0 && (step_ % every == 0 || step_ == recipe_.train.steps)) save();
  }
  group_->run(group_->barrier());
  event(nlohmann::json{{"event", "finished"}, {"step", step_}, {"attempt", env_.attempt}}.dump());
}

void Trainer::report(const StepMetrics& metrics) {
  if (!is_first_rank()) return;
  metrics_->append(metrics_line(metrics)).value();
  if (recipe_.train.log_every <= 0 || metrics.step % recipe_.train.log_every != 0) return;
  std::printf("step %lld/%lld  loss %.4f  grad norm %.3f  lr %.3g  %.0f tokens/s\n",
              static_cast<long long>(metrics.step), static_cast<long long>(recipe_.train.steps),
              metrics.loss, metrics.grad_norm, metrics.lr, metrics.tokens_per_s);
  std::fflush(stdout);
}

void Trainer::event(const std::string& json) {
  if (is_first_rank()) events_->append(json).value();
}
}  // namespace muster
