// FSDP against the single process: same model, same data, same losses.
#include "fsdp/fully_shard.h"

#include <cmath>
#include <cstring>

#include "core/autograd/autograd.h"
#include "core/nn/gpt.h"
#include "core/nn/optim/clip_grad.h"
#include "core/nn/optim/optimizer.h"
#include "core/ops/ops.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using testing::RankContext;
using testing::run_ranks;

// Sizes that no world size divides: shards are uneven, some are empty (ln of 6 rows on 4 ranks is
// 2,2,2,0).
GptConfig small_config() {
  GptConfig config;
  config.vocab_size = 19;
  config.max_positions = 8;
  config.dim = 6;
  config.layers = 2;
  config.heads = 2;
  return config;
}

constexpr int64_t kBatch = 12;
constexpr int64_t kSequence = 8;
constexpr int kSteps = 20;
constexpr double kMaxNorm = 0.5;

// Row r of step s, the same in every process.
Tensor tokens_of(int step, const std::vector<int64_t>& rows, int shift) {
  Tensor tokens = empty_from_spec(
      TensorSpec::contiguous({static_cast<int64_t>(rows.size()), kSequence}, DType::kI64));
  int64_t* at = tokens.data<int64_t>();
  for (const int64_t row : rows) {
    for (int64_t i = 0; i < kSequence; ++i)
      *at++ = (row * 7 + step % 2 + (i + shift) * (row + 2)) % 19;
  }
  return tokens;
}

AdamWOptions adamw() { return {.lr = 2e-2, .weight_decay = 0.1}; }

struct Curve {
  std::vector<double> losses;
  std::vector<double> norms;
};

Curve single_process() {
  Gpt model(small_config());
  model.reset_parameters(5);
  AdamW optimizer(model.named_parameters(), adamw());
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < kBatch; ++row) rows.push_back(row);
  Curve curve;
  for (int step = 0; step < kSteps; ++step) {
    const LossSum loss = model.loss(tokens_of(step, rows, 0), tokens_of(step, rows, 1));
    const double denominator = kBatch * kSequence;
    backward(div(loss.sum, denominator));
    curve.losses.push_back(detach(loss.sum).item() / denominator);
    curve.norms.push_back(clip_grad_norm_(model.parameters(), kMaxNorm));
    optimizer.step();
    optimizer.zero_grad();
  }
  return curve;
}

struct Variant {
  int world;
  std::optional<bool> reshard;
  int prefetch;
  int microbatches;
  bool checkpoint = false;  // blocks compute their insides again in backward
};

Curve sharded(RankContext& ctx, const Variant& variant,
              const std::function<void(Module&)>& after = {}) {
  const MeshRef mesh = testing::mesh_of(ctx, {{"fsdp", variant.world}});
  std::unique_ptr<Gpt> model;
  {
    const DeviceGuard meta(kMetaDevice);
    model = std::make_unique<Gpt>(small_config());
  }
  fsdp::Options options;
  options.mesh = mesh;
  options.reshard_after_forward = variant.reshard;
  options.prefetch = variant.prefetch;
  options.reduce_op = ReduceOp::kSum;
  for (const char* block : {"h.0", "h.1"}) {
    if (variant.checkpoint) model->module_at(block).set_checkpoint(CheckpointOptions{});
    fsdp::fully_shard(model->module_at(block), options);
  }
  fsdp::Handle root = fsdp::fully_shard(*model, options);
  fsdp::init_parameters(*model, 5);
  const std::vector<fsdp::NamedShard> shards = fsdp::sharded_parameters(*model);
  std::vector<NamedTensor> locals;
  for (const fsdp::NamedShard& shard : shards) locals.push_back({shard.name, shard.param->local});
  AdamW optimizer(locals, adamw());
  Curve curve;
  for (int step = 0; step < kSteps; ++step) {
    double loss_sum = 0;
    for (int micro = 0; micro < variant.microbatches; ++micro) {
      std::vector<int64_t> rows;
      for (int64_t row = ctx.group_rank(); row < kBatch; row += variant.world) {
        if (row / variant.world % variant.microbatches == micro) rows.push_back(row);
      }
      root.set_requires_gradient_sync(micro + 1 == variant.microbatches);
      const LossSum loss = model->loss(tokens_of(step, rows, 0), tokens_of(step, rows, 1));
      backward(div(loss.sum, double(kBatch * kSequence)));
      loss_sum += detach(loss.sum).item();
    }
    const Tensor total = from_vector(std::vector<double>{loss_sum});
    ctx.group().run(ctx.group().all_reduce(total));
    curve.losses.push_back(total.item() / (kBatch * kSequence));
    curve.norms.push_back(fsdp::clip_grad_norm_(shards, kMaxNorm));
    optimizer.step();
    optimizer.zero_grad();
    for (const fsdp::NamedShard& shard : shards) set_grad(shard.param->sharded, {});
  }
  if (after) after(*model);
  return curve;
}

class AgainstOneProcess : public ::testing::TestWithParam<Variant> {};
INSTANTIATE_TEST_SUITE_P(
    Fsdp, AgainstOneProcess,
    ::testing::Values(Variant{1, {}, 0, 1}, Variant{2, {}, 0, 1}, Variant{3, {}, 0, 1},
                      Variant{4, {}, 0, 1}, Variant{2, true, 1, 1}, Variant{3, false, 0, 1},
                      Variant{2, {}, 1, 2}, Variant{4, true, 2, 3}, Variant{2, true, 1, 1, true},
                      Variant{3, {}, 0, 2, true}),
    [](const auto& p) {
      return fmt::format("w{}_{}_prefetch{}_micro{}{}", p.param.world,
                         p.param.reshard ? (*p.param.reshard ? "reshard" : "keep") : "auto",
                         p.param.prefetch, p.param.microbatches,
                         p.param.checkpoint ? "_checkpoint" : "");
    });

TEST_P(AgainstOneProcess, TwentyStepsAgreeWithinOneInAHundredThousand) {
  const Curve expected = single_process();
  ASSERT_LT(expected.losses.back(), expected.losses.front() - 0.2);
  run_ranks(GetParam().world, [&](RankContext& ctx) {
    const Curve actual = sharded(ctx, GetParam());
    for (int step = 0; step < kSteps; ++step) {
      const auto s = static_cast<size_t>(step);
      ASSERT_NEAR(actual.losses[s], expected.losses[s], 1e-5 * expected.losses[s])
          << "step " << step;
      ASSERT_NEAR(actual.norms[s], expected.norms[s], 1e-4 * expected.norms[s]) << "step " << step;
    }
  });
}

TEST(FullyShard, MetaInitialisationEqualsInitialisingAndSharding) {
  Gpt whole(small_config());
  whole.reset_parameters(11);
  const std::vector<NamedTensor> expected = whole.named_parameters();
  run_ranks(3, [&](RankContext& ctx) {
    const auto world = testing::world_of(ctx);
    fsdp::Options options;
    options.mesh = DeviceMesh::open(world, {{"fsdp", 3}}, ctx.deadline()).value();
    std::unique_ptr<Gpt> model;
    {
      const DeviceGuard meta(kMetaDevice);
      model = std::make_unique<Gpt>(small_config());
    }
    fsdp::fully_shard(*model, options);
    fsdp::init_parameters(*model, 11);
    size_t i = 0;
    for (const fsdp::NamedShard& shard : fsdp::sharded_parameters(*model)) {
      const ShardBox& box = shard.param->boxes[0].box;
      ASSERT_EQ(shard.name, expected[i].name);
      const Tensor rows = contiguous(
          slice(detach(expected[i].tensor), 0, box.offsets[0], box.offsets[0] + box.sizes[0]));
      ASSERT_EQ(std::memcmp(rows.data_ptr(), shard.param->local.data_ptr(),
                            static_cast<size_t>(rows.nbytes())),
                0)
          << shard.name;
      ++i;
    }
    EXPECT_EQ(i, expected.size());
  });
}

TEST(FullyShard, CallingForwardWithoutHooksSaysWhatToDo) {
  run_ranks(2, [](RankContext& ctx) {
    const auto world = testing::world_of(ctx);
    Gpt model(small_config());
    fsdp::Options options;
    options.mesh = DeviceMesh::open(world, {{"fsdp", 2}}, ctx.deadline()).value();
    fsdp::fully_shard(model, options);
    EXPECT_ERROR(model.forward(tokens_of(0, {0}, 0)), ErrorCode::kFailedPrecondition,
                 ::testing::HasSubstr("must be called as"));
  });
}

TEST(FullyShard, ForwardWithoutValuesNamesTheParameter) {
  run_ranks(1, [](RankContext& ctx) {
    const auto world = testing::world_of(ctx);
    std::unique_ptr<Gpt> model;
    {
      const DeviceGuard meta(kMetaDevice);
      model = std::make_unique<Gpt>(small_config());
    }
    fsdp::Options options;
    options.mesh = DeviceMesh::open(world, {{"fsdp", 1}}, ctx.deadline()).value();
    fsdp::fully_shard(*model, options);
    EXPECT_ERROR((*model)(tokens_of(0, {0}, 0)), ErrorCode::kFailedPrecondition,
                 ::testing::HasSubstr("wte.weight"));
  });
}

TEST(FullyShard, ASecondCallOnOneModuleIsRefused) {
  run_ranks(1, [](RankContext& ctx) {
    const auto world = testing::world_of(ctx);
    Gpt model(small_config());
    fsdp::Options options;
    options.mesh = DeviceMesh::open(world, {{"fsdp", 1}}, ctx.deadline()).value();
    const fsdp::Handle handle = fsdp::fully_shard(model, options);
    EXPECT_ERROR(fsdp::fully_shard(model, options), ErrorCode::kInvalidArgument,
                 ::testing::HasSubstr("sharded already"));
  });
}

TEST(FullyShard, GatheredMemoryIsFreedAfterForwardAndBackward) {
  run_ranks(2, [](RankContext& ctx) {
    sharded(ctx, {2, true, 0, 1}, [](Module& model) {
      for (const fsdp::NamedShard& shard : fsdp::sharded_parameters(model)) {
        EXPECT_EQ(shard.param->unsharded.storage()->data(), nullptr) << shard.name;
        EXPECT_FALSE(grad_of(shard.param->unsharded).defined()) << shard.name;
      }
    });
  });
}

TEST(FullyShard, EachGroupIsGatheredAsOftenAsThePlanSays) {
  run_ranks(2, [](RankContext& ctx) {
    const auto world = testing::world_of(ctx);
    Gpt model(small_config());
    fsdp::Options options;
    options.mesh = DeviceMesh::open(world, {{"fsdp", 2}}, ctx.deadline()).value();
    for (const char* block : {"h.0", "h.1"}) fsdp::fully_shard(model.module_at(block), options);
    const fsdp::Handle root = fsdp::fully_shard(model, options);
    const LossSum loss = model.loss(tokens_of(0, {0, 1}, 0), tokens_of(0, {0, 1}, 1));
    backward(loss.sum);
    const auto groups = root.groups();
    ASSERT_EQ(groups.size(), 3u);
    EXPECT_EQ(groups[0]->num_gathers(), 2u);  // forward, and again in backward
    EXPECT_EQ(groups[1]->num_gathers(), 2u);
    EXPECT_EQ(groups[2]->num_gathers(), 1u);  // the root keeps its parameters
    EXPECT_EQ(ctx.group().num_launched(CollectiveKind::kReduceScatter), 3u);
  });
}

// Parameters, gradients and moments of a rank: 4 floats for each of its rows, rounded up to even
// shards.
TEST(FullyShard, MemoryOfARankFollowsTheFormula) {
  run_ranks(4, [](RankContext& ctx) {
    const auto world = testing::world_of(ctx);
    GptConfig config = small_config();
    config.vocab_size = 64;
    config.dim = 64;
    config.heads = 4;
    Gpt model(config);
    const double whole = static_cast<double>(model.num_parameters()) * 4;
    fsdp::Options options;
    options.mesh = DeviceMesh::open(world, {{"fsdp", 4}}, ctx.deadline()).value();
    for (const char* block : {"h.0", "h.1"}) fsdp::fully_shard(model.module_at(block), options);
    fsdp::fully_shard(model, options);
    std::vector<NamedTensor> locals;
    const std::vector<fsdp::NamedShard> shards = fsdp::sharded_parameters(model);
    for (const fsdp::NamedShard& shard : shards) locals.push_back({shard.name, shard.param->local});
    AdamW optimizer(locals, adamw());
    backward(model.loss(tokens_of(0, {0}, 0), tokens_of(0, {0}, 1)).sum);
    optimizer.step();
    double held = 0;
    for (const fsdp::NamedShard& shard : shards) {
      held +=
          static_cast<double>(shard.param->local.nbytes() + grad_of(shard.param->local).nbytes());
    }
    for (const OptimizerStateEntry& entry : optimizer.state()) {
      for (const NamedTensor& moment : entry.tensors)
        held += static_cast<double>(moment.tensor.nbytes());
    }
    const double formula = 4 * whole / 4;
    EXPECT_NEAR(held, formula, 0.05 * formula);
  });
}

TEST(ClipGradNorm, CountsEveryShardOnceAndScalesAll) {
  run_ranks(2, [](RankContext& ctx) {
    const auto world = testing::world_of(ctx);
    Linear layer({.in_features = 1, .out_features = 2, .bias = false});
    fsdp::Options options;
    options.mesh = DeviceMesh::open(world, {{"fsdp", 2}}, ctx.deadline()).value();
    fsdp::fully_shard(layer, options);
    const std::vector<fsdp::NamedShard> shards = fsdp::sharded_parameters(layer);
    // Gradients 3 and 4 on the two ranks: norm 5.
    set_grad(shards[0].param->local, full({1, 1}, ctx.group_rank() == 0 ? 3.0 : 4.0));
    EXPECT_DOUBLE_EQ(fsdp::clip_grad_norm_(shards, 1.0), 5.0);
    EXPECT_NEAR(grad_of(shards[0].param->local).item(), (ctx.group_rank() == 0 ? 3.0 : 4.0) / 5.0,
                1e-6);
  });
}

TEST(MixedPrecision, Bf16ComputeWithF32ReductionStaysNearF32) {
  const Curve expected = single_process();
  run_ranks(2, [&](RankContext& ctx) {
    const auto world = testing::world_of(ctx);
    Gpt model(small_config());
    model.reset_parameters(5);
    fsdp::Options options;
    options.mesh = DeviceMesh::open(world, {{"fsdp", 2}}, ctx.deadline()).value();
    options.reduce_op = ReduceOp::kSum;
    options.mixed_precision = {.param_dtype = DType::kBF16, .reduce_dtype = DType::kF32};
    fsdp::fully_shard(model, options);
    std::vector<int64_t> rows;
    for (int64_t row = ctx.group_rank(); row < kBatch; row += 2) rows.push_back(row);
    const LossSum loss = model.loss(tokens_of(0, rows, 0), tokens_of(0, rows, 1));
    backward(div(loss.sum, double(kBatch * kSequence)));
    const Tensor total = from_vector(std::vector<double>{detach(loss.sum).item()});
    ctx.group().run(ctx.group().all_reduce(total));
    EXPECT_NEAR(total.item() / (kBatch * kSequence), expected.losses[0], 2e-2);
    const double norm = fsdp::clip_grad_norm_(fsdp::sharded_parameters(model), kMaxNorm);
    EXPECT_NEAR(norm, expected.norms[0], 0.05 * expected.norms[0]);
    for (const fsdp::NamedShard& shard : fsdp::sharded_parameters(model)) {
      EXPECT_EQ(grad_of(shard.param->local).dtype(), DType::kF32);
    }
  });
}
}  // namespace
}  // namespace muster
