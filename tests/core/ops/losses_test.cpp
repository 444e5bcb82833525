#include "core/ops/losses.h"

#include "tests/core/ops/gradcheck_inputs.h"
#include "tests/support/matchers.h"

namespace muster::testing {
namespace {
using ::testing::HasSubstr;
using Inputs = std::span<const Tensor>;

TEST(CrossEntropy, HasFirstAndSecondDerivatives) {
  const Tensor target = from_vector<int64_t>({2, 0, -100});
  const Tensor weight = from_vector<double>({0.5, 2.0, 1.5, 1.0});
  for (const double smoothing : {0.0, 0.2}) {
    for (const bool weighted : {false, true}) {
      const CrossEntropyOptions options{.weight = weighted ? weight : Tensor(),
                                        .label_smoothing = smoothing};
      for (const Reduction reduction : {Reduction::kMean, Reduction::kSum, Reduction::kNone}) {
        const auto loss = [&](Inputs in) {
          return cross_entropy(in[0], target, options, reduction);
        };
        expect_gradients([&](Inputs in) { return std::vector{loss(in)}; }, {leaf({3, 4})});
        expect_gradients([&](Inputs in) { return std::vector{loss(in)}; },
                         {transposed_leaf({3, 4})});
        expect_any_grad_layout(loss, {leaf({3, 4})});
      }
    }
  }
}

TEST(CrossEntropy, TakesClassesInDimOneAndProbabilities) {
  const Tensor target = from_vector<int64_t>({2, 0, 1, 3, 1, 1}, {2, 3});
  expect_gradients([&](Inputs in) { return std::vector{cross_entropy(in[0], target)}; },
                   {leaf({2, 4, 3})});
  expect_gradients([](Inputs in) { return std::vector{cross_entropy(in[0], in[1])}; },
                   {leaf({2, 4}), leaf({2, 4}, 2)}, "probabilities");
  expect_gradients(
      [](Inputs in) {
        return std::vector{cross_entropy(in[0], full({}, int64_t{1}), {}, Reduction::kSum)};
      },
      {leaf({4})}, "one row");
}

TEST(CrossEntropy, LogSumExpCarriesAGradient) {
  static const Op& op = ops::find_op("cross_entropy_rows");
  const Tensor target = from_vector<int64_t>({2, 0});
  expect_gradients(
      [&](Inputs in) {
        const auto outs = call_many<3>(op, in[0], target, std::nullopt, int64_t{-100}, 0.1);
        return std::vector{outs[0], outs[1]};
      },
      {leaf({2, 4})});
}

// Sums and counts of parts add up to those of the whole, so the mean needs no weighting of parts.
TEST(CrossEntropy, SumAndCountDoNotDependOnMicrobatches) {
  const Tensor logits = leaf({6, 5});
  const Tensor target = from_vector<int64_t>({1, -100, 4, 0, -100, -100});
  const LossSum whole = cross_entropy_sum_count(logits, target);
  EXPECT_EQ(whole.count.item(), 3.0);
  backward(div(whole.sum, whole.count));
  const Tensor wanted = grad_of(logits);
  set_grad(logits, {});
  double total = 0;
  for (int64_t start = 0; start < 6; start += 2) {
    const LossSum part =
        cross_entropy_sum_count(narrow(logits, 0, start, 2), narrow(target, 0, start, 2));
    total += part.sum.item();
    backward(div(part.sum, 3.0));
  }
  EXPECT_NEAR(total, whole.sum.item(), 1e-14);
  EXPECT_LT(amax(abs(sub(grad_of(logits), wanted))).item(), 1e-15);
}

TEST(CrossEntropy, CountIsTheSumOfWeightsOfKeptTargets) {
  const LossSum loss =
      cross_entropy_sum_count(zeros({3, 2}), tensor({0, 1, -100}), {.weight = tensor({0.25, 2.0})});
  EXPECT_EQ(loss.count.item(), 2.25);
  EXPECT_EQ(loss.count.dtype(), DType::kF32);
  EXPECT_FALSE(loss.count.requires_grad());
}

TEST(CrossEntropy, NamesATargetThatIsNoClass) {
  EXPECT_ERROR(cross_entropy(zeros({2, 3}), tensor({0, 3})), ErrorCode::kOutOfRange,
               HasSubstr("3"));
  EXPECT_ERROR(cross_entropy(zeros({2, 3}), tensor({0})), ErrorCode::kInvalidArgument,
               HasSubstr("i64[1]"));
  EXPECT_ERROR(cross_entropy(zeros({2, 3}), tensor({0, 1}), {.label_smoothing = 1.5}),
               ErrorCode::kInvalidArgument, HasSubstr("1.5"));
}

TEST(Losses, HaveFirstAndSecondDerivatives) {
  const auto check = [](const GradcheckFunction& loss, const char* what) {
    for (const DimVector& sizes : {DimVector{2, 3}, DimVector{0, 3}, DimVector{1}}) {
      expect_gradients(loss, {leaf(sizes), leaf(sizes, 2)}, what);
    }
    expect_gradients(loss, {transposed_leaf({2, 3}), leaf({2, 3}, 2)}, what);
  };
  const Reduction sum = Reduction::kSum;
  check([=](Inputs in) { return std::vector{mse_loss(in[0], in[1], sum)}; }, "mse");
  check([=](Inputs in) { return std::vector{l1_loss(in[0], in[1], sum)}; }, "l1");
  check([=](Inputs in) { return std::vector{smooth_l1_loss(in[0], in[1], sum, 0.5)}; }, "smooth");
  check([=](Inputs in) { return std::vector{huber_loss(in[0], in[1], sum, 0.5)}; }, "huber");
  check(
      [=](Inputs in) {
        return std::vector{binary_cross_entropy(sigmoid(in[0]), sigmoid(in[1]), {}, sum)};
      },
      "bce");
  check(
      [=](Inputs in) {
        return std::vector{binary_cross_entropy_with_logits(in[0], sigmoid(in[1]), {}, {}, sum)};
      },
      "bce with logits");
  check([=](Inputs in) { return std::vector{kl_div(in[0], sigmoid(in[1]), sum)}; }, "kl");
  check([=](Inputs in) { return std::vector{kl_div(in[0], in[1], sum, true)}; }, "kl log");
}

TEST(NllLoss, HasDerivativesAndIgnores) {
  const Tensor target = from_vector<int64_t>({2, 0, -100});
  expect_gradients([&](Inputs in) { return std::vector{nll_loss(log_softmax(in[0], 1), target)}; },
                   {leaf({3, 4})});
}
}  // namespace
}  // namespace muster::testing
