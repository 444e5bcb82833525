// What PyTorch's fully_shard was recorded to accept, refuse and do on 2 and 4 processes.
#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "core/nn/layers.h"
#include "core/ops/ops.h"
#include "fsdp/fully_shard.h"
#include "tests/support/golden_case.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using Json = nlohmann::json;
using testing::GoldenFile;
using ::testing::HasSubstr;
using testing::RankContext;
using testing::run_ranks;

const GoldenFile& golden() { return GoldenFile::load("parallel/fsdp"); }
const Json& fact(int ranks, const std::string& name) {
  return golden().find(fmt::format("facts W{}", ranks))["facts"][name];
}

fsdp::Options options_of(RankContext& ctx) {
  const auto world = testing::world_of(ctx);
  fsdp::Options options;
  options.mesh = DeviceMesh::open(world, {{"fsdp", ctx.world_size()}}, ctx.deadline()).value();
  return options;
}

LinearOptions linear_of(int64_t in, int64_t out) {
  return {.in_features = in, .out_features = out, .bias = false, .weight_init = {}};
}

// Two layers, of which the second may be left out, share its weight with the first, or be frozen.
class TwoLayers final : public Module {
 public:
  explicit TwoLayers(bool uses_both = true, bool is_tied = false)
      : Module("TwoLayers"),
        a_(add_module<Linear>("a", linear_of(6, 6))),
        b_(add_module<Linear>("b", linear_of(6, 6))),
        uses_both_(uses_both) {
    if (is_tied) *b_.parameter_slots()[0].tensor = *a_.parameter_slots()[0].tensor;
    reset_parameters(1);
  }
  Linear& a() { return a_; }
  Linear& b() { return b_; }

 protected:
  Tensor compute(const Tensor& input) override {
    return uses_both_ ? b_(tanh(a_(input))) : a_(input);
  }

 private:
  Linear& a_;
  Linear& b_;
  bool uses_both_;
};

Tensor ones_batch() { return ones({2, 6}); }
void go(Module& model) { backward(sum(to(model(ones_batch()), DType::kF32))); }

uint64_t events_of(const Json& value, const char* kind) {
  uint64_t found = 0;
  for (const Json& event : value["events"]) found += event[0] == kind ? 1 : 0;
  return found;
}
// A step of `model` communicates as often as recorded.
void expect_events(ProcessGroup& group, Module& model, const Json& recorded) {
  const uint64_t gathers = group.num_launched(CollectiveKind::kAllGather);
  const uint64_t reduces = group.num_launched(CollectiveKind::kReduceScatter);
  go(model);
  EXPECT_EQ(group.num_launched(CollectiveKind::kAllGather) - gathers,
            events_of(recorded["value"], "all_gather"));
  EXPECT_EQ(group.num_launched(CollectiveKind::kReduceScatter) - reduces,
            events_of(recorded["value"], "reduce_scatter"));
}

class FsdpFacts : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, FsdpFacts, ::testing::Values(2, 4));

TEST_P(FsdpFacts, AModuleThatIsNotUsedIsNeitherGatheredNorReduced) {
  run_ranks(GetParam(), [](RankContext& ctx) {
    TwoLayers model(/*uses_both=*/false);
    for (Linear* layer : {&model.a(), &model.b()}) fsdp::fully_shard(*layer, options_of(ctx));
    fsdp::fully_shard(model, options_of(ctx));
    expect_events(ctx.group(), model, fact(ctx.world_size(), "a module that is not used"));
    EXPECT_FALSE(grad_of(fsdp::sharded_parameters(model)[1].param->local).defined());
  });
}

TEST_P(FsdpFacts, UnusedAndFrozenParametersOfAGroupAreGatheredAndNotReduced) {
  run_ranks(GetParam(), [](RankContext& ctx) {
    for (const bool is_frozen : {false, true}) {
      TwoLayers model(/*uses_both=*/is_frozen);
      if (is_frozen) model.a().requires_grad_(false);
      fsdp::fully_shard(model, options_of(ctx));
      const auto shards = fsdp::sharded_parameters(model);
      const size_t without = is_frozen ? 0 : 1;
      expect_events(ctx.group(), model,
                    fact(ctx.world_size(), is_frozen ? "a group with one frozen parameter"
                                                     : "a group with one unused parameter"));
      EXPECT_FALSE(grad_of(shards[without].param->local).defined());
      EXPECT_TRUE(grad_of(shards[1 - without].param->local).defined());
    }
  });
}

TEST_P(FsdpFacts, GradientsOfOnesAreDividedAsRecorded) {
  const auto value_of = [](const char* name) {
    const Json& value = fact(GetParam(), name)["value"];
    return value.is_array() ? value[0].get<double>() : value.get<double>();
  };
  run_ranks(GetParam(), [&](RankContext& ctx) {
    const auto gradient = [&](std::optional<double> factor) {
      Linear layer(linear_of(6, 4));
      layer.reset_parameters(1);
      fsdp::Options options = options_of(ctx);
      options.gradient_divide_factor = factor;
      fsdp::fully_shard(layer, options);
      go(layer);
      return to_vector<double>(
          to(grad_of(fsdp::sharded_parameters(layer)[0].param->local), DType::kF64))[0];
    };
    EXPECT_DOUBLE_EQ(gradient({}), value_of("gradient of ones, default divide"));
    EXPECT_DOUBLE_EQ(gradient(ctx.world_size()), value_of("set_gradient_divide_factor(world)"));
    EXPECT_NEAR(gradient(3), value_of("set_gradient_divide_factor(3.0) with force_sum"), 1e-6);
    EXPECT_DOUBLE_EQ(gradient(1), 2.0 * ctx.world_size());  // Gloo cannot, there
  });
}

// Which dtype everything has under a policy.
TEST_P(FsdpFacts, DtypesFollowThePolicy) {
  struct Policy {
    const char* name;
    fsdp::MixedPrecision precision;
  };
  const std::vector<Policy> policies = {
      {"none", {}},
      {"param bf16", {.param_dtype = DType::kBF16}},
      {"param bf16 reduce f32", {.param_dtype = DType::kBF16, .reduce_dtype = DType::kF32}},
      {"reduce bf16", {.reduce_dtype = DType::kBF16}},
      {"param f16", {.param_dtype = DType::kF16}}};
  run_ranks(GetParam(), [&](RankContext& ctx) {
    for (const Policy& policy : policies) {
      SCOPED_TRACE(policy.name);
      const Json& value =
          fact(ctx.world_size(), fmt::format("dtypes with policy {}", policy.name))["value"];
      Sequential model;
      Linear& inner = model.append<Linear>(linear_of(6, 6));
      model.append<LayerNorm>(6);
      model.reset_parameters(1);
      fsdp::Options options = options_of(ctx);
      options.mixed_precision = policy.precision;
      fsdp::fully_shard(inner, options);
      fsdp::fully_shard(model, options);
      std::map<std::string, std::string> seen;
      inner.register_forward_hook([&](Module&, const Tensor& in, const Tensor& out) {
        seen["inner_input"] = fmt::format("{}", in.dtype());
        seen["inner_output"] = fmt::format("{}", out.dtype());
        return Tensor();
      });
      const Tensor output = model(ones_batch());
      backward(sum(to(output, DType::kF32)));
      const auto shards = fsdp::sharded_parameters(model);
      seen["output"] = fmt::format("{}", output.dtype());
      seen["inner_weight"] = fmt::format("{}", shards[0].param->unsharded.dtype());
      seen["grad"] = fmt::format("{}", grad_of(shards[0].param->local).dtype());
      seen["param"] = fmt::format("{}", shards[0].param->local.dtype());
      for (const auto& [what, dtype] : seen) EXPECT_EQ(dtype, value[what]) << what;
    }
  });
}

TEST(FsdpPolicy, OutputsAndInputsAreCastAsAsked) {
  run_ranks(2, [](RankContext& ctx) {
    fsdp::Options options = options_of(ctx);
    options.mixed_precision = {.param_dtype = DType::kBF16, .output_dtype = DType::kF32};
    Linear layer(linear_of(6, 6));
    layer.reset_parameters(1);
    fsdp::fully_shard(layer, options);
    const Tensor output = layer(ones_batch());
    EXPECT_EQ(output.dtype(), DType::kF32);
    backward(sum(output));
    EXPECT_TRUE(grad_of(fsdp::sharded_parameters(layer)[0].param->local).defined());

    options.mixed_precision = {.param_dtype = DType::kBF16, .cast_forward_inputs = false};
    Linear uncast(linear_of(6, 6));
    uncast.reset_parameters(1);
    fsdp::fully_shard(uncast, options);
    EXPECT_ERROR(uncast(ones_batch()), ErrorCode::kInvalidArgument, HasSubstr("dtype"));
  });
}

TEST(FsdpFacts, TiedWeightsTrainInOneGroupWhicheverWayItIsMade) {
  TwoLayers whole(true, /*is_tied=*/true);
  go(whole);
  const Tensor expected = grad_of(whole.a().weight());
  run_ranks(2, [&](RankContext& ctx) {
    ASSERT_EQ(fact(2, "tied weight in one group list")["value"], "ran");
    for (const bool as_list : {true, false}) {
      TwoLayers model(true, true);
      if (as_list) fsdp::fully_shard({&model.a(), &model.b()}, options_of(ctx));
      const fsdp::Handle root = fsdp::fully_shard(model, options_of(ctx));
      go(model);
      const auto shards = fsdp::sharded_parameters(model);
      ASSERT_EQ(shards.size(), 1u);
      EXPECT_EQ(shards[0].name, "a.weight");
      const ShardBox& box = shards[0].param->boxes[0].box;
      EXPECT_TRUE(equal(grad_of(shards[0].param->local),
                        contiguous(narrow(expected, 0, box.offsets[0], box.sizes[0]))));
      // Gathered once while both layers run, and once more in backward if it was freed.
      EXPECT_EQ(root.groups().front()->num_gathers(), as_list ? 2u : 1u);
      EXPECT_EQ(root.groups().front()->name(), as_list ? "a+b" : "TwoLayers");
      EXPECT_EQ(shards[0].param->unsharded.storage()->data(), nullptr);
    }
  });
}

// 1 and 2^-9 make 1 in bf16: microbatches must be added up in the dtype of the reduction.
TEST(FsdpPolicy, MicrobatchesAccumulateInTheReduceDtype) {
  run_ranks(2, [](RankContext& ctx) {
    fsdp::Options options = options_of(ctx);
    options.mixed_precision = {.param_dtype = DType::kBF16, .reduce_dtype = DType::kF32};
    Linear layer(linear_of(1, 2));
    layer.reset_parameters(1);
    fsdp::Handle handle = fsdp::fully_shard(layer, options);
    const std::vector<double> inputs = {1, 0x1p-9, 0x1p-9};
    for (size_t micro = 0; micro < inputs.size(); ++micro) {
      handle.set_requires_gradient_sync(micro + 1 == inputs.size());
      backward(sum(layer(full({1, 1}, inputs[micro]))));
    }
    EXPECT_EQ(grad_of(fsdp::sharded_parameters(layer)[0].param->local).item(), 1 + 0x1p-8);
  });
}

class Scaled final : public Module {
 public:
  Scaled() : Module("Scaled") { register_parameter("s", s_, empty({}), InitSpec::ones()); }

 protected:
  Tensor compute(const Tensor& input) override { return mul(input, s_); }

 private:
  Tensor s_;
};

TEST(FsdpFacts, AParameterWithoutDimsIsARowOfTheFirstRank) {
  run_ranks(2, [](RankContext& ctx) {
    Scaled model;
    model.reset_parameters(1);
    fsdp::fully_shard(model, options_of(ctx));
    backward(sum(model(full({3}, 2.0))));
    const fsdp::ShardedParam& param = *fsdp::sharded_parameters(model)[0].param;
    EXPECT_EQ(param.local.numel(), ctx.group_rank() == 0 ? 1 : 0);
    if (ctx.group_rank() == 0) {
      EXPECT_EQ(grad_of(param.local).item(), 6.0);
    }
  });
}

TEST(FsdpFacts, ContainersAreRefused) {
  run_ranks(2, [](RankContext& ctx) {
    ASSERT_FALSE(fact(2, "ModuleList").contains("ok"));
    ModuleList list;
    list.append<Linear>(linear_of(6, 6));
    EXPECT_ERROR(fsdp::fully_shard(list, options_of(ctx)), ErrorCode::kInvalidArgument,
                 HasSubstr("a container without forward has no hooks to gather by; got "
                           "ModuleList"));
    EXPECT_ERROR(fsdp::fully_shard(std::vector<Module*>{}, options_of(ctx)),
                 ErrorCode::kInvalidArgument, HasSubstr("at least one module"));
  });
}

// Only f16 is divided in two parts here: sums of other dtypes have room, and f16 means are taken in
// f32 inside the collective.
TEST(DivideFactors, F16IsDividedBeforeAndAfterTheSumAsRecorded) {
  int checked = 0;
  for (const Json& row : golden().find("gradient divide factors")["rows"]) {
    if (row["reduce_dtype"] != "f16") continue;
    ++checked;
    const double ranks =
        row["shard"].get<double>() * (row["replicate"].is_null() ? 1 : row["replicate"].get<int>());
    const fsdp::DivideFactors factors = fsdp::divide_factors(DType::kF16, ranks);
    EXPECT_EQ(factors.before, row["pre"].get<double>()) << ranks;
    EXPECT_EQ(factors.after, row["post"].get<double>()) << ranks;
    EXPECT_EQ(fsdp::divide_factors(DType::kF32, ranks).before, 1);
    EXPECT_EQ(fsdp::divide_factors(DType::kF32, ranks).after, ranks);
  }
  EXPECT_EQ(checked, 19);
}
}  // namespace
}  // namespace muster
