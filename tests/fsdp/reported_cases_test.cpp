// Faults that users of other systems reported, each as a small case.
#include <cmath>
#include <limits>

#include "core/autograd/autograd.h"
#include "core/nn/gpt.h"
#include "core/nn/optim/optimizer.h"
#include "core/ops/ops.h"
#include "fsdp/fully_shard.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using testing::RankContext;
using testing::run_ranks;

fsdp::Options options_of(RankContext& ctx) {
  const auto world = testing::world_of(ctx);
  fsdp::Options options;
  options.mesh = DeviceMesh::open(world, {{"fsdp", ctx.world_size()}}, ctx.deadline()).value();
  options.reduce_op = ReduceOp::kSum;
  return options;
}

// An embedding whose table is the head's weight, in two slots.
class Tied final : public Module {
 public:
  Tied(int64_t vocab, int64_t dim)
      : Module("Tied"),
        embed_(add_module<Embedding>("embed", vocab, dim)),
        head_(add_module<Linear>(
            "head",
            LinearOptions{
                .in_features = dim, .out_features = vocab, .bias = false, .weight_init = {}})) {
    *head_.parameter_slots()[0].tensor = embed_.weight();
  }
  Embedding& embed() { return embed_; }
  Linear& head() { return head_; }

 protected:
  Tensor compute(const Tensor& tokens) override { return head_(embed_(tokens)); }

 private:
  Embedding& embed_;
  Linear& head_;
};

Tensor loss_of(Module& model, const Tensor& tokens) {
  return cross_entropy(model(tokens), tokens, {}, Reduction::kSum);
}

// F1: every row of an uneven tied table trains. The last rank's rows did not.
TEST(ReportedCases, AnUnevenTiedTableTrainsAllItsRows) {
  const Tensor tokens = arange(5);
  Tied whole(5, 2);
  whole.reset_parameters(4);
  const std::vector<double> before =
      to_vector<double>(to(detach(whole.embed().weight()), DType::kF64));
  Sgd optimizer(whole.named_parameters(), {.lr = 0.5});
  backward(loss_of(whole, tokens));
  optimizer.step();
  const std::vector<double> after =
      to_vector<double>(to(detach(whole.embed().weight()), DType::kF64));
  for (size_t row = 0; row < 5; ++row) ASSERT_NE(after[2 * row], before[2 * row]);
  run_ranks(2, [&](RankContext& ctx) {
    Tied model(5, 2);
    model.reset_parameters(4);
    fsdp::fully_shard(model, options_of(ctx));
    const auto shards = fsdp::sharded_parameters(model);
    Sgd sharded({{shards[0].name, shards[0].param->local}}, {.lr = 0.5});
    // Each rank has half of the loss.
    backward(div(loss_of(model, tokens), 2));
    sharded.step();
    const std::vector<double> mine =
        to_vector<double>(to(detach(shards[0].param->local), DType::kF64));
    ASSERT_EQ(mine.size(), ctx.group_rank() == 0 ? 6u : 4u);
    for (size_t i = 0; i < mine.size(); ++i) {
      EXPECT_NEAR(mine[i], after[i + (ctx.group_rank() == 0 ? 0 : 6)], 1e-5);
    }
  });
}

// F2, F16: two groups over one table would drift apart.
TEST(ReportedCases, TiedParametersInTwoGroupsAreRefusedWithWhatToWrite) {
  run_ranks(2, [](RankContext& ctx) {
    Tied model(5, 2);
    const fsdp::Options options = options_of(ctx);
    fsdp::fully_shard(model.embed(), options);
    EXPECT_ERROR(fsdp::fully_shard(model.head(), options), ErrorCode::kInvalidArgument,
                 ::testing::AllOf(::testing::HasSubstr("weight of Linear is tied to weight of "
                                                       "Embedding"),
                                  ::testing::HasSubstr("fully_shard({&Embedding, &Linear}, "
                                                       "options)")));
    EXPECT_ERROR(fsdp::fully_shard(model, options), ErrorCode::kInvalidArgument,
                 ::testing::HasSubstr("head.weight of Tied is tied to weight of Embedding"));
  });
}

// F3: a module that runs twice before one backward.
TEST(ReportedCases, AModuleMayRunTwiceBeforeOneBackward) {
  const Tensor x = view(arange(6, DType::kF32), {2, 3});
  const auto product = [&](Module& m) { return sum(mul(m(x), m(x))); };
  Linear whole({.in_features = 3, .out_features = 5});
  whole.reset_parameters(2);
  backward(product(whole));
  run_ranks(2, [&](RankContext& ctx) {
    Linear model({.in_features = 3, .out_features = 5});
    model.reset_parameters(2);
    fsdp::Options options = options_of(ctx);
    options.reduce_op = ReduceOp::kAvg;
    options.reshard_after_forward = true;
    fsdp::fully_shard(model, options);
    backward(product(model));
    const std::vector<Tensor> expected = {grad_of(whole.weight()), grad_of(whole.bias())};
    const auto shards = fsdp::sharded_parameters(model);
    for (size_t i = 0; i < shards.size(); ++i) {
      const ShardBox& box = shards[i].param->boxes[0].box;
      const Tensor rows = narrow(expected[i], 0, box.offsets[0], box.sizes[0]);
      EXPECT_LT(amax(abs(sub(rows, grad_of(shards[i].param->local)))).item(), 1e-3)
          << shards[i].name;
    }
  });
}

// Holds a sharded layer, with a weight before it or on both sides of it.
class Around final : public Module {
 public:
  explicit Around(bool ends_inside)
      : Module("Around"),
        ends_inside_(ends_inside),
        inner_(add_module<Linear>("inner", LinearOptions{.in_features = 3, .out_features = 3})) {
    register_parameter("scale", scale_, empty({3}), InitSpec::normal(1.0));
  }
  Linear& inner() { return inner_; }

 protected:
  Tensor compute(const Tensor& input) override {
    const Tensor x = inner_(mul(input, scale_));
    return ends_inside_ ? x : mul(x, scale_);
  }

 private:
  bool ends_inside_;
  Linear& inner_;
  Tensor scale_;
};

// F3: a recomputed parent runs the hooks of a sharded child in the middle of backward. Reported as
// pytorch#187437.
TEST(ReportedCases, ACheckpointedParentOfAShardedModuleMayRunTwiceBeforeOneBackward) {
  const Tensor x = view(arange(6, DType::kF32), {2, 3});
  const auto product = [&](Module& m) { return sum(mul(m(x), m(x))); };
  for (const bool ends_inside : {true, false}) {
    Around whole(ends_inside);
    whole.reset_parameters(2);
    backward(product(whole));
    std::map<std::string, Tensor> expected;
    for (const NamedTensor& named : whole.named_parameters())
      expected[named.name] = grad_of(named.tensor);
    for (const bool early_stop : {true, false}) {
      for (const bool shards_parent : {true, false}) {
        SCOPED_TRACE(fmt::format("ends inside {}, early stop {}, parent {}", ends_inside,
                                 early_stop, shards_parent));
        run_ranks(2, [&](RankContext& ctx) {
          Around model(ends_inside);
          model.reset_parameters(2);
          model.set_checkpoint(CheckpointOptions{.early_stop = early_stop});
          fsdp::Options options = options_of(ctx);
          options.reduce_op = ReduceOp::kAvg;
          options.reshard_after_forward = true;
          fsdp::fully_shard(model.inner(), options);
          if (shards_parent) fsdp::fully_shard(model, options);
          backward(product(model));
          for (const fsdp::NamedShard& shard : fsdp::sharded_parameters(model)) {
            const ShardBox& box = shard.param->boxes[0].box;
            const Tensor rows = narrow(expected.at(shard.name), 0, box.offsets[0], box.sizes[0]);
            const Tensor grad = grad_of(shard.param->local);
            ASSERT_TRUE(grad.defined()) << shard.name;
            EXPECT_EQ(shard.param->unsharded.storage()->data(), nullptr) << shard.name;
            if (rows.numel() == 0) continue;
            EXPECT_LT(amax(abs(sub(rows, grad))).item(), 1e-4 * amax(abs(rows)).item())
                << shard.name;
          }
        });
      }
    }
  }
}

// F5: what is read before the first step must be what later steps write.
TEST(ReportedCases, ShardsReadBeforeTheFirstStepFollowTheTraining) {
  run_ranks(2, [](RankContext& ctx) {
    Tied model(5, 2);
    model.reset_parameters(4);
    fsdp::fully_shard(model, options_of(ctx));
    const auto shards = fsdp::sharded_parameters(model);
    const Tensor read = detach(shards[0].param->local);
    const Tensor initial = clone(read);
    Sgd optimizer({{shards[0].name, shards[0].param->local}}, {.lr = 0.5});
    for (int step = 0; step < 3; ++step) {
      backward(loss_of(model, arange(5)));
      optimizer.step();
      optimizer.zero_grad();
      set_grad(shards[0].param->sharded, {});
    }
    EXPECT_FALSE(equal(read, initial));
    EXPECT_TRUE(equal(read, detach(shards[0].param->local)));
    EXPECT_TRUE(equal(read, local_tensor(shards[0].param->sharded)));
  });
}

// F10: accumulation must save traffic.
TEST(ReportedCases, MicrobatchesWithoutSyncReduceNothing) {
  run_ranks(2, [](RankContext& ctx) {
    Tied model(5, 2);
    model.reset_parameters(4);
    fsdp::Handle handle = fsdp::fully_shard(model, options_of(ctx));
    for (int micro = 0; micro < 4; ++micro) {
      handle.set_requires_gradient_sync(micro == 3);
      backward(loss_of(model, arange(5)));
      EXPECT_EQ(ctx.group().num_launched(CollectiveKind::kReduceScatter), micro == 3 ? 1u : 0u);
    }
  });
}

// F15: gradients must not begin on what the memory held.
TEST(ReportedCases, LeftoversInBuffersDoNotReachGradients) {
  run_ranks(2, [](RankContext& ctx) {
    Tied model(5, 2);
    model.reset_parameters(4);
    fsdp::Options options = options_of(ctx);
    fsdp::fully_shard(model, options);
    const auto shards = fsdp::sharded_parameters(model);
    std::vector<double> first;
    for (int round = 0; round < 3; ++round) {
      {
        // Poisons what the next buffers of the arena and of the heap are made of.
        std::vector<Tensor> poison;
        for (int i = 0; i < 4; ++i) {
          poison.push_back(empty_from_spec(TensorSpec::contiguous({64}, DType::kF32),
                                           &ctx.group().communication_allocator()));
          poison.push_back(empty({64}));
        }
        for (const Tensor& p : poison) fill_(p, std::numeric_limits<double>::quiet_NaN());
      }
      backward(loss_of(model, arange(5)));
      const std::vector<double> values =
          to_vector<double>(to(grad_of(shards[0].param->local), DType::kF64));
      if (round == 0) first = values;
      EXPECT_EQ(values, first);
      set_grad(shards[0].param->local, {});
      set_grad(shards[0].param->sharded, {});
    }
    for (const double value : first) EXPECT_TRUE(std::isfinite(value));
  });
}
}  // namespace
}  // namespace muster
