#include "core/ops/attention/sdpa.h"
#include "tests/core/ops/gradcheck_inputs.h"
#include "tests/support/matchers.h"

namespace muster::testing {
namespace {
using ::testing::AllOf;
using ::testing::HasSubstr;
using Inputs = std::span<const Tensor>;

std::vector<Tensor> attend(Inputs in, SdpaOptions options) {
  if (in.size() > 3) options.attn_mask = in[3];
  const SdpaResult result = scaled_dot_product_attention_lse(in[0], in[1], in[2], options);
  return {result.out, result.lse};
}

TEST(Sdpa, HasFirstAndSecondDerivatives) {
  for (const CausalAlignment causal :
       {CausalAlignment::kNone, CausalAlignment::kUpperLeft, CausalAlignment::kLowerRight}) {
    expect_gradients([=](Inputs in) { return attend(in, {.causal = causal, .scale = 0.7}); },
                     {leaf({2, 2, 2, 3}, 1), leaf({2, 2, 3, 3}, 2), leaf({2, 2, 3, 2}, 3)},
                     "causal " + std::to_string(static_cast<int>(causal)));
  }
  expect_gradients([](Inputs in) { return attend(in, {.enable_gqa = true}); },
                   {leaf({1, 4, 2, 3}, 1), leaf({1, 2, 3, 3}, 2), leaf({1, 2, 3, 3}, 3)}, "gqa");
  expect_gradients(
      [](Inputs in) { return attend(in, {}); },
      {leaf({1, 2, 2, 3}, 1), leaf({1, 2, 3, 3}, 2), leaf({1, 2, 3, 3}, 3), leaf({2, 1, 3}, 4)},
      "float mask");
  const Tensor seen = from_vector<int64_t>({1, 0, 1, 0, 1, 1}, {2, 3});
  const Tensor mask = ne(seen, 0);
  expect_gradients([&](Inputs in) { return attend(in, {.attn_mask = mask}); },
                   {leaf({1, 2, 2, 3}, 1), leaf({1, 2, 3, 3}, 2), leaf({1, 2, 3, 3}, 3)},
                   "bool mask");
  expect_gradients([](Inputs in) { return attend(in, {}); },
                   {transposed_leaf({2, 3}, 1), leaf({3, 3}, 2), leaf({3, 1}, 3)}, "2-D");
}

TEST(Sdpa, GradientsDoNotDependOnTheLayoutOfWhatFlowsIn) {
  const std::vector<Tensor> inputs = {leaf({1, 2, 2, 3}, 1), leaf({1, 2, 3, 3}, 2),
                                      leaf({1, 2, 3, 3}, 3)};
  expect_any_grad_layout(
      [](Inputs in) {
        return scaled_dot_product_attention(in[0], in[1], in[2],
                                            {.causal = CausalAlignment::kUpperLeft});
      },
      inputs);
}

TEST(Sdpa, DropoutHasGradientsUnderItsMask) {
  expect_gradients(
      [](Inputs in) {
        manual_seed(9);  // the same mask at every call
        return std::vector{scaled_dot_product_attention(in[0], in[1], in[2], {.dropout_p = 0.4})};
      },
      {leaf({1, 2, 2, 3}, 1), leaf({1, 2, 3, 3}, 2), leaf({1, 2, 3, 3}, 3)});
  const Tensor q = ones({1, 1, 4, 4});
  EXPECT_EQ(sum(scaled_dot_product_attention(q, q, q, {.dropout_p = 1.0})).item(), 0.0);
}

TEST(Sdpa, FlashEqualsMathAtSizesThatCrossItsTiles) {
  for (const int64_t length : {1, 63, 130}) {
    Generator generator(3);
    const auto operand = [&] {
      return requires_grad_(randn({2, 3, length, 32}, {}, {}, &generator));
    };
    const std::vector<Tensor> inputs = {operand(), operand(), operand()};
    std::vector<Tensor> results[2];
    for (const SdpaKernel kernel : {SdpaKernel::kFlash, SdpaKernel::kMath}) {
      const SdpaKernelGuard only({kernel});
      const std::vector<Tensor> outs = attend(inputs, {.causal = CausalAlignment::kUpperLeft});
      auto& kept = results[static_cast<int>(kernel)];
      kept = grad(outs, inputs, std::vector<Tensor>{ones_like(outs[0]), full_like(outs[1], 0.1)});
      kept.push_back(outs[0]);
      kept.push_back(outs[1]);
    }
    for (size_t i = 0; i < results[0].size(); ++i) {
      EXPECT_LT(amax(abs(sub(results[0][i], results[1][i]))).item(), 2e-5) << length << " " << i;
    }
  }
}

TEST(Sdpa, ResultsLieAsTheQueriesDo) {
  // [B, L, H, E] seen as [B, H, L, E]: no copy on the way to the output projection.
  const Tensor packed = ones({2, 5, 3, 4, 8});
  const auto part = [&](int64_t i) { return transpose(select(packed, 2, i), 1, 2); };
  const Tensor out = scaled_dot_product_attention(part(0), part(1), part(2));
  EXPECT_TRUE(transpose(out, 1, 2).is_contiguous());
}

TEST(SdpaExplain, NamesTheChoiceAndEveryRejection) {
  const Tensor q = ones({1, 2, 3, 4}, DType::kF64);
  const SdpaChoice choice = sdpa_explain(q, q, q, {.causal = CausalAlignment::kUpperLeft});
  EXPECT_EQ(choice.kernel, SdpaKernel::kMath);
  ASSERT_EQ(choice.verdicts.size(), 2u);
  EXPECT_EQ(choice.verdicts[0].kernel, SdpaKernel::kFlash);
  EXPECT_EQ(choice.verdicts[0].rejection, "f64 is not supported");
  EXPECT_EQ(choice.describe(),
            "sdpa: math for q[1, 2, 3, 4] k[1, 2, 3, 4] f64 cpu, causal from the upper left\n"
            "  flash: f64 is not supported");
  const Tensor small = ones({1, 2, 3, 4});
  EXPECT_EQ(sdpa_explain(small, small, small).kernel, SdpaKernel::kFlash);
  const Tensor mask = requires_grad_(zeros({3, 3}));
  EXPECT_THAT(sdpa_explain(small, small, small, {.attn_mask = mask}).describe(),
              HasSubstr("flash: a mask that requires a gradient"));
}

TEST(SdpaKernelGuard, RestrictsOrdersAndRestores) {
  const Tensor q = ones({1, 2, 3, 4});
  {
    const SdpaKernelGuard only({SdpaKernel::kMath, SdpaKernel::kFlash});
    EXPECT_EQ(sdpa_explain(q, q, q).kernel, SdpaKernel::kMath) << "the order is the preference";
    const SdpaKernelGuard none({});
    EXPECT_ERROR(scaled_dot_product_attention(q, q, q), ErrorCode::kUnimplemented,
                 HasSubstr("asked for {}"));
  }
  EXPECT_EQ(sdpa_explain(q, q, q).kernel, SdpaKernel::kFlash);
}

TEST(SdpaKernelGuard, SaysWhyNothingIsLeft) {
  const Tensor q = ones({1, 8, 1, 64}, DType::kF64), k = ones({1, 8, 16, 64}, DType::kF64);
  const SdpaKernelGuard only({SdpaKernel::kFlash});
  EXPECT_ERROR(scaled_dot_product_attention(q, k, k, {.attn_mask = ones({1, 16}, DType::kBool)}),
               ErrorCode::kUnimplemented,
               AllOf(HasSubstr("sdpa: no kernel for q[1, 8, 1, 64] k[1, 8, 16, 64] f64 cpu, mask "
                               "bool; asked for {flash}"),
                     HasSubstr("\n  flash: f64 is not supported"),
                     HasSubstr("\n  math: not in the allowed set")));
}

TEST(Sdpa, RowsThatSeeNothingAreZeroWithFiniteGradients) {
  for (const SdpaKernel kernel : {SdpaKernel::kFlash, SdpaKernel::kMath}) {
    const SdpaKernelGuard only({kernel});
    const auto operand = [](uint64_t seed) {
      return requires_grad_(to(constant({1, 1, 2, 4}, seed), DType::kF32));
    };
    const std::vector<Tensor> inputs = {operand(1), operand(2), operand(3)};
    const Tensor mask = ne(from_vector<int64_t>({0, 0, 1, 1}, {2, 2}), 0);
    const std::vector<Tensor> outs = attend(inputs, {.attn_mask = mask});
    EXPECT_EQ(sum(abs(select(outs[0], 2, 0))).item(), 0.0);
    EXPECT_EQ(select(outs[1], 2, 0).item(), -INFINITY);
    for (const Tensor& g : grad(std::span<const Tensor>(&outs[0], 1), inputs,
                                std::vector<Tensor>{ones_like(outs[0])})) {
      EXPECT_TRUE(all(isfinite(g)).item_int());
    }
  }
}
}  // namespace
}  // namespace muster::testing
