// FSDP inside pipeline stages: how often each group is gathered and reduced, and replicas that stay
// equal.
#include <cstring>
#include <mutex>

#include "core/autograd/autograd.h"
#include "core/nn/gpt.h"
#include "core/nn/optim/optimizer.h"
#include "core/ops/ops.h"
#include "dist/mesh/device_mesh.h"
#include "pipeline/runtime/pipeline.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "tests/support_ranks/ranks.h"
#include "train/stages.h"

namespace muster {
namespace {
using pipeline::ActionKind;
using pipeline::Pipeline;
using pipeline::Schedule;
using testing::RankContext;
using testing::run_ranks;

constexpr int64_t kLength = 6, kVocab = 19;

GptConfig config() {
  return {.vocab_size = kVocab, .max_positions = kLength, .dim = 8, .layers = 4, .heads = 2};
}

Tensor tokens_of(int64_t row, int64_t shift) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < kLength; ++i) values.push_back((row * 7 + (i + shift) * 3) % kVocab);
  return from_vector(values, {1, kLength});
}

// The stages of one rank of a mesh {pp, ...}, sharded over its other axes.
struct ShardedStages {
  ShardedStages(const Schedule& schedule, const MeshRef& mesh, const fsdp::Options& options,
                bool frees_after_forward) {
    std::unique_ptr<CausalLm> whole;
    {
      const DeviceGuard meta(kMetaDevice);
      whole = std::make_unique<Gpt>(config());
    }
    for (const int index : stages_of_rank(schedule, mesh->group("pp")->group_rank())) {
      const DeviceGuard meta(kMetaDevice);
      modules.push_back(make_stage(*whole, index, schedule.num_stages));
      StageModule& module = *modules.back();
      for (const std::string& block : module.block_names())
        fsdp::fully_shard(module.module_at(block), options);
      roots.push_back(fsdp::fully_shard(module, options));
      fsdp::init_parameters(module, 5);
      stages.push_back({.index = index,
                        .module = &module,
                        .hooks = stage_hooks(roots.back(), frees_after_forward)});
    }
  }
  std::vector<std::unique_ptr<StageModule>> modules;
  std::vector<fsdp::Handle> roots;
  std::vector<pipeline::Stage> stages;
};

pipeline::StepInputs inputs_of(ShardedStages& own, int microbatches, int64_t column,
                               int64_t columns) {
  pipeline::StepInputs inputs{.grad_scale = 1e-2};
  for (int64_t m = 0; m < microbatches; ++m)
    inputs.inputs.push_back(tokens_of(m * columns + column, 0));
  inputs.loss = [&own, column, columns](const Tensor& logits, int m) {
    return own.modules.back()->loss(logits, tokens_of(m * columns + column, 1));
  };
  return inputs;
}

// pytorch#164756: gathers came for each microbatch, or at the wrong time.
TEST(ShardedStages, AreGatheredOnceAStepUnlessTheyAreFreed) {
  constexpr int kMicrobatches = 8;
  const Schedule schedule = pipeline::make_interleaved_1f1b(
      {.num_stages = 4, .num_microbatches = kMicrobatches, .num_ranks = 2});
  for (const bool frees : {false, true}) {
    for (const bool is_planned : {false, true}) {
      if (frees && is_planned) continue;  // a plan says itself when stages are whole
      SCOPED_TRACE(fmt::format("frees {} planned {}", frees, is_planned));
      run_ranks(4, [&](RankContext& ctx) {
        const MeshRef mesh = DeviceMesh::open({&ctx.group(), [](ProcessGroup*) {}},
                                              {{"pp", 2}, {"fsdp", 2}}, ctx.deadline())
                                 .value();
        fsdp::Options options{.mesh = mesh->slice({"fsdp"})};
        options.reshard_after_forward = frees;
        ShardedStages own(schedule, mesh, options, frees);
        const auto pipe = Pipeline::open({.schedule = schedule,
                                          .group = mesh->group("pp"),
                                          .stages = own.stages,
                                          .is_sharded = is_planned})
                              .value();
        const auto inputs = inputs_of(own, kMicrobatches, mesh->coordinate()[1], 2);
        for (int step = 1; step <= 2; ++step) {
          pipe->train_step(inputs);
          for (size_t i = 0; i < own.roots.size(); ++i) {
            uint64_t expected = frees ? 2 * kMicrobatches : 1;
            if (is_planned) {
              expected = 0;
              for (const pipeline::PlacedAction& placed : placed_actions(pipe->schedule())) {
                if (placed.action.kind == ActionKind::kUnshard &&
                    placed.action.stage == own.stages[i].index)
                  ++expected;
              }
            }
            for (fsdp::ParamGroup* group : own.roots[i].groups()) {
              if (group->params().empty()) continue;
              EXPECT_EQ(group->num_gathers(), static_cast<uint64_t>(step) * expected)
                  << "stage " << own.stages[i].index << " " << group->name();
              EXPECT_EQ(group->state(), fsdp::ParamGroup::State::kSharded) << group->name();
            }
          }
        }
        // Reduced once a step: one reduction for each group of both stages.
        uint64_t groups = 0;
        for (const fsdp::Handle& root : own.roots) {
          for (fsdp::ParamGroup* group : root.groups()) groups += group->params().empty() ? 0 : 1;
        }
        EXPECT_EQ(mesh->group("fsdp")->num_launched(CollectiveKind::kReduceScatter), 2 * groups);
      });
    }
  }
}

// pytorch#144530: with backward in two parts, hooks were passed by and replicas drifted apart.
TEST(ShardedStages, ReplicasOfAZeroBubblePipelineStayEqual) {
  const Schedule schedule = pipeline::make_schedule("zero_bubble", {2, 4, 2}).value();
  std::mutex mutex;
  std::map<std::string, std::vector<std::vector<float>>> copies;
  run_ranks(4, [&](RankContext& ctx) {
    const MeshRef mesh =
        DeviceMesh::open({&ctx.group(), [](ProcessGroup*) {}},
                         {{"pp", 2}, {"replicate", 2}, {"fsdp", 1}}, ctx.deadline())
            .value();
    fsdp::Options options{.mesh = mesh->slice({"replicate", "fsdp"})};
    options.reshard_after_forward = false;
    ShardedStages own(schedule, mesh, options, false);
    std::vector<NamedTensor> locals;
    const auto shards = fsdp::sharded_parameters(*own.modules[0]);
    for (const auto& shard : shards) locals.push_back({shard.name, shard.param->local});
    AdamW optimizer(locals, {.lr = 1e-2});
    const auto pipe =
        Pipeline::open({.schedule = schedule, .group = mesh->group("pp"), .stages = own.stages})
            .value();
    const auto inputs = inputs_of(own, 4, mesh->coordinate()[1], 2);
    const std::vector<float> before = to_vector<float>(detach(locals[0].tensor));
    for (int step = 0; step < 3; ++step) {
      pipe->train_step(inputs);
      optimizer.step();
      optimizer.zero_grad();
      for (const auto& shard : shards) set_grad(shard.param->sharded, {});
    }
    const std::lock_guard lock(mutex);
    EXPECT_NE(to_vector<float>(detach(locals[0].tensor)), before);
    const std::string stage = std::to_string(mesh->coordinate()[0]);
    for (const NamedTensor& local : locals)
      copies[stage + " " + local.name].push_back(to_vector<float>(detach(local.tensor)));
  });
  for (const auto& [name, values] : copies) {
    ASSERT_EQ(values.size(), 2u) << name;
    EXPECT_EQ(std::memcmp(values[0].data(), values[1].data(), values[0].size() * sizeof(float)), 0)
        << name;
  }
}
}  // namespace
}  // namespace muster
