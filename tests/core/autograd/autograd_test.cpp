#include "core/autograd/autograd.h"

#include <gmock/gmock.h>
#include <pthread.h>

#include <thread>

#include "core/autograd/function.h"
#include "core/autograd/gradcheck.h"
#include "core/ops/ops.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
Tensor leaf(std::vector<double> values) {
  const auto n = static_cast<int64_t>(values.size());
  return requires_grad_(from_vector(values, {n}));
}
std::vector<double> list(const Tensor& tensor) {
  std::vector<double> values;
  for (int64_t i = 0; i < tensor.numel(); ++i)
    values.push_back(select(detach(tensor), 0, i).item());
  return values;
}
using ::testing::ElementsAre;

TEST(Backward, GradientOfASquareIsTwiceTheValue) {
  const Tensor x = leaf({3.0, -1.0});
  backward(sum(square(x)));
  EXPECT_THAT(list(grad_of(x)), ElementsAre(6.0, -2.0));
}

TEST(Backward, AccumulatesOverPasses) {
  const Tensor x = leaf({3.0});
  backward(sum(square(x)));
  backward(sum(square(x)));
  EXPECT_EQ(grad_of(x).item(), 12.0);
}

TEST(Backward, ReducesBroadcastDimsToTheInputsSizes) {
  const Tensor x = leaf({2.0});
  backward(sum(mul(x, from_vector(std::vector<double>{1, 2, 3}, {3}))));
  EXPECT_EQ(grad_of(x).item(), 6.0);
}

TEST(Backward, SharedSubexpressionsSumTheirGradients) {
  const Tensor x = leaf({2.0});
  const Tensor y = square(x);
  backward(sum(add(mul(y, y), y)));
  EXPECT_EQ(grad_of(x).item(), 4 * 8.0 + 4.0);
}

TEST(Grad, LeavesAccumulatedGradientsAlone) {
  const Tensor x = leaf({3.0});
  const Tensor y = mul(x, 2.0);
  const Tensor loss = sum(square(y));
  const Tensor inputs[] = {y};
  EXPECT_EQ(grad(std::span(&loss, 1), inputs)[0].item(), 12.0);
  EXPECT_FALSE(grad_of(x).defined());
}

TEST(Grad, SecondDerivativeOfACubeIsSixTimesTheValue) {
  const Tensor x = leaf({2.0});
  const Tensor loss = sum(mul(square(x), x));
  const Tensor first = grad(std::span(&loss, 1), std::span(&x, 1), {}, {.create_graph = true})[0];
  EXPECT_EQ(first.item(), 12.0);
  const Tensor total = sum(first);
  EXPECT_EQ(grad(std::span(&total, 1), std::span(&x, 1))[0].item(), 12.0);
}

TEST(InPlace, WriteToAViewReachesTheBasesHistory) {
  const Tensor x = leaf({1.0, 2.0, 3.0});
  const Tensor y = clone(x);
  mul_(select(y, 0, 1), 10.0);
  backward(sum(y));
  EXPECT_THAT(list(grad_of(x)), ElementsAre(1.0, 10.0, 1.0));
}

TEST(InPlace, PlainBufferBecomesPartOfTheGraph) {
  const Tensor w = leaf({5.0});
  const Tensor buffer = zeros({3}, DType::kF64);
  const Tensor middle = select(buffer, 0, 1);
  copy_(middle, select(w, 0, 0));
  EXPECT_TRUE(buffer.requires_grad());
  backward(sum(square(buffer)));
  EXPECT_EQ(grad_of(w).item(), 10.0);
}

TEST(InPlace, ViewTakenBeforeTheWriteSeesTheNewHistory) {
  const Tensor x = leaf({1.0, 2.0});
  const Tensor y = clone(x);
  const Tensor early = select(y, 0, 0);
  mul_(y, 3.0);
  backward(early);
  EXPECT_THAT(list(grad_of(x)), ElementsAre(3.0, 0.0));
}

TEST(InPlace, MulKeepsTheOldSelfWhereTheFactorNeedsIt) {
  const Tensor a = leaf({3.0}), b = leaf({5.0});
  const Tensor x = clone(a);
  mul_(x, b);
  backward(sum(x));
  EXPECT_EQ(grad_of(a).item(), 5.0);
  EXPECT_EQ(grad_of(b).item(), 3.0);
}

TEST(Modes, NoGradRecordsNothingAndEnableGradRestores) {
  const Tensor x = leaf({1.0});
  const NoGradGuard no_grad;
  EXPECT_FALSE(square(x).requires_grad());
  {
    const GradModeGuard enabled(true);
    EXPECT_TRUE(square(x).requires_grad());
  }
  EXPECT_FALSE(square(x).requires_grad());
}

TEST(Hooks, RunInOrderAndReplaceTheGradient) {
  const Tensor x = leaf({1.0});
  const Tensor y = mul(x, 2.0);
  std::vector<double> seen;
  register_hook(y, [&](const Tensor& g) {
    seen.push_back(g.item());
    return mul(g, 10.0);
  });
  register_hook(y, [&](const Tensor& g) {
    seen.push_back(g.item());
    return Tensor();
  });
  retain_grad(y);
  backward(sum(y));
  EXPECT_THAT(seen, ElementsAre(1.0, 10.0));
  EXPECT_EQ(grad_of(y).item(), 10.0);
  EXPECT_EQ(grad_of(x).item(), 20.0);
}

TEST(Hooks, RemovedInsideAHookStillRunsThisTime) {
  const Tensor x = leaf({1.0});
  int calls = 0;
  HookHandle second;
  register_hook(x, [&](const Tensor&) {
    second.remove();
    return Tensor();
  });
  second = register_hook(x, [&](const Tensor&) {
    ++calls;
    return Tensor();
  });
  backward(sum(x));
  backward(sum(x));
  EXPECT_EQ(calls, 1);
}

TEST(Hooks, PostAccumulateSeesTheLeafWithItsGradient) {
  const Tensor x = leaf({1.0});
  std::vector<double> seen;
  register_post_accumulate_grad_hook(
      x, [&](const Tensor& leaf) { seen.push_back(grad_of(leaf).item()); });
  backward(sum(square(x)));
  backward(sum(square(x)));
  EXPECT_THAT(seen, ElementsAre(2.0, 4.0));
}

TEST(Hooks, OptimizerInBackwardMayClearTheGradient) {
  const Tensor x = leaf({1.0});
  register_post_accumulate_grad_hook(x, [](const Tensor& leaf) {
    sub_(leaf, mul(grad_of(leaf), 0.5));
    set_grad(leaf, {});
  });
  backward(sum(square(x)));
  EXPECT_EQ(detach(x).item(), 0.0);
  EXPECT_FALSE(grad_of(x).defined());
}

TEST(Callback, RunsWhenThePassHasDrained) {
  const Tensor x = leaf({1.0});
  const Tensor y = mul(x, 2.0);
  double at_end = 0;
  register_hook(y, [&](const Tensor&) {
    queue_callback([&] { at_end = grad_of(x).item(); });
    return Tensor();
  });
  backward(sum(y));
  EXPECT_EQ(at_end, 2.0);
  EXPECT_ERROR(queue_callback([] {}), ErrorCode::kFailedPrecondition,
               ::testing::HasSubstr("inside a backward pass"));
}

struct Cube {
  static std::vector<Tensor> forward(FunctionContext& context, std::span<const Tensor> in) {
    context.save_for_backward({in[0]});
    return {mul(square(in[0]), in[0])};
  }
  static GradList backward(FunctionContext& context, const GradList& grads) {
    return {mul(grads[0], mul(square(context.saved()[0]), 3.0))};
  }
};

TEST(Function, IsDifferentiatedTwiceThroughItsBackward) {
  const Tensor x = leaf({2.0, -1.0});
  std::string why;
  const GradcheckFunction cube = [](std::span<const Tensor> in) {
    return apply_function<Cube>({in[0]}, "Cube");
  };
  EXPECT_TRUE(gradcheck(cube, std::span(&x, 1), &why)) << why;
  EXPECT_TRUE(gradgradcheck(cube, std::span(&x, 1), &why)) << why;
}

struct WrongCube {
  static std::vector<Tensor> forward(FunctionContext& context, std::span<const Tensor> in) {
    return Cube::forward(context, in);
  }
  static GradList backward(FunctionContext& context, const GradList& grads) {
    return {mul(grads[0], mul(square(context.saved()[0]), 2.9))};
  }
};

TEST(Gradcheck, FindsAWrongDerivative) {
  const Tensor x = leaf({2.0});
  std::string why;
  const GradcheckFunction wrong = [](std::span<const Tensor> in) {
    return apply_function<WrongCube>({in[0]}, "Wrong");
  };
  EXPECT_FALSE(gradcheck(wrong, std::span(&x, 1), &why));
  EXPECT_THAT(why, ::testing::HasSubstr("by differences"));
}

// Runs `body` on a thread with a small stack.
void on_small_stack(size_t nbytes, const std::function<void()>& body) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, nbytes);
  pthread_t thread;
  const auto run = [](void* argument) -> void* {
    (*static_cast<const std::function<void()>*>(argument))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, const_cast<std::function<void()>*>(&body)),
            0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

TEST(Teardown, AMillionNodesNeedNoStack) {
  on_small_stack(256 << 10, [] {
    const Tensor x = leaf({1.0});
    Tensor y = x;
    for (int i = 0; i < 1000000; ++i) y = add(y, 1.0);
    y.reset();
  });
}

TEST(Teardown, BackwardThroughALongChainNeedsNoStack) {
  on_small_stack(256 << 10, [] {
    const Tensor x = leaf({1.0});
    Tensor y = x;
    for (int i = 0; i < 100000; ++i) y = mul(y, 1.0);
    backward(sum(y));
    EXPECT_EQ(grad_of(x).item(), 1.0);
  });
}

// pt#7343: param -> grad -> node -> saved param.
TEST(Teardown, BackwardWithCreateGraphLeaksNothing) {
  const int64_t before = cpu_allocator().stats().allocated.count;
  for (int i = 0; i < 100; ++i) {
    const Tensor x = requires_grad_(zeros({1024}, DType::kF64));
    backward(sum(tanh(x)), {}, {.create_graph = true});
  }
  EXPECT_EQ(cpu_allocator().stats().allocated.count, before);
}

TEST(Threads, RanksOfOneProcessDifferentiateAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        const Tensor x = leaf({double(t)});
        backward(sum(square(x)));
        EXPECT_EQ(grad_of(x).item(), 2.0 * t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}
}  // namespace
}  // namespace muster
