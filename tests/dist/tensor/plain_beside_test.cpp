// Plain tensors beside DTensors: what the refusal says, and how to have them taken as replicated.
#include "core/autograd/autograd.h"
#include "core/nn/layers.h"
#include "core/ops/attention/sdpa.h"
#include "core/ops/ops.h"
#include "dist/tensor/dtensor_dispatch.h"
#include "dist/tensor/local_shard.h"
#include "dist/tensor/redistribute.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using ::testing::AllOf;
using ::testing::HasSubstr;
constexpr Placement kR = Placement::replicate();
constexpr Placement s(int32_t dim) { return Placement::shard(dim); }

MeshRef line(testing::RankContext& ctx) {
  const auto world = testing::world_of(ctx);
  return DeviceMesh::open(world, {{"tp", ctx.world_size()}}, ctx.deadline()).value();
}
std::vector<double> values_of(const Tensor& x) {
  return to_vector<double>(to(contiguous(detach(x)), DType::kF64));
}
Tensor wave(Dims sizes, double step) {
  return view(sin(mul(arange(numel_of(sizes), DType::kF64), step)), sizes);
}

// Reported as pytorch#153354, torchtitan#875 and many others.
TEST(PlainBesideDTensor, IsRefusedByOperatorArgumentAndModuleWithTheRemedy) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    Sequential both;
    both.append<Linear>(LinearOptions{.in_features = 4, .out_features = 4});
    Linear& up = both.append<Linear>(LinearOptions{.in_features = 4, .out_features = 6});
    both.reset_parameters(1);
    for (const TensorSlot& slot : up.parameter_slots()) {
      *slot.tensor = requires_grad_(distribute_tensor(detach(*slot.tensor), mesh, {s(0)}));
    }
    // The input is plain, as the first layer is; the weight is cut.
    EXPECT_ERROR(both(ones({2, 4})), ErrorCode::kInvalidArgument,
                 AllOf(HasSubstr("linear: argument 0 (input) is a plain tensor f32[2, 4]"),
                       HasSubstr("beside a DTensor f32[6, 4] as [S(0)] on mesh [tp=2]"),
                       HasSubstr("fix: make it a DTensor by distribute_tensor or from_local"),
                       HasSubstr("in module \"1\" (Linear): 1.weight f32[6, 4]")));
    // A layer that nobody parallelized meets a DTensor: its own parameters are named.
    const Tensor x = distribute_tensor(ones({2, 4}), mesh, {s(0)});
    EXPECT_ERROR(both(x), ErrorCode::kInvalidArgument,
                 AllOf(HasSubstr("linear: argument 1 (weight) is a plain tensor f32[4, 4]"),
                       HasSubstr("in module \"0\" (Linear): 0.weight f32[4, 4], 0.bias f32[4]")));
  });
}

TEST(PlainBesideDTensor, APieceOfATensorParallelPlanIsCalledOne) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const Tensor x = distribute_tensor(ones({2, 4}), mesh, {kR});
    const Tensor piece =
        make_local_shard(ones({3, 4}), {.whole = {mesh, {s(0)}, DimVector{6, 4}, DType::kF32}});
    EXPECT_ERROR(linear(x, piece), ErrorCode::kInvalidArgument,
                 HasSubstr("it is a piece of f32[6, 4] as [S(0)]"));
    const ImplicitReplicationGuard guard;
    EXPECT_ERROR(linear(x, piece), ErrorCode::kInvalidArgument, HasSubstr("it is a piece of"));
  });
}

TEST(PlainBesideDTensor, TheGuardTakesItAsReplicatedAndOnlyWhileItLives) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const Tensor x = wave({5, 4}, 0.7), y = wave({5, 4}, 0.3);
    const Tensor d = requires_grad_(distribute_tensor(x, mesh, {s(0)}));
    {
      const ImplicitReplicationGuard guard;
      { const ImplicitReplicationGuard inner; }
      const Tensor product = mul(d, y);
      EXPECT_EQ(to_string(dtensor_spec(product).placements), "[S(0)]");
      EXPECT_EQ(values_of(full_tensor(product)), values_of(mul(x, y)));
      EXPECT_EQ(values_of(full_tensor(index_select(d, 0, tensor({4, 0})))),
                values_of(index_select(x, 0, tensor({4, 0}))));
      backward(sum(full_tensor(product)));
      EXPECT_EQ(values_of(full_tensor(grad_of(d))), values_of(y));
      // What is written is never a plain tensor.
      EXPECT_ERROR(add_(clone(y), detach(d)), ErrorCode::kInvalidArgument,
                   HasSubstr("add_: argument 0 (self) is a plain tensor"));
    }
    EXPECT_ERROR(mul(d, y), ErrorCode::kInvalidArgument, HasSubstr("ImplicitReplicationGuard"));
  });
}

// A mask or a rope table under tensor parallel attention.
TEST(PlainBesideDTensor, APlainMaskJoinsAttentionUnderTheGuard) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const Tensor q = wave({2, 4, 5, 4}, 0.7), k = wave({2, 4, 5, 4}, 0.3);
    SdpaOptions options;
    options.attn_mask = view(gt(wave({25}, 1.3), -0.5), {5, 5});
    const Tensor expected = scaled_dot_product_attention(q, k, k, options);
    const auto cut = [&](const Tensor& x) { return distribute_tensor(x, mesh, {s(1)}); };
    EXPECT_ERROR(scaled_dot_product_attention(cut(q), cut(k), cut(k), options),
                 ErrorCode::kInvalidArgument,
                 HasSubstr("argument 3 (attn_mask) is a plain tensor bool"));
    const ImplicitReplicationGuard guard;
    const Tensor out = scaled_dot_product_attention(cut(q), cut(k), cut(k), options);
    EXPECT_EQ(to_string(dtensor_spec(out).placements), "[S(1)]");
    EXPECT_LT(amax(abs(sub(full_tensor(out), expected))).item(), 1e-14);
  });
}

// Its gradient would be a DTensor in a plain leaf, a sum that nobody closes.
TEST(PlainBesideDTensor, OneThatRequiresAGradientIsRefusedAlsoWithOneElement) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const Tensor d = distribute_tensor(wave({4}, 0.7), mesh, {s(0)});
    const Tensor scale = requires_grad_(full({1}, 3.0, DType::kF64));
    const auto is_told = AllOf(HasSubstr("requires a gradient"), HasSubstr("from_local(x, mesh"));
    EXPECT_ERROR(mul(d, scale), ErrorCode::kInvalidArgument, is_told);
    {
      const ImplicitReplicationGuard guard;
      EXPECT_ERROR(mul(d, requires_grad_(wave({4}, 1.0))), ErrorCode::kInvalidArgument, is_told);
    }
    // The remedy: the gradient arrives whole on each rank.
    const Tensor joined = from_local(scale, mesh, {kR}, DimVector{1});
    backward(sum(full_tensor(mul(d, joined))));
    EXPECT_NEAR(grad_of(scale).item(), sum(wave({4}, 0.7)).item(), 1e-15);
    const NoGradGuard no_grad;
    EXPECT_EQ(values_of(full_tensor(mul(d, scale))), values_of(mul(wave({4}, 0.7), 3.0)));
  });
}
}  // namespace
}  // namespace muster
