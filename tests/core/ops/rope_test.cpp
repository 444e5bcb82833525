// Rotary embedding, the SwiGLU gate and repeated elements against their formulas.
#include <gtest/gtest.h>

#include <cmath>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "tests/support/golden_close.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using testing::expect_close;
using testing::GoldenTolerance;
using ::testing::HasSubstr;

constexpr GoldenTolerance kF32 = {1e-6, 1e-6, 0};

// Angles of 3 positions and 2 pairs.
struct Tables {
  Tensor angles = from_vector<double>({0.0, 0.1, 1.0, 0.2, 2.0, 0.4}, {3, 1, 2});
  Tensor cos = to(muster::cos(angles), DType::kF32);
  Tensor sin = to(muster::sin(angles), DType::kF32);
};

std::vector<float> values(const Tensor& x) { return to_vector<float>(contiguous(x)); }

TEST(Rope, TurnsHalvesByTheirAngles) {
  const Tables tables;
  const Tensor x = randn({1, 3, 2, 4});
  const auto in = values(x), out = values(rope(x, tables.cos, tables.sin));
  const auto angles = to_vector<double>(tables.angles);
  for (size_t t = 0; t < 3; ++t) {
    for (size_t head = 0; head < 2; ++head) {
      for (size_t i = 0; i < 2; ++i) {
        const size_t at = (t * 2 + head) * 4 + i;
        const double a = in[at], b = in[at + 2], angle = angles[t * 2 + i];
        EXPECT_NEAR(out[at], a * std::cos(angle) - b * std::sin(angle), 1e-6);
        EXPECT_NEAR(out[at + 2], b * std::cos(angle) + a * std::sin(angle), 1e-6);
      }
    }
  }
}

TEST(Rope, InterleavedPairsAreTheSameTurnOfOtherFeatures) {
  const Tables tables;
  const Tensor x = randn({1, 3, 2, 4});
  const Tensor order = tensor({0, 2, 1, 3});  // (0, 1), (2, 3) <-> (0, 2), (1, 3)
  const Tensor moved = index_select(x, -1, order);
  const Tensor turned = rope(x, tables.cos, tables.sin, /*interleaved=*/true);
  expect_close(index_select(turned, -1, order), rope(moved, tables.cos, tables.sin), kF32);
}

TEST(Rope, LeavesFeaturesBeyondTheTableAndTurnsBack) {
  const Tables tables;
  const Tensor x = randn({2, 3, 2, 7});
  const Tensor turned = rope(x, tables.cos, tables.sin);
  EXPECT_TRUE(equal(narrow(turned, -1, 4, 3), narrow(x, -1, 4, 3)));
  expect_close(narrow(turned, -1, 0, 4), rope(narrow(x, -1, 0, 4), tables.cos, tables.sin), kF32);
  expect_close(rope(turned, tables.cos, tables.sin, false, /*inverse=*/true), x, kF32);
}

TEST(Rope, KeepsTheLayoutOfItsInputAndReadsAnyStrides) {
  const Tables tables;
  const Tensor x = randn({2, 3, 5, 4});
  const Tensor view = transpose(x, 1, 2);  // [2, 5, 3, 4]
  const Tensor cos = squeeze(tables.cos, 1), sin = squeeze(tables.sin, 1);
  const Tensor turned = rope(view, cos, sin);
  EXPECT_EQ(to_string(turned.strides()), to_string(view.strides()));
  expect_close(transpose(turned, 1, 2), rope(x, tables.cos, tables.sin), kF32);
}

TEST(Rope, RoundsLowPrecisionOnce) {
  const Tables tables;
  const Tensor x = to(randn({2, 3, 2, 4}), DType::kBF16);
  const Tensor wide = rope(to(x, DType::kF32), tables.cos, tables.sin);
  EXPECT_TRUE(equal(rope(x, tables.cos, tables.sin), to(wide, DType::kBF16)));
}

TEST(Rope, RefusesTablesThatDoNotFit) {
  const Tables tables;
  EXPECT_ERROR(rope(randn({1, 3, 2, 2}), tables.cos, tables.sin), ErrorCode::kInvalidArgument,
               HasSubstr("R <= D; got cos f32[3, 1, 2]"));
  EXPECT_ERROR(rope(randn({1, 4, 2, 4}), tables.cos, tables.sin), ErrorCode::kInvalidArgument,
               HasSubstr("must broadcast"));
  EXPECT_ERROR(rope(randn({1, 3, 2, 4}), to(tables.cos, DType::kF64), tables.sin),
               ErrorCode::kInvalidArgument, HasSubstr("input's dtype or f32; got f64"));
}

TEST(Rope, SavesItsInputOnlyForTheTables) {
  const Tables tables;
  Tensor x = requires_grad_(randn({1, 3, 2, 4}));
  const Tensor first = rope(x, tables.cos, tables.sin);
  {
    const NoGradGuard no_grad;
    mul_(x, 2);  // a saved input would now be refused
  }
  EXPECT_OK(catch_error([&] { backward(sum(first)); }));
}

TEST(Swiglu, IsSiluTimesUp) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    const Tensor gate = to(mul(randn({37, 19}), 3), dtype), up = to(randn({37, 19}), dtype);
    const Tensor wide_gate = to(gate, DType::kF64), wide_up = to(up, DType::kF64);
    const Tensor wanted = to(mul(silu(wide_gate), wide_up), dtype);
    expect_close(swiglu(gate, up), wanted, testing::default_tolerance(dtype));
  }
}

TEST(Swiglu, BackwardIsThatOfItsParts) {
  const Tensor gate = randn({5, 33}), up = randn({5, 33}), weight = randn({5, 33});
  const auto gradients = [&](bool fused) {
    const Tensor g = requires_grad_(clone(gate)), u = requires_grad_(clone(up));
    backward(sum(mul(fused ? swiglu(g, u) : mul(silu(g), u), weight)));
    return std::pair(grad_of(g), grad_of(u));
  };
  const auto [gate_fused, up_fused] = gradients(true);
  const auto [gate_parts, up_parts] = gradients(false);
  expect_close(gate_fused, gate_parts, {2e-6, 2e-6, 0}, "gate");
  expect_close(up_fused, up_parts, {2e-6, 2e-6, 0}, "up");
}

TEST(RepeatInterleave, RefusesRepeatsThatDoNotFit) {
  const Tensor x = randn({2, 3});
  EXPECT_ERROR(repeat_interleave(x, tensor({1, 2}), 1), ErrorCode::kInvalidArgument,
               HasSubstr("got 2 repeats for size 3"));
  EXPECT_ERROR(repeat_interleave(x, -1, 1), ErrorCode::kInvalidArgument,
               HasSubstr("can not be negative; got -1"));
  EXPECT_ERROR(repeat_interleave(x, tensor({1, -2, 0}), 1), ErrorCode::kInvalidArgument,
               HasSubstr("can not be negative; got -2"));
}

// Grouped keys are read in place: the result is that of keys written out.
TEST(GroupedAttention, EqualsRepeatedKeysForwardAndBackward) {
  const Tensor q = randn({2, 6, 70, 16}), k = randn({2, 2, 70, 16}), v = randn({2, 2, 70, 16});
  const auto run = [&](bool grouped) {
    std::vector<Tensor> leaves;
    for (const Tensor& x : {q, k, v}) leaves.push_back(requires_grad_(clone(x)));
    SdpaOptions options;
    options.causal = CausalAlignment::kUpperLeft;
    options.enable_gqa = grouped;
    const Tensor keys = grouped ? leaves[1] : repeat_interleave(leaves[1], 3, 1);
    const Tensor values = grouped ? leaves[2] : repeat_interleave(leaves[2], 3, 1);
    EXPECT_EQ(sdpa_explain(leaves[0], keys, values, options).kernel, SdpaKernel::kFlash);
    const Tensor out = scaled_dot_product_attention(leaves[0], keys, values, options);
    backward(sum(square(out)));
    return std::vector<Tensor>{out, grad_of(leaves[0]), grad_of(leaves[1]), grad_of(leaves[2])};
  };
  const auto grouped = run(true), repeated = run(false);
  for (size_t i = 0; i < grouped.size(); ++i) {
    expect_close(grouped[i], repeated[i], {1e-5, 1e-5, 0}, std::to_string(i));
  }
}

TEST(GroupedAttention, RefusesHeadsThatTheKeyHeadsDoNotDivide) {
  SdpaOptions options;
  options.enable_gqa = true;
  EXPECT_ERROR(scaled_dot_product_attention(randn({1, 4, 3, 8}), randn({1, 3, 3, 8}),
                                            randn({1, 3, 3, 8}), options),
               ErrorCode::kInvalidArgument, HasSubstr("got 4, 3 and 3"));
}
}  // namespace
}  // namespace muster
