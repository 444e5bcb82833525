// Where ranks share memory a gather moves nothing: the whole is there, and readers are waited for.
#include "core/autograd/autograd.h"
#include "core/nn/layers.h"
#include "core/ops/ops.h"
#include "fsdp/fully_shard.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using testing::RankContext;
using testing::run_ranks;

// 3 rows on 2 ranks: two and one.
class OneLayer {
 public:
  explicit OneLayer(RankContext& ctx, const fsdp::MixedPrecision& precision = {})
      : layer_({.in_features = 4, .out_features = 3, .bias = false, .weight_init = {}}) {
    layer_.reset_parameters(1);
    const auto world = testing::world_of(ctx);
    fsdp::Options options;
    options.mesh = DeviceMesh::open(world, {{"fsdp", ctx.world_size()}}, ctx.deadline()).value();
    options.reshard_after_forward = true;
    options.mixed_precision = precision;
    handle_.emplace(fsdp::fully_shard(layer_, options));
  }
  Linear& layer() { return layer_; }
  fsdp::Handle& handle() { return *handle_; }
  fsdp::ParamGroup& group() { return handle_->group(); }
  fsdp::ShardedParam& weight() { return group().params()[0]; }
  void fill_rows(double value) {
    const NoGradGuard no_grad;
    fill_(weight().local, value);
  }

 private:
  Linear layer_;
  std::optional<fsdp::Handle> handle_;
};

double element(const Tensor& tensor, int64_t row) {
  return static_cast<double>(tensor.data<float>()[row * tensor.size(1)]);
}

TEST(GatherInPlace, TheWholeIsWhatAllRanksWrote) {
  run_ranks(2, [](RankContext& ctx) {
    OneLayer model(ctx);
    ASSERT_TRUE(model.group().gathers_in_place());
    for (int round = 0; round < 3; ++round) {
      model.fill_rows(10 * round + ctx.group_rank());
      model.handle().unshard();
      const Tensor whole = model.weight().unsharded;
      EXPECT_EQ(element(whole, 0), 10 * round);
      EXPECT_EQ(element(whole, 1), 10 * round);
      EXPECT_EQ(element(whole, 2), 10 * round + 1);
      const auto* own = static_cast<const float*>(model.weight().local.data_ptr());
      EXPECT_EQ(own, whole.data<float>() + (ctx.group_rank() == 0 ? 0 : 2 * 4)) << "a copy";
      model.handle().reshard();
      EXPECT_FALSE(whole.storage()->has_data());
    }
  });
}

// Else a fast rank's next step would change what a slow one computes with.
TEST(GatherInPlace, RowsAreWrittenWhenNobodyReadsThem) {
  run_ranks(2, [](RankContext& ctx) {
    OneLayer model(ctx);
    model.fill_rows(1);
    model.handle().unshard();
    if (ctx.group_rank() == 0) {
      model.handle().reshard();
      ASSERT_OK(ctx.store().set("rank 0 may write", ""));
      model.fill_rows(2);
    } else {
      EXPECT_THAT(ctx.store().get("rank 0 may write", Deadline::after(100ms)),
                  testing::FailsWith(ErrorCode::kTimeout, ::testing::_));
      EXPECT_EQ(element(model.weight().unsharded, 0), 1);
      model.handle().reshard();
      ASSERT_OK(ctx.store().get("rank 0 may write", ctx.deadline()));
    }
    model.handle().unshard();
    EXPECT_EQ(element(model.weight().unsharded, 0), 2);
    model.handle().reshard();
  });
}

TEST(GatherInPlace, OneWaitForReadersAPassAndNoneWhereGradientsTell) {
  run_ranks(2, [](RankContext& ctx) {
    OneLayer model(ctx);
    const auto waits = [&] { return ctx.group().num_launched(CollectiveKind::kBarrier); };
    uint64_t before = waits();
    const Tensor loss = sum(model.layer()(ones({2, 4})));
    EXPECT_EQ(waits() - before, 1u);
    before = waits();
    backward(loss);
    EXPECT_EQ(waits() - before, 0u) << "whose gradients are reduced has read";
    // A microbatch that keeps its gradients tells nobody.
    model.handle().set_requires_gradient_sync(false);
    const Tensor kept = sum(model.layer()(ones({2, 4})));
    before = waits();
    backward(kept);
    EXPECT_EQ(waits() - before, 1u);
  });
}

TEST(GatherInPlace, AnotherDtypeIsCastAndCopied) {
  run_ranks(2, [](RankContext& ctx) {
    OneLayer model(ctx, {.param_dtype = DType::kBF16});
    EXPECT_FALSE(model.group().gathers_in_place());
    model.fill_rows(ctx.group_rank());
    model.handle().unshard();
    EXPECT_EQ(static_cast<float>(model.weight().unsharded.data<BFloat16>()[2 * 4]), 1);
    model.handle().reshard();
  });
}

// The memory is the last holder's: a model may go while its tensors are held.
TEST(GatherInPlace, RowsOutliveTheModel) {
  run_ranks(2, [](RankContext& ctx) {
    const int64_t before = ctx.group().communication_allocator().stats().allocated.count;
    Tensor rows;
    {
      OneLayer model(ctx);
      model.fill_rows(5);
      rows = model.weight().local;
    }
    EXPECT_GT(ctx.group().communication_allocator().stats().allocated.count, before);
    EXPECT_EQ(element(rows, 0), 5);
    rows = Tensor();
    EXPECT_EQ(ctx.group().communication_allocator().stats().allocated.count, before);
  });
}

TEST(GatherInPlace, ModelsThatDifferAreToldBeforeMemoryIsShared) {
  run_ranks(2, [](RankContext& ctx) {
    const auto world = testing::world_of(ctx);
    Linear layer({.in_features = 4,
                  .out_features = ctx.group_rank() == 0 ? 3 : 40,
                  .bias = false,
                  .weight_init = {}});
    fsdp::Options options;
    options.mesh = DeviceMesh::open(world, {{"fsdp", 2}}, ctx.deadline()).value();
    EXPECT_THAT(catch_error([&] { fsdp::fully_shard(layer, options); }),
                testing::FailsWith(ErrorCode::kMismatch,
                                   ::testing::HasSubstr("bytes of parameters of Linear")));
  });
}

}  // namespace
}  // namespace muster
