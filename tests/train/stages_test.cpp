// Language models cut into stages: the same names, values, losses and training as the whole.
#include "train/stages.h"

#include <cmath>
#include <cstring>
#include <mutex>
#include <set>

#include "core/autograd/autograd.h"
#include "core/nn/gpt.h"
#include "core/nn/llama.h"
#include "core/nn/optim/optimizer.h"
#include "core/ops/ops.h"
#include "dist/mesh/device_mesh.h"
#include "pipeline/runtime/pipeline.h"
#include "pipeline/schedule/generate.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using pipeline::Pipeline;
using pipeline::Schedule;
using pipeline::ScheduleShape;
using pipeline::StepInputs;
using pipeline::StepResult;
using testing::RankContext;
using testing::run_ranks;

constexpr int64_t kRows = 8, kLength = 6, kVocab = 19;
constexpr int kSteps = 4;
constexpr uint64_t kSeed = 5;

enum class Kind { kGpt, kTiedGpt, kLlama, kTiedLlama };

std::unique_ptr<CausalLm> make_whole(Kind kind, int64_t layers) {
  if (kind == Kind::kGpt || kind == Kind::kTiedGpt) {
    GptConfig config{
        .vocab_size = kVocab, .max_positions = kLength, .dim = 8, .layers = layers, .heads = 2};
    config.tied_head = kind == Kind::kTiedGpt;
    config.init_std = 0.2;
    return std::make_unique<Gpt>(config);
  }
  LlamaConfig config{.vocab_size = kVocab,
                     .max_positions = kLength,
                     .dim = 8,
                     .mlp_dim = 12,
                     .layers = layers,
                     .heads = 4,
                     .kv_heads = 2};
  config.tied_head = kind == Kind::kTiedLlama;
  config.init_std = 0.2;
  return std::make_unique<Llama>(config);
}

// Rows [first, last) of a step; some targets do not count, and not equally many in each row.
Tensor tokens_of(int step, int64_t first, int64_t last, bool is_target) {
  Tensor tokens = empty_from_spec(TensorSpec::contiguous({last - first, kLength}, DType::kI64));
  int64_t* at = tokens.data<int64_t>();
  for (int64_t row = first; row < last; ++row) {
    for (int64_t i = 0; i < kLength; ++i) {
      const int64_t value = (row * 7 + step + (i + (is_target ? 1 : 0)) * (row + 2)) % kVocab;
      *at++ = is_target && i < row % 4 ? -100 : value;
    }
  }
  return tokens;
}
constexpr double kTokens = kRows * kLength - 12;  // that count

AdamWOptions adamw() { return {.lr = 1e-2, .weight_decay = 0.1}; }

struct Trained {
  std::vector<double> losses;
  std::vector<double> norms;
  std::map<std::string, Tensor> parameters;
};

Trained train_whole(Kind kind, int64_t layers, int microbatches) {
  const std::unique_ptr<CausalLm> model = make_whole(kind, layers);
  model->to(DType::kF64);
  model->reset_parameters(kSeed);
  AdamW optimizer(model->named_parameters(), adamw());
  Trained out;
  const int64_t rows = kRows / microbatches;
  for (int step = 0; step < kSteps; ++step) {
    double sum = 0;
    for (int64_t m = 0; m < microbatches; ++m) {
      const LossSum loss = model->loss(tokens_of(step, m * rows, (m + 1) * rows, false),
                                       tokens_of(step, m * rows, (m + 1) * rows, true));
      sum += detach(loss.sum).item();
      backward(mul(loss.sum, 1 / kTokens));
    }
    out.losses.push_back(sum / kTokens);
    double squares = 0;
    for (const Tensor& parameter : model->parameters()) {
      for (const double value : to_vector<double>(contiguous(grad_of(parameter)))) {
        squares += value * value;
      }
    }
    out.norms.push_back(std::sqrt(squares));
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const NamedTensor& named : model->named_parameters())
    out.parameters[named.name] = detach(named.tensor);
  return out;
}

void expect_near(const Tensor& actual, const Tensor& expected, double tolerance,
                 const std::string& what) {
  const std::vector<double> a = to_vector<double>(contiguous(actual)),
                            b = to_vector<double>(contiguous(expected));
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << what << " at " << i;
}

struct Cut {
  Kind kind;
  const char* schedule;
  int ranks, stages_per_rank, microbatches;
  int64_t layers;
};

constexpr Cut kCuts[] = {
    {Kind::kGpt, "1f1b", 2, 1, 4, 3},       {Kind::kGpt, "gpipe", 3, 1, 2, 4},
    {Kind::kTiedGpt, "1f1b", 2, 1, 4, 2},   {Kind::kTiedGpt, "interleaved", 2, 2, 4, 5},
    {Kind::kTiedGpt, "zbv", 2, 2, 4, 4},    {Kind::kLlama, "interleaved", 2, 2, 4, 4},
    {Kind::kTiedLlama, "1f1b", 3, 1, 4, 3}, {Kind::kLlama, "dual_pipe_v", 2, 2, 8, 4}};

// One rank's stages of a cut model.
struct RankModel {
  RankModel(const Schedule& schedule, int rank, Kind kind, int64_t layers) {
    std::unique_ptr<CausalLm> whole;
    {
      const DeviceGuard meta(kMetaDevice);
      whole = make_whole(kind, layers);
    }
    for (const int index : stages_of_rank(schedule, rank)) {
      modules.push_back(make_stage(*whole, index, schedule.num_stages));
      stages.push_back({.index = index, .module = modules.back().get()});
    }
  }
  std::vector<std::unique_ptr<StageModule>> modules;
  std::vector<pipeline::Stage> stages;
};

std::shared_ptr<ProcessGroup> borrowed(ProcessGroup& group) {
  return {&group, [](ProcessGroup*) {}};
}

// Leaves of tied parameters: the first copy on stage 0, the other on the last stage.
std::vector<Tensor> tied_leaves(const std::vector<NamedTensor>& parameters) {
  for (const NamedTensor& named : parameters) {
    if (named.name.ends_with("wte.weight") || named.name.ends_with("embed_tokens.weight"))
      return {named.tensor};
  }
  return {};
}

TEST(Stages, TrainAsTheWholeModelDoes) {
  for (const Cut& cut : kCuts) {
    SCOPED_TRACE(fmt::format("{} {}x{}", cut.schedule, cut.ranks, cut.stages_per_rank));
    const Trained expected = train_whole(cut.kind, cut.layers, cut.microbatches);
    const Schedule schedule =
        pipeline::make_schedule(cut.schedule,
                                {cut.ranks * cut.stages_per_rank, cut.microbatches, cut.ranks})
            .value();
    const bool is_tied = cut.kind == Kind::kTiedGpt || cut.kind == Kind::kTiedLlama;
    std::mutex mutex;
    std::set<std::string> names;
    run_ranks(cut.ranks, [&](RankContext& ctx) {
      RankModel own(schedule, ctx.group_rank(), cut.kind, cut.layers);
      std::vector<NamedTensor> parameters;
      for (const auto& module : own.modules) {
        module->to(DType::kF64);
        module->reset_parameters(kSeed);
      }
      const bool has_both_ends = stages_of_rank(schedule, ctx.group_rank()).front() == 0 &&
                                 own.stages.back().index + 1 == schedule.num_stages;
      if (has_both_ends) share_tied_parameters(*own.modules.front(), *own.modules.back());
      std::set<TensorImpl*> seen;
      for (const auto& module : own.modules) {
        for (const NamedTensor& named : module->named_parameters()) {
          if (seen.insert(named.tensor.impl()).second) parameters.push_back(named);
        }
      }
      const std::vector<Tensor> tied = is_tied ? tied_leaves(parameters) : std::vector<Tensor>{};
      AdamW optimizer(parameters, adamw());
      auto pipe = Pipeline::open(
                      {.schedule = schedule, .group = borrowed(ctx.group()), .stages = own.stages})
                      .value();
      const int64_t rows = kRows / cut.microbatches;
      const std::vector<int> rank_of = ranks_of_stages(schedule);
      for (int step = 0; step < kSteps; ++step) {
        StepInputs inputs;
        for (int64_t m = 0; m < cut.microbatches; ++m)
          inputs.inputs.push_back(tokens_of(step, m * rows, (m + 1) * rows, false));
        inputs.loss = [&](const Tensor& logits, int m) {
          return own.modules.back()->loss(logits, tokens_of(step, m * rows, (m + 1) * rows, true));
        };
        inputs.grad_scale = 1 / kTokens;
        const StepResult result = pipe->train_step(inputs);
        if (pipe->has_last_stage()) {
          double sum = 0, count = 0;
          for (const double loss : result.loss_sums) sum += loss;
          for (const double tokens : result.loss_counts) count += tokens;
          EXPECT_DOUBLE_EQ(count, kTokens);
          EXPECT_NEAR(sum / kTokens, expected.losses[static_cast<size_t>(step)], 1e-10);
        }
        reduce_tied_gradients(ctx.group(), rank_of.front(), rank_of.back(), tied);
        optimizer.step();
        optimizer.zero_grad();
      }
      for (const NamedTensor& named : parameters) {
        ASSERT_TRUE(expected.parameters.contains(named.name)) << named.name;
        expect_near(named.tensor, expected.parameters.at(named.name), 1e-9, named.name);
        const std::lock_guard lock(mutex);
        names.insert(named.name);
      }
    });
    EXPECT_EQ(names.size(), expected.parameters.size());
  }
}

TEST(Stages, TiedCopiesStayEqualToTheLastBit) {
  const Schedule schedule = pipeline::make_1f1b({2, 4});
  std::mutex mutex;
  std::vector<std::vector<float>> copies;
  run_ranks(2, [&](RankContext& ctx) {
    RankModel own(schedule, ctx.group_rank(), Kind::kTiedGpt, 2);
    StageModule& module = *own.modules[0];
    module.reset_parameters(kSeed);
    EXPECT_EQ(module.tied_copies(), ctx.group_rank() == 0 ? std::vector<std::string>{}
                                                          : std::vector<std::string>{"wte.weight"});
    AdamW optimizer(module.named_parameters(), adamw());
    auto pipe =
        Pipeline::open({.schedule = schedule, .group = borrowed(ctx.group()), .stages = own.stages})
            .value();
    for (int step = 0; step < 10; ++step) {
      StepInputs inputs{.grad_scale = 1 / kTokens};
      for (int64_t m = 0; m < 4; ++m)
        inputs.inputs.push_back(tokens_of(step, 2 * m, 2 * m + 2, false));
      inputs.loss = [&](const Tensor& logits, int m) {
        return module.loss(logits, tokens_of(step, 2 * m, 2 * m + 2, true));
      };
      pipe->train_step(inputs);
      reduce_tied_gradients(ctx.group(), 0, 1, tied_leaves(module.named_parameters()));
      optimizer.step();
      optimizer.zero_grad();
    }
    const std::lock_guard lock(mutex);
    copies.push_back(to_vector<float>(detach(tied_leaves(module.named_parameters())[0])));
  });
  ASSERT_EQ(copies.size(), 2U);
  EXPECT_EQ(std::memcmp(copies[0].data(), copies[1].data(), copies[0].size() * sizeof(float)), 0);
}

// pp 2 x fsdp 2: blocks are sharded inside each stage, rows of a microbatch split over fsdp.
TEST(Stages, ShardedStagesTrainAsTheWholeModelDoes) {
  for (const char* name : {"1f1b", "interleaved"}) {
    SCOPED_TRACE(name);
    const int per_rank = std::string(name) == "1f1b" ? 1 : 2;
    const Trained expected = train_whole(Kind::kTiedGpt, 4, 4);
    const Schedule schedule = pipeline::make_schedule(name, {2 * per_rank, 4, 2}).value();
    run_ranks(4, [&](RankContext& ctx) {
      const MeshRef mesh =
          DeviceMesh::open(borrowed(ctx.group()), {{"pp", 2}, {"fsdp", 2}}, ctx.deadline()).value();
      const std::shared_ptr<ProcessGroup> pp = mesh->group(0);
      const int column = mesh->coordinate()[1];
      RankModel own(schedule, pp->group_rank(), Kind::kTiedGpt, 4);
      fsdp::Options options;
      options.mesh = mesh->slice({"fsdp"});
      options.reduce_op = ReduceOp::kSum;
      std::vector<NamedTensor> locals;
      std::vector<fsdp::NamedShard> shards;
      std::vector<Tensor> tied;
      for (size_t i = 0; i < own.modules.size(); ++i) {
        StageModule& module = *own.modules[i];
        module.to_empty(kCpuDevice);
        module.to(DType::kF64);
        for (const std::string& block : module.block_names())
          fsdp::fully_shard(module.module_at(block), options);
        const fsdp::Handle root = fsdp::fully_shard(module, options);
        fsdp::init_parameters(module, kSeed);
        own.stages[i].hooks = stage_hooks(root);
        for (const fsdp::NamedShard& shard : fsdp::sharded_parameters(module)) {
          shards.push_back(shard);
          locals.push_back({shard.name, shard.param->local});
          if (shard.name == "wte.weight") tied.push_back(shard.param->local);
        }
      }
      AdamW optimizer(locals, adamw());
      auto pipe = Pipeline::open(
                      {.schedule = schedule, .group = pp, .stages = own.stages, .is_sharded = true})
                      .value();
      for (int step = 0; step < kSteps; ++step) {
        StepInputs inputs{.grad_scale = 1 / kTokens};
        const auto row = [&](int64_t m) { return 2 * m + column; };
        for (int64_t m = 0; m < 4; ++m)
          inputs.inputs.push_back(tokens_of(step, row(m), row(m) + 1, false));
        inputs.loss = [&](const Tensor& logits, int m) {
          return own.modules.back()->loss(logits, tokens_of(step, row(m), row(m) + 1, true));
        };
        const StepResult result = pipe->train_step(inputs);
        if (pipe->has_last_stage()) {
          double sum = 0;
          for (const double loss : result.loss_sums) sum += loss;
          const Tensor total = from_vector(std::vector<double>{sum});
          mesh->group(1)->run(mesh->group(1)->all_reduce(total));
          EXPECT_NEAR(total.item() / kTokens, expected.losses[static_cast<size_t>(step)], 1e-10);
        }
        reduce_tied_gradients(*pp, 0, 1, tied);
        double squares = 0;
        for (const auto& module : own.modules) {
          const double norm =
              fsdp::grad_norm(without_tied_copies(*module, fsdp::sharded_parameters(*module)));
          squares += norm * norm;
        }
        EXPECT_NEAR(norm_over_stages(*pp, std::sqrt(squares)),
                    expected.norms[static_cast<size_t>(step)], 1e-9);
        optimizer.step();
        optimizer.zero_grad();
        for (const fsdp::NamedShard& shard : shards) set_grad(shard.param->sharded, {});
      }
      for (const fsdp::NamedShard& shard : shards) {
        const Tensor& whole = expected.parameters.at(shard.name);
        const ShardBox& box = shard.param->boxes[0].box;
        const int64_t rows = shard.param->local.size(0);
        if (rows == 0) continue;
        expect_near(shard.param->local, narrow(whole, 0, box.offsets[0], rows), 1e-9, shard.name);
      }
    });
  }
}

TEST(Stages, TheNormIsOneOverAllStages) {
  run_ranks(2, [](RankContext& ctx) {
    EXPECT_DOUBLE_EQ(norm_over_stages(ctx.group(), ctx.group_rank() == 0 ? 3.0 : 4.0), 5.0);
  });
}

TEST(Stages, BlocksAreSplitEvenlyAndNeverTooThin) {
  using Parts = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(split_blocks(7, 3), (Parts{{0, 3}, {3, 5}, {5, 7}}));
  EXPECT_EQ(split_blocks(4, 4), (Parts{{0, 1}, {1, 2}, {2, 3}, {3, 4}}));
  EXPECT_ERROR(split_blocks(3, 4), ErrorCode::kInvalidArgument,
               ::testing::HasSubstr("3 blocks and 4 stages"));
  const DeviceGuard meta(kMetaDevice);
  const std::unique_ptr<CausalLm> whole = make_whole(Kind::kGpt, 4);
  EXPECT_EQ(make_stage(*whole, 1, 2)->block_names(), (std::vector<std::string>{"h.2", "h.3"}));
  EXPECT_ERROR(make_stage(*whole, 2, 2), ErrorCode::kInvalidArgument,
               ::testing::HasSubstr("[0, 2)"));
}
}  // namespace
}  // namespace muster
