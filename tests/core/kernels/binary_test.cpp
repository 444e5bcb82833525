#include <cmath>
#include <functional>
#include <limits>

#include "core/kernels/cpu/pointwise.h"
#include "tests/core/kernels/test_view.h"
#include "tests/support/matchers.h"

namespace muster::kernels::cpu {
namespace {
using ::muster::testing::Arrangement;
using ::muster::testing::kOwnArrangements;
using ::muster::testing::scattered_values;
using ::muster::testing::TestView;
using ::testing::HasSubstr;
using K = BinaryKind;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Formula {
  BinaryKind kind;
  std::function<double(double, double)> exact;
  PointwiseParams params = {};
  bool positive = false;  // both operands
};

std::vector<Formula> arithmetic_formulas() {
  return {
      {K::kAdd, [](double a, double b) { return a + 2 * b; }, {.a = 2.0}},
      {K::kSub, [](double a, double b) { return a - 2 * b; }, {.a = 2.0}},
      {K::kMul, [](double a, double b) { return a * b; }},
      {K::kDiv, [](double a, double b) { return a / b; }},
      {K::kFloorDivide, [](double a, double b) { return std::floor(a / b); }},
      {K::kTruncDivide, [](double a, double b) { return std::trunc(a / b); }},
      {K::kRemainder, [](double a, double b) { return a - b * std::floor(a / b); }},
      {K::kFmod, [](double a, double b) { return std::fmod(a, b); }},
      {K::kPow, [](double a, double b) { return std::pow(a, b); }, {}, true},
      {K::kMaximum, [](double a, double b) { return std::max(a, b); }},
      {K::kMinimum, [](double a, double b) { return std::min(a, b); }},
      {K::kFmax, [](double a, double b) { return std::max(a, b); }},
      {K::kFmin, [](double a, double b) { return std::min(a, b); }},
      {K::kEq, [](double a, double b) { return a == b ? 1.0 : 0.0; }},
      {K::kNe, [](double a, double b) { return a != b ? 1.0 : 0.0; }},
      {K::kLt, [](double a, double b) { return a < b ? 1.0 : 0.0; }},
      {K::kLe, [](double a, double b) { return a <= b ? 1.0 : 0.0; }},
      {K::kGt, [](double a, double b) { return a > b ? 1.0 : 0.0; }},
      {K::kGe, [](double a, double b) { return a >= b ? 1.0 : 0.0; }},
      {K::kLogicalAnd, [](double a, double b) { return a != 0 && b != 0 ? 1.0 : 0.0; }},
      {K::kLogicalOr, [](double a, double b) { return a != 0 || b != 0 ? 1.0 : 0.0; }},
      {K::kLogicalXor, [](double a, double b) { return (a != 0) != (b != 0) ? 1.0 : 0.0; }},
      {K::kHeaviside, [](double a, double b) { return a == 0  ? b
                                                      : a > 0 ? 1.0
                                                              : 0.0; }},
      {K::kAtan2, [](double a, double b) { return std::atan2(a, b); }},
      {K::kCopysign, [](double a, double b) { return std::copysign(a, b); }},
      {K::kHypot, [](double a, double b) { return std::hypot(a, b); }},
      {K::kLogaddexp, [](double a, double b) { return std::log(std::exp(a) + std::exp(b)); }},
      {K::kLogaddexp2, [](double a, double b) { return std::log2(std::exp2(a) + std::exp2(b)); }},
      {K::kXlogy, [](double a, double b) { return a * std::log(b); }, {}, true},
      {K::kLerp, [](double a, double b) { return a + 0.3 * (b - a); }, {.a = 0.3}},
  };
}

// The derivative is checked against a central difference of the forward kind.
struct Derivative {
  BinaryKind backward;
  UnaryKind forward;
  PointwiseParams params = {};
  bool of_output = false;
};
const std::vector<Derivative>& derivatives() {
  static const std::vector<Derivative> all = {
      {K::kReluBackward, UnaryKind::kRelu},
      {K::kThresholdBackward, UnaryKind::kRelu, {.a = 0.0}},
      {K::kClampBackward, UnaryKind::kClamp, {.a = -1.2, .b = 0.7}},
      {K::kHardtanhBackward, UnaryKind::kHardtanh, {.a = -1.2, .b = 0.7}},
      {K::kGeluBackward, UnaryKind::kGelu},
      {K::kGeluTanhBackward, UnaryKind::kGeluTanh},
      {K::kSiluBackward, UnaryKind::kSilu},
      {K::kSigmoidBackward, UnaryKind::kSigmoid, {}, true},
      {K::kTanhBackward, UnaryKind::kTanh, {}, true},
      {K::kSoftplusBackward, UnaryKind::kSoftplus, {.a = 2.0, .b = 3.0}},
      {K::kLogsigmoidBackward, UnaryKind::kLogsigmoid},
      {K::kEluBackward, UnaryKind::kElu, {.a = 2.0, .b = 1.5, .c = 0.5}},
      {K::kLeakyReluBackward, UnaryKind::kLeakyRelu, {.a = 0.1}},
      {K::kMishBackward, UnaryKind::kMish},
      {K::kHardswishBackward, UnaryKind::kHardswish},
      {K::kHardsigmoidBackward, UnaryKind::kHardsigmoid},
      {K::kSoftshrinkBackward, UnaryKind::kSoftshrink, {.a = 0.5}},
      {K::kSoftshrinkBackward, UnaryKind::kHardshrink, {.a = 0.5}},
  };
  return all;
}

double unary_f64(UnaryKind kind, double x, const PointwiseParams& params) {
  TestView in({1}, DType::kF64);
  in.set(0, x);
  const TestView out({1}, DType::kF64);
  unary(kind, out, in, params);
  return out.get(0);
}

TEST(Binary, EveryKindFollowsItsFormulaInFloatDtypesAndLayouts) {
  for (const Formula& formula : arithmetic_formulas()) {
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
      for (const Arrangement arrangement : kOwnArrangements) {
        TestView a({4, 5, 3}, dtype, arrangement);
        TestView b({4, 5, 3}, dtype);
        a.fill_from(scattered_values(60, 3, 1));
        b.fill_from(scattered_values(60, 3, 2));
        b.set(7, a.get(7));
        for (int64_t i = 0; formula.positive && i < 60; ++i) {
          a.set(i, std::abs(a.get(i)) + 0.25);
          b.set(i, std::abs(b.get(i)) + 0.25);
        }
        const TestView out({4, 5, 3}, dtype);
        binary(formula.kind, out, a, b, formula.params);
        const double tolerance = dtype == DType::kF64 ? 1e-13 : dtype == DType::kF32 ? 1e-6 : 8e-3;
        for (int64_t i = 0; i < 60; ++i) {
          const double expected = formula.exact(a.get(i), b.get(i));
          ASSERT_NEAR(out.get(i), expected, tolerance * std::max(4.0, std::abs(expected)))
              << "kind " << static_cast<int>(formula.kind) << " of " << a.get(i) << ", " << b.get(i)
              << " in " << to_string(dtype);
        }
      }
    }
  }
}

TEST(Binary, BackwardKindsAreDerivativesOfTheirForwardKinds) {
  for (const Derivative& d : derivatives()) {
    for (double x = -3.97; x < 4; x += 0.0731) {
      const double step = 1e-6;
      const double slope =
          (unary_f64(d.forward, x + step, d.params) - unary_f64(d.forward, x - step, d.params)) /
          (2 * step);
      const double saved = d.of_output ? unary_f64(d.forward, x, d.params) : x;
      for (const DType dtype : {DType::kF64, DType::kF32}) {
        TestView g({1}, dtype);
        TestView s({1}, dtype);
        g.set(0, 1.5);
        s.set(0, saved);
        const TestView out({1}, dtype);
        binary(d.backward, out, g, s, d.params);
        ASSERT_NEAR(out.get(0), 1.5 * slope, 3e-6)
            << "kind " << static_cast<int>(d.backward) << " at " << x;
      }
    }
  }
}

TEST(Binary, BitsDependOnNeitherLayoutNorThreads) {
  std::vector<Formula> all = arithmetic_formulas();
  for (const Derivative& d : derivatives()) all.push_back({d.backward, {}, d.params});
  for (const Formula& formula : all) {
    const auto run = [&](Arrangement arrangement) {
      TestView a({7, 401}, DType::kF32, arrangement);
      TestView b({7, 401}, DType::kF32, Arrangement::kContiguous);
      a.fill_from(scattered_values(a.numel(), 3, 1));
      b.fill_from(scattered_values(a.numel(), 3, 2));
      const TestView out({7, 401}, DType::kF32);
      binary(formula.kind, out, a, b, formula.params);
      return out.bits();
    };
    const std::string expected = run(Arrangement::kContiguous);
    for (const Arrangement arrangement : kOwnArrangements) {
      EXPECT_TRUE(run(arrangement) == expected) << static_cast<int>(formula.kind);
    }
  }
  TestView a({500, 300}, DType::kF32);
  a.fill_from(scattered_values(a.numel(), 3, 1));
  for (const BinaryKind kind : {K::kAdd, K::kPow, K::kGeluBackward, K::kLt}) {
    testing::expect_same_on_any_threads([&] {
      const TestView out({500, 300}, kind == K::kLt ? DType::kBool : DType::kF32);
      TestView b({500, 300}, DType::kF32, Arrangement::kExpanded);
      b.fill_from(scattered_values(300, 2, 5));
      binary(kind, out, a, b);
      return out.bits();
    });
  }
}

TEST(Binary, BroadcastOperandsAreReadByStrideZero) {
  TestView a({300, 200}, DType::kF32);
  a.fill_from(scattered_values(a.numel(), 1));
  TestView row({300, 200}, DType::kF32, Arrangement::kExpanded);
  row.fill_from(scattered_values(200, 1, 9));
  const TestView out({300, 200}, DType::kF32);
  binary(K::kAdd, out, a, row);
  const float one = 0.25f;
  const int64_t zeros[] = {0, 0};
  const TensorView everywhere(const_cast<float*>(&one), DType::kF32, a.sizes(), zeros);
  const TestView shifted({300, 200}, DType::kF32);
  binary(K::kAdd, shifted, everywhere, a);
  for (int64_t i = 0; i < a.numel(); ++i) {
    ASSERT_FLOAT_EQ(static_cast<float>(out.get(i)), static_cast<float>(a.get(i) + row.get(i)));
    ASSERT_FLOAT_EQ(static_cast<float>(shifted.get(i)), static_cast<float>(a.get(i) + 0.25));
  }
}

TEST(Binary, IntegersWrapDivideAndShiftAsPyTorch) {
  struct Case {
    BinaryKind kind;
    DType dtype;
    double a, b, out;
  };
  const Case cases[] = {
      {K::kFloorDivide, DType::kI64, -7, 2, -4},
      {K::kTruncDivide, DType::kI64, -7, 2, -3},
      {K::kRemainder, DType::kI64, -7, 2, 1},
      {K::kFmod, DType::kI64, -7, 2, -1},
      {K::kRemainder, DType::kI32, 7, -2, -1},
      {K::kPow, DType::kI64, 3, 4, 81},
      {K::kPow, DType::kI64, -1, -3, -1},
      {K::kPow, DType::kI64, 2, -1, 0},
      {K::kAdd, DType::kI8, 127, 1, -128},
      {K::kMul, DType::kU8, 200, 2, 144},
      {K::kLeftShift, DType::kI32, 1, 32, 0},
      {K::kRightShift, DType::kI32, -5, 40, -1},
      {K::kRightShift, DType::kI64, -8, 1, -4},
      {K::kLeftShift, DType::kI64, 3, -1, 0},
      {K::kBitwiseAnd, DType::kI16, 12, 10, 8},
      {K::kBitwiseXor, DType::kBool, 1, 1, 0},
      {K::kAdd, DType::kBool, 1, 1, 1},
      {K::kMul, DType::kBool, 1, 0, 0},
      {K::kMaximum, DType::kU8, 3, 200, 200},
      {K::kFmax, DType::kI64, -1, 2, 2},
      {K::kFloorDivide, DType::kI8, -128, -1, -128},
  };
  for (const Case& c : cases) {
    TestView a({1}, c.dtype);
    TestView b({1}, c.dtype);
    a.set(0, c.a);
    b.set(0, c.b);
    const TestView out({1}, c.dtype);
    binary(c.kind, out, a, b);
    EXPECT_EQ(out.get(0), c.out) << "kind " << static_cast<int>(c.kind) << " of " << c.a << ", "
                                 << c.b << " in " << to_string(c.dtype);
  }
}

TEST(Binary, IntegerDivisionByZeroIsRefused) {
  TestView a({3}, DType::kI64);
  const TestView zero({3}, DType::kI64);
  for (const BinaryKind kind : {K::kFloorDivide, K::kTruncDivide, K::kRemainder, K::kFmod}) {
    EXPECT_ERROR(binary(kind, a, a, zero), ErrorCode::kInvalidArgument,
                 HasSubstr("must not be zero"));
  }
}

TEST(Binary, NanAndZeroFollowPyTorch) {
  struct Case {
    BinaryKind kind;
    double a, b, out;
  };
  const Case cases[] = {
      {K::kMaximum, 1, kNan, kNan},
      {K::kMaximum, kNan, 1, kNan},
      {K::kMinimum, kNan, 1, kNan},
      {K::kFmax, kNan, 1, 1},
      {K::kFmin, 1, kNan, 1},
      {K::kEq, kNan, kNan, 0},
      {K::kNe, kNan, kNan, 1},
      {K::kLe, kNan, 1, 0},
      {K::kXlogy, 0, kNan, kNan},
      {K::kXlogy, 0, 0, 0},
      {K::kLogaddexp, -kInf, -kInf, -kInf},
      {K::kLogaddexp, kInf, kInf, kInf},
      {K::kRemainder, 5, kInf, 5},
      {K::kRemainder, -5, kInf, kInf},
      {K::kFloorDivide, 1, 0, kInf},
      {K::kReluBackward, 2, kNan, 2},
      {K::kReluBackward, 2, 0, 0},
      {K::kClampBackward, 2, kNan, 0},
      {K::kClampBackward, 2, 1, 2},
      {K::kHardtanhBackward, 2, 1, 0},
      {K::kHeaviside, kNan, 3, 0},
      {K::kHeaviside, 0, 3, 3},
      {K::kDiv, -1, 0, -kInf},
  };
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const Case& c : cases) {
      TestView a({1}, dtype);
      TestView b({1}, dtype);
      a.set(0, c.a);
      b.set(0, c.b);
      const TestView out({1}, dtype);
      binary(c.kind, out, a, b, {.a = c.kind >= K::kThresholdBackward ? -1.0 : 1.0, .b = 1.0});
      const std::string what = fmt::format("kind {} of {}, {} in {}", static_cast<int>(c.kind), c.a,
                                           c.b, to_string(dtype));
      if (std::isnan(c.out)) {
        EXPECT_TRUE(std::isnan(out.get(0))) << what;
      } else {
        EXPECT_EQ(out.get(0), c.out) << what;
      }
    }
  }
}

TEST(Binary, ComparisonsStoreBoolAndMixedDtypesMeet) {
  TestView a({3}, DType::kI64);
  TestView b({3}, DType::kF32);
  a.fill_from({1, 2, 3});
  b.fill_from({1.5, 2, 2.5});
  const TestView out({3}, DType::kBool);
  binary(K::kLt, out, a, b);
  EXPECT_EQ(out.values(), (std::vector<double>{1, 0, 0}));
  const TestView sum({3}, DType::kF32);
  binary(K::kAdd, sum, a, b);
  EXPECT_EQ(sum.values(), (std::vector<double>{2.5, 4, 5.5}));
}

TEST(BinaryScalar, NumbersMeetTensorsOnEitherSide) {
  TestView x({1000}, DType::kF32);
  x.fill_from(scattered_values(1000, 2));
  const TestView out({1000}, DType::kF32);
  binary_scalar(K::kSub, out, x, 0.5);
  for (int64_t i = 0; i < 1000; ++i) ASSERT_FLOAT_EQ(float(out.get(i)), float(x.get(i) - 0.5));
  binary_scalar(K::kSub, out, x, 0.5, true);
  for (int64_t i = 0; i < 1000; ++i) ASSERT_FLOAT_EQ(float(out.get(i)), float(0.5 - x.get(i)));

  TestView n({3}, DType::kI64);
  n.fill_from({1, 2, 3});
  const TestView halves({3}, DType::kF32);
  binary_scalar(K::kMul, halves, n, 0.5);
  EXPECT_EQ(halves.values(), (std::vector<double>{0.5, 1, 1.5}));
  const TestView more({3}, DType::kI64);
  binary_scalar(K::kAdd, more, n, int64_t{1} << 40);
  EXPECT_EQ(more.get(2), 3.0 + std::ldexp(1.0, 40));
}

TEST(BinaryScalar, CommonPowersAreExact) {
  TestView x({4}, DType::kF32);
  x.fill_from({0.1, 2, 3.3, 9});
  const TestView out({4}, DType::kF32);
  const auto f = [&](int64_t i) { return static_cast<float>(x.get(i)); };
  binary_scalar(K::kPow, out, x, 2);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(float(out.get(i)), f(i) * f(i));
  binary_scalar(K::kPow, out, x, 0.5);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(float(out.get(i)), std::sqrt(f(i)));
  binary_scalar(K::kPow, out, x, -1);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(float(out.get(i)), 1 / f(i));
  binary_scalar(K::kPow, out, x, 2.5);
  for (int64_t i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(float(out.get(i)), std::pow(f(i), 2.5f));
}

TEST(BinaryScalar, AddScaledTakesIntegerFactors) {
  TestView a({2}, DType::kI64);
  TestView b({2}, DType::kI64);
  a.fill_from({1, 2});
  b.fill_from({10, 20});
  const TestView out({2}, DType::kI64);
  add_scaled(out, a, b, 3);
  EXPECT_EQ(out.values(), (std::vector<double>{31, 62}));
}

TEST(Ternary, FormulasHoldInFloatDtypesAndLayouts) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (const Arrangement arrangement : kOwnArrangements) {
      TestView a({5, 7}, dtype, arrangement);
      TestView b({5, 7}, dtype);
      TestView c({5, 7}, dtype, arrangement);
      a.fill_from(scattered_values(35, 2, 1));
      b.fill_from(scattered_values(35, 2, 2));
      c.fill_from(scattered_values(35, 0.9, 3));
      for (int64_t i = 0; i < 35; ++i) c.set(i, std::abs(c.get(i)) + 0.05);
      const TestView out({5, 7}, dtype);
      const double tolerance = dtype == DType::kF64 ? 1e-13 : dtype == DType::kF32 ? 2e-6 : 8e-3;
      const auto check = [&](TernaryKind kind, const auto& exact) {
        ternary(kind, out, a, b, c, {.a = 0.5});
        for (int64_t i = 0; i < 35; ++i) {
          const double expected = exact(a.get(i), b.get(i), c.get(i));
          ASSERT_NEAR(out.get(i), expected, tolerance * std::max(1.0, std::abs(expected)));
        }
      };
      check(TernaryKind::kAddcmul, [](double x, double y, double z) { return x + 0.5 * y * z; });
      check(TernaryKind::kAddcdiv, [](double x, double y, double z) { return x + 0.5 * y / z; });
      check(TernaryKind::kLerp, [](double x, double y, double z) { return x + z * (y - x); });
      check(TernaryKind::kClamp,
            [](double x, double y, double z) { return std::min(std::max(x, y), z); });
    }
  }
}

TEST(Ternary, WhereTakesABoolConditionAndKeepsIntegersExact) {
  TestView condition({3}, DType::kBool);
  condition.fill_from({1, 0, 1});
  TestView a({3}, DType::kI64);
  TestView b({3}, DType::kI64);
  a.fill_from({9007199254740992.0, 2, 3});
  b.fill_from({4, 5, 6});
  const TestView out({3}, DType::kI64);
  ternary(TernaryKind::kWhere, out, condition, a, b);
  EXPECT_EQ(out.values(), (std::vector<double>{9007199254740992.0, 5, 3}));
}

TEST(MaskedFill, WritesTheValueWhereTheMaskIsTrue) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI64, DType::kBool}) {
    TestView x({2, 300}, dtype);
    x.fill_with([](int64_t i) { return static_cast<double>(i % 2); });
    TestView mask({2, 300}, DType::kBool);
    mask.fill_with([](int64_t i) { return i % 3 == 0 ? 1.0 : 0.0; });
    const TestView out({2, 300}, dtype);
    masked_fill(out, x, mask, 1);
    for (int64_t i = 0; i < x.numel(); ++i) {
      ASSERT_EQ(out.get(i), i % 3 == 0 ? 1.0 : static_cast<double>(i % 2));
    }
  }
  TestView n({2}, DType::kI64);
  TestView mask({2}, DType::kBool);
  mask.fill_from({1, 0});
  masked_fill(n, n, mask, 1.9);
  EXPECT_EQ(n.values(), (std::vector<double>{1, 0}));
}
}  // namespace
}  // namespace muster::kernels::cpu
