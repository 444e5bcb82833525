#include "core/ops/nn.h"

#include "tests/core/ops/gradcheck_inputs.h"
#include "tests/support/matchers.h"

namespace muster::testing {
namespace {
using ::testing::HasSubstr;
using Inputs = std::span<const Tensor>;

TEST(Softmax, HasFirstAndSecondDerivatives) {
  for (const DimVector& sizes :
       {DimVector{2, 3}, DimVector{2, 3, 2}, DimVector{1, 4}, DimVector{0, 3}, DimVector{3}}) {
    for (int64_t dim = 0; dim < static_cast<int64_t>(sizes.size()); ++dim) {
      const auto soft = [dim](Inputs in) { return softmax(in[0], dim); };
      const auto log_soft = [dim](Inputs in) { return log_softmax(in[0], dim); };
      expect_gradients([&](Inputs in) { return std::vector{soft(in)}; }, {leaf(sizes)});
      expect_gradients([&](Inputs in) { return std::vector{log_soft(in)}; }, {leaf(sizes)});
      expect_any_grad_layout(soft, {leaf(sizes)});
      expect_any_grad_layout(log_soft, {leaf(sizes)});
    }
  }
  expect_gradients([](Inputs in) { return std::vector{softmax(in[0], 0)}; },
                   {transposed_leaf({3, 2})});
}

TEST(Softmax, OfMaskedSlicesIsNanAndSafeSoftmaxZero) {
  const Tensor hidden = full({1, 2}, -INFINITY);
  EXPECT_TRUE(std::isnan(select(softmax(hidden, 1), 1, 0).item()));
  EXPECT_EQ(to_vector<float>(safe_softmax(hidden, 1)), (std::vector<float>{0, 0}));
}

TEST(Softmax, ConvertsFirst) {
  EXPECT_EQ(softmax(tensor({1, 2}), 0, DType::kF64).dtype(), DType::kF64);
  EXPECT_ERROR(softmax(tensor({1, 2}), 0), ErrorCode::kInvalidArgument, HasSubstr("i64"));
}

TEST(LayerNorm, HasFirstAndSecondDerivatives) {
  for (const DimVector& sizes :
       {DimVector{2, 3}, DimVector{2, 2, 4}, DimVector{0, 3}, DimVector{4}}) {
    const int64_t n = sizes.back();
    const auto norm = [n](Inputs in) { return layer_norm(in[0], {n}, in[1], in[2]); };
    const std::vector<Tensor> inputs = {leaf(sizes), leaf({n}, 2), leaf({n}, 3)};
    expect_gradients([&](Inputs in) { return std::vector{norm(in)}; }, inputs,
                     to_string(Dims(sizes)));
    expect_any_grad_layout(norm, inputs);
  }
  expect_gradients([](Inputs in) { return std::vector{layer_norm(in[0], {3})}; },
                   {transposed_leaf({2, 3})}, "no affine, transposed");
  expect_gradients(
      [](Inputs in) {
        return std::vector{layer_norm(in[0], {2, 3}, in[1], in[2])};
      },
      {leaf({2, 2, 3}), leaf({2, 3}, 2), leaf({2, 3}, 3)}, "two dims");
}

TEST(RmsNorm, HasFirstAndSecondDerivatives) {
  for (const DimVector& sizes : {DimVector{2, 3}, DimVector{2, 2, 4}, DimVector{0, 3}}) {
    const int64_t n = sizes.back();
    const auto norm = [n](Inputs in) { return rms_norm(in[0], {n}, in[1], 1e-3); };
    const std::vector<Tensor> inputs = {leaf(sizes), leaf({n}, 2)};
    expect_gradients([&](Inputs in) { return std::vector{norm(in)}; }, inputs);
    expect_any_grad_layout(norm, inputs);
  }
}

TEST(LayerNorm, GivesOnlyTheGradientsThatAreWanted) {
  const Tensor weight = leaf({3}, 2);
  backward(sum(layer_norm(constant({2, 3}), {3}, weight)));
  EXPECT_TRUE(grad_of(weight).defined());
  EXPECT_ERROR(layer_norm(ones({2, 5}), {4}), ErrorCode::kInvalidArgument, HasSubstr("[4]"));
}

TEST(Embedding, HasGradientsAndSkipsPadding) {
  const Tensor indices = from_vector<int64_t>({0, 2, 2, 4}, {2, 2});
  const auto look_up = [&](Inputs in) { return embedding(in[0], indices); };
  expect_gradients([&](Inputs in) { return std::vector{look_up(in)}; }, {leaf({5, 3})});
  expect_any_grad_layout(look_up, {leaf({5, 3})});
  const Tensor weight = leaf({5, 3});
  backward(sum(embedding(weight, indices, /*padding_idx=*/2, /*scale_grad_by_freq=*/false)));
  EXPECT_EQ(sum(select(grad_of(weight), 0, 2)).item(), 0.0);
  EXPECT_EQ(sum(select(grad_of(weight), 0, 4)).item(), 3.0);
}

TEST(Embedding, BackwardIsDifferentiable) {
  static const Op& op = ops::find_op("embedding_backward");
  const Tensor indices = from_vector<int64_t>({0, 2, 2, 4});
  for (const bool scale : {false, true}) {
    for (const int64_t padding : {int64_t{-1}, int64_t{2}}) {
      expect_gradients(
          [&](Inputs in) { return std::vector{call_one(op, in[0], indices, 5, padding, scale)}; },
          {leaf({4, 3})});
    }
  }
}

TEST(Embedding, NamesAnIndexOutside) {
  EXPECT_ERROR(embedding(ones({3, 2}), tensor({0, 3})), ErrorCode::kOutOfRange, HasSubstr("3"));
}

TEST(Dropout, KeepsSurvivorsScaledAndRepeatsItsMaskInBackward) {
  const Tensor x = leaf({64, 16});
  const PhiloxStream stream{7, 3, {}, {}};
  const Tensor y = dropout(x, 0.25, stream);
  const Tensor kept = to(ne(y, 0), DType::kF64);
  EXPECT_NEAR(mean(kept).item(), 0.75, 0.05);
  EXPECT_LT(amax(abs(sub(y, div(mul(x, kept), 0.75)))).item(), 1e-15);
  backward(sum(y));
  EXPECT_LT(amax(abs(sub(grad_of(x), div(kept, 0.75)))).item(), 1e-15);
  expect_gradients([&](Inputs in) { return std::vector{dropout(in[0], 0.25, stream)}; },
                   {leaf({3, 4})});
}

TEST(Dropout, IsTheSameForAShardAsForTheWhole) {
  const Tensor x = ones({8, 6});
  const Tensor whole = dropout(x, 0.5, PhiloxStream{11, 5, {}, {}});
  const Tensor shard = dropout(narrow(x, 0, 4, 3), 0.5, PhiloxStream{11, 5, {8, 6}, {4, 0}});
  EXPECT_TRUE(equal(narrow(whole, 0, 4, 3), shard));
}

TEST(Dropout, HandlesTheEdges) {
  const Tensor x = ones({4});
  EXPECT_TRUE(dropout(x, 0.0).is_same(x));
  EXPECT_TRUE(dropout(x, 0.5, /*train=*/false).is_same(x));
  EXPECT_EQ(sum(dropout(x, 1.0)).item(), 0.0);
  EXPECT_ERROR(dropout(x, 1.5), ErrorCode::kInvalidArgument, HasSubstr("1.5"));
}

TEST(Random, DrawsByElementIndexAndMovesTheGenerator) {
  Generator a(5), b(5);
  const Tensor first = randn({4, 4}, DType::kF64, {}, &a),
               second = randn({4, 4}, DType::kF64, {}, &a);
  EXPECT_FALSE(equal(first, second));
  EXPECT_TRUE(equal(first, randn({4, 4}, DType::kF64, {}, &b)));
  EXPECT_EQ(a.offset(), 2u);
  const Tensor strided = empty({4, 4}, DType::kF64);
  normal_(t(strided), 0, 1, PhiloxStream{5, 0, {}, {}});
  EXPECT_TRUE(equal(t(strided), first)) << "layout does not count";
}

TEST(Random, TruncatedNormalsStayInTheirInterval) {
  manual_seed(3);
  const Tensor x = trunc_normal_(empty({4000}, DType::kF64), 0.0, 1.0, -0.5, 2.0);
  EXPECT_GE(amin(x).item(), -0.5);
  EXPECT_LE(amax(x).item(), 2.0);
  EXPECT_NEAR(mean(x).item(), 0.4464, 0.05);  // (pdf(-0.5) - pdf(2)) / (cdf(2) - cdf(-0.5))
}

TEST(Random, RefusesWhatHasNoMeaning) {
  EXPECT_ERROR(normal_(empty({2}), 0, -1), ErrorCode::kInvalidArgument, HasSubstr("std"));
  EXPECT_ERROR(uniform_(empty({2}), 1, 0), ErrorCode::kInvalidArgument, HasSubstr("from"));
  EXPECT_ERROR(randint(3, 3, {2}), ErrorCode::kInvalidArgument, HasSubstr("from=3"));
  EXPECT_ERROR(bernoulli_(empty({2}), 1.5), ErrorCode::kInvalidArgument, HasSubstr("1.5"));
}
}  // namespace
}  // namespace muster::testing
