// Faults of tensor parallel models that users of other systems reported, each as a small case.
#include "core/autograd/autograd.h"
#include "core/nn/layers.h"
#include "core/nn/optim/optimizer.h"
#include "core/ops/ops.h"
#include "dist/parallel/models.h"
#include "fsdp/fully_shard.h"
#include "fsdp/replicas.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using testing::RankContext;
using testing::run_ranks;

std::unique_ptr<Llama> llama_of(const LlamaConfig& config) {
  auto model = std::make_unique<Llama>(config);
  model->to(DType::kF64);
  model->reset_parameters(1);
  return model;
}

// Reported as DeepSpeed#8316: heads were split as those of the model that was loaded before.
TEST(TensorParallelModels, HeadsOfOneSayNothingAboutAnother) {
  const LlamaConfig few = {
      .vocab_size = 11, .dim = 16, .mlp_dim = 8, .layers = 1, .heads = 4, .kv_heads = 4};
  const LlamaConfig many = {
      .vocab_size = 13, .dim = 24, .mlp_dim = 8, .layers = 1, .heads = 12, .kv_heads = 12};
  const LlamaConfig shared = {
      .vocab_size = 13, .dim = 24, .mlp_dim = 8, .layers = 1, .heads = 12, .kv_heads = 4};
  const Tensor tokens = remainder(view(arange(10), {2, 5}), 11);
  std::vector<double> expected;
  for (const LlamaConfig& config : {few, many, shared}) {
    expected.push_back(llama_of(config)->loss(tokens, tokens).sum.item());
  }
  run_ranks(4, [&](RankContext& ctx) {
    const MeshRef axis = mesh_of(ctx, {{"tp", 4}});
    std::vector<std::unique_ptr<Llama>> models;
    for (const LlamaConfig& config : {few, many, shared}) {
      models.push_back(llama_of(config));
      parallel::parallelize(*models.back(), axis);
    }
    EXPECT_EQ(models[1]->module_at("model.layers.0.self_attn.q_proj").parameters()[0].size(0), 6);
    for (const size_t i : {0, 1, 2, 1, 0}) {
      EXPECT_NEAR(models[i]->loss(tokens, tokens).sum.item(), expected[i], 1e-10);
    }
  });
}

class TwoTables final : public Module {
 public:
  TwoTables()
      : Module("TwoTables"),
        first_(add_module<Embedding>("first", 100, 23)),
        second_(add_module<Embedding>("second", 101, 29)) {}

 protected:
  Tensor compute(const Tensor& ids) override { return cat({first_(ids), second_(ids)}, -1); }

 private:
  Embedding& first_;
  Embedding& second_;
};

// Reported as pytorch#130725, #131264, #160697: tables cut by rows share what one of them saved.
// Rows are looked up twice before either gradient comes.
TEST(TensorParallelModels, TwoTablesByRowsInOnePassAreTwoTables) {
  const auto build = [] {
    auto tables = std::make_unique<TwoTables>();
    tables->to(DType::kF64);
    tables->reset_parameters(3);
    return tables;
  };
  const Tensor ids = remainder(view(arange(40) * 7, {4, 10}), 100);
  const auto loss_of = [&](Module& tables) {
    const Tensor early = tables(ids), late = tables(sub(99, ids));
    return add(sum(square(early)), sum(mul(late, early)));
  };
  const auto whole = build();
  const Tensor expected = loss_of(*whole);
  backward(expected);
  for (const int world : {2, 3}) {
    run_ranks(world, [&](RankContext& ctx) {
      const auto cut = build();
      parallel::parallelize_module(
          *cut, mesh_of(ctx, {{"tp", world}}),
          {{"first", parallel::rowwise_embedding()}, {"second", parallel::rowwise_embedding()}});
      const Tensor loss = loss_of(*cut);
      EXPECT_NEAR(loss.item(), expected.item(), 1e-12 * std::abs(expected.item()));
      backward(loss);
      for (size_t i = 0; i < 2; ++i) {
        const Tensor piece = cut->parameters()[i];
        const ShardBox box = local_shard_of(piece)->whole.local_box();
        const Tensor dense =
            narrow(grad_of(whole->parameters()[i]), 0, box.offsets[0], box.sizes[0]);
        EXPECT_LT(amax(abs(sub(grad_of(piece), dense))).item(), 1e-13) << i;
      }
    });
  }
}

// Reported as pytorch#168058 and others: masks that follow the layout. Here they are those of one
// process, so that neither heads nor pieces of the sequence repeat each other's.
TEST(TensorParallelModels, DropoutDrawsTheMasksOfOneProcess) {
  const Tensor tokens = remainder(view(arange(10) * 3, {2, 5}), 11);
  const auto gpt = [] {
    return std::unique_ptr<CausalLm>(new Gpt(
        {.vocab_size = 11, .max_positions = 5, .dim = 8, .layers = 2, .heads = 4, .dropout = 0.4}));
  };
  const auto llama = [] {
    return std::unique_ptr<CausalLm>(new Llama({.vocab_size = 11,
                                                .dim = 16,
                                                .mlp_dim = 8,
                                                .layers = 2,
                                                .heads = 8,
                                                .kv_heads = 4,
                                                .attention_dropout = 0.4}));
  };
  for (const std::function<std::unique_ptr<CausalLm>()>& make :
       {std::function<std::unique_ptr<CausalLm>()>(gpt), {llama}}) {
    const auto build = [&] {
      auto model = make();
      model->to(DType::kF64);
      model->reset_parameters(1);
      return model;
    };
    const auto loss_of = [&](CausalLm& model) {
      manual_seed(5);
      const Tensor loss = model.loss(tokens, tokens).sum;
      backward(loss);
      return loss.item();
    };
    const auto whole = build();
    const double expected = loss_of(*whole);
    const std::string norm =
        whole->block_names()[0] + (whole->kind() == "Gpt" ? ".ln_1" : ".input_layernorm");
    const auto slope_of = [&](CausalLm& model) {
      return grad_of(model.module_at(norm).parameters()[0]);
    };
    const Tensor slope = slope_of(*whole);
    whole->eval();
    EXPECT_GT(std::abs(expected - whole->loss(tokens, tokens).sum.item()), 1e-3);
    for (const int world : {2, 4}) {
      for (const bool sequence : {false, true}) {
        run_ranks(world, [&](RankContext& ctx) {
          const auto model = build();
          parallel::parallelize(*model, mesh_of(ctx, {{"tp", world}}),
                                {.sequence_parallel = sequence});
          EXPECT_NEAR(loss_of(*model), expected, 1e-10) << model->kind() << world << sequence;
          EXPECT_LT(amax(abs(sub(slope_of(*model), slope))).item(), 1e-10);
        });
      }
    }
  }
}

// Reported as torchtitan#1805, Megatron-LM#1446 and others: weights that all ranks hold, norms per
// head among them, drift apart when their gradients are not summed. Bit for bit here.
TEST(TensorParallelModels, ReplicasAreEqualAfterTwentySteps) {
  for (const bool sequence : {false, true}) {
    run_ranks(2, [sequence](RankContext& ctx) {
      const MeshRef mesh = mesh_of(ctx, {{"fsdp", 1}, {"tp", 2}});
      Llama model({.vocab_size = 11,
                   .dim = 8,
                   .mlp_dim = 8,
                   .layers = 2,
                   .heads = 4,
                   .kv_heads = 2,
                   .qk_norm = true});
      model.reset_parameters(1);
      parallel::parallelize(model, mesh->slice({"tp"}), {.sequence_parallel = sequence});
      fsdp::fully_shard(model, {.mesh = mesh->slice({"fsdp"})});
      const auto shards = fsdp::sharded_parameters(model);
      std::vector<NamedTensor> locals;
      for (const auto& shard : shards) locals.push_back({shard.name, shard.param->local});
      AdamW optimizer(locals, {.lr = 1e-2});
      const Tensor before = clone(shards.back().param->local);
      for (int step = 0; step < 20; ++step) {
        const Tensor tokens = remainder(add(view(arange(10), {2, 5}), step), 11);
        backward(model.loss(tokens, tokens).sum);
        optimizer.step();
        optimizer.zero_grad();
        for (const auto& shard : shards) set_grad(shard.param->sharded, {});
      }
      EXPECT_GT(amax(abs(sub(shards.back().param->local, before))).item(), 1e-3);
      for (const auto& fault : fsdp::find_replica_faults(shards)) ADD_FAILURE() << fault.describe();
    });
  }
}
}  // namespace
}  // namespace muster
