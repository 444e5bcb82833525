#include "core/kernels/cpu/optimizer.h"

#include <cmath>

#include "tests/core/kernels/strided_array.h"
#include "tests/support/matchers.h"

namespace muster::kernels::cpu {
namespace {
using ::muster::testing::same_bits_on_any_threads;
using ::muster::testing::scaled_difference;
using ::muster::testing::StridedArray;
using ::testing::HasSubstr;

constexpr int64_t kNumel = 133;  // no multiple of any vector

// The gradient at `step`, the same for every dtype.
template <typename T>
void set_gradient(StridedArray<T>& grad, int64_t step) {
  StridedArray<float> source({kNumel});
  source.randomize(static_cast<uint64_t>(100 + step));
  for (int64_t i = 0; i < kNumel; ++i) grad[i] = static_cast<T>(source[i]);
}

// Adam as its paper writes it, one element at a time.
struct PlainAdam {
  std::vector<double> p, m, v, vmax;

  void step(const std::vector<double>& grad, int64_t t, const AdamOptions& o, bool amsgrad) {
    for (size_t i = 0; i < p.size(); ++i) {
      double g = (o.maximize ? -1.0 : 1.0) * o.grad_scale * grad[i];
      if (o.decoupled_decay) {
        p[i] *= 1.0 - o.lr * o.weight_decay;
      } else {
        g += o.weight_decay * p[i];
      }
      m[i] = o.beta1 * m[i] + (1.0 - o.beta1) * g;
      v[i] = o.beta2 * v[i] + (1.0 - o.beta2) * g * g;
      vmax[i] = std::max(vmax[i], v[i]);
      const double m_hat = m[i] / (1.0 - std::pow(o.beta1, static_cast<double>(t)));
      const double v_hat =
          (amsgrad ? vmax[i] : v[i]) / (1.0 - std::pow(o.beta2, static_cast<double>(t)));
      p[i] -= o.lr * m_hat / (std::sqrt(v_hat) + o.eps);
    }
  }
};

template <typename T>
void expect_adam_follows_the_formula(const AdamOptions& options, bool amsgrad, double tolerance) {
  StridedArray<T> param({kNumel}), grad({kNumel}), m({kNumel}), v({kNumel}), vmax({kNumel});
  param.randomize(7);
  const std::vector<double> zeros(kNumel, 0.0);
  PlainAdam plain{param.values(), zeros, zeros, zeros};
  AdamState state{m.view(), v.view(), {}};
  if (amsgrad) state.max_exp_avg_sq.emplace(vmax.view());
  for (int64_t step = 1; step <= 20; ++step) {
    set_gradient(grad, step);
    plain.step(grad.values(), step, options, amsgrad);
    adam_step(param.view(), grad.view(), state, step, options);
    if (options.zero_grad) {
      EXPECT_EQ(grad.values(), zeros);
    }
  }
  EXPECT_LE(scaled_difference(param.values(), plain.p), tolerance);
  EXPECT_LE(scaled_difference(m.values(), plain.m), tolerance);
  EXPECT_LE(scaled_difference(v.values(), plain.v), tolerance);
  if (amsgrad) {
    EXPECT_LE(scaled_difference(vmax.values(), plain.vmax), tolerance);
  }
}

TEST(AdamStep, FollowsTheFormulaForTwentySteps) {
  for (const bool decoupled : {true, false}) {
    for (const bool amsgrad : {true, false}) {
      for (const bool maximize : {true, false}) {
        for (const double decay : {0.0, 0.1}) {
          const AdamOptions options{.lr = 1e-2,
                                    .weight_decay = decay,
                                    .decoupled_decay = decoupled,
                                    .maximize = maximize,
                                    .grad_scale = 0.25,
                                    .zero_grad = amsgrad};
          expect_adam_follows_the_formula<float>(options, amsgrad, 2e-6);
          expect_adam_follows_the_formula<double>(options, amsgrad, 1e-14);
        }
      }
    }
  }
}

TEST(AdamStep, GivesTheSameBitsHoweverTheArraysAreCut) {
  const int64_t numel = 100003;
  const auto run = [&](int64_t cut) {
    StridedArray<float> param({numel}), grad({numel}), m({numel}), v({numel});
    param.randomize(1), grad.randomize(2), m.randomize(3), v.fill(0.5);
    const auto part = [&](const StridedArray<float>& array, int64_t from, const DimVector& sizes) {
      static const DimVector kOne = {1};
      return TensorView(array.view().as<float>() + from, DType::kF32, sizes.span(), kOne.span());
    };
    const DimVector head = {cut}, tail = {numel - cut};
    for (const auto& [from, sizes] : {std::pair{int64_t{0}, head}, std::pair{cut, tail}}) {
      adam_step(part(param, from, sizes), part(grad, from, sizes),
                {part(m, from, sizes), part(v, from, sizes), {}}, 3, {.weight_decay = 0.1});
    }
    return param.values();
  };
  EXPECT_EQ(run(0), run(777));
  EXPECT_EQ(run(0), run(65536));
  EXPECT_TRUE(same_bits_on_any_threads([&] { return run(0); }));
}

TEST(AdamStep, RefusesStepZeroAndForeignArrays) {
  StridedArray<float> param({4}), grad({4}), m({4}), v({5});
  EXPECT_ERROR(adam_step(param.view(), grad.view(), {m.view(), v.view(), {}}, 1, {}),
               ErrorCode::kInvalidArgument, HasSubstr("exp_avg_sq"));
  EXPECT_ERROR(adam_step(param.view(), grad.view(), {m.view(), m.view(), {}}, 0, {}),
               ErrorCode::kInvalidArgument, HasSubstr("got 0"));
}

template <typename T>
void expect_sgd_follows_the_formula(SgdOptions o, double tolerance) {
  StridedArray<T> param({kNumel}), grad({kNumel}), buffer({kNumel});
  param.randomize(7);
  buffer.fill(std::nan(""));  // the first step must not read it
  std::vector<double> p = param.values(), b(kNumel, 0.0);
  for (int64_t step = 1; step <= 10; ++step) {
    set_gradient(grad, step);
    for (int64_t i = 0; i < kNumel; ++i) {
      double g = (o.maximize ? -1.0 : 1.0) * o.grad_scale * static_cast<double>(grad[i]);
      g += o.weight_decay * p[i];
      if (o.momentum != 0.0) {
        b[i] = step == 1 ? g : o.momentum * b[i] + (1.0 - o.dampening) * g;
        g = o.nesterov ? g + o.momentum * b[i] : b[i];
      }
      p[i] -= o.lr * g;
    }
    o.first_momentum = step == 1;
    std::optional<TensorView> momentum_buffer;
    if (o.momentum != 0.0) momentum_buffer.emplace(buffer.view());
    sgd_step(param.view(), grad.view(), momentum_buffer, o);
  }
  EXPECT_LE(scaled_difference(param.values(), p), tolerance);
}

TEST(SgdStep, FollowsTheFormulaForTenSteps) {
  for (const double momentum : {0.0, 0.9}) {
    for (const double dampening : {0.0, 0.3}) {
      for (const bool nesterov : {false, true}) {
        const SgdOptions options{.lr = 0.05,
                                 .momentum = momentum,
                                 .dampening = dampening,
                                 .weight_decay = 0.01,
                                 .nesterov = nesterov,
                                 .maximize = nesterov,
                                 .grad_scale = 0.5};
        expect_sgd_follows_the_formula<float>(options, 2e-6);
        expect_sgd_follows_the_formula<double>(options, 1e-14);
      }
    }
  }
}

TEST(SgdStep, WantsABufferExactlyWithMomentum) {
  StridedArray<float> param({4}), grad({4});
  EXPECT_ERROR(sgd_step(param.view(), grad.view(), {}, {.momentum = 0.9}),
               ErrorCode::kInvalidArgument, HasSubstr("momentum 0.9"));
}

}  // namespace
}  // namespace muster::kernels::cpu
