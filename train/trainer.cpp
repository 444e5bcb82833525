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
#include "core/kernels/parallel.h"
#include "core/ops/ops.h"
#include "dist/backends/backends.h"

namespace muster {
namespace {
std::string_view backend_name(Recipe::Dist::Backend backend) {
  switch (backend) {
    case Recipe::Dist::Backend::kFake:
      return "fake";
    case Recipe::Dist::Backend::kGloo:
      return "gloo";
    case Recipe::Dist::Backend::kNccl:
      return "nccl";
    case Recipe::Dist::Backend::kShm:
      break;
  }
  return "shm";
}

// Flushes denormals, or not, on this thread and those of the kernels while it lives.
class FlushScope {
 public:
  explicit FlushScope(bool flush) : before_(kernels::flushes_denormals()) {
    kernels::set_flush_denormal(flush);
  }
  ~FlushScope() { kernels::set_flush_denormal(before_); }
  FlushScope(const FlushScope&) = delete;
  FlushScope& operator=(const FlushScope&) = delete;

 private:
  const bool before_;
};

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

double mebibytes(Bytes bytes) { return static_cast<double>(bytes.count) / (1 << 20); }

// Heap and arena are memory of their own, where the backend has an arena.
Bytes allocated_peak(ProcessGroup& group) {
  const Allocator& heap = cpu_allocator();
  const Allocator& arena = group.communication_allocator();
  Bytes peak = heap.stats().peak_allocated;
  if (&arena != &heap) peak += arena.stats().peak_allocated;
  return peak;
}
}  // namespace

Trainer::Trainer(const Recipe& recipe, const WorkerEnv& env, std::shared_ptr<Store> store)
    : recipe_(recipe),
      env_(env),
      store_(std::move(store)),
      data_(TextData::open(recipe.data, recipe.model.sequence).value()),
      schedule_(schedule_of(recipe)) {
  open_group();
  model_ = std::make_unique<ParallelModel>(recipe_, group_);
  build_optimizer();
  open_records();
  tell_memory_plan();
  resume();
  write_recipe();
}

Trainer::~Trainer() = default;

void Trainer::open_group() {
  MUSTER_CHECK(recipe_.dist.backend != Recipe::Dist::Backend::kNccl, ErrorCode::kUnimplemented,
               "dist.backend: nccl moves CUDA tensors, and those of muster-train are on the CPU\n"
               "  fix: use dist.backend shm (one host) or gloo");
  if (recipe_.dist.backend == Recipe::Dist::Backend::kFake && is_first_rank()) {
    MUSTER_LOG(kWarn,
               "dist.backend: fake moves nothing between ranks; the numbers of this run mean "
               "nothing, only its memory plan does");
  }
  const Deadline deadline = Deadline::after(recipe_.dist.timeout);
  ProcessGroup::Options options;
  options.group_rank = env_.global_rank;
  options.timeout = recipe_.dist.timeout;
  for (int rank = 0; rank < env_.world_size; ++rank) options.global_ranks.push_back(rank);
  options.slow_after = recipe_.dist.slow_after;
  options.on_slow = [this](const SlowPeers& slow) { report_slow(slow); };
  BackendOptions backend{.store = store_,
                         .global_rank = env_.global_rank,
                         .world_size = env_.world_size,
                         .master_addr = env_.master_addr,
                         .local_rank = env_.local_rank};
  group_ = std::make_shared<ProcessGroup>(
      std::move(options),
      open_backend(backend_name(recipe_.dist.backend), std::move(backend), deadline).value());
  group_->run(group_->barrier());
  group_ready_ns_ = real_clock().now().time_since_epoch().count();
}

void Trainer::build_optimizer() {
  // GPT-2's rule: matrices decay, vectors do not.
  std::vector<NamedTensor> matrices, vectors;
  for (const fsdp::NamedShard& shard : model_->shards()) {
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
    metrics_ = std::make_unique<LineFile>(
        LineFile::open(path_join(recipe_.run.dir, "metrics.jsonl")).value());
    events_ = std::make_unique<LineFile>(
        LineFile::open(path_join(recipe_.run.dir, "events.jsonl")).value());
  }
  checkpointer_ = checkpoint::Checkpointer::open(options).value();
  event({{"event", "group_ready"}, {"t_ns", group_ready_ns_}});
}

// Only once it goes on: until then the file tells what the folder's run was made from.
void Trainer::write_recipe() {
  if (!is_first_rank()) return;
  const std::string path = path_join(recipe_.run.dir, "recipe.resolved.yaml");
  write_file_durably(real_file_system(), path, to_yaml(recipe_)).value();
}

// The microbatches of this rank. All ranks get as many as the fullest one: gathers must pair up.
std::vector<Microbatch> Trainer::microbatches(int64_t first_sample) const {
  const int ranks = model_->data_ranks();
  const int64_t global_batch = recipe_.train.global_batch;
  const std::vector<int64_t> samples =
      samples_of_rank(first_sample, global_batch, model_->data_rank(), ranks);
  const auto size = static_cast<size_t>(recipe_.train.microbatch);
  const size_t most = static_cast<size_t>((global_batch + ranks - 1) / ranks);
  std::vector<Microbatch> result((most + size - 1) / size);
  for (size_t i = 0; i < result.size(); ++i) {
    const size_t begin = std::min(samples.size(), i * size);
    const size_t end = std::min(samples.size(), begin + size);
    std::vector<int64_t> mine(samples.begin() + static_cast<std::ptrdiff_t>(begin),
                              samples.begin() + static_cast<std::ptrdiff_t>(end));
    result[i].weight = mine.empty() ? 0.0 : 1.0;
    if (mine.empty()) mine.push_back(first_sample);  // counts nothing, but takes part
    TextData::Batch batch = data_.batch(mine);
    result[i].tokens = std::move(batch.tokens);
    result[i].targets = std::move(batch.targets);
  }
  return result;
}

double Trainer::forward_backward(int64_t first_sample, int64_t* tokens) {
  *tokens = recipe_.train.global_batch * recipe_.model.sequence;
  const auto denominator = static_cast<double>(*tokens);
  const double loss_sum = model_->forward_backward(microbatches(first_sample), denominator);
  const Tensor total = from_vector(std::vector<double>{loss_sum});
  if (MUSTER_FAULT_POINT("train.all_reduce")) {
    group_->run(group_->all_gather_into_tensor(zeros({env_.world_size}, DType::kF64), total));
  }
  group_->run(group_->all_reduce(total));
  return total.item() / denominator;
}

StepMetrics Trainer::train_step() {
  const TimePoint started = real_clock().now();
  const FlushScope denormals(recipe_.train.flush_denormals);
  set_fault_step(step_ + 1);
  MUSTER_FAULT_POINT("train.step_begin");
  // Dropout: its numbers depend on the step and the samples, not on what ran before. Ranks that
  // work on the same samples draw the same numbers.
  manual_seed(hash_combine(
      hash_combine(static_cast<uint64_t>(recipe_.train.seed), static_cast<uint64_t>(step_)),
      static_cast<uint64_t>(model_->data_rank())));
  StepMetrics metrics;
  metrics.loss = forward_backward(step_ * recipe_.train.global_batch, &metrics.tokens);
  metrics.grad_norm = model_->grad_norm();
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
  model_->zero_grad();
  ++step_;
  tokens_seen_ += metrics.tokens;
  metrics.step = step_;
  metrics.attempt = env_.attempt;
  metrics.generation = env_.generation;
  metrics.peak_mb = mebibytes(allocated_peak(*group_));
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
  event({{"event", "finished"}, {"step", step_}});
}

void Trainer::report(const StepMetrics& metrics) {
  if (!is_first_rank()) return;
  metrics_->append(metrics_line(metrics)).value();
  if (recipe_.run.tensorboard) write_tensorboard(metrics);
  if (recipe_.train.log_every <= 0 || metrics.step % recipe_.train.log_every != 0) return;
  std::printf("step %lld/%lld  loss %.4f  grad norm %.3f  lr %.3g  %.0f tokens/s\n",
              static_cast<long long>(metrics.step), static_cast<long long>(recipe_.train.steps),
              metrics.loss, metrics.grad_norm, metrics.lr, metrics.tokens_per_s);
  std::fflush(stdout);
}

void Trainer::write_tensorboard(const StepMetrics& metrics) {
  if (tensorboard_ == nullptr) {
    tensorboard_ =
        TensorBoardWriter::open(path_join(recipe_.run.dir, "tensorboard"), metrics.step).value();
  }
  const std::vector<TensorBoardScalar> values = {{"train/loss", metrics.loss},
                                                 {"train/grad_norm", metrics.grad_norm},
                                                 {"train/lr", metrics.lr},
                                                 {"train/tokens_per_s", metrics.tokens_per_s}};
  const Result<void> written = tensorboard_->scalars(metrics.step, values);
  if (!written.ok())
    MUSTER_LOG(kWarn, "{}", written.error().what());  // a chart less, not a run less
}

void Trainer::report_slow(const SlowPeers& slow) {
  for (const int global_rank : slow.global_ranks) {
    MUSTER_LOG(kWarn, "slow: global rank {} keeps the others waiting, {} so far, in {}",
               global_rank, format_duration(slow.waited), slow.operation);
    if (events_ == nullptr) continue;
    event({{"event", "slow_rank"},
           {"global_rank", global_rank},
           {"step", step_ + 1},
           {"text", slow.operation}});
  }
}

void Trainer::tell_memory_plan() {
  const fsdp::MemoryPlan plan = model_->memory_plan();
  event({{"event", "memory_plan"},
         {"state_mb", mebibytes(plan.state())},
         {"peak_mb", mebibytes(plan.peak())},
         {"text", plan.describe()}});
}

void Trainer::event(nlohmann::json json) {
  if (!is_first_rank()) return;
  json["attempt"] = env_.attempt;
  if (!json.contains("t_ns")) json["t_ns"] = real_clock().now().time_since_epoch().count();
  events_->append(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)).value();
}
}  // namespace muster
