// Accuracy of the f32 SIMD functions, through the kernels that use them.
#include <cmath>
#include <functional>

#include "core/kernels/cpu/pointwise.h"
#include "tests/core/kernels/test_view.h"

namespace muster::kernels::cpu {
namespace {
// Every float whose bit pattern is a multiple of a prime: all exponents, both signs, subnormals.
std::vector<float> sampled_floats() {
  std::vector<float> out;
  for (uint64_t bits = 0; bits <= 0xFFFFFFFFu; bits += 30011) {
    out.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  for (int i = -200; i <= 200; ++i) out.push_back(static_cast<float>(i) / 16.0f);
  for (const float special : {0.0f, -0.0f, INFINITY, -INFINITY, 1.0f, -1.0f, 88.7f, -103.9f}) {
    out.push_back(special);
  }
  return out;
}

void expect_accuracy(const char* name, UnaryKind kind, double limit_ulp,
                     const std::function<double(double)>& exact, double negligible = 0) {
  const std::vector<float> in = sampled_floats();
  std::vector<float> out(in.size());
  const int64_t sizes[] = {static_cast<int64_t>(in.size())};
  const int64_t strides[] = {1};
  unary(kind, TensorView(out.data(), DType::kF32, sizes, strides),
        TensorView(const_cast<float*>(in.data()), DType::kF32, sizes, strides));
  double worst = 0;
  float worst_at = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    const double expected = exact(static_cast<double>(in[i]));
    if (std::fabs(expected) < negligible) {
      EXPECT_LT(std::fabs(static_cast<double>(out[i])), 2 * negligible) << name;
      continue;
    }
    const double error = testing::ulps_f32(static_cast<double>(out[i]), expected);
    if (error > worst) {
      worst = error;
      worst_at = in[i];
    }
  }
  ::testing::Test::RecordProperty(std::string("ulp_") + name, std::to_string(worst));
  EXPECT_LE(worst, limit_ulp) << name << " at " << worst_at;
}

TEST(VecMath, ExponentialsAreWithinTwoUlp) {
  expect_accuracy("exp", UnaryKind::kExp, 1.5, [](double x) { return std::exp(x); });
  expect_accuracy("expm1", UnaryKind::kExpm1, 2.0, [](double x) { return std::expm1(x); });
}

TEST(VecMath, LogarithmsAreWithinTwoUlp) {
  expect_accuracy("log", UnaryKind::kLog, 1.5, [](double x) { return std::log(x); });
  expect_accuracy("log1p", UnaryKind::kLog1p, 2.0, [](double x) { return std::log1p(x); });
}

TEST(VecMath, SigmoidTanhAndErfAreWithinFiveUlp) {
  expect_accuracy("sigmoid", UnaryKind::kSigmoid, 3.0,
                  [](double x) { return 1 / (1 + std::exp(-x)); });
  expect_accuracy("tanh", UnaryKind::kTanh, 3.0, [](double x) { return std::tanh(x); });
  expect_accuracy("erf", UnaryKind::kErf, 3.0, [](double x) { return std::erf(x); });
  expect_accuracy("erfc", UnaryKind::kErfc, 5.0, [](double x) { return std::erfc(x); });
}

TEST(VecMath, GeluIsWithinFiveUlpAlsoInItsNegativeTail) {
  expect_accuracy(
      "gelu", UnaryKind::kGelu, 5.0,
      [](double x) {
        // -inf * 0 is nan, as in PyTorch.
        return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
      },
      1e-37);  // x times a subnormal
}
}  // namespace
}  // namespace muster::kernels::cpu
