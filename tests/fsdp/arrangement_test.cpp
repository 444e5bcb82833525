// How ranks and groups are arranged changes what is communicated, not what is computed.
#include <cstring>

#include "core/autograd/autograd.h"
#include "core/nn/gpt.h"
#include "core/nn/optim/optimizer.h"
#include "core/ops/ops.h"
#include "fsdp/fully_shard.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using testing::RankContext;
using testing::run_ranks;

MeshRef mesh_of(RankContext& ctx, int replicas) {
  const auto world = testing::world_of(ctx);
  const int shards = ctx.world_size() / replicas;
  const std::vector<DeviceMesh::Axis> flat = {{"fsdp", shards}};
  const std::vector<DeviceMesh::Axis> hybrid = {{"replicate", replicas}, {"fsdp", shards}};
  return DeviceMesh::open(world, replicas > 1 ? hybrid : flat, ctx.deadline()).value();
}

// Reported as pytorch#155903: the factor took part along one axis only.
TEST(GradientDivideFactor, IsTheSameForFlatAndHybridMeshes) {
  for (const DType reduce : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int replicas : {1, 2, 4, 8}) {
      SCOPED_TRACE(fmt::format("{} over {} x {}", reduce, replicas, 8 / replicas));
      run_ranks(8, [&](RankContext& ctx) {
        Linear layer({.in_features = 3, .out_features = 11, .bias = false});
        layer.reset_parameters(1);
        fsdp::Options options{.mesh = mesh_of(ctx, replicas)};
        options.mixed_precision.reduce_dtype = reduce;
        options.gradient_divide_factor = 300;
        fsdp::Handle handle = fsdp::fully_shard(layer, options);
        // Gradients are (rank + 1) * 75: 2700 in all, in each of two microbatches.
        for (const bool is_last : {false, true}) {
          handle.set_requires_all_reduce(is_last);
          backward(sum(mul(layer(ones({1, 3})), 75.0 * (ctx.group_rank() + 1))));
        }
        const auto shards = fsdp::sharded_parameters(layer);
        const double tolerance = reduce == DType::kF32 ? 0 : 1e-2;  // sums of f32 are exact here
        for (const double g : to_vector<double>(to(grad_of(shards[0].param->local), DType::kF64))) {
          EXPECT_NEAR(g, 18.0, 18.0 * tolerance);
        }
      });
    }
  }
}

// The sum alone, 8 x 30000, is beyond f16.
TEST(GradientDivideFactor, KeepsSumsWithinF16) {
  run_ranks(8, [](RankContext& ctx) {
    Linear layer({.in_features = 1, .out_features = 8, .bias = false});
    layer.reset_parameters(1);
    fsdp::Options options{.mesh = mesh_of(ctx, 1)};
    options.mixed_precision.reduce_dtype = DType::kF16;
    options.gradient_divide_factor = 8;
    fsdp::fully_shard(layer, options);
    backward(sum(mul(layer(ones({1, 1})), 30000.0)));
    EXPECT_EQ(grad_of(fsdp::sharded_parameters(layer)[0].param->local).item(), 30000.0);
  });
}

TEST(GradientDivideFactor, MustBePositive) {
  run_ranks(1, [](RankContext& ctx) {
    Linear layer({.in_features = 1, .out_features = 8});
    fsdp::Options options{.mesh = mesh_of(ctx, 1)};
    options.gradient_divide_factor = 0;
    EXPECT_ERROR(fsdp::fully_shard(layer, options), ErrorCode::kInvalidArgument,
                 ::testing::HasSubstr("gradient_divide_factor must be above 0; got 0"));
  });
}

struct Wrapping {
  const char* name;
  std::vector<std::string> modules;  // beside the root
  int prefetch = 0;
  std::optional<bool> reshard = {};
};

std::vector<double> train(RankContext& ctx, const Wrapping& wrapping) {
  GptConfig config;
  config.vocab_size = 19;
  config.max_positions = 6;
  config.dim = 6;
  config.layers = 2;
  config.heads = 2;
  Gpt model(config);
  model.reset_parameters(5);
  fsdp::Options options{.mesh = mesh_of(ctx, 1)};
  options.prefetch = wrapping.prefetch;
  options.reshard_after_forward = wrapping.reshard;
  options.reduce_op = ReduceOp::kSum;
  for (const std::string& name : wrapping.modules) {
    fsdp::fully_shard(model.module_at(name), options);
  }
  fsdp::fully_shard(model, options);
  std::vector<NamedTensor> locals;
  const auto shards = fsdp::sharded_parameters(model);
  for (const auto& shard : shards) locals.push_back({shard.name, shard.param->local});
  AdamW optimizer(locals, {.lr = 2e-2, .weight_decay = 0.1});
  std::vector<double> curve;
  std::vector<int64_t> values(12);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = (static_cast<int64_t>(i) * 5 + 7 * ctx.group_rank()) % 19;
  }
  const Tensor tokens = from_vector(values, {2, 6});
  for (int step = 0; step < 5; ++step) {
    const LossSum loss = model.loss(tokens, tokens);
    backward(div(loss.sum, 12.0 * ctx.world_size()));
    curve.push_back(detach(loss.sum).item());
    curve.push_back(fsdp::clip_grad_norm_(shards, 0.5));
    optimizer.step();
    optimizer.zero_grad();
    for (const auto& shard : shards) set_grad(shard.param->sharded, {});
  }
  return curve;
}

// Reported as DeepSpeed#6351: the size of buckets and overlap changed the loss. Here groups are the
// buckets.
TEST(Arrangement, GroupsOfAnySizeAndOverlapChangeNoBit) {
  const std::vector<Wrapping> wrappings = {
      {"one group", {}},
      {"blocks", {"h.0", "h.1"}},
      {"blocks ahead", {"h.0", "h.1"}, 2},
      {"kept", {"h.0", "h.1"}, 0, false},
      {"freed", {"h.0", "h.1"}, 1, true},
      {"parts",
       {"h.0.attn", "h.0.mlp.c_fc", "h.0.mlp.c_proj", "h.0", "h.1.attn", "h.1.mlp", "ln_f"},
       1}};
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [&](RankContext& ctx) {
      const std::vector<double> expected = train(ctx, wrappings[0]);
      for (const Wrapping& wrapping : wrappings) {
        EXPECT_EQ(train(ctx, wrapping), expected) << wrapping.name;
      }
    });
  }
}
}  // namespace
}  // namespace muster
