#include "dist/parallel/plan.h"

#include <cstring>

#include "core/autograd/autograd.h"
#include "core/nn/layers.h"
#include "core/ops/ops.h"
#include "dist/parallel/axis_move.h"
#include "dist/parallel/models.h"
#include "dist/parallel/vocab.h"
#include "fsdp/fully_shard.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using parallel::Plan;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RankContext;
using testing::run_ranks;

MeshRef line(RankContext& ctx) { return mesh_of(ctx, {{"tp", ctx.world_size()}}); }

class Mlp final : public Module {
 public:
  explicit Mlp(int64_t in, int64_t hidden)
      : Module("Mlp"),
        up_(add_module<Linear>("up", LinearOptions{.in_features = in, .out_features = hidden})),
        down_(
            add_module<Linear>("down", LinearOptions{.in_features = hidden, .out_features = in})) {}

 protected:
  Tensor compute(const Tensor& input) override { return down_(gelu(up_(input))); }

 private:
  Linear& up_;
  Linear& down_;
};

Plan mlp_plan() { return {{"up", parallel::colwise()}, {"down", parallel::rowwise()}}; }

TEST(PlanGlob, StarStandsForOnePartOfAName) {
  EXPECT_TRUE(parallel::matches_glob("h.*.attn", "h.11.attn"));
  EXPECT_FALSE(parallel::matches_glob("h.*", "h.1.attn"));
  EXPECT_FALSE(parallel::matches_glob("*", ""));
  EXPECT_TRUE(parallel::matches_glob("", ""));
}

// A key without a match changes nothing but memory in other systems, and nobody notices.
TEST(ParallelizeModule, ListsEveryFaultOfAPlanAndChangesNothing) {
  run_ranks(2, [](RankContext& ctx) {
    Mlp mlp(4, 6);
    const MeshRef axis = line(ctx);
    const Plan plan = {{"upp", parallel::colwise()},
                       {"", parallel::colwise()},
                       {"up", parallel::colwise()},
                       {"up", parallel::rowwise()},
                       {"down", parallel::colwise_blocks(3)}};
    EXPECT_ERROR(parallel::parallelize_module(mlp, axis, plan), ErrorCode::kInvalidArgument,
                 AllOf(HasSubstr("\"upp\" matches no module; did you mean \"up\"?"),
                       HasSubstr("only Linear and Embedding"),
                       HasSubstr("\"up.weight\" is to be S(0) and S(1)"),
                       HasSubstr("4 rows are not 3 blocks")));
  });
}

TEST(ParallelizeModule, AModuleIsCutOnce) {
  run_ranks(2, [](RankContext& ctx) {
    Mlp mlp(4, 6);
    const MeshRef axis = line(ctx);
    parallel::parallelize_module(mlp, axis, mlp_plan());
    EXPECT_ERROR(parallel::parallelize_module(mlp, axis, mlp_plan()), ErrorCode::kInvalidArgument,
                 HasSubstr("up.weight is a piece already"));
  });
}

// Pieces that are taken for wholes would be wrong values without a word.
TEST(ParallelizeModule, PiecesAreNotConvertedOrInitialisedAsWholes) {
  run_ranks(2, [](RankContext& ctx) {
    Mlp mlp(4, 6);
    parallel::parallelize_module(mlp, line(ctx), mlp_plan());
    const auto refused =
        AllOf(HasSubstr("must stay as they are"), HasSubstr("parallel::init_parameters"));
    EXPECT_ERROR(mlp.reset_parameters(1), ErrorCode::kFailedPrecondition, refused);
    EXPECT_ERROR(mlp.to(DType::kF64), ErrorCode::kFailedPrecondition, refused);
    EXPECT_ERROR(mlp.to_empty(), ErrorCode::kFailedPrecondition, refused);
    EXPECT_ERROR(mlp.module_at("up").reset_parameters(1), ErrorCode::kFailedPrecondition, refused);
  });
}

TEST(ParallelizeModule, WholeParametersBesidePiecesAreRefusedByFullyShard) {
  run_ranks(2, [](RankContext& ctx) {
    const MeshRef mesh = mesh_of(ctx, {{"fsdp", 1}, {"tp", 2}});
    Sequential both;
    both.append<Mlp>(4, 6);
    Mlp& second = both.append<Mlp>(4, 6);
    parallel::parallelize_module(second, mesh->slice({"tp"}), mlp_plan());
    EXPECT_ERROR(fsdp::fully_shard(both, {.mesh = mesh->slice({"fsdp"})}),
                 ErrorCode::kInvalidArgument, HasSubstr("parallelize the whole model"));
  });
}

// D19: the needless reductions of other systems.
TEST(ParallelizeModule, AnMlpCostsOneAllReduceEachWay) {
  run_ranks(2, [](RankContext& ctx) {
    Mlp mlp(4, 6);
    mlp.reset_parameters(1);
    parallel::parallelize_module(mlp, line(ctx), mlp_plan());
    const Tensor x = requires_grad_(ones({2, 3, 4}));
    const Tensor y = mlp(x);
    EXPECT_EQ(ctx.group().num_launched(CollectiveKind::kAllReduce), 1u);
    backward(sum(y));
    EXPECT_EQ(ctx.group().num_launched(CollectiveKind::kAllReduce), 2u);
    EXPECT_EQ(ctx.group().num_launched(CollectiveKind::kAllGather), 0u);
  });
}

uint64_t launched(ProcessGroup& group) {
  uint64_t total = 0;
  for (const auto kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                          CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll}) {
    total += group.num_launched(kind);
  }
  return total;
}

// Two a block and pass, one for the embedding and the head's input, two small ones for the loss.
TEST(ParallelizeLlama, CommunicatesAsOftenAsThePlanSays) {
  run_ranks(2, [](RankContext& ctx) {
    Llama model({.vocab_size = 12, .dim = 8, .mlp_dim = 8, .layers = 3, .heads = 4, .kv_heads = 2});
    model.reset_parameters(1);
    parallel::parallelize(model, line(ctx));
    const Tensor tokens = zeros({2, 4}, DType::kI64);
    const LossSum loss = model.loss(tokens, tokens);
    EXPECT_EQ(launched(ctx.group()), 2u * 3 + 1 + 2);
    backward(loss.sum);
    EXPECT_EQ(launched(ctx.group()), 2u * (2 * 3 + 1) + 2);
  });
}

// A part of a model under the model's names, as pipelines cut it.
class LastPart final : public Module {
 public:
  explicit LastPart(const GptConfig& config)
      : Module("LastPart"),
        wte_(add_module<Embedding>("wte", config.vocab_size, config.dim)),
        h_(add_module<ModuleList>("h")),
        ln_f_(add_module<LayerNorm>("ln_f", config.dim)) {
    h_.append<GptBlock>(config);
  }

 protected:
  Tensor compute(const Tensor& x) override { return linear(ln_f_(h_[0](x)), wte_.weight()); }

 private:
  Embedding& wte_;
  ModuleList& h_;
  LayerNorm& ln_f_;
};

TEST(ParallelizePart, AppliesThePlanToWhatThePartHolds) {
  const GptConfig config{.vocab_size = 7, .max_positions = 4, .dim = 6, .layers = 2, .heads = 2};
  const Tensor x = sin(view(to(arange(48), DType::kF64), {2, 4, 6}));
  const Tensor targets = remainder(arange(8), 7);
  const auto build = [&] {
    auto part = std::make_unique<LastPart>(config);
    part->to(DType::kF64);
    part->reset_parameters(3);
    return part;
  };
  const auto whole = build();
  const Tensor input = requires_grad_(clone(x));
  const Tensor expected = cross_entropy_sum_count(flatten((*whole)(input), 0, 1), targets).sum;
  backward(expected);
  for (const bool sequence : {false, true}) {
    run_ranks(2, [&](RankContext& ctx) {
      const MeshRef axis = line(ctx);
      const Gpt model(config);
      const auto part = build();
      parallel::parallelize_part(*part, model, axis, {.sequence_parallel = sequence});
      const auto own = static_cast<size_t>(ctx.group_rank());
      const auto piece = [&](const Tensor& t) { return sequence ? chunk(t, 2, 1)[own] : t; };
      const Tensor mine = requires_grad_(clone(piece(x), MemoryFormat::kContiguous));
      const Tensor loss = parallel::loss_of(model, axis)(flatten((*part)(mine), 0, 1), targets).sum;
      EXPECT_NEAR(loss.item(), expected.item(), 1e-11);
      backward(loss);
      EXPECT_LT(amax(abs(sub(grad_of(mine), piece(grad_of(input))))).item(), 1e-11);
    });
  }
}

// D33: said before anything runs.
TEST(CheckHeads, NamesHeadsKvHeadsAndRanks) {
  run_ranks(4, [](RankContext& ctx) {
    Llama model({.vocab_size = 12, .dim = 8, .mlp_dim = 8, .layers = 1, .heads = 4, .kv_heads = 2});
    EXPECT_ERROR(parallel::parallelize(model, line(ctx)), ErrorCode::kInvalidArgument,
                 HasSubstr("4 heads, 2 kv heads, tp 4"));
    EXPECT_EQ(model.lm_head()->weight().size(0), 12);
  });
}

// 5 positions on 2 ranks, 1 on 2, 2 on 3: ranks have unlike pieces of the sequence, or none.
TEST(SequenceParallel, AnyLengthEqualsOneProcess) {
  for (const auto& [world, length] : {std::pair{2, 5}, {2, 1}, {3, 2}}) {
    const GptConfig config{.vocab_size = 7, .max_positions = 8, .dim = 6, .layers = 2, .heads = 6};
    const Tensor tokens = remainder(view(arange(2 * length), {2, length}), 7);
    Gpt whole(config);
    whole.to(DType::kF64);
    whole.reset_parameters(1);
    const LossSum expected = whole.loss(tokens, tokens);
    backward(expected.sum);
    run_ranks(world, [&, world = world](RankContext& ctx) {
      Gpt model(config);
      model.to(DType::kF64);
      model.reset_parameters(1);
      parallel::parallelize(model, mesh_of(ctx, {{"tp", world}}), {.sequence_parallel = true});
      const LossSum loss = model.loss(tokens, tokens);
      EXPECT_NEAR(loss.sum.item(), expected.sum.item(), 1e-11);
      backward(loss.sum);
      const Tensor actual = grad_of(model.module_at("h.0.ln_1").parameters()[0]);
      const Tensor wanted = grad_of(whole.module_at("h.0.ln_1").parameters()[0]);
      EXPECT_LT(amax(abs(sub(actual, wanted))).item(), 1e-11);
    });
  }
}

Tensor same_on_ranks(RankContext& ctx, const Tensor& x) {
  const Tensor all = empty({ctx.world_size(), x.numel()}, x.dtype());
  ctx.group().run(ctx.group().all_gather_into_tensor(all, contiguous(detach(x))));
  return all;
}

// G4, D17: one weight for heads or tokens that ranks share out.
TEST(SequenceParallel, ReplicatedWeightsGetTheSumOfAllRanks) {
  run_ranks(2, [](RankContext& ctx) {
    RmsNorm norm(2);
    norm.reset_parameters(1);
    parallel::parallelize_module(norm, line(ctx), {{"", parallel::sequence()}});
    const double share = ctx.group_rank() == 0 ? 3 : 4;
    backward(sum(mul(norm(ones({1, 2})), share)));
    const Tensor grads = same_on_ranks(ctx, grad_of(*norm.parameter_slots()[0].tensor));
    for (const double value : to_vector<double>(to(grads, DType::kF64))) {
      EXPECT_NEAR(value, 7, 1e-5);
    }
  });
}

// D26: each axis reduces in reduce_dtype. 1 + 2^-9 needs more bits than bf16 has.
TEST(SequenceParallel, GradientsAreSummedOverTheAxisInTheReduceDtype) {
  run_ranks(2, [](RankContext& ctx) {
    const MeshRef mesh = mesh_of(ctx, {{"fsdp", 1}, {"tp", 2}});
    RmsNorm norm(1);
    norm.reset_parameters(1);
    parallel::parallelize_module(norm, mesh->slice({"tp"}), {{"", parallel::sequence()}});
    fsdp::Options options;
    options.mesh = mesh->slice({"fsdp"});
    options.reduce_op = ReduceOp::kSum;
    options.mixed_precision = {.param_dtype = DType::kBF16, .reduce_dtype = DType::kF32};
    fsdp::fully_shard(norm, options);
    const double share = ctx.group_rank() == 0 ? 1.0 : 0x1p-9;
    // x / sqrt(x^2) is 1 for a large x, so the gradient of the weight is the share itself.
    backward(sum(mul(norm(full({1, 1}, 1024.0, DType::kBF16)), share)));
    const auto shards = fsdp::sharded_parameters(norm);
    EXPECT_EQ(grad_of(shards[0].param->local).item(), 1.0 + 0x1p-9);
  });
}

// G1: one replicated gradient of 3 and one that is cut, [4] and [0]: 5, not the root of 34.
TEST(GradNorm, CountsReplicasOnceAndPiecesOverAllAxes) {
  run_ranks(2, [](RankContext& ctx) {
    const MeshRef mesh = mesh_of(ctx, {{"fsdp", 1}, {"tp", 2}});
    Linear layer({.in_features = 2, .out_features = 1});
    layer.reset_parameters(1);
    parallel::parallelize_module(layer, mesh->slice({"tp"}), {{"", parallel::rowwise()}});
    fsdp::fully_shard(layer, {.mesh = mesh->slice({"fsdp"})});
    const auto shards = fsdp::sharded_parameters(layer);
    set_grad(shards[0].param->local, full({1, 1}, ctx.group_rank() == 0 ? 4.0 : 0.0));
    set_grad(shards[1].param->local, full({1}, 3.0));
    EXPECT_DOUBLE_EQ(fsdp::grad_norm(shards), 5.0);
    EXPECT_DOUBLE_EQ(fsdp::clip_grad_norm_(shards, 2.5), 5.0);
    EXPECT_NEAR(grad_of(shards[1].param->local).item(), 1.5, 1e-6);
    EXPECT_NEAR(grad_of(shards[0].param->local).item(), ctx.group_rank() == 0 ? 2.0 : 0.0, 1e-6);
  });
}

// F12: gradients on two meshes have one norm.
TEST(GradNorm, JoinsParametersOfDifferentMeshes) {
  run_ranks(2, [](RankContext& ctx) {
    const MeshRef mesh = mesh_of(ctx, {{"fsdp", 2}, {"tp", 1}});
    const MeshRef other = mesh_of(ctx, {{"experts", 1}, {"rest", 2}});
    Linear a({.in_features = 1, .out_features = 2, .bias = false});
    Linear b({.in_features = 1, .out_features = 1, .bias = false});
    fsdp::fully_shard(a, {.mesh = mesh->slice({"fsdp"})});
    fsdp::fully_shard(b, {.mesh = other->slice({"experts"})});
    auto shards = fsdp::sharded_parameters(a);
    shards.push_back(fsdp::sharded_parameters(b)[0]);
    set_grad(shards[0].param->local, full({1, 1}, ctx.group_rank() == 0 ? 3.0 : 0.0));
    set_grad(shards[1].param->local, full({1, 1}, 4.0));
    EXPECT_DOUBLE_EQ(fsdp::clip_grad_norm_(shards, 1.0), 5.0);
    EXPECT_NEAR(grad_of(shards[1].param->local).item(), 0.8, 1e-6);
  });
}

// F18, section 5 of the study: 5 rows over tp 2, each piece over dp 2.
TEST(FsdpOverTensorParallel, CutsUnevenPiecesOfPieces) {
  run_ranks(4, [](RankContext& ctx) {
    const MeshRef mesh = mesh_of(ctx, {{"dp", 2}, {"tp", 2}});
    Linear layer({.in_features = 1, .out_features = 5, .bias = false});
    layer.load_state({{"weight", view(arange(5, DType::kF32), {5, 1})}});
    parallel::parallelize_module(layer, mesh->slice({"tp"}), {{"", parallel::colwise()}});
    fsdp::fully_shard(layer, {.mesh = mesh->slice({"dp"})});
    const auto shards = fsdp::sharded_parameters(layer);
    const std::vector<std::vector<double>> expected = {{0, 1}, {3}, {2}, {4}};
    EXPECT_EQ(to_vector<double>(to(shards[0].param->local, DType::kF64)),
              expected[static_cast<size_t>(ctx.group_rank())]);
    EXPECT_EQ(shards[0].param->sizes, (DimVector{5, 1}));
  });
}

// A strided description left to right would give the last row to another rank here.
TEST(FsdpOverTensorParallel, DescribesSevenRowsOverThreeTimesTwo) {
  run_ranks(6, [](RankContext& ctx) {
    const MeshRef mesh = mesh_of(ctx, {{"dp", 3}, {"tp", 2}});
    Linear layer({.in_features = 1, .out_features = 7, .bias = false});
    layer.load_state({{"weight", view(arange(7, DType::kF32), {7, 1})}});
    parallel::parallelize_module(layer, mesh->slice({"tp"}), {{"", parallel::colwise()}});
    fsdp::fully_shard(layer, {.mesh = mesh->slice({"dp"})});
    const fsdp::ShardedParam& param = *fsdp::sharded_parameters(layer)[0].param;
    const std::vector<std::vector<double>> expected = {{0, 1}, {4}, {2, 3}, {5}, {}, {6}};
    EXPECT_EQ(to_vector<double>(to(param.local, DType::kF64)),
              expected[static_cast<size_t>(ctx.group_rank())]);
    for (const LocalBox& piece : param.boxes) {
      for (int64_t row = 0; row < piece.box.sizes[0]; ++row) {
        EXPECT_EQ(rows_of(param.local, piece.first_row + row, 1).item(),
                  static_cast<double>(piece.box.offsets[0] + row));
      }
    }
  });
}

TEST(LocalBoxes, AFusedWeightIsOneBoxForEachBlock) {
  run_ranks(2, [](RankContext& ctx) {
    const DTensorSpec spec{
        line(ctx), {Placement::strided_shard(0, 3)}, DimVector{12, 5}, DType::kF32};
    const std::vector<LocalBox> boxes = local_boxes(spec);
    ASSERT_EQ(boxes.size(), 3u);
    for (size_t block = 0; block < 3; ++block) {
      const auto first = static_cast<int64_t>(4 * block) + 2 * ctx.group_rank();
      EXPECT_EQ(boxes[block].box, (ShardBox{{first, 0}, {2, 5}}));
      EXPECT_EQ(boxes[block].first_row, static_cast<int64_t>(2 * block));
    }
  });
}

TEST(ReplicaRanks, AreThoseThatDifferAlongReplicatedAxesOnly) {
  run_ranks(4, [](RankContext& ctx) {
    const MeshRef mesh = mesh_of(ctx, {{"dp", 2}, {"tp", 2}});
    const Placement s0 = Placement::shard(0), r = Placement::replicate();
    const MeshRef turned = mesh->slice({"tp", "dp"});
    const int dp = mesh->coordinate()[0], tp = mesh->coordinate()[1];
    EXPECT_EQ(replica_ranks({turned, {r, s0}, {4}, DType::kF32}),
              (std::vector<int>{2 * dp, 2 * dp + 1}));
    EXPECT_EQ(replica_ranks({turned, {s0, r}, {4}, DType::kF32}), (std::vector<int>{tp, 2 + tp}));
    EXPECT_EQ(replica_ranks({turned, {r, r}, {4}, DType::kF32}), (std::vector<int>{0, 1, 2, 3}));
    EXPECT_EQ(replica_ranks({turned, {s0, s0}, {4}, DType::kF32}), (std::vector<int>{2 * dp + tp}));
  });
}

// F17, N3: meta, cut, initialised equals initialised, cut; alone and below fully_shard.
TEST(InitParameters, EqualsInitialisingTheWholeAndCuttingIt) {
  run_ranks(2, [](RankContext& ctx) {
    const auto make = [] {
      return std::make_unique<Gpt>(
          GptConfig{.vocab_size = 19, .max_positions = 4, .dim = 8, .layers = 1, .heads = 2});
    };
    const MeshRef axis = line(ctx);
    const auto whole = make();
    whole->reset_parameters(11);
    parallel::parallelize(*whole, axis);
    std::unique_ptr<Gpt> meta;
    {
      const DeviceGuard guard(kMetaDevice);
      meta = make();
    }
    parallel::parallelize(*meta, axis);
    parallel::init_parameters(*meta, 11);
    const auto expected = whole->named_parameters(), actual = meta->named_parameters();
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      const Tensor &a = actual[i].tensor, &b = expected[i].tensor;
      ASSERT_EQ(a.nbytes(), b.nbytes()) << actual[i].name;
      EXPECT_EQ(std::memcmp(a.data_ptr(), b.data_ptr(), static_cast<size_t>(a.nbytes())), 0)
          << actual[i].name;
      EXPECT_TRUE(a.requires_grad()) << actual[i].name;
      EXPECT_NE(local_shard_of(a), nullptr) << actual[i].name;
    }
  });
}

// D32 and features below the degree: 16, 3 and 1 features on 6 ranks.
TEST(Rowwise, AnyNumberOfFeaturesEqualsOneProcess) {
  for (const int64_t hidden : {16, 3, 1}) {
    run_ranks(6, [hidden](RankContext& ctx) {
      const auto build = [&] {
        auto mlp = std::make_unique<Mlp>(4, hidden);
        mlp->to(DType::kF64);
        mlp->reset_parameters(3);
        return mlp;
      };
      const auto dense = build(), cut = build();
      parallel::parallelize_module(*cut, line(ctx), mlp_plan());
      const Tensor x = requires_grad_(view(to(arange(24), DType::kF64) / 7.0, {2, 3, 4}));
      const Tensor z = requires_grad_(clone(detach(x)));
      const Tensor a = (*dense)(x), b = (*cut)(z);
      backward(sum(mul(a, a)));
      backward(sum(mul(b, b)));
      EXPECT_LT(amax(abs(sub(detach(a), detach(b)))).item(), 1e-12);
      EXPECT_LT(amax(abs(sub(grad_of(x), grad_of(z)))).item(), 1e-11);
      const auto whole = dense->parameter_slots(), pieces = cut->parameter_slots();
      for (size_t i = 0; i < whole.size(); ++i) {
        const ShardBox box = local_shard_of(*pieces[i].tensor)->whole.local_box();
        Tensor expected = grad_of(*whole[i].tensor);
        for (int64_t dim = 0; dim < expected.ndim(); ++dim) {
          const auto d = static_cast<size_t>(dim);
          expected = narrow(expected, dim, box.offsets[d], box.sizes[d]);
        }
        if (expected.numel() == 0) continue;
        EXPECT_LT(amax(abs(sub(expected, grad_of(*pieces[i].tensor)))).item(), 1e-11)
            << whole[i].name;
      }
    });
  }
}
}  // namespace
}  // namespace muster
