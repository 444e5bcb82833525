// Activation checkpointing of whole models on meshes: blocks that are computed again in backward
// draw the same dropout masks, run in the same autocast dtypes and make the same moves again, so
// that not a bit of a loss or gradient changes.
#include <gmock/gmock.h>

#include "core/autograd/autograd.h"
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

struct Setting {
  const char* name;
  Recipe::Model::Kind kind = Recipe::Model::Kind::kGpt;
  int64_t pp = 1, fsdp = 1, tp = 1;
  bool sequence = false;
  bool autocast = false;
  double dropout = 0.0;
};

constexpr auto kLlama = Recipe::Model::Kind::kLlama;
constexpr int64_t kRows = 4, kLayers = 2;
constexpr uint64_t kBlockRuns = kRows * kLayers;

Recipe recipe_of(const Setting& setting, bool checkpointed) {
  Recipe recipe;
  recipe.model = {.kind = setting.kind,
                  .layers = kLayers,
                  .dim = 16,
                  .heads = 4,
                  .kv_heads = setting.kind == kLlama ? 2 : 0,
                  .vocab = 37,
                  .sequence = 8,
                  .dropout = setting.dropout,
                  .init_std = 0.1};
  recipe.mesh = {.pp = setting.pp, .fsdp = setting.fsdp, .tp = setting.tp};
  recipe.tp.sequence_parallel = setting.sequence;
  recipe.train.seed = 5;
  if (setting.autocast) recipe.train.autocast = Recipe::Train::Autocast::kBf16;
  if (checkpointed) recipe.train.activation_checkpoint = Recipe::Train::ActivationCheckpoint::kFull;
  return recipe;
}

Microbatch row_of(int64_t row, int64_t length) {
  Microbatch batch{empty({1, length}, DType::kI64), empty({1, length}, DType::kI64)};
  for (int64_t i = 0; i < length; ++i) {
    batch.tokens.data<int64_t>()[i] = (row * 7 + i * (row + 2)) % 37;
    batch.targets.data<int64_t>()[i] = (row * 7 + (i + 1) * (row + 2)) % 37;
  }
  return batch;
}

struct Passed {
  std::vector<double> losses;
  std::vector<std::pair<std::string, Tensor>> gradients;
  uint64_t draws = 0;  // how far the generator went
  uint64_t tp_all_reduces = 0, tp_all_gathers = 0, tp_reduce_scatters = 0;
};

Passed pass(RankContext& ctx, const Setting& setting, bool checkpointed) {
  const Recipe recipe = recipe_of(setting, checkpointed);
  const auto world = testing::world_of(ctx);
  ParallelModel model(recipe, world);
  manual_seed(static_cast<uint64_t>(11 + model.data_rank()));
  std::vector<Microbatch> microbatches;
  for (int64_t row = model.data_rank(); row < kRows; row += model.data_ranks()) {
    microbatches.push_back(row_of(row, recipe.model.sequence));
  }
  Passed passed;
  passed.losses.push_back(
      model.forward_backward(microbatches, static_cast<double>(kRows * recipe.model.sequence)));
  passed.losses.push_back(model.grad_norm());
  passed.draws = default_generator().offset();
  for (const fsdp::NamedShard& shard : model.shards()) {
    passed.gradients.emplace_back(shard.name, clone(grad_of(shard.param->local)));
  }
  if (setting.tp > 1) {
    const ProcessGroup& tp = *model.mesh()->group("tp");
    passed.tp_all_reduces = tp.num_launched(CollectiveKind::kAllReduce);
    passed.tp_all_gathers = tp.num_launched(CollectiveKind::kAllGather);
    passed.tp_reduce_scatters = tp.num_launched(CollectiveKind::kReduceScatter);
  }
  return passed;
}

void expect_same_bits(const Passed& again, const Passed& kept) {
  EXPECT_EQ(again.losses, kept.losses);
  EXPECT_EQ(again.draws, kept.draws);
  ASSERT_EQ(again.gradients.size(), kept.gradients.size());
  for (size_t i = 0; i < kept.gradients.size(); ++i) {
    EXPECT_TRUE(equal(again.gradients[i].second, kept.gradients[i].second))
        << kept.gradients[i].first;
  }
}

// Each pass in a world of its own, by rank: names of groups are unique in a world.
std::vector<Passed> pass_on_ranks(const Setting& setting, bool checkpointed) {
  const auto ranks = static_cast<size_t>(setting.pp * setting.fsdp * setting.tp);
  std::vector<Passed> by_rank(ranks);
  run_ranks(static_cast<int>(ranks), [&](RankContext& ctx) {
    by_rank[static_cast<size_t>(ctx.group_rank())] = pass(ctx, setting, checkpointed);
  });
  return by_rank;
}

class ModelCheckpoint : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(
    Mesh, ModelCheckpoint,
    ::testing::Values(
        Setting{.name = "one_process", .dropout = 0.2},
        Setting{.name = "autocast", .autocast = true, .dropout = 0.2},
        Setting{.name = "fsdp", .fsdp = 2, .dropout = 0.2},
        Setting{.name = "fsdp_autocast_llama", .kind = kLlama, .fsdp = 2, .autocast = true},
        Setting{.name = "tp", .tp = 2, .dropout = 0.2},
        Setting{.name = "tp_sequence", .tp = 2, .sequence = true, .dropout = 0.2},
        Setting{.name = "tp_autocast_llama", .kind = kLlama, .tp = 2, .autocast = true},
        Setting{
            .name = "fsdp_tp_sequence_llama", .kind = kLlama, .fsdp = 2, .tp = 2, .sequence = true},
        Setting{.name = "fsdp_tp_autocast", .fsdp = 2, .tp = 2, .autocast = true, .dropout = 0.2},
        Setting{.name = "pp", .pp = 2, .autocast = true, .dropout = 0.2},
        Setting{.name = "pp_tp_llama", .kind = kLlama, .pp = 2, .tp = 2}),
    [](const auto& p) { return std::string(p.param.name); });

TEST_P(ModelCheckpoint, ChangesNoBitOfLossAndGradients) {
  const std::vector<Passed> kept = pass_on_ranks(GetParam(), false);
  const std::vector<Passed> again = pass_on_ranks(GetParam(), true);
  for (size_t rank = 0; rank < kept.size(); ++rank) {
    SCOPED_TRACE(rank);
    EXPECT_EQ(kept[rank].draws > 0, GetParam().dropout > 0);
    ASSERT_FALSE(kept[rank].gradients.empty());
    expect_same_bits(again[rank], kept[rank]);
  }
}

// A block has two all-reduces, behind attention and behind the MLP. The one behind the MLP comes
// after the last value that backward needs (dropout keeps no mask), and early stop saves it.
TEST(ModelCheckpointMoves, AreRepeatedUpToTheLastValueThatIsNeeded) {
  for (const double dropout : {0.0, 0.2}) {
    SCOPED_TRACE(dropout);
    const Setting setting{.name = "", .tp = 2, .dropout = dropout};
    const Passed kept = pass_on_ranks(setting, false)[0];
    const Passed again = pass_on_ranks(setting, true)[0];
    EXPECT_EQ(again.tp_all_reduces - kept.tp_all_reduces, kBlockRuns);
  }
}

TEST(ModelCheckpointMoves, OfSequenceShardsAreRepeated) {
  const Setting setting{.name = "", .kind = kLlama, .tp = 2, .sequence = true};
  const Passed kept = pass_on_ranks(setting, false)[0];
  const Passed again = pass_on_ranks(setting, true)[0];
  EXPECT_EQ(again.tp_all_gathers - kept.tp_all_gathers, kBlockRuns * 2);
  EXPECT_EQ(again.tp_reduce_scatters - kept.tp_reduce_scatters, kBlockRuns);
}

// Regions in regions on a tensor parallel mesh: every block, and each of its halves.
TEST(ModelCheckpointMoves, NestedRegionsGiveTheSameBits) {
  run_ranks(2, [](RankContext& ctx) {
    const MeshRef mesh = testing::mesh_of(ctx, {{"tp", 2}});
    const auto gradients = [&](bool checkpointed) {
      std::unique_ptr<CausalLm> model;
      {
        const DeviceGuard meta(kMetaDevice);
        model = make_model(recipe_of({.name = "", .dropout = 0.2}, false).model);
      }
      parallel::parallelize(*model, mesh, {});
      parallel::init_parameters(*model, 3);
      for (const std::string& block : model->block_names()) {
        if (!checkpointed) break;
        model->module_at(block).set_checkpoint(CheckpointOptions{});
        for (const char* half : {".attn", ".mlp"}) {
          model->module_at(block + half)
              .set_checkpoint(CheckpointOptions{.check = RecomputeCheck::kValues});
        }
      }
      manual_seed(4);
      const Microbatch row = row_of(1, 8);
      backward(model->loss(row.tokens, row.targets).sum);
      std::vector<Tensor> all;
      for (const Tensor& parameter : model->parameters()) all.push_back(grad_of(parameter));
      return all;
    };
    const std::vector<Tensor> kept = gradients(false), again = gradients(true);
    ASSERT_EQ(again.size(), kept.size());
    for (size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(equal(again[i], kept[i])) << i;
  });
}
}  // namespace
}  // namespace muster
