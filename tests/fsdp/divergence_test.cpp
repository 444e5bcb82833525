// Ranks whose models go different ways are told which modules, instead of waiting for each other
// or taking each other's parameters.
#include "core/autograd/autograd.h"
#include "core/nn/layers.h"
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

// Two experts of one shape; how often each rank calls the first depends on its data.
class Experts final : public Module {
 public:
  Experts()
      : Module("Experts"),
        first_(add_module<Linear>("first", LinearOptions{.in_features = 4, .out_features = 4})),
        second_(add_module<Linear>("second", LinearOptions{.in_features = 4, .out_features = 4})) {}
  int calls_of_first = 1;
  Linear& first() { return first_; }
  Linear& second() { return second_; }

 protected:
  Tensor compute(const Tensor& input) override {
    Tensor x = input;
    for (int i = 0; i < calls_of_first; ++i) x = tanh(first_(x));
    return second_(x);
  }

 private:
  Linear& first_;
  Linear& second_;
};

void shard(Experts& model, RankContext& ctx, std::optional<bool> reshard) {
  const auto world = testing::world_of(ctx);
  fsdp::Options options;
  options.mesh = DeviceMesh::open(world, {{"fsdp", ctx.world_size()}}, ctx.deadline()).value();
  options.reshard_after_forward = reshard;
  model.reset_parameters(3);
  fsdp::fully_shard(model.first(), options);
  fsdp::fully_shard(model.second(), options);
  fsdp::fully_shard(model, options);
}

// Equal shapes: without the groups' names a rank would take the other's parameters for its own.
TEST(Divergence, AModuleCalledMoreOftenOnOneRankIsNamedWithItsGathers) {
  run_ranks(2, [](RankContext& ctx) {
    Experts model;
    shard(model, ctx, true);
    model.calls_of_first = ctx.group_rank() == 0 ? 1 : 3;
    EXPECT_THAT(thrown_by([&] {
                  model(ones({2, 4}));
                }),
                FailsWith(ErrorCode::kMismatch,
                          AllOf(HasSubstr("for first, gather 2"), HasSubstr("for second, gather 1"),
                                HasSubstr("group rank 0"), HasSubstr("group rank 1"))));
  });
}

// The same with nothing else to gather: the other rank is at its gradients already.
TEST(Divergence, CallsThatMeetTheReductionAreNamedToo) {
  run_ranks(2, [](RankContext& ctx) {
    Experts model;
    shard(model, ctx, true);
    const int calls = ctx.group_rank() == 0 ? 1 : 3;
    EXPECT_THAT(thrown_by([&] {
                  Tensor x = ones({2, 4});
                  for (int i = 0; i < calls; ++i) x = model.first()(x);
                  backward(sum(x));
                }),
                FailsWith(ErrorCode::kMismatch, AllOf(HasSubstr("for first, release 2"),
                                                      HasSubstr("for gradients of first"))));
  });
}

// Kept gathered, the module is called as often as each rank likes.
TEST(Divergence, ModulesThatStayGatheredMayBeCalledAnyNumberOfTimes) {
  run_ranks(2, [](RankContext& ctx) {
    Experts model;
    shard(model, ctx, false);
    for (int step = 0; step < 2; ++step) {
      model.calls_of_first = ctx.group_rank() == 0 ? 1 : 3;
      backward(sum(model(ones({2, 4}))));
    }
    for (const fsdp::NamedShard& shard : fsdp::sharded_parameters(model)) {
      EXPECT_TRUE(grad_of(shard.param->local).defined()) << shard.name;
    }
  });
}

TEST(Divergence, NamesAreThoseFromTheOutermostModule) {
  run_ranks(1, [](RankContext& ctx) {
    Sequential model;
    Experts& inner = model.append<Experts>();
    shard(inner, ctx, {});
    const auto world = testing::world_of(ctx);
    fsdp::Options options;
    options.mesh = DeviceMesh::open(world, {{"fsdp", 1}}, ctx.deadline()).value();
    const fsdp::Handle root = fsdp::fully_shard(model, options);
    std::vector<std::string> names;
    for (fsdp::ParamGroup* group : root.groups()) {
      names.push_back(group->name());
      for (const fsdp::ShardedParam& param : group->params()) names.push_back(param.name);
    }
    EXPECT_EQ(names,
              (std::vector<std::string>{"0.first", "0.first.weight", "0.first.bias", "0.second",
                                        "0.second.weight", "0.second.bias", "0", "Sequential"}));
  });
}
}  // namespace
}  // namespace muster
