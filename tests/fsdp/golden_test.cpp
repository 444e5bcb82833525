// PyTorch's fully_shard, recorded on 2, 3 and 4 processes: pieces, curves, accumulation and how
// often each rank gathers and reduces.
#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "core/nn/layers.h"
#include "core/nn/optim/optimizer.h"
#include "core/ops/ops.h"
#include "fsdp/fully_shard.h"
#include "tests/support/golden_case.h"
#include "tests/support/golden_close.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using Json = nlohmann::json;
using testing::GoldenFile;
using testing::RankContext;
using testing::run_ranks;

const GoldenFile& golden() { return GoldenFile::load("parallel/fsdp"); }

// 6 -> 7 -> 5 -> 3 with a norm between: no dim divides by 2, 3 and 4 alike.
class Mlp final : public Module {
 public:
  Mlp()
      : Module("Mlp"),
        inner_(add_module<ModuleList>("inner")),
        norm_(add_module<LayerNorm>("norm", 5)),
        head_(add_module<Linear>("head", options_of(5, 3))) {
    register_parameter("gain", gain_, empty({1}), InitSpec::ones());
    inner_.append<Linear>(options_of(6, 7));
    inner_.append<Linear>(options_of(7, 5));
  }

 protected:
  Tensor compute(const Tensor& input) override {
    Tensor x = input;
    for (Module* layer : inner_) x = tanh((*layer)(x));
    return mul(head_(norm_(x)), gain_);
  }

 private:
  static LinearOptions options_of(int64_t in, int64_t out) {
    return {.in_features = in, .out_features = out, .bias = true, .weight_init = {}};
  }
  ModuleList& inner_;
  LayerNorm& norm_;
  Linear& head_;
  Tensor gain_;
};

struct Sharded {
  std::unique_ptr<Mlp> model;
  fsdp::Handle root;
  std::vector<fsdp::NamedShard> shards;
};

Sharded shard(RankContext& ctx, std::optional<bool> reshard, bool replicates = false) {
  auto model = std::make_unique<Mlp>();
  model->to(DType::kF64);
  std::map<std::string, Tensor> state;
  for (const auto& [name, value] : golden().find("mlp single process f64")["start"].items()) {
    state[name] = golden().tensor(value);
  }
  model->load_state(state);
  const auto world = testing::world_of(ctx);
  fsdp::Options options;
  const std::vector<DeviceMesh::Axis> flat = {{"fsdp", ctx.world_size()}};
  const std::vector<DeviceMesh::Axis> hybrid = {{"replicate", 2}, {"fsdp", ctx.world_size() / 2}};
  options.mesh = DeviceMesh::open(world, replicates ? hybrid : flat, ctx.deadline()).value();
  options.reshard_after_forward = reshard;
  for (const char* layer : {"inner.0", "inner.1"}) {
    fsdp::fully_shard(model->module_at(layer), options);
  }
  const fsdp::Handle root = fsdp::fully_shard(*model, options);
  auto shards = fsdp::sharded_parameters(*model);
  return {std::move(model), root, std::move(shards)};
}

Tensor rows_of_rank(const Tensor& whole, RankContext& ctx) {
  return contiguous(chunk(whole, ctx.world_size())[static_cast<size_t>(ctx.group_rank())]);
}

double mean_over_ranks(RankContext& ctx, const Tensor& value) {
  const Tensor total = clone(detach(value));
  ctx.group().run(ctx.group().all_reduce(total));
  return total.item() / ctx.world_size();
}

void expect_rows(const fsdp::NamedShard& shard, const Tensor& local, const Tensor& whole,
                 double tolerance) {
  const ShardBox& box = shard.param->boxes[0].box;
  const Tensor rows = narrow(whole, 0, box.offsets[0], box.sizes[0]);
  testing::expect_close(local, contiguous(rows), {.rel = tolerance, .floor = tolerance},
                        shard.name);
}

struct Counts {
  uint64_t gathers = 0;
  uint64_t reduces = 0;
  bool operator==(const Counts&) const = default;
};
Counts launched(const ProcessGroup& group) {
  return {group.num_launched(CollectiveKind::kAllGather),
          group.num_launched(CollectiveKind::kReduceScatter)};
}
// From the event [first] to [last], or to the end.
Counts recorded(const Json& events, const std::string& first, const std::string& last) {
  Counts counts;
  bool counts_now = false;
  for (const Json& event : events) {
    const auto text = event[0].get<std::string>();
    if (text == first) counts_now = true;
    if (text == last) break;
    if (counts_now && text == "all_gather") ++counts.gathers;
    if (counts_now && text == "reduce_scatter") ++counts.reduces;
  }
  return counts;
}

class FsdpGolden : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, FsdpGolden, ::testing::Values(2, 3, 4));

TEST_P(FsdpGolden, RanksHoldTheSamePieces) {
  const Json& row = golden().find(fmt::format("mlp W{} shards", GetParam()));
  run_ranks(GetParam(), [&](RankContext& ctx) {
    const Sharded sharded = shard(ctx, {});
    const auto rank = static_cast<size_t>(ctx.group_rank());
    EXPECT_EQ(sharded.shards.size(), row["shards"].size());
    for (const fsdp::NamedShard& shard : sharded.shards) {
      const Json& one = row["shards"][shard.name];
      const ShardBox& box = shard.param->boxes[0].box;
      const auto ints = [](const DimVector& dims) {
        return std::vector<int64_t>(dims.begin(), dims.end());
      };
      EXPECT_EQ(ints(shard.param->sizes), one["global_shape"].get<std::vector<int64_t>>());
      EXPECT_EQ(ints(box.sizes), one["local"][rank].get<std::vector<int64_t>>()) << shard.name;
      EXPECT_EQ(ints(box.offsets), one["offset"][rank].get<std::vector<int64_t>>()) << shard.name;
    }
  });
}

TEST_P(FsdpGolden, TwentyStepsFollowOneProcess) {
  const Json& single = golden().find("mlp single process f64");
  const Json& options = single["options"];
  const Tensor inputs = golden().tensor(single["inputs"]);
  const Tensor targets = golden().tensor(single["targets"]);
  for (const auto& [name, reshard] : {std::pair<const char*, std::optional<bool>>{"True", true},
                                      {"False", false},
                                      {"default", std::nullopt}}) {
    SCOPED_TRACE(name);
    const Json& row = golden().find(fmt::format("mlp W{} reshard {}", GetParam(), name));
    run_ranks(GetParam(), [&, reshard = reshard](RankContext& ctx) {
      Sharded sharded = shard(ctx, reshard);
      std::vector<NamedTensor> locals;
      for (const fsdp::NamedShard& one : sharded.shards) {
        locals.push_back({one.name, one.param->local});
      }
      AdamW optimizer(locals, {.lr = options["lr"],
                               .beta1 = options["betas"][0],
                               .beta2 = options["betas"][1],
                               .eps = options["eps"],
                               .weight_decay = options["weight_decay"]});
      for (int64_t step = 0; step < 20; ++step) {
        const auto at = static_cast<size_t>(step);
        const Counts before = launched(ctx.group());
        const Tensor loss = mse_loss((*sharded.model)(rows_of_rank(select(inputs, 0, step), ctx)),
                                     rows_of_rank(select(targets, 0, step), ctx));
        backward(loss);
        if (step == 0) {
          const Counts now = launched(ctx.group());
          EXPECT_EQ((Counts{now.gathers - before.gathers, now.reduces - before.reduces}),
                    recorded(row["events"], "step 0 forward", "step 1 forward"));
        }
        ASSERT_NEAR(mean_over_ranks(ctx, loss), single["loss"][at].get<double>(), 1e-11) << step;
        ASSERT_NEAR(fsdp::clip_grad_norm_(sharded.shards, options["clip"]),
                    single["grad_norm"][at].get<double>(), 1e-10)
            << step;
        optimizer.step();
        optimizer.zero_grad();
        for (const fsdp::NamedShard& one : sharded.shards) set_grad(one.param->sharded, {});
      }
      for (const fsdp::NamedShard& one : sharded.shards) {
        expect_rows(one, detach(one.param->local), golden().tensor(single["final"][one.name]),
                    1e-9);
      }
    });
  }
}

// How three microbatches of a step were run, by the rest of its name.
struct Accumulation {
  const char* name;
  bool syncs_each = false;
  bool keeps_gathered = false;  // after backward, until the last
  std::optional<bool> reshard = {};
  bool all_reduces_last = false;
};

void accumulate(Sharded& sharded, RankContext& ctx, const Accumulation& how) {
  const Json& single = golden().find("mlp accumulate gradients f64");
  const Tensor inputs = golden().tensor(single["inputs"]);
  const Tensor targets = golden().tensor(single["targets"]);
  for (int64_t micro = 0; micro < 3; ++micro) {
    const bool is_last = micro == 2;
    sharded.root.set_requires_gradient_sync(how.syncs_each || how.all_reduces_last || is_last);
    sharded.root.set_requires_all_reduce(!how.all_reduces_last || is_last);
    sharded.root.set_reshard_after_backward(!how.keeps_gathered || is_last);
    const Tensor loss = mse_loss((*sharded.model)(rows_of_rank(select(inputs, 0, micro), ctx)),
                                 rows_of_rank(select(targets, 0, micro), ctx));
    backward(div(loss, 3));
  }
  for (const fsdp::NamedShard& one : sharded.shards) {
    expect_rows(one, grad_of(one.param->local), golden().tensor(single["grads"][one.name]), 1e-11);
  }
}

TEST_P(FsdpGolden, AccumulatesAndCommunicatesAsTheSwitchesSay) {
  for (const Accumulation& how : {Accumulation{"sync every micro", true},
                                  {"sync at the last"},
                                  {"sync at the last, keep unsharded", false, true},
                                  {"sync at the last, reshard False", false, false, false},
                                  {"is_last_backward"}}) {
    SCOPED_TRACE(how.name);
    const Json& row = golden().find(fmt::format("mlp accumulate W{} {}", GetParam(), how.name));
    run_ranks(GetParam(), [&](RankContext& ctx) {
      Sharded sharded = shard(ctx, how.reshard);
      accumulate(sharded, ctx, how);
      EXPECT_EQ(launched(ctx.group()), recorded(row["events"], "micro 0 forward", ""));
    });
  }
}

// F10: the replicas' reductions too must wait for the last microbatch.
TEST(FsdpGolden, HybridShardsAccumulateAndCommunicateAsTheSwitchesSay) {
  for (const Accumulation& how : {Accumulation{"hsdp sync every micro", true},
                                  {"hsdp sync at the last"},
                                  {"hsdp all-reduce at the last", false, false, {}, true}}) {
    SCOPED_TRACE(how.name);
    const Json& row = golden().find(fmt::format("mlp accumulate W4 {}", how.name));
    uint64_t all_reduces = 0;
    for (const Json& event : row["events"]) all_reduces += event[0] == "all_reduce" ? 1 : 0;
    run_ranks(4, [&](RankContext& ctx) {
      Sharded sharded = shard(ctx, {}, true);
      const MeshRef& mesh = sharded.shards[0].param->spec.mesh;
      accumulate(sharded, ctx, how);
      EXPECT_EQ(launched(*mesh->group("fsdp")), recorded(row["events"], "micro 0 forward", ""));
      EXPECT_EQ(mesh->group("replicate")->num_launched(CollectiveKind::kAllReduce), all_reduces);
      for (const fsdp::NamedShard& one : sharded.shards) {
        EXPECT_EQ(replica_ranks(one.param->spec),
                  (std::vector<int>{ctx.group_rank() % 2, 2 + ctx.group_rank() % 2}));
      }
    });
  }
}

// What PyTorch refuses too, for reasons that hold here.
TEST(FsdpGolden, MixedDtypesAndStridedParametersAreRefused) {
  run_ranks(2, [](RankContext& ctx) {
    const auto world = testing::world_of(ctx);
    fsdp::Options options;
    options.mesh = DeviceMesh::open(world, {{"fsdp", 2}}, ctx.deadline()).value();
    Mlp mixed;
    mixed.module_at("head").to(DType::kF64);
    EXPECT_ERROR(fsdp::fully_shard(mixed, options), ErrorCode::kInvalidArgument,
                 ::testing::HasSubstr("parameters of one group have one floating dtype"));
    Linear strided({.in_features = 4, .out_features = 6, .bias = false, .weight_init = {}});
    *strided.parameter_slots()[0].tensor = requires_grad_(detach(transpose(ones({4, 6}), 0, 1)));
    EXPECT_ERROR(fsdp::fully_shard(strided, options), ErrorCode::kInvalidArgument,
                 ::testing::HasSubstr("must be contiguous"));
  });
}
}  // namespace
}  // namespace muster
