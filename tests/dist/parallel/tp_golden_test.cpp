// PyTorch's tensor parallel styles and its loss_parallel, case by case: what the dense module
// gives is what the pieces must give, with no more communication than recorded.
#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "core/nn/layers.h"
#include "core/ops/attention/sdpa.h"
#include "core/ops/ops.h"
#include "dist/parallel/plan.h"
#include "dist/parallel/vocab.h"
#include "fsdp/fully_shard.h"
#include "tests/support/golden_case.h"
#include "tests/support/golden_close.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using namespace parallel;  // NOLINT: styles by their names
using Json = nlohmann::json;
using testing::GoldenFile;
using testing::RankContext;
using testing::run_ranks;

const GoldenFile& golden() { return GoldenFile::load("parallel/tp"); }

LinearOptions linear_of(int64_t in, int64_t out, bool bias = true) {
  return {.in_features = in, .out_features = out, .bias = bias, .weight_init = {}};
}

class Mlp final : public Module {
 public:
  explicit Mlp(int64_t hidden, bool bias = true)
      : Module("Mlp"),
        up_(add_module<Linear>("up", linear_of(6, hidden, bias))),
        down_(add_module<Linear>("down", linear_of(hidden, 6, bias))) {}

 protected:
  Tensor compute(const Tensor& x) override { return down_(gelu(up_(x))); }

 private:
  Linear &up_, &down_;
};

class Block final : public Module {
 public:
  Block()
      : Module("Block"), norm_(add_module<LayerNorm>("norm", 6)), mlp_(add_module<Mlp>("mlp", 8)) {}

 protected:
  Tensor compute(const Tensor& x) override { return add(x, mlp_(norm_(x))); }

 private:
  LayerNorm& norm_;
  Mlp& mlp_;
};

// 4 heads of size 3, 2 kv heads.
class Attention final : public Module {
 public:
  Attention()
      : Module("Attention"),
        q_(add_module<Linear>("q", linear_of(6, 12, false))),
        k_(add_module<Linear>("k", linear_of(6, 6, false))),
        v_(add_module<Linear>("v", linear_of(6, 6, false))),
        o_(add_module<Linear>("o", linear_of(12, 6, false))) {}

 protected:
  Tensor compute(const Tensor& x) override {
    const auto heads = [&](Linear& layer) {
      const Tensor y = layer(x);
      return transpose(view(y, {x.size(0), x.size(1), y.size(2) / 3, 3}), 1, 2);
    };
    SdpaOptions options;
    options.causal = CausalAlignment::kUpperLeft;
    options.enable_gqa = true;
    const Tensor y = scaled_dot_product_attention(heads(q_), heads(k_), heads(v_), options);
    return o_(reshape(transpose(y, 1, 2), {x.size(0), x.size(1), y.size(1) * 3}));
  }

 private:
  Linear &q_, &k_, &v_, &o_;
};

class Holder final : public Module {
 public:
  Holder() : Module("Holder"), attn_(add_module<Attention>("attn")) {}

 protected:
  Tensor compute(const Tensor& x) override { return attn_(x); }

 private:
  Attention& attn_;
};

class Tokens final : public Module {
 public:
  Tokens()
      : Module("Tokens"),
        emb_(add_module<Embedding>("emb", 7, 6)),
        head_(add_module<Linear>("head", linear_of(6, 7, false))) {}

 protected:
  Tensor compute(const Tensor& ids) override { return head_(emb_(ids)); }

 private:
  Embedding& emb_;
  Linear& head_;
};

class Rows final : public Module {
 public:
  Rows() : Module("Rows"), emb_(add_module<Embedding>("emb", 7, 6)) {}

 protected:
  Tensor compute(const Tensor& ids) override { return emb_(ids); }

 private:
  Embedding& emb_;
};

struct PlanCase {
  std::string name;
  std::function<std::unique_ptr<Module>()> build;
  Plan plan;
};

template <typename M, typename... Arguments>
std::function<std::unique_ptr<Module>()> maker(Arguments... arguments) {
  return [=] { return std::make_unique<M>(arguments...); };
}

const Placement kWhole = Placement::replicate();
const Placement kSequenceShard = Placement::shard(1);

std::vector<PlanCase> plan_cases() {
  const Plan mlp = {{"up", colwise()}, {"down", rowwise()}};
  const Plan qkvo = {{"q", colwise()}, {"k", colwise()}, {"v", colwise()}, {"o", rowwise()}};
  return {
      {"mlp colwise rowwise", maker<Mlp>(8), mlp},
      {"mlp without bias", maker<Mlp>(8, false), mlp},
      {"mlp uneven hidden 5", maker<Mlp>(5), mlp},
      {"mlp uneven hidden 7", maker<Mlp>(7), mlp},
      {"mlp uneven hidden 5, DTensor between", maker<Mlp>(5), mlp},
      {"mlp uneven hidden 7, DTensor between", maker<Mlp>(7), mlp},
      {"mlp sequence output",
       maker<Mlp>(8),
       {{"up", colwise()}, {"down", rowwise(kSequenceShard)}}},
      {"colwise with replicated output", maker<Mlp>(8), {{"up", colwise(kWhole, kWhole)}}},
      {"rowwise with replicated input", maker<Mlp>(8), {{"down", rowwise(kWhole, kWhole)}}},
      {"block sequence parallel",
       maker<Block>(),
       {{"norm", sequence()},
        {"mlp", prepare_input(kSequenceShard)},
        {"mlp.up", colwise()},
        {"mlp.down", rowwise(kSequenceShard)}}},
      {"attention", maker<Attention>(), qkvo},
      {"embedding rows, head columns",
       maker<Tokens>(),
       {{"emb", rowwise_embedding()}, {"head", colwise(kWhole, kWhole)}}},
      {"embedding columns", maker<Tokens>(), {{"emb", colwise(kWhole, kWhole)}}},
      {"embedding rows to sequence shards",
       maker<Rows>(),
       {{"emb", rowwise_embedding(kSequenceShard)}}},
      {"attention, input prepared once",
       maker<Holder>(),
       {{"attn", prepare_input(kWhole)},
        {"attn.q", colwise()},
        {"attn.k", colwise()},
        {"attn.v", colwise()},
        {"attn.o", rowwise()}}},
      {"output prepared as sequence shard",
       maker<Mlp>(8),
       {{"down", prepare_output(kWhole, kSequenceShard)}}},
  };
}

std::unique_ptr<Module> load_module(const PlanCase& plan_case, const Json& dense) {
  std::unique_ptr<Module> module = plan_case.build();
  module->to(DType::kF64);
  std::map<std::string, Tensor> state;
  for (const auto& [name, value] : dense["params"].items()) state[name] = golden().tensor(value);
  module->load_state(state);
  return module;
}

Tensor cut(const Tensor& x, const DTensorSpec& spec) {
  const ShardBox box = spec.local_box();
  Tensor piece = x;
  for (size_t dim = 0; dim < box.sizes.size(); ++dim) {
    piece = narrow(piece, static_cast<int64_t>(dim), box.offsets[dim], box.sizes[dim]);
  }
  return contiguous(piece);
}

Tensor sequence_piece(const Tensor& x, const ProcessGroup& group) {
  return clone(chunk(x, group.world_size(), 1)[static_cast<size_t>(group.group_rank())],
               MemoryFormat::kContiguous);
}

using Counts = std::array<uint64_t, 3>;  // all_reduce, all_gather, reduce_scatter
Counts counts_of(const ProcessGroup& group) {
  return {group.num_launched(CollectiveKind::kAllReduce),
          group.num_launched(CollectiveKind::kAllGather),
          group.num_launched(CollectiveKind::kReduceScatter)};
}
Counts since(const Counts& before, const ProcessGroup& group) {
  Counts now = counts_of(group);
  for (size_t i = 0; i < now.size(); ++i) now[i] -= before[i];
  return now;
}
Counts recorded(const Json& comm) {
  const auto count = [&](const char* name) { return comm.value(name, uint64_t{0}); };
  return {count("all_reduce"), count("all_gather_into_tensor"), count("reduce_scatter_tensor")};
}

void expect_near_dense(const Tensor& actual, const Tensor& expected, const std::string& what) {
  testing::expect_close(actual, expected, {.rel = 1e-11, .floor = 1e-11}, what);
}

void run_plan(RankContext& ctx, const MeshRef& axis, const PlanCase& plan_case, const Json& row) {
  const Json& dense = golden().find("dense " + plan_case.name);
  const ProcessGroup& group = ctx.group();
  const std::unique_ptr<Module> module = load_module(plan_case, dense);
  parallelize_module(*module, axis, plan_case.plan);
  const bool takes_shards = plan_case.name.starts_with("block sequence");
  Tensor x = golden().tensor(dense["input"]);
  if (takes_shards) x = sequence_piece(x, group);
  if (is_floating(x.dtype())) requires_grad_(x);
  Counts before = counts_of(group);
  const Tensor y = (*module)(x);
  const Counts forward = since(before, group);
  Tensor expected = golden().tensor(dense["out"]), grad_out = golden().tensor(dense["grad_out"]);
  if (y.size(1) != expected.size(1)) {
    expected = sequence_piece(expected, group);
    grad_out = sequence_piece(grad_out, group);
  }
  expect_near_dense(y, expected, "output");
  before = counts_of(group);
  backward(y, grad_out);
  Counts back = since(before, group);
  for (const TensorSlot& slot : module->parameter_slots()) {
    const LocalShard* shard = local_shard_of(*slot.tensor);
    ASSERT_NE(shard, nullptr) << slot.name;
    expect_near_dense(grad_of(*slot.tensor),
                      cut(golden().tensor(dense["grads"][slot.name]), shard->whole),
                      "gradient of " + slot.name);
    // PyTorch leaves the gradients of a norm on shards as shares; here they arrive summed.
    if (shard->has_partial_gradient) --back[0];
    if (!row.contains("placements") || !row["placements"].contains(slot.name)) continue;
    EXPECT_EQ(to_string(shard->whole.placements[0]),
              row["placements"][slot.name][0].get<std::string>());
  }
  if (is_floating(x.dtype())) {
    Tensor grad_input = golden().tensor(dense["grad_input"]);
    expect_near_dense(grad_of(x), takes_shards ? sequence_piece(grad_input, group) : grad_input,
                      "gradient of the input");
  }
  if (row.contains("error")) return;  // uneven pieces fail there
  EXPECT_EQ(forward, recorded(row["comm_forward"]));
  EXPECT_EQ(back, recorded(row["comm_backward"]));
}

class TpGolden : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, TpGolden, ::testing::Values(2, 4));

TEST_P(TpGolden, PlansGiveWhatTheDenseModuleGives) {
  int checked = 0;
  run_ranks(GetParam(), [&](RankContext& ctx) {
    const MeshRef axis = mesh_of(ctx, {{"tp", GetParam()}});
    for (const PlanCase& plan_case : plan_cases()) {
      const std::string id = fmt::format("W{} {}", GetParam(), plan_case.name);
      const auto& cases = golden().cases();
      const auto at = std::find_if(cases.begin(), cases.end(),
                                   [&](const Json& one) { return one["id"] == id; });
      if (at == cases.end()) continue;
      SCOPED_TRACE(id);
      run_plan(ctx, axis, plan_case, *at);
      if (ctx.group_rank() == 0) ++checked;
    }
  });
  EXPECT_EQ(checked, GetParam() == 2 ? 14 : 5);
}

Reduction reduction_of(const Json& options) {
  const auto text = options.value("reduction", std::string("mean"));
  if (text == "none") return Reduction::kNone;
  return text == "sum" ? Reduction::kSum : Reduction::kMean;
}

TEST_P(TpGolden, LossParallelEqualsDense) {
  int checked = 0;
  run_ranks(GetParam(), [&](RankContext& ctx) {
    const MeshRef axis = mesh_of(ctx, {{"tp", GetParam()}});
    for (const Json& row : golden().cases()) {
      if (row.value("ranks", 0) != GetParam() || !row.contains("logits")) continue;
      SCOPED_TRACE(row["id"].get<std::string>());
      const Tensor whole = golden().tensor(row["logits"]);
      const int64_t vocab = whole.size(1);
      const DTensorSpec spec{axis, {Placement::shard(1)}, DimVector(whole.sizes()), whole.dtype()};
      const Tensor logits = requires_grad_(cut(whole, spec));
      CrossEntropyOptions options;
      options.ignore_index = row["options"].value("ignore_index", int64_t{-100});
      if (row["options"].contains("weight")) {
        options.weight = golden().tensor(row["options"]["weight"]);
      }
      const Counts before = counts_of(ctx.group());
      const Tensor loss =
          vocab_parallel_cross_entropy(logits, golden().tensor(row["target"]), axis, vocab, options,
                                       reduction_of(row["options"]));
      EXPECT_EQ(since(before, ctx.group()), (Counts{2, 0, 0}));
      expect_near_dense(loss, golden().tensor(row["dense"]), "loss");
      backward(loss, golden().tensor(row["grad_out"]));
      EXPECT_EQ(since(before, ctx.group()), (Counts{2, 0, 0}));
      expect_near_dense(grad_of(logits), cut(golden().tensor(row["dense_grad"]), spec), "gradient");
      if (ctx.group_rank() == 0) ++checked;
    }
  });
  EXPECT_EQ(checked, 20);
}

TEST(TpGolden, FsdpOverTensorParallelHoldsTheSamePieces) {
  int checked = 0;
  for (const int64_t hidden : {8, 5}) {
    const Json& row = golden().find(fmt::format("fsdp over tp 2x2 hidden {}", hidden));
    run_ranks(4, [&](RankContext& ctx) {
      const MeshRef mesh = mesh_of(ctx, {{"dp", 2}, {"tp", 2}});
      const Json& dense =
          golden().find(hidden == 8 ? "dense mlp colwise rowwise" : "dense mlp uneven hidden 5");
      const std::unique_ptr<Module> module = load_module({"", maker<Mlp>(hidden), {}}, dense);
      parallelize_module(*module, mesh->slice({"tp"}), {{"up", colwise()}, {"down", rowwise()}});
      fsdp::fully_shard(*module, {.mesh = mesh->slice({"dp"})});
      for (const fsdp::NamedShard& shard : fsdp::sharded_parameters(*module)) {
        const Json& param = row["params"][shard.name];
        EXPECT_EQ(std::vector<int64_t>(shard.param->sizes.begin(), shard.param->sizes.end()),
                  param["global_shape"].get<std::vector<int64_t>>());
        expect_near_dense(shard.param->local,
                          golden().tensor(param["local"][static_cast<size_t>(ctx.group_rank())]),
                          shard.name);
        if (ctx.group_rank() == 0) ++checked;
      }
    });
  }
  EXPECT_EQ(checked, 8);
}

Tensor sample(Dims sizes, double step) {
  return view(sin(mul(to(arange(numel_of(sizes)), DType::kF64), step)) * 3.0, sizes);
}

struct LossCase {
  int world;
  int64_t vocab;
  double smoothing;
  bool weighted;
  bool ignored;
};

void check_loss(const LossCase& one) {
  SCOPED_TRACE(fmt::format("vocab {} on {} smoothing {}", one.vocab, one.world, one.smoothing));
  const Tensor whole = requires_grad_(sample({5, one.vocab}, 1.7));
  const Tensor target = remainder(arange(5) * 3, one.vocab);
  if (one.ignored) fill_(narrow(target, 0, 1, 2), -100);
  CrossEntropyOptions options;
  options.label_smoothing = one.smoothing;
  if (one.weighted) options.weight = add(abs(sample({one.vocab}, 0.3)), 0.25);
  const Tensor dense = cross_entropy(whole, target, options);
  backward(dense);
  run_ranks(one.world, [&](RankContext& ctx) {
    const MeshRef axis = mesh_of(ctx, {{"tp", one.world}});
    const DTensorSpec spec{axis, {Placement::shard(1)}, DimVector(whole.sizes()), whole.dtype()};
    const Tensor logits = requires_grad_(clone(cut(detach(whole), spec)));
    const Tensor loss = vocab_parallel_cross_entropy(logits, target, axis, one.vocab, options);
    expect_near_dense(loss, dense, "loss");
    backward(loss);
    expect_near_dense(grad_of(logits), cut(grad_of(whole), spec), "gradient");
  });
}

// D30: ranks without a class take part in every reduction. A weight beside an ignored target fails
// in PyTorch's backward.
TEST(VocabParallelCrossEntropy, EmptyShardsWeightsAndSmoothingEqualDense) {
  check_loss({8, 10, 0.0, false, false});
  check_loss({4, 5, 0.0, false, true});
  check_loss({4, 5, 0.1, false, true});
  check_loss({2, 7, 0.1, true, true});
  check_loss({3, 2, 0.0, true, true});
}

// G6: the loss would be too large by log(ranks).
TEST(VocabParallelCrossEntropy, ReplicatedLogitsAreRefused) {
  run_ranks(2, [](RankContext& ctx) {
    const MeshRef axis = mesh_of(ctx, {{"tp", 2}});
    const Tensor target = tensor({3});
    EXPECT_ERROR(vocab_parallel_cross_entropy(sample({1, 4}, 1.0), target, axis, 4),
                 ErrorCode::kInvalidArgument,
                 ::testing::HasSubstr("replicated logits go to cross_entropy"));
    const Tensor own = narrow(view(arange(4, DType::kF32), {1, 4}), 1, 2 * ctx.group_rank(), 2);
    EXPECT_NEAR(vocab_parallel_cross_entropy(own, to(target, DType::kI64), axis, 4).item(),
                0.4401897, 1e-6);
  });
}

TEST(VocabParallelCrossEntropy, ATargetOutsideIsSaidOnAllRanksBeforeCommunication) {
  run_ranks(2, [](RankContext& ctx) {
    const MeshRef axis = mesh_of(ctx, {{"tp", 2}});
    EXPECT_ERROR(
        vocab_parallel_cross_entropy(sample({1, 2}, 1.0), full({1}, 4, DType::kI64), axis, 4),
        ErrorCode::kOutOfRange, ::testing::HasSubstr("[0, 4); got 4"));
    EXPECT_EQ(counts_of(ctx.group()), (Counts{0, 0, 0}));
  });
}

// The padding row belongs to one rank; others have rows of the same local number.
TEST(VocabParallelEmbedding, PaddingCountsOnItsOwnerOnly) {
  run_ranks(3, [](RankContext& ctx) {
    const MeshRef axis = mesh_of(ctx, {{"tp", 3}});
    const Tensor whole = requires_grad_(sample({7, 2}, 0.7));
    const Tensor ids = view(arange(7), {7});
    const Tensor dense = embedding(whole, ids, 4);
    backward(dense, ones_like(dense));
    const DTensorSpec spec{axis, {Placement::shard(0)}, DimVector(whole.sizes()), whole.dtype()};
    const Tensor rows = requires_grad_(clone(cut(detach(whole), spec)));
    const Tensor share = vocab_parallel_embedding(rows, ids, *axis, 7, 4);
    const Tensor together = clone(detach(share));
    ctx.group().run(ctx.group().all_reduce(together));
    expect_near_dense(together, detach(dense), "output");
    backward(share, ones_like(detach(share)));
    expect_near_dense(grad_of(rows), cut(grad_of(whole), spec), "gradient");
  });
}
}  // namespace
}  // namespace muster
