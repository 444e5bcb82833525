#include "core/nn/optim/optimizer.h"

#include <cmath>

#include "core/autograd/autograd.h"
#include "core/nn/optim/clip_grad.h"
#include "core/nn/optim/lr_schedule.h"
#include "core/ops/ops.h"
#include "tests/support/matchers.h"

namespace muster::testing {
namespace {
using ::testing::AllOf;
using ::testing::HasSubstr;

NamedTensor parameter(const std::string& name, Dims sizes, double value = 1.0) {
  return {name, requires_grad_(full(sizes, value))};
}

TEST(AdamW, StateIsMadeAtTheFirstGradientAndKeyedByName) {
  const NamedTensor a = parameter("a", {2}), b = parameter("b", {3});
  AdamW optimizer({a, b});
  EXPECT_TRUE(optimizer.state().empty());
  set_grad(a.tensor, ones({2}));
  optimizer.step();
  ASSERT_EQ(optimizer.state().size(), 1u);
  EXPECT_EQ(optimizer.state()[0].parameter, "a");
  EXPECT_EQ(optimizer.state()[0].step, 1);
  EXPECT_EQ(optimizer.state()[0].tensors[0].name, "exp_avg");
  EXPECT_EQ(b.tensor.version(), 0u) << "a parameter without gradient is left alone";
}

TEST(AdamW, MaterializedStateDoesNotShiftTheStep) {
  const NamedTensor a = parameter("a", {2}), b = parameter("a", {2});
  AdamW plain({a}), materialized({b});
  materialized.materialize_state();
  EXPECT_EQ(materialized.state()[0].step, 0);
  for (const NamedTensor& p : {a, b}) set_grad(p.tensor, full({2}, 0.5));
  plain.step();
  materialized.step();
  EXPECT_TRUE(equal(a.tensor, b.tensor));
}

TEST(AdamW, LoadStateNamesWhatDoesNotFit) {
  AdamW optimizer({parameter("weight", {2})});
  EXPECT_ERROR(optimizer.load_state({"wieght", 1, {}}), ErrorCode::kNotFound,
               HasSubstr("\"weight\""));
  EXPECT_ERROR(optimizer.load_state({"weight", 1, {{"exp_avg", zeros({3})}, {"foo", zeros({2})}}}),
               ErrorCode::kInvalidArgument,
               AllOf(HasSubstr("shape: exp_avg"), HasSubstr("unexpected: foo"),
                     HasSubstr("missing: exp_avg_sq")));
  EXPECT_TRUE(optimizer.state().empty()) << "nothing was changed";
}

TEST(AdamW, ScalesAndClearsGradientsInTheSamePass) {
  const NamedTensor a = parameter("a", {4}), b = parameter("a", {4});
  AdamW one({a}), two({b});
  set_grad(a.tensor, full({4}, 0.25));
  set_grad(b.tensor, full({4}, 0.5));
  one.step();
  two.step({.grad_scale = 0.5, .zero_grad = true});
  EXPECT_TRUE(equal(a.tensor, b.tensor));
  EXPECT_EQ(sum(grad_of(b.tensor)).item(), 0.0);
}

TEST(Optimizer, CountsTheWriteSoThatAStaleBackwardIsRefused) {
  const NamedTensor a = parameter("a", {2});
  Sgd optimizer({a}, {.lr = 0.1});
  const Tensor loss = sum(mul(a.tensor, a.tensor));
  set_grad(a.tensor, ones({2}));
  optimizer.step();
  EXPECT_EQ(a.tensor.version(), 1u);
  EXPECT_ERROR(backward(loss), ErrorCode::kFailedPrecondition, HasSubstr("modified"));
}

TEST(Optimizer, FollowsAParameterThatWasReplaced) {
  const NamedTensor a = parameter("a", {2});
  Sgd optimizer({a}, {.lr = 1.0});
  const Tensor other = requires_grad_(full({2}, 5.0));
  optimizer.set_parameter("a", other);
  set_grad(other, ones({2}));
  optimizer.step();
  EXPECT_EQ(sum(other).item(), 8.0);
  EXPECT_EQ(sum(a.tensor).item(), 2.0);
}

TEST(Optimizer, RefusesOptionsAndListsThatMakeNoSense) {
  const NamedTensor a = parameter("a", {2});
  EXPECT_ERROR(Sgd({a}, {.lr = -0.1}), ErrorCode::kInvalidArgument, HasSubstr("-0.1"));
  EXPECT_ERROR(Sgd({a}, {.momentum = -1}), ErrorCode::kInvalidArgument, HasSubstr("momentum"));
  EXPECT_ERROR(Sgd({a}, {.nesterov = true}), ErrorCode::kInvalidArgument, HasSubstr("nesterov"));
  EXPECT_ERROR(AdamW({a}, {.beta2 = 1.0}), ErrorCode::kInvalidArgument, HasSubstr("betas"));
  EXPECT_ERROR(AdamW({a}, {.eps = -1e-8}), ErrorCode::kInvalidArgument, HasSubstr("epsilon"));
  EXPECT_ERROR(AdamW({a}, {.weight_decay = -1}), ErrorCode::kInvalidArgument,
               HasSubstr("weight_decay"));
  EXPECT_ERROR(AdamW(std::vector<NamedTensor>{}), ErrorCode::kInvalidArgument, HasSubstr("empty"));
  EXPECT_ERROR(AdamW({a, a}), ErrorCode::kInvalidArgument, HasSubstr("more than once"));
  EXPECT_ERROR(AdamW({{"x", mul(a.tensor, 2)}}), ErrorCode::kInvalidArgument, HasSubstr("leaf"));
}

TEST(ClipGrad, ANormEqualToTheLimitShrinksAsInPyTorch) {
  const NamedTensor a = parameter("a", {2});
  set_grad(a.tensor, from_vector<float>({3, 4}));
  EXPECT_EQ(clip_grad_norm_(std::span<const Tensor>(&a.tensor, 1), 5.0), 5.0);
  EXPECT_FLOAT_EQ(static_cast<float>(sum(grad_of(a.tensor)).item()),
                  static_cast<float>(7.0 * 5.0 / 5.000001));
  EXPECT_EQ(clip_factor(1.0, 2.0), 1.0);
  EXPECT_TRUE(std::isnan(clip_factor(std::nan(""), 1.0)));
  EXPECT_EQ(clip_factor(INFINITY, 1.0), 0.0);
}

TEST(LrSchedule, WarmsUpThenDecaysToItsMinimum) {
  const LrSchedule cosine{
      .kind = LrSchedule::Kind::kCosine, .warmup_steps = 10, .total_steps = 110, .min_factor = 0.1};
  EXPECT_EQ(cosine.factor(0), 0.0);
  EXPECT_DOUBLE_EQ(cosine.factor(5), 0.5);
  EXPECT_DOUBLE_EQ(cosine.factor(10), 1.0);
  EXPECT_DOUBLE_EQ(cosine.factor(60), 0.55);
  EXPECT_DOUBLE_EQ(cosine.factor(110), 0.1);
  EXPECT_DOUBLE_EQ(cosine.factor(500), 0.1);
  const LrSchedule linear{.kind = LrSchedule::Kind::kLinear, .warmup_steps = 0, .total_steps = 4};
  EXPECT_DOUBLE_EQ(linear.factor(0), 1.0);
  EXPECT_DOUBLE_EQ(linear.factor(3), 0.25);
  EXPECT_DOUBLE_EQ(linear.factor(9), 0.0);
  EXPECT_DOUBLE_EQ(LrSchedule{}.factor(123), 1.0);
  const LrSchedule wrong{.kind = LrSchedule::Kind::kCosine, .warmup_steps = 9, .total_steps = 4};
  EXPECT_ERROR(static_cast<void>(wrong.factor(9)), ErrorCode::kInvalidArgument,
               HasSubstr("4 total"));
}
}  // namespace
}  // namespace muster::testing
