// What users of other systems reported of when groups communicate: switches without effect, ranks
// that call modules differently often, buffers that were used again too early.
#include <fmt/format.h>

#include <cstring>
#include <map>
#include <random>

#include "core/autograd/autograd.h"
#include "core/nn/layers.h"
#include "core/nn/optim/optimizer.h"
#include "core/ops/ops.h"
#include "fsdp/fully_shard.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using ::testing::AllOf;
using testing::FailsWith;
using ::testing::HasSubstr;
using testing::RankContext;
using testing::run_ranks;
using testing::thrown_by;

LinearOptions square(int64_t n) { return {.in_features = n, .out_features = n, .weight_init = {}}; }

// Layers of one shape, each a group; how often each rank calls the first is its own affair.
class Chain final : public Module {
 public:
  explicit Chain(int layers) : Module("Chain") {
    for (int i = 0; i < layers; ++i)
      layers_.push_back(&add_module<Linear>(std::to_string(i), square(5)));
  }
  int calls_of_first = 1;
  [[nodiscard]] const std::vector<Module*>& layers() const { return layers_; }

 protected:
  Tensor compute(const Tensor& input) override {
    Tensor x = input;
    for (int i = 0; i < calls_of_first; ++i) x = tanh((*layers_[0])(x));
    for (size_t i = 1; i < layers_.size(); ++i) x = tanh((*layers_[i])(x));
    return x;
  }

 private:
  std::vector<Module*> layers_;
};

std::vector<fsdp::Handle> shard(Chain& model, const fsdp::Options& options) {
  model.reset_parameters(3);
  std::vector<fsdp::Handle> handles;
  for (Module* layer : model.layers()) handles.push_back(fsdp::fully_shard(*layer, options));
  handles.push_back(fsdp::fully_shard(model, options));
  return handles;
}

// cosmos#161, torchtitan#1929: a switch that did nothing for a wrapper. Any handle of the tree
// switches all of it.
TEST(ReportedOrder, FourMicrobatchesOverReplicasCostWhatOneCosts) {
  constexpr int kMicrobatches = 4;
  for (const size_t handle : {size_t{0}, size_t{2}, size_t{3}}) {
    for (const bool reduces_shards : {false, true}) {
      SCOPED_TRACE(fmt::format("handle {}, shards each time {}", handle, reduces_shards));
      run_ranks(4, [&](RankContext& ctx) {
        const MeshRef mesh = mesh_of(ctx, {{"replicate", 2}, {"fsdp", 2}});
        Chain model(3);
        auto handles = shard(model, {.mesh = mesh, .reduce_op = ReduceOp::kSum});
        for (uint64_t step = 1; step <= 2; ++step) {
          for (int micro = 0; micro < kMicrobatches; ++micro) {
            const bool is_last = micro + 1 == kMicrobatches;
            handles[handle].set_requires_gradient_sync(reduces_shards || is_last);
            handles[handle].set_requires_all_reduce(is_last);
            backward(sum(model(ones({2, 5}))));
          }
          EXPECT_EQ(mesh->group("replicate")->num_launched(CollectiveKind::kAllReduce), 3 * step);
          EXPECT_EQ(mesh->group("fsdp")->num_launched(CollectiveKind::kReduceScatter),
                    (reduces_shards ? 3 * kMicrobatches : 3) * step);
        }
      });
    }
  }
}

// DeepSpeed#7998, transformers#30277: an expert that gets no tokens on one rank.
TEST(ReportedOrder, AModuleThatARankNeverCallsIsNamedBeforeTheDeadline) {
  for (const int prefetch : {0, 1}) {
    for (const int calls : {0, 3}) {
      SCOPED_TRACE(fmt::format("prefetch {}, calls {}", prefetch, calls));
      run_ranks(3, [&](RankContext& ctx) {
        Chain model(3);
        const MeshRef mesh = mesh_of(ctx, {{"fsdp", 3}});
        shard(model, {.mesh = mesh, .reshard_after_forward = true, .prefetch = prefetch});
        backward(sum(model(ones({2, 5}))));
        ctx.group().run(ctx.group().barrier());
        if (ctx.group_rank() == 1) model.calls_of_first = calls;
        const TimePoint start = real_clock().now();
        const Result<void> outcome = thrown_by([&] { backward(sum(model(ones({2, 5})))); });
        EXPECT_LT(real_clock().now() - start, 5s) << "of 30 s";
        // What one rank does with module 0, the others do with module 1, or the other way round.
        EXPECT_THAT(outcome,
                    FailsWith(ErrorCode::kMismatch,
                              AllOf(HasSubstr("for 0, gather"), HasSubstr("for 1, gather 1"),
                                    HasSubstr("group rank 1 (global 1)"))));
      });
    }
  }
}

// Kept gathered, forward passes, and the gradients that one rank has and another lacks are named.
TEST(ReportedOrder, AGradientThatARankLacksIsNamedWithItsGroup) {
  run_ranks(2, [](RankContext& ctx) {
    Chain model(2);
    const MeshRef mesh = mesh_of(ctx, {{"fsdp", 2}});
    auto handles = shard(model, {.mesh = mesh, .reshard_after_forward = false});
    handles[0].unshard();
    model.calls_of_first = ctx.group_rank() == 0 ? 0 : 2;
    const Result<void> outcome = thrown_by([&] { backward(sum(model(ones({2, 5})))); });
    EXPECT_THAT(outcome, FailsWith(ErrorCode::kMismatch,
                                   AllOf(HasSubstr("for gradients of 0"), HasSubstr("release 1"))));
  });
}

// pytorch#187437 and #153354 with what else may be going on: gathers ahead, microbatches that are
// not reduced.
TEST(ReportedOrder, ACheckpointedModuleRunsTwiceAmidPrefetchAndAccumulation) {
  const Tensor x = view(arange(10, DType::kF32), {2, 5});
  const auto product = [&](Module& m) {
    m.set_checkpoint(CheckpointOptions{});
    return sum(mul(m(x), m(x)));
  };
  Chain whole(3);
  whole.reset_parameters(3);
  backward(product(whole));
  std::map<std::string, Tensor> expected;
  for (const NamedTensor& named : whole.named_parameters())
    expected[named.name] = grad_of(named.tensor);
  for (const int prefetch : {0, 1}) {
    for (const bool copies : {false, true}) {
      SCOPED_TRACE(fmt::format("prefetch {}, copies {}", prefetch, copies));
      run_ranks(4, [&](RankContext& ctx) {
        const MeshRef mesh = mesh_of(ctx, {{"replicate", 2}, {"fsdp", 2}});
        fsdp::Options options{.mesh = mesh, .reshard_after_forward = true, .prefetch = prefetch};
        Chain model(3);
        if (copies)
          options.mixed_precision = {.param_dtype = DType::kBF16, .reduce_dtype = DType::kF32};
        auto handles = shard(model, options);
        for (const bool is_last : {false, false, true}) {
          handles.back().set_requires_gradient_sync(is_last);
          backward(product(model));
        }
        for (const fsdp::NamedShard& one : fsdp::sharded_parameters(model)) {
          const ShardBox& box = one.param->boxes[0].box;
          const Tensor want = expected.at(one.name);
          const Tensor rows = mul(narrow(want, 0, box.offsets[0], box.sizes[0]), 3);
          EXPECT_LT(amax(abs(sub(rows, grad_of(one.param->local)))).item(),
                    (copies ? 5e-2 : 1e-5) * 3 * amax(abs(want)).item())
              << one.name;
        }
      });
    }
  }
}

// Nothing, or up to some hundred microseconds of work.
void dawdle(std::mt19937& random) {
  const bool at_all = random() % 2 == 0;
  random.discard(at_all ? random() % 100000 : 0);
}

// Six steps; `seed` of nothing: no delays.
std::map<std::string, std::vector<float>> train(RankContext& ctx, fsdp::Options options,
                                                std::optional<uint32_t> seed) {
  std::mt19937 random(seed.value_or(0) + static_cast<uint32_t>(ctx.group_rank()));
  Chain model(5);
  auto handles = shard(model, options);
  if (seed) {
    for (Module* layer : model.layers()) {
      layer->register_forward_hook([&](Module&, const Tensor&, const Tensor& output) {
        dawdle(random);
        if (output.requires_grad()) {
          register_hook(output, [&](const Tensor&) {
            dawdle(random);
            return Tensor();
          });
        }
        return Tensor();
      });
    }
  }
  std::vector<NamedTensor> locals;
  const auto shards = fsdp::sharded_parameters(model);
  for (const fsdp::NamedShard& one : shards) locals.push_back({one.name, one.param->local});
  AdamW optimizer(locals, {.lr = 1e-2});
  for (int step = 0; step < 6; ++step) {
    for (const bool is_last : {false, true}) {
      handles.back().set_requires_gradient_sync(is_last);
      const double scale = 0.1 * (step + 1) + ctx.group_rank();
      backward(sum(to(model(mul(ones({2, 5}), scale)), DType::kF32)));
    }
    optimizer.step();
    optimizer.zero_grad();
    for (const fsdp::NamedShard& one : shards) set_grad(one.param->sharded, {});
  }
  std::map<std::string, std::vector<float>> out;
  for (const NamedTensor& local : locals) out[local.name] = to_vector<float>(detach(local.tensor));
  return out;
}

// DeepSpeed#8061, #7188: buffers of gathers and reductions were used again while they were in use.
// Cast parameters are copied, so there are such buffers.
TEST(ReportedOrder, RandomDelaysAndGathersAheadChangeNoBit) {
  const uint32_t seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  SCOPED_TRACE(seed);
  for (const bool has_replicas : {false, true}) {
    run_ranks(has_replicas ? 4 : 3, [&](RankContext& ctx) {
      fsdp::Options options{.mesh = has_replicas ? mesh_of(ctx, {{"replicate", 2}, {"fsdp", 2}})
                                                 : mesh_of(ctx, {{"fsdp", 3}})};
      options.mixed_precision = {.param_dtype = DType::kBF16, .reduce_dtype = DType::kF32};
      const auto expected = train(ctx, options, {});
      for (const int prefetch : {0, 1, 3}) {
        options.prefetch = prefetch;
        for (uint32_t round = 0; round < 3; ++round)
          EXPECT_EQ(train(ctx, options, seed + 100 * round), expected) << "prefetch " << prefetch;
      }
    });
  }
}
}  // namespace
}  // namespace muster
