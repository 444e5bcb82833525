#include "core/autograd/checkpoint.h"

#include <gmock/gmock.h>

#include "core/autograd/autograd.h"
#include "core/autograd/saved_tensor_hooks.h"
#include "core/ops/ops.h"
#include "core/tensor/caching_allocator.h"
#include "core/tensor/generator.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::HasSubstr;

struct Layer {
  Tensor weight, bias;
  explicit Layer(int64_t dim, uint64_t seed) {
    Generator generator(seed);
    weight = requires_grad_(mul(randn({dim, dim}, DType::kF32, {}, &generator), 0.1));
    bias = requires_grad_(mul(randn({dim}, DType::kF32, {}, &generator), 0.1));
  }
  [[nodiscard]] Tensor operator()(const Tensor& x) const {
    const Tensor y = dropout(gelu(linear(x, weight, bias), "tanh"), 0.3, true);
    return add(x, layer_norm(y, {y.size(-1)}, {}, {}, 1e-5));
  }
};

std::vector<Layer> layers_of(int count, int64_t dim) {
  std::vector<Layer> layers;
  for (int i = 0; i < count; ++i) layers.emplace_back(dim, static_cast<uint64_t>(i) + 1);
  return layers;
}

Tensor input_of(int64_t rows, int64_t dim) {
  Generator generator(99);
  return randn({rows, dim}, DType::kF32, {}, &generator);
}

// Gradients of all parameters and of the input of one training pass, one block per layer.
std::vector<Tensor> gradients(const std::vector<Layer>& layers, bool checkpointed,
                              CheckpointOptions options = {}) {
  manual_seed(7);
  const Tensor x = requires_grad_(input_of(6, 8));
  Tensor y = x;
  for (const Layer& layer : layers) {
    y = checkpointed
            ? activation_checkpoint([&layer](const Tensor& in) { return layer(in); }, y, options)
            : layer(y);
  }
  backward(sum(square(y)));
  std::vector<Tensor> grads = {grad_of(x)};
  for (const Layer& layer : layers) {
    for (const Tensor& parameter : {layer.weight, layer.bias}) {
      grads.push_back(grad_of(parameter));
      set_grad(parameter, {});
    }
  }
  return grads;
}

void expect_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_TRUE(a[i].defined() && b[i].defined()) << i;
    EXPECT_TRUE(equal(a[i], b[i])) << "gradient " << i;
  }
}

TEST(Checkpoint, GradientsAreBitForBitThoseWithoutItDropoutIncluded) {
  const std::vector<Layer> layers = layers_of(4, 8);
  const std::vector<Tensor> plain = gradients(layers, false);
  const uint64_t offset_after = default_generator().offset();
  for (const bool early_stop : {true, false}) {
    for (const RecomputeCheck check :
         {RecomputeCheck::kNone, RecomputeCheck::kMetadata, RecomputeCheck::kValues}) {
      expect_same(gradients(layers, true, {.early_stop = early_stop, .check = check}), plain);
      EXPECT_EQ(default_generator().offset(), offset_after) << "recompute must not move it";
    }
  }
}

TEST(Checkpoint, WithoutTheRandomStateDropoutDiffersAndAValueCheckSaysSo) {
  const std::vector<Layer> layers = layers_of(2, 8);
  EXPECT_ERROR(
      gradients(layers, true, {.preserve_rng_state = false, .check = RecomputeCheck::kValues}),
      ErrorCode::kFailedPrecondition, HasSubstr("different values"));
}

TEST(Checkpoint, PeakMemoryFallsAsTheDepthIsCutIntoRegions) {
  constexpr int64_t kDim = 64, kRows = 1024;
  const std::vector<Layer> layers = layers_of(12, kDim);
  const auto peak = [&](bool checkpointed) {
    const Tensor x = input_of(kRows, kDim);
    const int64_t before = cpu_allocator().stats().allocated.count;
    cpu_allocator().reset_peak();
    Tensor y = x;
    for (const Layer& layer : layers) {
      y = checkpointed ? activation_checkpoint([&layer](const Tensor& in) { return layer(in); }, y)
                       : layer(y);
    }
    backward(sum(square(y)));
    for (const Layer& layer : layers) {
      set_grad(layer.weight, {});
      set_grad(layer.bias, {});
    }
    return cpu_allocator().stats().peak_allocated.count - before;
  };
  peak(false);  // fills caches
  const int64_t plain = peak(false), cut = peak(true);
  const int64_t activation = kRows * kDim * 4;
  EXPECT_LT(cut, plain / 2) << "plain " << plain << ", checkpointed " << cut;
  // One activation a region, and one region's inside at a time.
  EXPECT_LT(cut, (12 + 12) * activation);
}

TEST(Checkpoint, NothingRunsTwiceWithoutABackward) {
  int runs = 0;
  const Tensor x = requires_grad_(ones({3}));
  const Tensor y = activation_checkpoint(
      [&](const Tensor& in) {
        ++runs;
        return exp(exp(in));
      },
      x);
  EXPECT_EQ(runs, 1);
  {
    const NoGradGuard no_grad;
    activation_checkpoint([&](const Tensor& in) { return ++runs, exp(in); }, x);
  }
  EXPECT_EQ(runs, 2);
  backward(sum(y));
  EXPECT_EQ(runs, 3) << "once more for the whole region, not for each saved tensor";
}

TEST(Checkpoint, StopsAtTheLastValueThatIsNeeded) {
  const Tensor x = requires_grad_(ones({3}));
  for (const bool early_stop : {true, false}) {
    int reached_end = 0;
    const Tensor y = activation_checkpoint(
        [&](const Tensor& in) {
          const Tensor squared = square(in);
          ++reached_end;
          return squared;
        },
        x, {.early_stop = early_stop});
    backward(sum(y));
    EXPECT_EQ(reached_end, early_stop ? 1 : 2);
  }
}

TEST(Checkpoint, RegionsNest) {
  const std::vector<Layer> layers = layers_of(4, 8);
  const std::vector<Tensor> plain = gradients(layers, false);
  manual_seed(7);
  const Tensor x = requires_grad_(input_of(6, 8));
  int runs_of_first = 0;
  const auto inner = [&](const Layer& layer, const Tensor& in) {
    return activation_checkpoint(
        [&](const Tensor& t) {
          if (&layer == &layers[0]) ++runs_of_first;
          return layer(t);
        },
        in);
  };
  const auto pair = [&](size_t first, const Tensor& in) {
    return activation_checkpoint(
        [&, first](const Tensor& t) { return inner(layers[first + 1], inner(layers[first], t)); },
        in);
  };
  const Tensor y = activation_checkpoint([&](const Tensor& in) { return pair(2, pair(0, in)); }, x);
  backward(sum(square(y)));
  std::vector<Tensor> grads = {grad_of(x)};
  for (const Layer& layer : layers) {
    grads.push_back(grad_of(layer.weight));
    grads.push_back(grad_of(layer.bias));
  }
  expect_same(grads, plain);
  EXPECT_GE(runs_of_first, 3) << "forward, for the outer regions, for its own values";
}

TEST(Checkpoint, RetainGraphRecomputesInEachPass) {
  int runs = 0;
  const Tensor x = requires_grad_(full({2}, 3.0));
  const Tensor loss =
      sum(activation_checkpoint([&](const Tensor& in) { return ++runs, square(in); }, x));
  backward(loss, {}, {.retain_graph = true});
  backward(loss, {}, {.retain_graph = true});
  EXPECT_EQ(runs, 3);
  EXPECT_EQ(select(grad_of(x), 0, 0).item(), 12.0);
  backward(loss);
  EXPECT_ERROR(backward(loss), ErrorCode::kFailedPrecondition, HasSubstr("a second time"));
}

TEST(Checkpoint, SecondDerivativesPassThrough) {
  const Tensor x = requires_grad_(full({1}, 2.0, DType::kF64));
  const Tensor loss =
      sum(activation_checkpoint([](const Tensor& in) { return mul(square(in), in); }, x));
  const Tensor first = grad(std::span(&loss, 1), std::span(&x, 1), {}, {.create_graph = true})[0];
  EXPECT_EQ(first.item(), 12.0);
  EXPECT_EQ(grad(std::span(&first, 1), std::span(&x, 1))[0].item(), 12.0);
}

TEST(Checkpoint, ABackwardInsideTheRegionWorks) {
  const auto function = [](const Tensor& in) {
    const Tensor inner = sum(exp(square(in)));
    const Tensor slope =
        grad(std::span(&inner, 1), std::span(&in, 1), {}, {.create_graph = true})[0];
    return mul(slope, in);
  };
  for (const bool early_stop : {true, false}) {
    const Tensor plain = requires_grad_(full({2}, 0.5, DType::kF64));
    const Tensor region = requires_grad_(full({2}, 0.5, DType::kF64));
    backward(sum(function(plain)));
    backward(sum(activation_checkpoint(function, region, {.early_stop = early_stop})));
    EXPECT_TRUE(equal(grad_of(plain), grad_of(region))) << early_stop;
  }
}

TEST(Checkpoint, OnlyTheNodesOfTheAskedInputsRecompute) {
  const Tensor x = requires_grad_(ones({2})), w = requires_grad_(ones({2}));
  int runs = 0;
  const Tensor y = activation_checkpoint([&](const Tensor& in) { return ++runs, exp(in); }, x);
  const Tensor loss = sum(add(y, square(w)));
  grad(std::span(&loss, 1), std::span(&w, 1), {}, {.retain_graph = true});
  EXPECT_EQ(runs, 1);
  grad(std::span(&loss, 1), std::span(&x, 1));
  EXPECT_EQ(runs, 2);
}

TEST(Checkpoint, SeveralInputsAndOutputsAndAbsentOnes) {
  const Tensor a = requires_grad_(full({2}, 2.0)), b = full({2}, 3.0);
  const std::vector<Tensor> outs = activation_checkpoint(
      [](std::span<const Tensor> in) {
        EXPECT_FALSE(in[2].defined());
        return std::vector<Tensor>{mul(in[0], in[1]), square(in[0]), in[1]};
      },
      {a, b, Tensor()});
  EXPECT_TRUE(outs[2].is_same(b));
  backward(sum(add(outs[0], outs[1])));
  EXPECT_EQ(select(grad_of(a), 0, 1).item(), 3.0 + 4.0);
}

// A routed layer that gave 3 rows and then 2 (expert choices that flip between the runs).
TEST(Checkpoint, OtherSizesInTheSecondRunAreNamedWithTheOperator) {
  int64_t rows = 3;
  const Tensor x = requires_grad_(ones({4, 2})), w = requires_grad_(ones({2, 2}));
  const Tensor loss = sum(
      activation_checkpoint([&](const Tensor& in) { return mm(narrow(in, 0, 0, rows), w); }, x));
  rows = 2;
  EXPECT_ERROR(backward(loss), ErrorCode::kFailedPrecondition,
               ::testing::AllOf(HasSubstr("different metadata"), HasSubstr("f32[3, 2] of mm"),
                                HasSubstr("f32[2, 2] of mm")));
}

TEST(Checkpoint, FewerTensorsInTheSecondRunAreRefusedWithBothCounts) {
  bool first = true;
  const Tensor x = requires_grad_(ones({2}));
  const Tensor loss = sum(activation_checkpoint(
      [&](const Tensor& in) { return std::exchange(first, false) ? exp(exp(in)) : exp(in); }, x));
  EXPECT_ERROR(backward(loss), ErrorCode::kFailedPrecondition,
               HasSubstr("a different number of tensors was saved during the original forward and "
                         "recomputation; forward saved 2, recomputation 1"));
}

TEST(Checkpoint, MoreTensorsInTheSecondRunAreRefused) {
  bool first = true;
  const Tensor x = requires_grad_(ones({2}));
  const Tensor loss = sum(activation_checkpoint(
      [&](const Tensor& in) { return std::exchange(first, false) ? exp(in) : exp(exp(in)); }, x,
      {.early_stop = false}));
  EXPECT_ERROR(backward(loss), ErrorCode::kFailedPrecondition,
               HasSubstr("trying to save more tensors during recomputation"));
}

TEST(Checkpoint, ValueCheckNamesTheOperatorThatChanged) {
  double factor = 2.0;
  const Tensor x = requires_grad_(ones({2})), w = requires_grad_(ones({2}));
  const auto function = [&](const Tensor& in) { return mul(mul(in, factor), w); };
  const Tensor quiet = sum(activation_checkpoint(function, x));
  const Tensor loss = sum(activation_checkpoint(function, x, {.check = RecomputeCheck::kValues}));
  factor = 3.0;
  EXPECT_ERROR(backward(loss), ErrorCode::kFailedPrecondition,
               ::testing::AllOf(HasSubstr("different values"), HasSubstr("mul \"self\"")));
  backward(quiet);
  EXPECT_EQ(select(grad_of(w), 0, 0).item(), 3.0) << "unchecked, the wrong value passes";
}

TEST(Checkpoint, AnInputWrittenBeforeBackwardIsRefused) {
  const Tensor x = requires_grad_(ones({2}));
  const Tensor in = mul(x, 2.0);
  const Tensor loss = sum(activation_checkpoint([](const Tensor& t) { return exp(t); }, in));
  {
    const NoGradGuard no_grad;
    add_(in, 1.0);
  }
  EXPECT_ERROR(backward(loss), ErrorCode::kFailedPrecondition,
               ::testing::AllOf(HasSubstr("backward of checkpoint"),
                                HasSubstr("modified by an inplace operation")));
}

// The second run would read another weight: silent wrong gradients without the version check.
TEST(Checkpoint, ACapturedWeightWrittenBeforeBackwardIsRefused) {
  const Tensor x = requires_grad_(ones({1, 2})), w = requires_grad_(ones({2, 2}));
  const Tensor loss = sum(activation_checkpoint([&](const Tensor& in) { return mm(in, w); }, x));
  {
    const NoGradGuard no_grad;
    add_(w, 1.0);
  }
  EXPECT_ERROR(backward(loss), ErrorCode::kFailedPrecondition,
               HasSubstr("modified by an inplace operation"));
}

TEST(Checkpoint, WorksInsideOtherSavedTensorHooks) {
  const std::vector<Layer> layers = layers_of(2, 8);
  const std::vector<Tensor> plain = gradients(layers, false);
  int packed = 0;
  const SavedTensorHooksGuard hooks(
      {.pack = [&](const Tensor& tensor) -> std::any {
         ++packed;
         return clone(tensor);
       },
       .unpack = [](const std::any& value) { return std::any_cast<Tensor>(value); }});
  expect_same(gradients(layers, true), plain);
  EXPECT_LE(packed, 2 + 4) << "two region inputs and what lies outside of regions";
}

TEST(Checkpoint, RegionsGoWithTheirGraph) {
  const auto token = std::make_shared<int>(0);
  const auto function = [token](const Tensor& in) { return exp(exp(in)); };
  ASSERT_EQ(token.use_count(), 2);
  const Tensor x = requires_grad_(ones({2}));
  {
    const Tensor dropped = activation_checkpoint(function, x);
    EXPECT_EQ(token.use_count(), 3);
  }
  EXPECT_EQ(token.use_count(), 2) << "dropped without a backward";
  const Tensor y = activation_checkpoint(function, x);
  backward(sum(y));
  EXPECT_EQ(token.use_count(), 2) << "after the backward, although y lives";
}
}  // namespace
}  // namespace muster
