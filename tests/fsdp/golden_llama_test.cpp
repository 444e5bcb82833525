// A small Llama under PyTorch's fully_shard, recorded on 2 and 4 processes: curves in f64, f32 and
// with bf16 parameters, and how often each rank gathers and reduces.
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "core/nn/llama.h"
#include "core/ops/ops.h"
#include "tests/fsdp/recorded_optimizer.h"
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
const GoldenFile& single() { return GoldenFile::load("models/llama"); }

std::unique_ptr<Llama> load(DType dtype) {
  LlamaConfig config;
  config.vocab_size = 256;
  config.max_positions = 64;
  config.dim = 48;
  config.mlp_dim = 96;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.rms_norm_eps = 1e-5;
  auto model = std::make_unique<Llama>(config);
  model->to(dtype);
  std::map<std::string, Tensor> state;
  for (const auto& [name, tensor] :
       testing::read_safetensors(testing::golden_path("models/llama/model.safetensors"))) {
    state[name] = to(tensor, dtype);
  }
  model->load_state(state);
  return model;
}

// How a recorded run was set up, by the rest of its name.
struct RecordedRun {
  const char* name;
  DType dtype = DType::kF64;
  std::optional<bool> reshard = {};
  int prefetch = 0;
  int replicas = 1;
  bool is_bf16 = false;
};

constexpr RecordedRun kRuns[] = {
    {"f64 default"},
    {"f32 default", DType::kF32},
    {"f64 reshard False", DType::kF64, false},
    {"f64 reshard True", DType::kF64, true},
    {"f64 explicit prefetch", DType::kF64, {}, 1},
    {"f64 hsdp 2x2", DType::kF64, {}, 0, 2},
    {"bf16 params, f32 reduce", DType::kF32, {}, 0, 1, true},
};

struct Tolerance {
  double loss, norm, weight;  // relative
};
Tolerance tolerance_of(const RecordedRun& run) {
  if (run.is_bf16) return {5e-3, 5e-3, 5e-2};
  if (run.dtype == DType::kF32) return {1e-5, 1e-5, 1e-4};
  return {1e-11, 1e-10, 1e-8};
}

// The mean loss of a rank's rows, in the wider dtype.
Tensor loss_of(Llama& model, const Tensor& tokens) {
  const int64_t last = tokens.size(1) - 1;
  const Tensor logits = narrow(model(tokens), 1, 0, last);
  const int64_t count = tokens.size(0) * last;
  return cross_entropy(reshape(logits, {count, logits.size(2)}),
                       reshape(narrow(tokens, 1, 1, last), {count}), {}, Reduction::kMean);
}

uint64_t count(const Json& events, const char* kind) {
  uint64_t found = 0;
  for (const Json& event : events) {
    const auto text = event[0].get<std::string>();
    if (text == "step 1 forward") break;
    if (text == kind) ++found;
  }
  return found;
}

// Gathers, reductions over the shards and over the replicas, so far.
std::vector<uint64_t> traffic(const MeshRef& mesh) {
  const ProcessGroup& shards = *mesh->group("fsdp");
  std::vector<uint64_t> counts = {shards.num_launched(CollectiveKind::kAllGather),
                                  shards.num_launched(CollectiveKind::kReduceScatter)};
  if (mesh->num_axes() == 2) {
    counts.push_back(mesh->group("replicate")->num_launched(CollectiveKind::kAllReduce));
  }
  return counts;
}

void follow(RankContext& ctx, const RecordedRun& run, const Json& row) {
  const Json& train = single().find("train");
  const Tolerance tolerance = tolerance_of(run);
  const auto world = testing::world_of(ctx);
  std::vector<DeviceMesh::Axis> axes = {{"fsdp", ctx.world_size() / run.replicas}};
  if (run.replicas > 1) axes.insert(axes.begin(), {"replicate", run.replicas});
  fsdp::Options options;
  options.mesh = DeviceMesh::open(world, axes, ctx.deadline()).value();
  options.reshard_after_forward = run.reshard;
  options.prefetch = run.prefetch;
  if (run.is_bf16) {
    options.mixed_precision = {.param_dtype = DType::kBF16, .reduce_dtype = DType::kF32};
  }
  const std::unique_ptr<Llama> model = load(run.dtype);
  for (const std::string& block : model->block_names()) {
    fsdp::fully_shard(model->module_at(block), options);
  }
  if (run.is_bf16) options.mixed_precision.output_dtype = DType::kF32;
  fsdp::fully_shard(*model, options);
  const std::vector<fsdp::NamedShard> shards = fsdp::sharded_parameters(*model);
  const std::unique_ptr<AdamW> optimizer = testing::optimizer_of(shards, train["options"]);
  std::optional<DType> computed_in;
  const HookHandle hook =
      model->module_at(model->block_names()[0])
          .register_forward_hook([&](Module&, const Tensor&, const Tensor& out) {
            computed_in = out.dtype();
            return Tensor();
          });
  const Tensor batches = single().tensor(train["batches"]);
  const size_t steps = row["loss"].size();
  const std::vector<uint64_t> before = traffic(options.mesh);
  for (size_t step = 0; step < steps; ++step) {
    optimizer->set_lr(train["lr"][step]);
    const Tensor whole = select(batches, 0, static_cast<int64_t>(step));
    const Tensor rows =
        contiguous(chunk(whole, ctx.world_size())[static_cast<size_t>(ctx.group_rank())]);
    const Tensor loss = loss_of(*model, rows);
    backward(loss);
    if (step == 0) {
      std::vector<uint64_t> expected = before;
      expected[0] += count(row["events"], "all_gather");
      expected[1] += count(row["events"], "reduce_scatter");
      if (run.replicas > 1) expected[2] += count(row["events"], "all_reduce");
      EXPECT_EQ(traffic(options.mesh), expected);
    }
    const Tensor total = to(detach(loss), DType::kF64);
    ctx.group().run(ctx.group().all_reduce(total, ReduceOp::kAvg));
    const double expected = row["loss"][step], norm = row["grad_norm"][step];
    // bf16's own rounding shows in how far the recorded run is from the exact one.
    const double exact = run.is_bf16 ? train["f64"]["grad_norm"][step].get<double>() : norm;
    ASSERT_NEAR(total.item(), expected, tolerance.loss * expected) << "step " << step;
    ASSERT_NEAR(fsdp::clip_grad_norm_(shards, train["options"]["clip"]), norm,
                tolerance.norm * norm + std::abs(norm - exact))
        << "step " << step;
    ASSERT_EQ(computed_in, run.is_bf16 ? DType::kBF16 : run.dtype);
    for (const fsdp::NamedShard& shard : shards) {
      ASSERT_EQ(grad_of(shard.param->local).dtype(), run.dtype) << shard.name;
    }
    optimizer->step();
    optimizer->zero_grad();
    for (const fsdp::NamedShard& shard : shards) set_grad(shard.param->sharded, {});
  }
  for (const fsdp::NamedShard& shard : shards) {
    EXPECT_EQ(shard.param->local.dtype(), run.dtype);
    if (!row["tensors"].contains(shard.name)) continue;
    const ShardBox& box = shard.param->boxes[0].box;
    const Tensor expected = golden().tensor(row["tensors"][shard.name]);
    testing::expect_close(detach(shard.param->local),
                          contiguous(narrow(expected, 0, box.offsets[0], box.sizes[0])),
                          {.rel = tolerance.weight, .floor = tolerance.weight}, shard.name);
  }
}

class LlamaGolden : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, LlamaGolden, ::testing::Values(2, 4));

TEST_P(LlamaGolden, StepsFollowTheRecordedOnes) {
  for (const RecordedRun& run : kRuns) {
    if (run.replicas > 1 && GetParam() < 4) continue;
    const Json& row = golden().find(fmt::format("llama W{} {}", GetParam(), run.name));
    SCOPED_TRACE(row["id"]);
    run_ranks(GetParam(), [&](RankContext& ctx) { follow(ctx, run, row); });
  }
}

// The recorded pieces of the f64 runs.
TEST_P(LlamaGolden, RanksHoldTheSamePieces) {
  const Json& row = golden().find(fmt::format("llama W{} f64 default", GetParam()));
  run_ranks(GetParam(), [&](RankContext& ctx) {
    const auto world = testing::world_of(ctx);
    fsdp::Options options;
    options.mesh = DeviceMesh::open(world, {{"fsdp", ctx.world_size()}}, ctx.deadline()).value();
    const std::unique_ptr<Llama> model = load(DType::kF64);
    fsdp::fully_shard(*model, options);
    const auto shards = fsdp::sharded_parameters(*model);
    EXPECT_EQ(shards.size(), row["shards"].size());
    const auto rank = static_cast<size_t>(ctx.group_rank());
    for (const fsdp::NamedShard& shard : shards) {
      const Json& one = row["shards"][shard.name];
      const ShardBox& box = shard.param->boxes[0].box;
      EXPECT_EQ(std::vector<int64_t>(box.sizes.begin(), box.sizes.end()),
                one["local"][rank].get<std::vector<int64_t>>())
          << shard.name;
      EXPECT_EQ(std::vector<int64_t>(box.offsets.begin(), box.offsets.end()),
                one["offset"][rank].get<std::vector<int64_t>>())
          << shard.name;
    }
  });
}
}  // namespace
}  // namespace muster
