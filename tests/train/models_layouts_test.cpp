// GPT-2 and Llama on every mesh through ParallelModel, which the trainer uses: in f64 nothing but
// the order of sums may differ from one process, so a curve that is off by more is wrong.
#include <gmock/gmock.h>

#include <algorithm>

#include "core/autograd/autograd.h"
#include "core/nn/optim/clip_grad.h"
#include "core/nn/optim/optimizer.h"
#include "core/ops/ops.h"
#include "tests/support/matchers.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"
#include "train/model_zoo.h"
#include "train/parallel_model.h"

namespace muster {
namespace {
using testing::RankContext;
using testing::run_ranks;

constexpr int64_t kRows = 8, kSteps = 20;
constexpr double kMaxNorm = 0.5;

Recipe recipe_of(Recipe::Model::Kind kind, const std::string& dtype) {
  Recipe recipe;
  recipe.model = {.kind = kind,
                  .layers = 2,
                  .dim = 16,
                  .heads = 4,
                  .kv_heads = kind == Recipe::Model::Kind::kLlama ? 2 : 0,
                  .vocab = 37,  // no number of ranks divides it
                  .sequence = 8,
                  .mlp_dim = kind == Recipe::Model::Kind::kLlama ? 22 : 0,
                  .init_std = 0.1,
                  .tie_embeddings = true,
                  .dtype = dtype};
  recipe.train.seed = 5;
  return recipe;
}

Microbatch rows_of_step(const Recipe& recipe, int64_t step, const std::vector<int64_t>& rows) {
  const int64_t length = recipe.model.sequence;
  Microbatch batch{empty({static_cast<int64_t>(rows.size()), length}, DType::kI64),
                   empty({static_cast<int64_t>(rows.size()), length}, DType::kI64)};
  for (size_t r = 0; r < rows.size(); ++r) {
    for (int64_t i = 0; i < length; ++i) {
      const auto token = [&](int64_t at) {
        return (rows[r] * 7 + step % 3 + at * (rows[r] + 2)) % recipe.model.vocab;
      };
      const int64_t flat = static_cast<int64_t>(r) * length + i;
      batch.tokens.data<int64_t>()[flat] = token(i);
      // Some targets do not count, and not equally many in each row.
      batch.targets.data<int64_t>()[flat] = i < rows[r] % 3 ? -100 : token(i + 1);
    }
  }
  return batch;
}
constexpr double kTokens = kRows * 8 - (0 + 1 + 2 + 0 + 1 + 2 + 0 + 1);

AdamWOptions adamw() { return {.lr = 3e-3, .weight_decay = 0.1}; }

struct Curve {
  std::vector<double> losses, norms;
};

Curve one_process(const Recipe& recipe) {
  const std::unique_ptr<CausalLm> model = make_model(recipe.model);
  model->to(parse_dtype(recipe.model.dtype).value());
  model->reset_parameters(static_cast<uint64_t>(recipe.train.seed));
  AdamW optimizer(model->named_parameters(), adamw());
  Curve curve;
  for (int64_t step = 0; step < kSteps; ++step) {
    const Microbatch all = rows_of_step(recipe, step, {0, 1, 2, 3, 4, 5, 6, 7});
    const LossSum loss = model->loss(all.tokens, all.targets);
    EXPECT_EQ(loss.count.item(), kTokens);
    backward(mul(loss.sum, 1 / kTokens));
    curve.losses.push_back(detach(loss.sum).item() / kTokens);
    curve.norms.push_back(clip_grad_norm_(model->parameters(), kMaxNorm));
    optimizer.step();
    optimizer.zero_grad();
  }
  return curve;
}

struct Layout {
  int64_t pp = 1, replicas = 1, fsdp = 1, tp = 1;
  bool sequence = false;
  Recipe::Pipeline::Schedule schedule = Recipe::Pipeline::Schedule::k1F1B;

  [[nodiscard]] int ranks() const { return static_cast<int>(pp * replicas * fsdp * tp); }
  [[nodiscard]] std::string name() const {
    return fmt::format("pp{}_replicas{}_fsdp{}_tp{}{}{}", pp, replicas, fsdp, tp,
                       sequence ? "_sequence" : "",
                       schedule == Recipe::Pipeline::Schedule::kGpipe ? "_gpipe" : "");
  }
};

Curve on_mesh(RankContext& ctx, Recipe recipe, const Layout& layout) {
  recipe.mesh = {
      .pp = layout.pp, .dp_replicate = layout.replicas, .fsdp = layout.fsdp, .tp = layout.tp};
  recipe.tp.sequence_parallel = layout.sequence;
  recipe.pipeline.schedule = layout.schedule;
  const auto world = testing::world_of(ctx);
  ParallelModel model(recipe, world);
  std::vector<NamedTensor> locals;
  for (const fsdp::NamedShard& shard : model.shards()) {
    EXPECT_EQ(to_string(shard.param->local.dtype()), recipe.model.dtype);
    locals.push_back({shard.name, shard.param->local});
  }
  AdamW optimizer(locals, adamw());
  Curve curve;
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<Microbatch> microbatches;
    for (int64_t row = model.data_rank(); row < kRows; row += model.data_ranks()) {
      microbatches.push_back(rows_of_step(recipe, step, {row}));
    }
    const Tensor total =
        from_vector(std::vector<double>{model.forward_backward(microbatches, kTokens)});
    ctx.group().run(ctx.group().all_reduce(total));
    curve.losses.push_back(total.item() / kTokens);
    curve.norms.push_back(model.grad_norm());
    optimizer.step({.grad_scale = std::min(1.0, kMaxNorm / (curve.norms.back() + 1e-6))});
    optimizer.zero_grad();
    model.zero_grad();
  }
  return curve;
}

class ModelLayouts : public ::testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(
    Mesh, ModelLayouts,
    ::testing::Values(Layout{.fsdp = 2}, Layout{.tp = 2}, Layout{.tp = 2, .sequence = true},
                      Layout{.pp = 2}, Layout{.replicas = 2}, Layout{.fsdp = 2, .tp = 2},
                      Layout{.fsdp = 2, .tp = 2, .sequence = true}, Layout{.pp = 2, .fsdp = 2},
                      Layout{.pp = 2, .tp = 2, .sequence = true},
                      Layout{.pp = 2, .fsdp = 2, .schedule = Recipe::Pipeline::Schedule::kGpipe},
                      Layout{.replicas = 2, .fsdp = 2}, Layout{.fsdp = 4}),
    [](const auto& p) { return p.param.name(); });

void expect_equal(const Curve& actual, const Curve& expected, double tolerance) {
  for (size_t i = 0; i < static_cast<size_t>(kSteps); ++i) {
    ASSERT_NEAR(actual.losses[i], expected.losses[i], tolerance * expected.losses[i]) << i;
    // AdamW magnifies rounding of small gradients, and norms show it before losses do.
    ASSERT_NEAR(actual.norms[i], expected.norms[i], 100 * tolerance * expected.norms[i]) << i;
  }
}

void expect_curves(const Layout& layout, const std::string& dtype, double tolerance) {
  for (const auto kind : {Recipe::Model::Kind::kGpt, Recipe::Model::Kind::kLlama}) {
    SCOPED_TRACE(fmt::format("{} {}", kind == Recipe::Model::Kind::kGpt ? "gpt" : "llama", dtype));
    const Recipe recipe = recipe_of(kind, dtype);
    const Curve expected = one_process(recipe);
    ASSERT_LT(expected.losses.back(), expected.losses.front() - 0.1);
    run_ranks(layout.ranks(), [&](RankContext& ctx) {
      expect_equal(on_mesh(ctx, recipe, layout), expected, tolerance);
    });
  }
}

TEST_P(ModelLayouts, InF64TheCurveIsThatOfOneProcessToTenDigits) {
  expect_curves(GetParam(), "f64", 1e-10);
}
TEST_P(ModelLayouts, InF32TheCurveIsThatOfOneProcessToFiveDigits) {
  expect_curves(GetParam(), "f32", 1e-5);
}

// Logits of three positions at a time, with the head tied and by itself.
TEST(ModelLossChunk, WalksTheCurveOfWholeLogitsOnEveryMeshThatMayHaveIt) {
  for (const auto kind : {Recipe::Model::Kind::kGpt, Recipe::Model::Kind::kLlama}) {
    for (const bool tied : {true, false}) {
      Recipe recipe = recipe_of(kind, "f64");
      recipe.model.tie_embeddings = tied;
      const Curve expected = one_process(recipe);
      recipe.train.loss_chunk = 3;
      for (const Layout& layout :
           {Layout{}, Layout{.fsdp = 2}, Layout{.tp = 2}, Layout{.fsdp = 2, .tp = 2}}) {
        SCOPED_TRACE(fmt::format("{} tied {}", layout.name(), tied));
        run_ranks(layout.ranks(), [&](RankContext& ctx) {
          expect_equal(on_mesh(ctx, recipe, layout), expected, 1e-10);
        });
      }
    }
  }
}

Result<Recipe> recipe_with(const std::string& more) {
  return parse_recipe("recipe: 1\ndata: {kind: text, files: [a.txt]}\n" + more, "a.yaml");
}

TEST(ModelRecipe, F64IsRefusedBesideBf16) {
  EXPECT_OK(recipe_with("model: {dtype: f64}\n"));
  for (const char* more :
       {"train: {autocast: bf16}", "fsdp: {param_dtype: bf16}", "fsdp: {reduce_dtype: bf16}"}) {
    EXPECT_THAT(recipe_with(std::string("model: {dtype: f64}\n") + more),
                testing::FailsWith(ErrorCode::kBadRecipe,
                                   ::testing::HasSubstr("must not be bf16 with model.dtype f64")));
  }
}

TEST(ModelRecipe, ALossChunkIsRefusedWhereLogitsAreNotWholeOnARank) {
  EXPECT_OK(recipe_with("train: {loss_chunk: 512}\nmesh: {tp: 2}\n"));
  for (const auto& [more, says] :
       {std::pair<const char*, const char*>{"mesh: {pp: 2}", "must be 0 in a pipeline"},
        {"mesh: {tp: 2}\ntp: {sequence_parallel: true}", "must be 0 with tp.sequence_parallel"}}) {
    EXPECT_THAT(recipe_with(std::string("train: {loss_chunk: 512}\n") + more),
                testing::FailsWith(ErrorCode::kBadRecipe, ::testing::HasSubstr(says)));
  }
}
}  // namespace
}  // namespace muster
