// What users of other systems reported of models that are cut into stages: tied weights that drift
// apart, norms of one stage only, checkpoints that load the wrong layers.
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "checkpoint/io/checkpointer.h"
#include "core/autograd/autograd.h"
#include "core/base/file_system.h"
#include "core/nn/optim/optimizer.h"
#include "core/ops/ops.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"
#include "train/parallel_model.h"

namespace muster {
namespace {
using testing::RankContext;
using testing::run_ranks;

constexpr int64_t kBatch = 8, kLength = 6, kVocab = 19;

// Four layers and a tied head.
Recipe recipe_of(int pp, int64_t seed) {
  Recipe recipe;
  recipe.model.kind = Recipe::Model::Kind::kGpt;
  recipe.model.layers = 4;
  recipe.model.dim = 8;
  recipe.model.heads = 2;
  recipe.model.vocab = kVocab;
  recipe.model.sequence = kLength;
  recipe.model.init_std = 0.2;
  recipe.mesh = {.pp = pp, .dp_replicate = 1, .fsdp = -1, .tp = 1};
  recipe.train.seed = seed;
  return recipe;
}

Microbatch row_of(int64_t row, int64_t step) {
  std::vector<int64_t> tokens, targets;
  for (int64_t i = 0; i < kLength; ++i) {
    tokens.push_back((row * 7 + step + i * (row + 2)) % kVocab);
    targets.push_back((row * 7 + step + (i + 1) * (row + 2)) % kVocab);
  }
  return {from_vector(tokens, {1, kLength}), from_vector(targets, {1, kLength})};
}

std::unique_ptr<ParallelModel> model_of(RankContext& ctx, const Recipe& recipe) {
  return std::make_unique<ParallelModel>(recipe, testing::world_of(ctx));
}

std::vector<NamedTensor> locals_of(const ParallelModel& model) {
  std::vector<NamedTensor> locals;
  for (const fsdp::NamedShard& shard : model.shards())
    locals.push_back({shard.name, shard.param->local});
  return locals;
}

// Megatron-LM#656: the copies on the first and the last stage, also in pieces and with clipping.
TEST(ReportedStageCases, TiedCopiesInPiecesStayEqualToTheLastBit) {
  std::mutex mutex;
  std::map<int64_t, std::vector<std::vector<float>>> copies;  // by first row
  run_ranks(4, [&](RankContext& ctx) {
    const auto model = model_of(ctx, recipe_of(2, 7));
    AdamW optimizer(locals_of(*model), {.lr = 1e-2, .weight_decay = 0.1});
    for (int64_t step = 0; step < 10; ++step) {
      std::vector<Microbatch> own;
      for (int64_t row = model->data_rank(); row < kBatch; row += model->data_ranks())
        own.push_back(row_of(row, step));
      model->forward_backward(own, kBatch * kLength);
      optimizer.step({.grad_scale = std::min(1.0, 0.3 / model->grad_norm())});
      optimizer.zero_grad();
      model->zero_grad();
    }
    for (const fsdp::NamedShard& shard : model->shards()) {
      if (shard.name != "wte.weight") continue;
      const std::lock_guard lock(mutex);
      copies[shard.param->boxes[0].box.offsets[0]].push_back(
          to_vector<float>(detach(shard.param->local)));
    }
  });
  ASSERT_EQ(copies.size(), 2u);
  for (const auto& [row, pair] : copies) {
    ASSERT_EQ(pair.size(), 2u) << row;
    EXPECT_EQ(std::memcmp(pair[0].data(), pair[1].data(), pair[0].size() * sizeof(float)), 0)
        << row;
  }
}

// torchtitan#596: gradients of norm 3 on one stage and 4 on the other are clipped by one factor.
TEST(ReportedStageCases, GradientsOfAllStagesAreClippedByOneFactor) {
  run_ranks(2, [](RankContext& ctx) {
    const auto model = model_of(ctx, recipe_of(2, 7));
    const double own = ctx.group_rank() == 0 ? 3 : 4;
    Tensor trained;
    for (const fsdp::NamedShard& shard : model->shards()) {
      const bool is_chosen = !trained.defined() && shard.name.starts_with("h.");
      if (is_chosen) trained = shard.param->local;
      Tensor gradient = zeros(shard.param->local.sizes());
      if (is_chosen || model->is_tied_copy(shard.name)) {
        const NoGradGuard no_grad;
        fill_(narrow(view(gradient, {gradient.numel()}), 0, 0, 1), own);
      }
      set_grad(shard.param->local, gradient);
    }
    const double norm = model->grad_norm();
    EXPECT_DOUBLE_EQ(norm, 5.0);  // the tied copy counts on the first stage, where it is 0
    const auto first = [&] { return to_vector<float>(detach(trained))[0]; };
    const float before = first();
    Sgd optimizer(locals_of(*model), {.lr = 1.0});
    optimizer.step({.grad_scale = 1.0 / norm});
    EXPECT_NEAR(before - first(), own / 5, 1e-6);
  });
}

// torchtitan#775: fewer microbatches than stages hung.
TEST(ReportedStageCases, FewerMicrobatchesThanStagesGiveTheSameLossAndNorm) {
  for (const int64_t rows : {1, 2, 3}) {
    SCOPED_TRACE(rows);
    const auto first_step = [rows](RankContext& ctx, int pp) {
      const auto model = model_of(ctx, recipe_of(pp, 7));
      std::vector<Microbatch> all;
      for (int64_t row = 0; row < rows; ++row) all.push_back(row_of(row, 0));
      const Tensor loss = from_vector(
          std::vector<double>{model->forward_backward(all, static_cast<double>(rows * kLength))});
      ctx.group().run(ctx.group().all_reduce(loss));
      return std::pair{loss.item(), model->grad_norm()};
    };
    std::pair<double, double> expected;
    run_ranks(1, [&](RankContext& ctx) { expected = first_step(ctx, 1); });
    run_ranks(4, [&](RankContext& ctx) {
      const auto [loss, norm] = first_step(ctx, 4);
      EXPECT_NEAR(loss, expected.first, 1e-6 * expected.first);
      EXPECT_NEAR(norm, expected.second, 1e-5 * expected.second);
    });
  }
}

// torchtitan#2972: what does not count must not count on stages either.
TEST(ReportedStageCases, AMicrobatchOfWeightNothingCountsOnNoStage) {
  const auto step = [](RankContext& ctx, int pp) {
    const auto model = model_of(ctx, recipe_of(pp, 7));
    std::vector<Microbatch> all = {row_of(0, 0), row_of(1, 0), row_of(2, 0)};
    all[1].weight = 0;
    const Tensor loss = from_vector(std::vector<double>{model->forward_backward(all, kLength * 2)});
    ctx.group().run(ctx.group().all_reduce(loss));
    return std::pair{loss.item(), model->grad_norm()};
  };
  std::pair<double, double> expected;
  run_ranks(1, [&](RankContext& ctx) { expected = step(ctx, 1); });
  run_ranks(2, [&](RankContext& ctx) {
    const auto [loss, norm] = step(ctx, 2);
    EXPECT_NEAR(loss, expected.first, 1e-6 * expected.first);
    EXPECT_NEAR(norm, expected.second, 1e-5 * expected.second);
  });
}

checkpoint::Dims dims_of(Dims dims) { return {dims.begin(), dims.end()}; }

checkpoint::TensorPiece piece_of(const fsdp::NamedShard& shard) {
  const ShardBox& box = shard.param->boxes[0].box;
  const Tensor& local = shard.param->local;
  return {.name = shard.name,
          .dtype = local.dtype(),
          .global_sizes = dims_of(shard.param->sizes),
          .box = {dims_of(box.offsets), dims_of(box.sizes)},
          .data = {static_cast<const std::byte*>(local.data_ptr()),
                   static_cast<size_t>(local.nbytes())},
          .holders = {}};
}

std::unique_ptr<checkpoint::Checkpointer> checkpointer_of(RankContext& ctx,
                                                          const std::string& directory) {
  return checkpoint::Checkpointer::open({.directory = directory,
                                         .store = &ctx.store(),
                                         .global_rank = ctx.group_rank(),
                                         .world_size = ctx.world_size(),
                                         .timeout = 30s})
      .value();
}

// Megatron-LM#7452: layers were stored under their number in their stage, so that the second of two
// stages loaded layers 0 and 1.
TEST(ReportedStageCases, ACheckpointOfOneStageGivesEachOfTwoItsOwnLayers) {
  const TempDirectory dir;
  std::map<std::string, std::vector<float>> saved;
  run_ranks(1, [&](RankContext& ctx) {
    const auto model = model_of(ctx, recipe_of(1, 7));
    checkpoint::SaveRequest request;
    request.step = 1;
    for (const fsdp::NamedShard& shard : model->shards()) {
      request.tensors.push_back(piece_of(shard));
      saved[shard.name] = to_vector<float>(detach(shard.param->local));
    }
    ASSERT_OK(checkpointer_of(ctx, dir.file("ckpt"))->save(request));
  });
  run_ranks(2, [&](RankContext& ctx) {
    const auto model = model_of(ctx, recipe_of(2, 8));
    std::vector<checkpoint::TensorSlot> slots;
    std::set<std::string> layers;
    for (const fsdp::NamedShard& shard : model->shards()) {
      const checkpoint::TensorPiece piece = piece_of(shard);
      auto* data = const_cast<std::byte*>(piece.data.data());
      slots.push_back(
          {piece.name, piece.dtype, piece.global_sizes, piece.box, {data, piece.data.size()}});
      if (shard.name.starts_with("h.")) layers.insert(shard.name.substr(0, 3));
    }
    EXPECT_EQ(layers, ctx.group_rank() == 0 ? (std::set<std::string>{"h.0", "h.1"})
                                            : (std::set<std::string>{"h.2", "h.3"}));
    checkpoint::LoadRequest request;
    request.slots = slots;
    const auto loaded = checkpointer_of(ctx, dir.file("ckpt"))->load_latest(request);
    ASSERT_OK(loaded);
    ASSERT_TRUE(loaded->has_value());
    for (const fsdp::NamedShard& shard : model->shards())
      EXPECT_EQ(to_vector<float>(detach(shard.param->local)), saved.at(shard.name)) << shard.name;
  });
}
}  // namespace
}  // namespace muster
