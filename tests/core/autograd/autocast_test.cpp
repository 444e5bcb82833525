#include "core/autograd/autocast.h"

#include <gmock/gmock.h>

#include <thread>

#include "core/autograd/autograd.h"
#include "core/autograd/checkpoint.h"
#include "core/ops/ops.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::HasSubstr;

Tensor random(Dims sizes, uint64_t seed) {
  Generator generator(seed);
  return randn(sizes, DType::kF32, {}, &generator);
}

TEST(Autocast, IsOffOutsideOfItsRegionAndOnThisThreadOnly) {
  const Tensor x = ones({2, 2});
  {
    const AutocastGuard autocast(DeviceType::kCpu);
    EXPECT_EQ(mm(x, x).dtype(), DType::kBF16);
    std::thread([&] { EXPECT_EQ(mm(x, x).dtype(), DType::kF32); }).join();
  }
  EXPECT_EQ(mm(x, x).dtype(), DType::kF32);
  EXPECT_FALSE(thread_modes().included.has(DispatchKey::kAutocast));
}

TEST(Autocast, OfAnotherDeviceLeavesTheCpuAlone) {
  const AutocastGuard autocast(DeviceType::kCuda);
  EXPECT_EQ(mm(ones({2, 2}), ones({2, 2})).dtype(), DType::kF32);
}

TEST(Autocast, RefusesTypesThatAreNotLow) {
  EXPECT_ERROR(AutocastGuard(DeviceType::kCpu, DType::kF32), ErrorCode::kInvalidArgument,
               HasSubstr("bf16 or f16; got f32"));
  EXPECT_ERROR(AutocastGuard(DeviceType::kMeta, DType::kBF16), ErrorCode::kInvalidArgument,
               HasSubstr("cpu or cuda"));
  EXPECT_FALSE(autocast_setting(DeviceType::kCpu).enabled);
}

// Gradients of weights do not depend on whether backward runs inside of the region.
TEST(Autocast, BackwardRunsInTheForwardsDtypesWhereverItIsCalled) {
  const Tensor x = random({5, 4}, 1);
  const auto gradient = [&](bool inside) {
    const Tensor w = requires_grad_(random({3, 4}, 2));
    std::optional<AutocastGuard> autocast(DeviceType::kCpu);
    const Tensor loss = mse_loss(linear(x, w), zeros({5, 3}));
    if (!inside) autocast.reset();
    backward(loss);
    return grad_of(w);
  };
  EXPECT_TRUE(equal(gradient(true), gradient(false)));
}

TEST(Autocast, SavesTheLowPrecisionValues) {
  const Tensor x = random({64, 64}, 1);
  const Tensor w = requires_grad_(random({64, 64}, 2));
  const AutocastGuard autocast(DeviceType::kCpu);
  const Tensor y = linear(x, w);
  const Ref<Node> node = grad_fn(y);
  EXPECT_EQ(node->name(), "linear");
  backward(sum(to(y, DType::kF32)));
  EXPECT_EQ(grad_of(w).dtype(), DType::kF32);
}

// The recomputation must run in the region's dtypes although backward runs outside of it.
TEST(Autocast, CheckpointsRecomputeInTheSameRegion) {
  const Tensor x = random({5, 4}, 1);
  const auto gradients = [&](bool checkpointed) {
    const Tensor w1 = requires_grad_(random({8, 4}, 2)), w2 = requires_grad_(random({3, 8}, 3));
    const auto net = [&](const Tensor& in) {
      const Tensor hidden = gelu(linear(in, w1));
      EXPECT_EQ(hidden.dtype(), DType::kBF16);
      return linear(hidden, w2);
    };
    Tensor loss;
    {
      const AutocastGuard autocast(DeviceType::kCpu);
      loss = mse_loss(
          checkpointed ? activation_checkpoint(net, x, {.check = RecomputeCheck::kValues}) : net(x),
          zeros({5, 3}));
    }
    backward(loss);
    return std::pair(grad_of(w1), grad_of(w2));
  };
  const auto plain = gradients(false), again = gradients(true);
  EXPECT_TRUE(equal(plain.first, again.first));
  EXPECT_TRUE(equal(plain.second, again.second));
}

TEST(Autocast, WorksInInferenceMode) {
  const Tensor w = requires_grad_(ones({3, 4}));
  const AutocastGuard autocast(DeviceType::kCpu);
  {
    const InferenceGuard inference;
    EXPECT_EQ(linear(ones({2, 4}), w).dtype(), DType::kBF16);
  }
  const Tensor y = linear(ones({2, 4}), w);
  backward(sum(y));
  EXPECT_TRUE(grad_of(w).defined());
}

TEST(Autocast, KeepsNoCastAfterTheOutermostRegion) {
  const Tensor w = requires_grad_(ones({3, 4}));
  const Ref<TensorImpl>& impl = w.ref();
  {
    const AutocastGuard autocast(DeviceType::kCpu);
    linear(ones({2, 4}), w);
    EXPECT_GT(impl->use_count(), 1u) << "the cache owns what it cast";
  }
  EXPECT_EQ(impl->use_count(), 1u);
}

// Logits stay bf16 in memory; loss and gradient are those of an f32 copy, to the last bit.
TEST(Autocast, CrossEntropyAsSumAndCountNeedsNoWideCopyOfTheLogits) {
  const Tensor values = to(random({6, 50}, 3), DType::kBF16), target = arange(6, DType::kI64);
  for (const bool weighted : {false, true}) {
    const CrossEntropyOptions options{.weight = weighted ? abs(random({50}, 4)) : Tensor()};
    const auto run = [&](bool widened) {
      const Tensor logits = requires_grad_(clone(values));
      const AutocastGuard autocast(DeviceType::kCpu);
      const LossSum loss =
          cross_entropy_sum_count(widened ? to(logits, DType::kF32) : logits, target, options);
      EXPECT_EQ(loss.sum.dtype(), DType::kF32);
      backward(loss.sum);
      return std::pair(detach(loss.sum), grad_of(logits));
    };
    const auto narrow = run(false), wide = run(true);
    EXPECT_TRUE(equal(narrow.first, wide.first)) << weighted;
    EXPECT_TRUE(equal(narrow.second, wide.second)) << weighted;
    EXPECT_EQ(narrow.second.dtype(), DType::kBF16);
  }
}

TEST(Autocast, ListsOfTensorsAreCastToTheWidest) {
  const AutocastGuard autocast(DeviceType::kCpu);
  const std::vector<Tensor> parts = {to(ones({2}), DType::kBF16), ones({2}),
                                     to(ones({2}), DType::kF16)};
  EXPECT_EQ(cat(parts).dtype(), DType::kF32);
}
}  // namespace
}  // namespace muster
