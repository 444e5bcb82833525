// One loss and one gradient norm at the first step, whatever the mesh; and the memory of a rank as
// predicted.
#include "train/parallel_model.h"

#include <cmath>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using testing::RankContext;
using testing::run_ranks;

constexpr int64_t kBatch = 8, kLength = 6, kVocab = 24;

Recipe recipe_of(Recipe::Model::Kind kind, int pp, int replicas, int tp) {
  Recipe recipe;
  recipe.model.kind = kind;
  recipe.model.kv_heads = kind == Recipe::Model::Kind::kLlama ? 2 : 0;
  recipe.model.layers = 2;
  recipe.model.dim = 16;
  recipe.model.heads = 4;
  recipe.model.vocab = kVocab;
  recipe.model.sequence = kLength;
  recipe.model.init_std = 0.2;
  recipe.mesh = {.pp = pp, .dp_replicate = replicas, .fsdp = -1, .tp = tp};
  recipe.train.seed = 7;
  return recipe;
}

// Row r of the global batch; rows have 1 to 6 targets that count.
Microbatch row_of(int64_t row) {
  std::vector<int64_t> tokens, targets;
  for (int64_t i = 0; i < kLength; ++i) {
    tokens.push_back((row * 7 + i * (row + 2)) % kVocab);
    targets.push_back(i < row % 6 ? -100 : (row * 7 + (i + 1) * (row + 2)) % kVocab);
  }
  return {from_vector(tokens, {1, kLength}), from_vector(targets, {1, kLength})};
}
constexpr double kCounted = 6 + 5 + 4 + 3 + 2 + 1 + 6 + 5;

struct FirstStep {
  double loss = 0, norm = 0;
};

FirstStep first_step(RankContext& ctx, const Recipe& recipe) {
  ParallelModel model(recipe, {&ctx.group(), [](ProcessGroup*) {}});
  std::vector<Microbatch> own;
  for (int64_t row = model.data_rank(); row < kBatch; row += model.data_ranks())
    own.push_back(row_of(row));
  const double part = model.forward_backward(own, kCounted);
  const Tensor total = from_vector(std::vector<double>{part});
  ctx.group().run(ctx.group().all_reduce(total));
  return {total.item() / kCounted, model.grad_norm()};
}

// torchtitan#1750: 12.03 to 12.08 at step 1; Megatron-LM#2263: another norm for each layout.
TEST(ParallelModel, TheFirstLossAndNormAreOneNumberOnEveryMesh) {
  for (const auto kind : {Recipe::Model::Kind::kGpt, Recipe::Model::Kind::kLlama}) {
    FirstStep expected;
    run_ranks(1, [&](RankContext& ctx) { expected = first_step(ctx, recipe_of(kind, 1, 1, 1)); });
    ASSERT_GT(expected.loss, 2.0);
    ASSERT_GT(expected.norm, 0.1);
    for (int mesh = 1; mesh < 16; ++mesh) {
      const int pp = mesh & 1 ? 2 : 1, replicas = mesh & 2 ? 2 : 1, tp = mesh & 4 ? 2 : 1,
                shards = mesh & 8 ? 2 : 1;
      SCOPED_TRACE(fmt::format("kind {} pp {} dp_replicate {} fsdp {} tp {}",
                               static_cast<int>(kind), pp, replicas, shards, tp));
      run_ranks(pp * replicas * tp * shards, [&](RankContext& ctx) {
        const FirstStep step = first_step(ctx, recipe_of(kind, pp, replicas, tp));
        EXPECT_NEAR(step.loss, expected.loss, 1e-6 * expected.loss);
        EXPECT_NEAR(step.norm, expected.norm, 1e-5 * expected.norm);
      });
    }
  }
}
}  // namespace
}  // namespace muster
