// Twenty steps of a Llama with bf16 parameters and f32 reduction, as PyTorch's fully_shard recorded
// them on 2 and 4 ranks; and the same layout in f32 and f64.
#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "core/nn/optim/optimizer.h"
#include "core/ops/ops.h"
#include "fsdp/fully_shard.h"
#include "tests/support/golden_case.h"
#include "tests/support_ranks/ranks.h"
#include "train/hf/folder.h"

namespace muster::testing {
namespace {
using nlohmann::json;

struct Policy {
  const char* name;  ///< as the golden file calls it
  DType dtype;
  fsdp::MixedPrecision precision;
  double tolerance;       ///< of losses, relative
  double norm_tolerance;  ///< PyTorch's own bf16 norms on 2 and 4 ranks are 5e-3 apart
};

const std::vector<Policy>& policies() {
  static const std::vector<Policy> all = {
      {"f64 default", DType::kF64, {}, 1e-11, 1e-10},
      {"f32 default", DType::kF32, {}, 1e-5, 1e-5},
      {"bf16 params, f32 reduce",
       DType::kF32,
       {.param_dtype = DType::kBF16, .reduce_dtype = DType::kF32},
       5e-3,
       1.5e-2},
  };
  return all;
}

std::unique_ptr<AdamW> optimizer_of(const std::vector<fsdp::NamedShard>& shards,
                                    const json& options) {
  AdamWOptions decayed{.lr = options["lr"],
                       .beta1 = options["betas"][0],
                       .beta2 = options["betas"][1],
                       .eps = options["eps"],
                       .weight_decay = options["weight_decay"]};
  AdamWOptions plain = decayed;
  plain.weight_decay = 0;
  std::vector<ParameterGroup<AdamWOptions>> groups = {{{}, decayed}, {{}, plain}};
  for (const fsdp::NamedShard& shard : shards) {
    groups[shard.param->sizes.size() >= 2 ? 0 : 1].parameters.push_back(
        {shard.name, shard.param->local});
  }
  return std::make_unique<AdamW>(groups);
}

Tensor next_tokens(const Tensor& tokens) {
  const Tensor none = full({tokens.size(0), 1}, int64_t{-100});
  return cat({narrow(tokens, 1, 1, tokens.size(1) - 1), none}, 1);
}

void follow(RankContext& ctx, const Policy& policy) {
  const json& train = GoldenFile::load("models/llama").find("train");
  const json& recorded = GoldenFile::load("parallel/fsdp")
                             .find(fmt::format("llama W{} {}", ctx.world_size(), policy.name));
  const Tensor batches = GoldenFile::load("models/llama").tensor(train["batches"]);
  const hf::LoadedFolder loaded =
      hf::load_folder(real_file_system(), golden_path("models/llama"), policy.dtype).value();
  const auto world = std::shared_ptr<ProcessGroup>(&ctx.group(), [](ProcessGroup*) {});
  fsdp::Options options;
  options.mesh = DeviceMesh::open(world, {{"fsdp", ctx.world_size()}}, ctx.deadline()).value();
  options.mixed_precision = policy.precision;
  options.reduce_op = ReduceOp::kSum;
  CausalLm& model = *loaded.model;
  for (const std::string& block : model.block_names()) {
    fsdp::fully_shard(model.module_at(block), options);
  }
  fsdp::fully_shard(model, options);
  std::optional<DType> computed_in;
  const HookHandle hook =
      model.module_at(model.block_names()[0])
          .register_forward_hook([&](Module&, const Tensor&, const Tensor& out) {
            computed_in = out.dtype();
            return Tensor();
          });
  const std::vector<fsdp::NamedShard> shards = fsdp::sharded_parameters(model);
  const std::unique_ptr<AdamW> optimizer = optimizer_of(shards, train["options"]);
  for (int64_t step = 0; step < batches.size(0); ++step) {
    const auto at = static_cast<size_t>(step);
    optimizer->set_lr(train["lr"][at]);
    const Tensor whole = select(batches, 0, step);
    const auto count = static_cast<double>(whole.size(0) * (whole.size(1) - 1));
    const Tensor rows =
        contiguous(chunk(whole, ctx.world_size())[static_cast<size_t>(ctx.group_rank())]);
    const LossSum loss = model.loss(rows, next_tokens(rows));
    backward(div(loss.sum, count));
    const Tensor total = clone(detach(loss.sum));
    ctx.group().run(ctx.group().all_reduce(total));
    const double norm = fsdp::clip_grad_norm_(shards, train["options"]["clip"]);
    const double wanted = recorded["loss"][at], wanted_norm = recorded["grad_norm"][at];
    ASSERT_NEAR(total.item() / count, wanted, policy.tolerance * wanted) << step;
    ASSERT_NEAR(norm, wanted_norm, policy.norm_tolerance * wanted_norm) << step;
    ASSERT_EQ(computed_in, policy.precision.param_dtype.value_or(policy.dtype));
    for (const fsdp::NamedShard& shard : shards) {
      ASSERT_EQ(shard.param->local.dtype(), policy.dtype) << shard.name;
      ASSERT_EQ(grad_of(shard.param->local).dtype(), policy.dtype) << shard.name;
    }
    optimizer->step();
    optimizer->zero_grad();
    for (const fsdp::NamedShard& shard : shards) set_grad(shard.param->sharded, {});
  }
}

TEST(FsdpPolicies, FollowTheCurvesThatPyTorchRecorded) {
  for (const Policy& policy : policies()) {
    for (const int ranks : {2, 4}) {
      SCOPED_TRACE(fmt::format("{} on {} ranks", policy.name, ranks));
      run_ranks(ranks, [&](RankContext& ctx) { follow(ctx, policy); });
    }
  }
}
}  // namespace
}  // namespace muster::testing
