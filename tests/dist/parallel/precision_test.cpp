// Low precision under tensor parallelism: autocast, and bf16 parameters with f32 reduction.
#include "core/autograd/autocast.h"
#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "dist/parallel/models.h"
#include "fsdp/fully_shard.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using testing::RankContext;
using testing::run_ranks;

GptConfig config() {
  return {.vocab_size = 19, .max_positions = 8, .dim = 16, .layers = 2, .heads = 4};
}
Tensor tokens() { return remainder(view(arange(16) * 5, {2, 8}), 19); }

double dense_loss() {
  Gpt model(config());
  model.reset_parameters(3);
  return detach(model.loss(tokens(), tokens()).sum).item();
}

struct Sharded {
  std::unique_ptr<Gpt> model;
  std::vector<fsdp::NamedShard> shards;
};

Sharded shard(RankContext& ctx, bool sequence, const fsdp::MixedPrecision& precision) {
  const MeshRef mesh = testing::mesh_of(ctx, {{"fsdp", 2}, {"tp", 2}});
  auto model = std::make_unique<Gpt>(config());
  model->reset_parameters(3);
  parallel::parallelize(*model, mesh->slice({"tp"}), {.sequence_parallel = sequence});
  fsdp::Options options;
  options.mesh = mesh->slice({"fsdp"});
  options.mixed_precision = precision;
  fsdp::fully_shard(*model, options);
  auto shards = fsdp::sharded_parameters(*model);
  return {std::move(model), std::move(shards)};
}

void expect_f32_gradients(const Sharded& sharded) {
  for (const fsdp::NamedShard& one : sharded.shards) {
    const Tensor gradient = grad_of(one.param->local);
    ASSERT_TRUE(gradient.defined()) << one.name;
    EXPECT_EQ(gradient.dtype(), DType::kF32) << one.name;
  }
}

TEST(TensorParallelPrecision, AutocastStaysNearF32) {
  const double expected = dense_loss();
  for (const bool sequence : {false, true}) {
    run_ranks(4, [&](RankContext& ctx) {
      const Sharded sharded = shard(ctx, sequence, {});
      Tensor loss;
      {
        const AutocastGuard autocast(DeviceType::kCpu, DType::kBF16);
        loss = sharded.model->loss(tokens(), tokens()).sum;
      }
      EXPECT_NEAR(detach(loss).item(), expected, 1e-2 * expected);
      backward(loss);
      expect_f32_gradients(sharded);
    });
  }
}

TEST(TensorParallelPrecision, Bf16ParametersWithF32ReductionStayNearF32) {
  const double expected = dense_loss();
  for (const bool sequence : {false, true}) {
    run_ranks(4, [&](RankContext& ctx) {
      const Sharded sharded =
          shard(ctx, sequence, {.param_dtype = DType::kBF16, .reduce_dtype = DType::kF32});
      const Tensor loss = sharded.model->loss(tokens(), tokens()).sum;
      EXPECT_NEAR(detach(loss).item(), expected, 1e-2 * expected);
      backward(loss);
      expect_f32_gradients(sharded);
    });
  }
}
}  // namespace
}  // namespace muster
