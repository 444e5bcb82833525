// Twenty steps of published kinds of models, as PyTorch on one process recorded them, on meshes of
// tensor and data parallel ranks.
#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "dist/parallel/models.h"
#include "tests/fsdp/recorded_optimizer.h"
#include "tests/support/golden_case.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using Json = nlohmann::json;
using testing::GoldenFile;
using testing::RankContext;
using testing::run_ranks;

LlamaConfig small_llama() {
  LlamaConfig config;
  config.vocab_size = 256;
  config.max_positions = 64;
  config.dim = 48;
  config.mlp_dim = 96;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.rms_norm_eps = 1e-5;
  return config;
}

struct Recorded {
  std::string name;
  LlamaConfig config;
  std::vector<std::string> files;
};

std::vector<Recorded> recorded_models() {
  Recorded llama{"llama", small_llama(), {"model.safetensors"}};
  Recorded qwen{"qwen3_bf16", small_llama(), {"model.safetensors"}};
  qwen.config.head_dim = 16;
  qwen.config.rms_norm_eps = 1e-6;
  qwen.config.tied_head = true;
  qwen.config.qk_norm = true;
  return {llama, qwen};
}

std::unique_ptr<Llama> load(const Recorded& recorded) {
  auto model = std::make_unique<Llama>(recorded.config);
  model->to(DType::kF64);
  std::map<std::string, Tensor> state;
  for (const std::string& file : recorded.files) {
    const std::string path = testing::golden_path("models/" + recorded.name + "/" + file);
    for (const auto& [name, tensor] : testing::read_safetensors(path)) {
      if (name != "lm_head.weight" || !recorded.config.tied_head) {
        state[name] = to(tensor, DType::kF64);
      }
    }
  }
  model->load_state(state);
  return model;
}

// The next token, and nothing after the last.
Tensor targets_of(const Tensor& tokens) {
  const Tensor none = full({tokens.size(0), 1}, int64_t{-100});
  return cat({narrow(tokens, 1, 1, tokens.size(1) - 1), none}, 1);
}

struct Layout {
  int fsdp;
  int tp;
  bool sequence;
  int replicas = 1;
};

void follow(RankContext& ctx, const Recorded& recorded, const Layout& layout) {
  const GoldenFile& golden = GoldenFile::load("models/" + recorded.name);
  const Json& train = golden.find("train");
  const auto world = testing::world_of(ctx);
  const MeshRef mesh =
      DeviceMesh::open(world,
                       {{"replicate", layout.replicas}, {"fsdp", layout.fsdp}, {"tp", layout.tp}},
                       ctx.deadline())
          .value();
  const std::unique_ptr<Llama> model = load(recorded);
  parallel::parallelize(*model, mesh->slice({"tp"}), {.sequence_parallel = layout.sequence});
  fsdp::Options options;
  options.mesh = mesh->slice({"replicate", "fsdp"});
  options.reduce_op = ReduceOp::kSum;
  for (const std::string& block : model->block_names()) {
    fsdp::fully_shard(model->module_at(block), options);
  }
  fsdp::fully_shard(*model, options);
  const std::vector<fsdp::NamedShard> shards = fsdp::sharded_parameters(*model);
  const std::unique_ptr<AdamW> optimizer = testing::optimizer_of(shards, train["options"]);
  const Tensor batches = golden.tensor(train["batches"]);
  // The samples are shared out over both axes; so is the loss.
  const MeshRef data = mesh->slice({"replicate", "fsdp"})->flatten("data", ctx.deadline()).value();
  ProcessGroup& data_ranks = *data->group(0);
  for (int64_t step = 0; step < batches.size(0); ++step) {
    const auto at = static_cast<size_t>(step);
    optimizer->set_lr(train["lr"][at]);
    const Tensor whole = select(batches, 0, step);
    const auto count = static_cast<double>(whole.size(0) * (whole.size(1) - 1));
    const Tensor rows =
        contiguous(chunk(whole, data->size())[static_cast<size_t>(data_ranks.group_rank())]);
    const LossSum loss = model->loss(rows, targets_of(rows));
    backward(div(loss.sum, count));
    const Tensor total = clone(detach(loss.sum));
    data_ranks.run(data_ranks.all_reduce(total));
    const double norm = fsdp::clip_grad_norm_(shards, train["options"]["clip"]);
    ASSERT_NEAR(total.item() / count, train["f64"]["loss"][at].get<double>(), 1e-9) << step;
    ASSERT_NEAR(norm, train["f64"]["grad_norm"][at].get<double>(), 1e-8) << step;
    optimizer->step();
    optimizer->zero_grad();
    for (const fsdp::NamedShard& shard : shards) set_grad(shard.param->sharded, {});
  }
}

TEST(RecordedCurves, OfLlamaAndQwenAreFollowedOnEveryMesh) {
  for (const Recorded& recorded : recorded_models()) {
    for (const Layout& layout :
         {Layout{2, 1, false}, Layout{1, 2, false}, Layout{2, 2, false}, Layout{2, 2, true},
          Layout{2, 1, false, 2}, Layout{1, 2, true, 2}}) {
      SCOPED_TRACE(fmt::format("{} replicas {} fsdp {} tp {} {}", recorded.name, layout.replicas,
                               layout.fsdp, layout.tp, layout.sequence ? "sequence" : ""));
      run_ranks(layout.replicas * layout.fsdp * layout.tp,
                [&](RankContext& ctx) { follow(ctx, recorded, layout); });
    }
  }
}
}  // namespace
}  // namespace muster
