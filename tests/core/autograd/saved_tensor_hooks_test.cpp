#include "core/autograd/saved_tensor_hooks.h"

#include <gmock/gmock.h>

#include "core/autograd/autograd.h"
#include "core/autograd/function.h"
#include "core/ops/op_registry.h"
#include "core/ops/op_samples.h"
#include "core/ops/ops.h"
#include "core/tensor/caching_allocator.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Tensor leaf(std::vector<double> values) {
  const auto n = static_cast<int64_t>(values.size());
  return requires_grad_(from_vector(values, {n}));
}

SavedTensorHooks identity() {
  return {.pack = [](const Tensor& tensor) -> std::any { return tensor; },
          .unpack = [](const std::any& packed) { return std::any_cast<Tensor>(packed); }};
}

// Keeps a copy, as an offload to another memory would.
SavedTensorHooks copying() {
  return {.pack = [](const Tensor& tensor) -> std::any { return clone(tensor); },
          .unpack = [](const std::any& packed) { return clone(std::any_cast<Tensor>(packed)); }};
}

TEST(SavedTensorHooks, SeeEachSavedTensorOnceAndGiveItBack) {
  const Tensor x = leaf({3.0, -1.0}), w = leaf({2.0, 5.0});
  std::vector<std::string> packed_sites;
  int unpacked = 0;
  Tensor y;
  {
    const SavedTensorHooksGuard guard({.pack = [&](const Tensor& tensor) -> std::any {
                                         packed_sites.push_back(saved_tensor_site());
                                         return mul(tensor, 2.0);
                                       },
                                       .unpack =
                                           [&](const std::any& packed) {
                                             ++unpacked;
                                             return div(std::any_cast<Tensor>(packed), 2.0);
                                           }});
    y = sum(mul(x, w));
  }
  EXPECT_THAT(packed_sites, ElementsAre("mul \"self\"", "mul \"other\""));
  EXPECT_EQ(unpacked, 0);
  backward(y);
  EXPECT_EQ(unpacked, 2);
  EXPECT_TRUE(equal(grad_of(x), detach(w)));
  EXPECT_TRUE(equal(grad_of(w), detach(x)));
  EXPECT_EQ(saved_tensor_site(), "");
}

TEST(SavedTensorHooks, OnlyTheInnermostPairRunsAndTheOuterOneComesBack) {
  const Tensor x = leaf({1.0});
  std::vector<int> order;
  const auto counting = [&](int id) {
    SavedTensorHooks hooks = identity();
    hooks.pack = [&order, id](const Tensor& tensor) -> std::any {
      order.push_back(id);
      return tensor;
    };
    return hooks;
  };
  const SavedTensorHooksGuard outer(counting(1));
  Tensor y = exp(x);
  {
    const SavedTensorHooksGuard inner(counting(2));
    y = exp(y);
  }
  y = exp(y);
  EXPECT_THAT(order, ElementsAre(1, 2, 1));
}

TEST(SavedTensorHooks, OutputsAndIntermediatesKeepTheirHistoryForSecondDerivatives) {
  for (const bool hooked : {false, true}) {
    const Tensor x = leaf({0.5});
    Tensor loss;
    {
      std::optional<SavedTensorHooksGuard> guard;
      if (hooked) guard.emplace(copying());
      loss = sum(mul(exp(x), square(x)));
    }
    const Tensor first = grad(std::span(&loss, 1), std::span(&x, 1), {}, {.create_graph = true})[0];
    const Tensor second = grad(std::span(&first, 1), std::span(&x, 1))[0];
    // (x^2 + 4 x + 2) e^x
    EXPECT_NEAR(second.item(), (0.25 + 2 + 2) * std::exp(0.5), 1e-12) << hooked;
  }
}

TEST(SavedTensorHooks, AWriteIntoTheSavedStorageIsFoundAlsoUnderHooks) {
  const Tensor x = leaf({3.0});
  Tensor y, loss;
  {
    const SavedTensorHooksGuard guard(identity());
    y = mul(x, 2.0);
    loss = sum(square(y));
  }
  add_(y, 1.0);
  EXPECT_ERROR(backward(loss), ErrorCode::kFailedPrecondition,
               HasSubstr("modified by an inplace operation"));
}

TEST(SavedTensorHooks, APackedCopyIsNotTouchedByLaterWrites) {
  const Tensor x = leaf({3.0});
  Tensor y, loss;
  {
    const SavedTensorHooksGuard guard(copying());
    y = mul(x, 2.0);
    loss = sum(square(y));
  }
  NoGradGuard no_grad;
  add_(y, 1.0);
  backward(loss);
  EXPECT_EQ(grad_of(x).item(), 24.0);  // 2 * 2 * (2 * 3)
}

TEST(SavedTensorHooks, APackHookThatWritesIsRefused) {
  const Tensor x = leaf({3.0});
  SavedTensorHooks hooks = identity();
  hooks.pack = [](const Tensor& tensor) -> std::any { return add_(tensor, 1.0); };
  const SavedTensorHooksGuard guard(hooks);
  EXPECT_ERROR(square(x), ErrorCode::kFailedPrecondition,
               HasSubstr("a pack hook is modifying its input in place"));
}

TEST(SavedTensorHooks, AnUnpackHookMustReturnATensor) {
  const Tensor x = leaf({3.0});
  SavedTensorHooks hooks = identity();
  hooks.unpack = [](const std::any&) { return Tensor(); };
  Tensor y;
  {
    const SavedTensorHooksGuard guard(hooks);
    y = sum(square(x));
  }
  EXPECT_ERROR(backward(y), ErrorCode::kFailedPrecondition, HasSubstr("must return a tensor"));
}

TEST(SavedTensorHooks, CanBeDisabledWithAReason) {
  const DisableSavedTensorHooksGuard disabled("this loop writes what it saved");
  EXPECT_ERROR(SavedTensorHooksGuard{identity()}, ErrorCode::kFailedPrecondition,
               HasSubstr("this loop writes what it saved"));
}

TEST(SavedTensorHooks, CannotBeDisabledWhileSomeAreActive) {
  const SavedTensorHooksGuard guard(identity());
  EXPECT_ERROR(DisableSavedTensorHooksGuard{"too late"}, ErrorCode::kFailedPrecondition,
               HasSubstr("too late"));
}

struct ScaledSquare {
  static std::vector<Tensor> forward(FunctionContext& context, std::span<const Tensor> in) {
    context.save_for_backward({in[0]});
    return {square(in[0])};
  }
  static GradList backward(FunctionContext& context, const GradList& grads) {
    return {mul(mul(grads[0], context.saved()[0]), 2.0)};
  }
};

TEST(SavedTensorHooks, CoverCustomFunctions) {
  const Tensor x = leaf({3.0});
  int packed = 0;
  SavedTensorHooks hooks = copying();
  hooks.pack = [&](const Tensor& tensor) -> std::any {
    ++packed;
    return clone(tensor);
  };
  Tensor y;
  {
    const SavedTensorHooksGuard guard(hooks);
    y = apply_function<ScaledSquare>({x})[0];
  }
  EXPECT_EQ(packed, 1);
  backward(sum(y));
  EXPECT_EQ(grad_of(x).item(), 6.0);
}

// Every hooked value is released with its graph, whatever the hooks kept.
TEST(SavedTensorHooks, PackedValuesGoWhenTheGraphGoes) {
  const auto token = std::make_shared<int>(0);
  const Tensor x = leaf({3.0});
  {
    SavedTensorHooks hooks = identity();
    hooks.pack = [token](const Tensor& tensor) -> std::any { return std::pair(token, tensor); };
    hooks.unpack = [](const std::any& packed) {
      return std::any_cast<const std::pair<std::shared_ptr<int>, Tensor>&>(packed).second;
    };
    const SavedTensorHooksGuard guard(std::move(hooks));
    Tensor y = square(x);
    for (int i = 0; i < 10; ++i) y = mul(square(y), 1e-3);
    backward(sum(y));
    EXPECT_EQ(token.use_count(), 2) << "the test and the hook";
  }
  EXPECT_EQ(token.use_count(), 1);
}

// What only the gradient of a constant would need is not kept.
TEST(SavedValues, AProductWithAConstantKeepsTheConstantOnly) {
  const Tensor w = requires_grad_(ones({4, 4})), x = ones({4, 4});
  std::vector<std::string> sites;
  SavedTensorHooks hooks = identity();
  hooks.pack = [&](const Tensor& tensor) -> std::any {
    sites.push_back(saved_tensor_site());
    return tensor;
  };
  const SavedTensorHooksGuard guard(hooks);
  backward(sum(mul(w, x)));
  backward(sum(mm(x, w)));
  backward(sum(linear(x, w)));
  backward(sum(linear(w, x)));
  EXPECT_THAT(sites,
              ElementsAre("mul \"other\"", "mm \"self\"", "linear \"input\"", "linear \"weight\""));
}

// Each operator's derivative must find what it reads, whichever argument alone wants a gradient.
TEST(SavedValues, SufficeForEachArgumentAlone) {
  int checked = 0;
  for (const auto& op : ops::all_ops().all()) {
    const OpDef::Facts& facts = op->facts();
    if (facts.derivative == nullptr || op->writes_self() || facts.is_random) continue;
    for (const std::string& text : facts.samples) {
      const size_t count = ops::Sample::parse(text, op->schema()).tensors().size();
      for (size_t k = 0; k < count; ++k) {
        SCOPED_TRACE(op->name() + " " + text + " argument " + std::to_string(k));
        const ops::Sample sample = ops::Sample::parse(text, op->schema());
        const Tensor input = sample.tensors()[k];
        if (!is_floating(input.dtype())) continue;
        requires_grad_(input);
        std::vector<Tensor> outs(op->num_outputs(sample.args()));
        op->call(sample.args(), outs);
        std::vector<Tensor> roots, grads;
        for (const Tensor& out : outs) {
          if (!out.requires_grad()) continue;
          roots.push_back(out);
          grads.push_back(ones_like(detach(out)));
        }
        if (roots.empty()) continue;
        try {
          backward(roots, grads);
          ++checked;
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kUnimplemented) << error.what();
        }
      }
    }
  }
  EXPECT_GT(checked, 200);
}
}  // namespace
}  // namespace muster
