#include "core/ops/linalg.h"

#include "tests/core/ops/gradcheck_inputs.h"
#include "tests/support/matchers.h"

namespace muster::testing {
namespace {
using ::testing::HasSubstr;
using Inputs = std::span<const Tensor>;

TEST(Matmul, HasGradientsForEveryPairOfRanks) {
  const std::vector<std::pair<DimVector, DimVector>> shapes = {{{3}, {3}},
                                                               {{2, 3}, {3}},
                                                               {{3}, {3, 2}},
                                                               {{2, 3}, {3, 2}},
                                                               {{2, 2, 3}, {3}},
                                                               {{2, 2, 3}, {3, 2}},
                                                               {{3}, {2, 3, 2}},
                                                               {{2, 3}, {2, 3, 2}},
                                                               {{2, 2, 3}, {2, 3, 2}},
                                                               {{2, 1, 2, 3}, {3, 3, 2}},
                                                               {{1, 1}, {1, 1}},
                                                               {{2, 0}, {0, 3}},
                                                               {{0, 2, 3}, {0, 3, 2}}};
  for (const auto& [a, b] : shapes) {
    expect_gradients([](Inputs in) { return std::vector{matmul(in[0], in[1])}; },
                     {leaf(a, 1), leaf(b, 2)}, to_string(Dims(a)) + " x " + to_string(Dims(b)));
  }
}

TEST(Matmul, TakesAnyLayoutOfOperandsAndGradient) {
  const auto product = [](Inputs in) { return matmul(in[0], in[1]); };
  const std::vector<Tensor> inputs = {transposed_leaf({2, 3, 4}), transposed_leaf({4, 2}, 2)};
  expect_gradients([&](Inputs in) { return std::vector{product(in)}; }, inputs);
  expect_any_grad_layout(product, inputs);
}

TEST(Addmm, ScalesAndBroadcasts) {
  for (const DimVector& self : {DimVector{4}, DimVector{2, 4}, DimVector{2, 1}, DimVector{}}) {
    expect_gradients([](Inputs in) { return std::vector{addmm(in[0], in[1], in[2], 0.5, 2.0)}; },
                     {leaf(self, 1), leaf({2, 3}, 2), leaf({3, 4}, 3)}, to_string(Dims(self)));
  }
  expect_gradients([](Inputs in) { return std::vector{baddbmm(in[0], in[1], in[2], 0.5, 2.0)}; },
                   {leaf({4}, 1), leaf({2, 2, 3}, 2), leaf({2, 3, 4}, 3)});
}

TEST(Addmm, DoesNotReadSelfWhenBetaIsZero) {
  const Tensor self = full({2, 2}, std::nan(""));
  const Tensor out = addmm(self, ones({2, 3}), ones({3, 2}), 0);
  EXPECT_EQ(to_vector<float>(out), std::vector<float>(4, 3.0f));
}

TEST(Linear, HasGradientsOfInputWeightAndBias) {
  for (const DimVector& input :
       {DimVector{3}, DimVector{2, 3}, DimVector{2, 2, 3}, DimVector{0, 3}, DimVector{1, 3}}) {
    const auto layer = [](Inputs in) { return linear(in[0], in[1], in[2]); };
    const std::vector<Tensor> inputs = {leaf(input, 1), leaf({4, 3}, 2), leaf({4}, 3)};
    expect_gradients([&](Inputs in) { return std::vector{layer(in)}; }, inputs,
                     to_string(Dims(input)));
    expect_any_grad_layout(layer, inputs);
  }
  expect_gradients([](Inputs in) { return std::vector{linear(in[0], in[1])}; },
                   {transposed_leaf({2, 2, 3}), transposed_leaf({4, 3}, 2)}, "no bias");
}

TEST(Linear, SkipsGradientsThatNobodyWants) {
  const Tensor weight = leaf({4, 3});
  const Tensor out = linear(constant({2, 3}, 2), weight);
  backward(sum(out));
  EXPECT_EQ(to_string(grad_of(weight).sizes()), "[4, 3]");
}

TEST(Linear, NamesOperandsThatDoNotFit) {
  EXPECT_ERROR(linear(ones({2, 3}), ones({4, 5})), ErrorCode::kInvalidArgument,
               HasSubstr("f32[2, 3] and f32[4, 5]"));
  EXPECT_ERROR(linear(ones({2, 3}), ones({4, 3}), ones({3})), ErrorCode::kInvalidArgument,
               HasSubstr("bias must be [4]"));
}

TEST(Einsum, HasDerivativesForEveryKindOfLetter) {
  const auto check = [](const char* equation, std::vector<Tensor> operands) {
    expect_gradients([=](Inputs in) { return std::vector{einsum(equation, in)}; }, operands,
                     equation);
  };
  check("ij,jk->ik", {leaf({2, 3}), leaf({3, 2}, 2)});
  check("bhqd,bhkd->bhqk", {leaf({1, 2, 2, 3}), leaf({1, 2, 2, 3}, 2)});
  check("...ij,jk->...ik", {leaf({2, 2, 3}), leaf({3, 2}, 2)});
  check("bn,anm,bm->ba", {leaf({2, 2}), leaf({3, 2, 2}, 2), leaf({2, 2}, 3)});
  check("aab->b", {leaf({2, 2, 3})});
  check("i,j->ij", {leaf({2}), leaf({0}, 2)});
}

TEST(Einsum, NamesLettersThatDoNotFit) {
  EXPECT_ERROR(einsum("ij,jk->ik", {ones({2, 3}), ones({4, 2})}), ErrorCode::kInvalidArgument,
               HasSubstr("subscript j has size 4"));
  EXPECT_ERROR(einsum("ij->ik", {ones({2, 3})}), ErrorCode::kInvalidArgument,
               HasSubstr("output subscript k"));
  EXPECT_ERROR(einsum("ij,j", {ones({2, 3})}), ErrorCode::kInvalidArgument, HasSubstr("got 1"));
}

TEST(Dot, AndOuterAndMvHaveGradients) {
  expect_gradients([](Inputs in) { return std::vector{dot(in[0], in[1])}; },
                   {leaf({3}), leaf({3}, 2)});
  expect_gradients([](Inputs in) { return std::vector{outer(in[0], in[1])}; },
                   {leaf({3}), leaf({2}, 2)});
  expect_gradients([](Inputs in) { return std::vector{mv(in[0], in[1])}; },
                   {leaf({2, 3}), leaf({3}, 2)});
}
}  // namespace
}  // namespace muster::testing
