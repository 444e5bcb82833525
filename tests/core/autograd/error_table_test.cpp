// Which misuse raises which error, and when. One case per row.
#include <gmock/gmock.h>

#include "core/autograd/autograd.h"
#include "core/autograd/function.h"
#include "core/ops/ops.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::HasSubstr;

Tensor leaf(std::vector<double> values) {
  const auto n = static_cast<int64_t>(values.size());
  return requires_grad_(from_vector(values, {n}));
}

TEST(ErrorTable, WriteThroughADetachedAliasIsFoundInBackward) {
  const Tensor x = leaf({3.0});
  const Tensor loss = sum(square(x));
  add_(detach(x), 1.0);
  EXPECT_ERROR(backward(loss), ErrorCode::kFailedPrecondition,
               HasSubstr("modified by an inplace operation"));
  EXPECT_ERROR(backward(loss), ErrorCode::kFailedPrecondition,
               HasSubstr("saved at version 0, now 1"));
}

TEST(ErrorTable, WriteThroughAnIndependentCloneIsFine) {
  const Tensor x = leaf({3.0});
  const Tensor loss = sum(square(x));
  add_(clone(detach(x)), 1.0);
  backward(loss);
  EXPECT_EQ(grad_of(x).item(), 6.0);
}

TEST(ErrorTable, WriteUnderNoGradCountsAsWell) {
  const Tensor x = leaf({3.0});
  const Tensor y = mul(x, 2.0);
  const Tensor loss = sum(square(y));
  {
    const NoGradGuard no_grad;
    add_(y, 1.0);
  }
  EXPECT_ERROR(backward(loss), ErrorCode::kFailedPrecondition,
               HasSubstr("modified by an inplace operation"));
}

TEST(ErrorTable, LeafThatRequiresGradMayNotBeWritten) {
  const Tensor x = leaf({1.0, 2.0});
  EXPECT_ERROR(add_(x, 1.0), ErrorCode::kFailedPrecondition,
               HasSubstr("a leaf Variable that requires grad"));
  EXPECT_EQ(x.version(), 0u);
  EXPECT_EQ(select(detach(x), 0, 0).item(), 1.0);
  const NoGradGuard no_grad;
  add_(x, 1.0);
  EXPECT_EQ(select(detach(x), 0, 0).item(), 2.0);
}

TEST(ErrorTable, ViewOfSuchALeafMayNotBeWritten) {
  const Tensor x = leaf({1.0, 2.0});
  const Tensor v = select(x, 0, 1);
  EXPECT_ERROR(mul_(v, 2.0), ErrorCode::kFailedPrecondition,
               HasSubstr("a view of a leaf Variable"));
}

TEST(ErrorTable, OutputOfUnbindMayNotBeWritten) {
  const Tensor x = clone(leaf({1.0, 2.0}));
  const std::vector<Tensor> parts = unbind(x, 0);
  EXPECT_ERROR(mul_(parts[0], 2.0), ErrorCode::kFailedPrecondition, HasSubstr("several outputs"));
}

TEST(ErrorTable, ViewMadeUnderNoGradMayNotBeWrittenInGradMode) {
  const Tensor x = clone(leaf({1.0, 2.0}));
  Tensor v;
  {
    const NoGradGuard no_grad;
    v = select(x, 0, 0);
  }
  EXPECT_ERROR(mul_(v, 2.0), ErrorCode::kFailedPrecondition, HasSubstr("no_grad mode"));
}

TEST(ErrorTable, SecondBackwardNeedsRetainGraph) {
  const Tensor x = leaf({2.0});
  const Tensor loss = sum(square(x));
  backward(loss, {}, {.retain_graph = true});
  backward(loss);
  EXPECT_EQ(grad_of(x).item(), 8.0);
  EXPECT_ERROR(backward(loss), ErrorCode::kFailedPrecondition,
               HasSubstr("backward through the graph a second time"));
}

TEST(ErrorTable, SecondBackwardIsFineWhereNothingWasSaved) {
  const Tensor x = leaf({2.0});
  const Tensor loss = sum(add(x, 1.0));
  backward(loss);
  backward(loss);
  EXPECT_EQ(grad_of(x).item(), 2.0);
}

TEST(ErrorTable, InferenceTensorCannotBeSaved) {
  Tensor x;
  {
    const InferenceGuard inference;
    x = from_vector(std::vector<double>{1.0}, {1});
    x.impl()->is_inference = true;
  }
  const Tensor w = leaf({2.0});
  EXPECT_ERROR(mul(w, x), ErrorCode::kFailedPrecondition,
               HasSubstr("Inference tensors cannot be saved for backward"));
  EXPECT_ERROR(add_(x, 1.0), ErrorCode::kFailedPrecondition, HasSubstr("outside InferenceMode"));
  EXPECT_EQ(mul(w, clone(x)).requires_grad(), true);
}

TEST(ErrorTable, RootMustBeAScalarAndWantAGradient) {
  const Tensor x = leaf({1.0, 2.0});
  EXPECT_ERROR(backward(square(x)), ErrorCode::kFailedPrecondition,
               HasSubstr("implicitly created only for scalar"));
  EXPECT_ERROR(backward(sum(detach(x))), ErrorCode::kFailedPrecondition,
               HasSubstr("does not require grad"));
}

TEST(ErrorTable, UnusedInputIsAnErrorUnlessAllowed) {
  const Tensor x = leaf({1.0}), other = leaf({1.0});
  const Tensor loss = sum(square(x));
  const Tensor inputs[] = {x, other};
  EXPECT_ERROR(grad(std::span(&loss, 1), inputs, {}, {.retain_graph = true}),
               ErrorCode::kFailedPrecondition, HasSubstr("not have been used"));
  const std::vector<Tensor> result = grad(std::span(&loss, 1), inputs, {}, {.allow_unused = true});
  EXPECT_TRUE(result[0].defined());
  EXPECT_FALSE(result[1].defined());
}

TEST(ErrorTable, OnlyFloatingTensorsRequireGrad) {
  EXPECT_ERROR(requires_grad_(arange(3)), ErrorCode::kInvalidArgument, HasSubstr("floating point"));
}

TEST(ErrorTable, WriteThroughAnExpandedTensorIsRefused) {
  const Tensor x = expand(from_vector(std::vector<double>{1.0}, {1}), {3});
  EXPECT_ERROR(mul_(x, 2.0), ErrorCode::kInvalidArgument, HasSubstr("single memory location"));
}

TEST(ErrorTable, ResultMustBeCastableToSelf) {
  EXPECT_ERROR(add_(arange(3), 0.5), ErrorCode::kInvalidArgument, HasSubstr("can't be cast"));
}

struct OnceOnly {
  static std::vector<Tensor> forward(FunctionContext& context, std::span<const Tensor> in) {
    context.set_once_differentiable();
    context.save_for_backward({in[0]});
    return {square(in[0])};
  }
  static GradList backward(FunctionContext& context, const GradList& grads) {
    return {mul(grads[0], mul(context.saved()[0], 2.0))};
  }
};

TEST(ErrorTable, OnceDifferentiableFunctionRefusesASecondDerivative) {
  const Tensor x = leaf({3.0});
  const Tensor y = apply_function<OnceOnly>({x}, "OnceOnly")[0];
  EXPECT_ERROR(backward(sum(y), {}, {.create_graph = true}), ErrorCode::kFailedPrecondition,
               HasSubstr("once differentiable"));
}

struct TooFew {
  static std::vector<Tensor> forward(FunctionContext&, std::span<const Tensor> in) {
    return {add(in[0], in[1])};
  }
  static GradList backward(FunctionContext&, const GradList& grads) { return {grads[0]}; }
};

TEST(ErrorTable, CustomBackwardMustReturnOneGradientPerInput) {
  const Tensor a = leaf({1.0}), b = leaf({1.0});
  const Tensor y = apply_function<TooFew>({a, b}, "TooFew")[0];
  EXPECT_ERROR(backward(sum(y)), ErrorCode::kInvalidArgument, HasSubstr("got 1 for 2 inputs"));
}
}  // namespace
}  // namespace muster
