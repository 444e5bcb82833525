#include <cmath>
#include <functional>
#include <limits>
#include <map>

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
using K = UnaryKind;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Formula {
  UnaryKind kind;
  std::function<double(double)> exact;
  PointwiseParams params = {};
  double low = -4;
  double high = 4;
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double clamped(double x, double low, double high) { return std::min(std::max(x, low), high); }

// Every kind with its formula in f64, on the interval where it is finite.
std::vector<Formula> formulas() {
  const double pi = std::acos(-1.0);
  return {
      {K::kNeg, [](double x) { return -x; }},
      {K::kAbs, [](double x) { return std::abs(x); }},
      {K::kSign, [](double x) { return x > 0   ? 1.0
                                       : x < 0 ? -1.0
                                               : 0.0; }},
      {K::kSquare, [](double x) { return x * x; }},
      {K::kRelu, [](double x) { return x > 0 ? x : 0; }},
      {K::kFloor, [](double x) { return std::floor(x); }},
      {K::kCeil, [](double x) { return std::ceil(x); }},
      {K::kTrunc, [](double x) { return std::trunc(x); }},
      {K::kRound, [](double x) { return std::nearbyint(x); }},
      {K::kLogicalNot, [](double x) { return x == 0 ? 1.0 : 0.0; }},
      {K::kClamp, [](double x) { return clamped(x, -1.5, 2); }, {.a = -1.5, .b = 2.0}},
      {K::kThreshold, [](double x) { return x > 0.5 ? x : -3; }, {.a = 0.5, .b = -3.0}},
      {K::kIsnan, [](double) { return 0.0; }},
      {K::kIsinf, [](double) { return 0.0; }},
      {K::kIsfinite, [](double) { return 1.0; }},
      {K::kIsposinf, [](double) { return 0.0; }},
      {K::kIsneginf, [](double) { return 0.0; }},
      {K::kSignbit, [](double x) { return std::signbit(x) ? 1.0 : 0.0; }},
      {K::kNanToNum, [](double x) { return x; }},
      {K::kReciprocal, [](double x) { return 1 / x; }},
      {K::kSqrt, [](double x) { return std::sqrt(x); }, {}, 0, 9},
      {K::kRsqrt, [](double x) { return 1 / std::sqrt(x); }, {}, 0.1, 9},
      {K::kExp, [](double x) { return std::exp(x); }},
      {K::kExp2, [](double x) { return std::exp2(x); }},
      {K::kExpm1, [](double x) { return std::expm1(x); }},
      {K::kLog, [](double x) { return std::log(x); }, {}, 0.01, 9},
      {K::kLog2, [](double x) { return std::log2(x); }, {}, 0.01, 9},
      {K::kLog10, [](double x) { return std::log10(x); }, {}, 0.01, 9},
      {K::kLog1p, [](double x) { return std::log1p(x); }, {}, -0.9, 9},
      {K::kSin, [](double x) { return std::sin(x); }},
      {K::kCos, [](double x) { return std::cos(x); }},
      {K::kTan, [](double x) { return std::tan(x); }, {}, -1.4, 1.4},
      {K::kTanh, [](double x) { return std::tanh(x); }},
      {K::kSinh, [](double x) { return std::sinh(x); }},
      {K::kCosh, [](double x) { return std::cosh(x); }},
      {K::kAsin, [](double x) { return std::asin(x); }, {}, -0.99, 0.99},
      {K::kAcos, [](double x) { return std::acos(x); }, {}, -0.99, 0.99},
      {K::kAtan, [](double x) { return std::atan(x); }},
      {K::kAsinh, [](double x) { return std::asinh(x); }},
      {K::kAcosh, [](double x) { return std::acosh(x); }, {}, 1.1, 9},
      {K::kAtanh, [](double x) { return std::atanh(x); }, {}, -0.9, 0.9},
      {K::kSigmoid, sigmoid},
      {K::kErf, [](double x) { return std::erf(x); }},
      {K::kErfc, [](double x) { return std::erfc(x); }},
      {K::kLgamma, [](double x) { return std::lgamma(x); }, {}, 0.1, 30},
      {K::kFrac, [](double x) { return x - std::trunc(x); }},
      {K::kLogit, [](double x) { return std::log(x / (1 - x)); }, {.a = -1.0}, 0.05, 0.95},
      {K::kSinc, [pi](double x) { return std::sin(pi * x) / (pi * x); }, {}, 0.05, 0.95},
      {K::kGelu, [](double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2.0)); }},
      {K::kGeluTanh,
       [pi](double x) {
         return 0.5 * x * (1 + std::tanh(std::sqrt(2 / pi) * (x + 0.044715 * x * x * x)));
       }},
      {K::kSilu, [](double x) { return x * sigmoid(x); }},
      {K::kSoftplus,
       [](double x) { return x * 2 > 3 ? x : std::log1p(std::exp(2 * x)) / 2; },
       {.a = 2.0, .b = 3.0}},
      {K::kLogsigmoid, [](double x) { return -std::log1p(std::exp(-x)); }},
      {K::kElu,
       [](double x) { return x > 0 ? 1.5 * x : 1.5 * 2 * std::expm1(0.5 * x); },
       {.a = 2.0, .b = 1.5, .c = 0.5}},
      {K::kLeakyRelu, [](double x) { return x > 0 ? x : 0.1 * x; }, {.a = 0.1}},
      {K::kHardtanh, [](double x) { return clamped(x, -1, 1); }, {.a = -1.0, .b = 1.0}},
      {K::kHardsigmoid, [](double x) { return clamped(x + 3, 0, 6) / 6; }},
      {K::kHardswish, [](double x) { return x * clamped(x + 3, 0, 6) / 6; }},
      {K::kMish, [](double x) { return x * std::tanh(std::log1p(std::exp(x))); }},
      {K::kSoftsign, [](double x) { return x / (1 + std::abs(x)); }},
      {K::kTanhshrink, [](double x) { return x - std::tanh(x); }},
      {K::kSoftshrink,
       [](double x) { return x > 0.5    ? x - 0.5
                             : x < -0.5 ? x + 0.5
                                        : 0; },
       {.a = 0.5}},
      {K::kHardshrink, [](double x) { return std::abs(x) > 0.5 ? x : 0; }, {.a = 0.5}},
  };
}

std::vector<double> inputs_of(const Formula& formula, int64_t count) {
  std::vector<double> values = scattered_values(count, 1);
  const double middle = (formula.low + formula.high) / 2;
  for (double& value : values) value = middle + value * (formula.high - formula.low) / 2;
  return values;
}

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 1e-13;
    case DType::kF32:
      return 1e-6;
    case DType::kF16:
      return 1e-3;
    default:
      return 8e-3;
  }
}

TEST(Unary, EveryFloatingKindFollowsItsFormulaInEveryFloatDtypeAndLayout) {
  for (const Formula& formula : formulas()) {
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
      for (const Arrangement arrangement : kOwnArrangements) {
        TestView in({5, 3, 7}, dtype, arrangement);
        in.fill_from(inputs_of(formula, in.numel()));
        const TestView out({5, 3, 7}, dtype);
        unary(formula.kind, out, in, formula.params);
        for (int64_t i = 0; i < in.numel(); ++i) {
          const double expected = formula.exact(in.get(i));
          ASSERT_NEAR(out.get(i), expected, tolerance(dtype) * std::max(1.0, std::abs(expected)))
              << "kind " << static_cast<int>(formula.kind) << " at " << in.get(i) << " in dtype "
              << to_string(dtype);
        }
      }
    }
  }
}

TEST(Unary, TheBitsOfAnElementDependOnNeitherLayoutNorPlaceNorThreads) {
  for (const Formula& formula : formulas()) {
    const std::vector<double> values = inputs_of(formula, 3 * 911);
    const auto run = [&](Arrangement in_arrangement, Arrangement out_arrangement) {
      TestView in({3, 911}, DType::kF32, in_arrangement);
      in.fill_from(values);
      const TestView out({3, 911}, DType::kF32, out_arrangement);
      unary(formula.kind, out, in, formula.params);
      return out.bits();
    };
    const std::string expected = run(Arrangement::kContiguous, Arrangement::kContiguous);
    for (const Arrangement arrangement : kOwnArrangements) {
      EXPECT_TRUE(run(arrangement, Arrangement::kContiguous) == expected)
          << static_cast<int>(formula.kind);
      EXPECT_TRUE(run(arrangement, arrangement) == expected) << static_cast<int>(formula.kind);
    }
    // One element alone: the tail of a SIMD loop.
    for (const int64_t i : {0, 1, 900, 2732}) {
      TestView in({1}, DType::kF32);
      in.set(0, static_cast<double>(static_cast<float>(values[static_cast<size_t>(i)])));
      const TestView out({1}, DType::kF32);
      unary(formula.kind, out, in, formula.params);
      EXPECT_TRUE(out.bits() == expected.substr(static_cast<size_t>(i) * 4, 4))
          << static_cast<int>(formula.kind) << " element " << i;
    }
  }
}

TEST(Unary, LargeTensorsGiveTheSameBitsOnAnyNumberOfThreads) {
  for (const UnaryKind kind : {K::kExp, K::kGelu, K::kTanh, K::kSin, K::kNeg}) {
    TestView in({300, 401}, DType::kF32, Arrangement::kTransposed);
    in.fill_from(scattered_values(in.numel(), 5));
    testing::expect_same_on_any_threads([&] {
      const TestView out({300, 401}, DType::kF32);
      unary(kind, out, in);
      return out.bits();
    });
  }
}

TEST(Unary, IntegersKeepTheirArithmetic) {
  for (const DType dtype : {DType::kI64, DType::kI32, DType::kI16, DType::kI8}) {
    TestView in({4}, dtype);
    in.fill_from({-3, 0, 5, 7});
    const TestView out({4}, dtype);
    unary(K::kNeg, out, in);
    EXPECT_EQ(out.values(), (std::vector<double>{3, 0, -5, -7}));
    unary(K::kAbs, out, in);
    EXPECT_EQ(out.values(), (std::vector<double>{3, 0, 5, 7}));
    unary(K::kBitwiseNot, out, in);
    EXPECT_EQ(out.values(), (std::vector<double>{2, -1, -6, -8}));
    unary(K::kClamp, out, in, {.a = -1, .b = 6});
    EXPECT_EQ(out.values(), (std::vector<double>{-1, 0, 5, 6}));
    unary(K::kHardtanh, out, in, {.a = -1, .b = 6});
    EXPECT_EQ(out.values(), (std::vector<double>{-1, 0, 5, 6}));
    unary(K::kRelu, out, in);
    EXPECT_EQ(out.values(), (std::vector<double>{0, 0, 5, 7}));
  }
  TestView least({1}, DType::kI8);
  least.set(0, -128);
  const TestView wrapped({1}, DType::kI8);
  unary(K::kNeg, wrapped, least);
  EXPECT_EQ(wrapped.get(0), -128);
}

TEST(Unary, BoolHasLogicalForms) {
  TestView in({2}, DType::kBool);
  in.fill_from({0, 1});
  const TestView out({2}, DType::kBool);
  unary(K::kBitwiseNot, out, in);
  EXPECT_EQ(out.values(), (std::vector<double>{1, 0}));
  unary(K::kLogicalNot, out, in);
  EXPECT_EQ(out.values(), (std::vector<double>{1, 0}));
}

TEST(Unary, SpecialValuesAreThoseOfPyTorch) {
  struct Case {
    UnaryKind kind;
    double in;
    double out;
  };
  const Case cases[] = {
      {K::kSign, kNan, 0},     {K::kRelu, kNan, kNan},    {K::kRelu, -0.0, -0.0},
      {K::kExp, -kInf, 0},     {K::kExp, kInf, kInf},     {K::kLog, 0, -kInf},
      {K::kLog, -1, kNan},     {K::kLog, kInf, kInf},     {K::kLog1p, -1, -kInf},
      {K::kTanh, kInf, 1},     {K::kTanh, -0.0, -0.0},    {K::kSqrt, -0.0, -0.0},
      {K::kSqrt, -1, kNan},    {K::kRound, 2.5, 2},       {K::kRound, -0.5, -0.0},
      {K::kErf, -kInf, -1},    {K::kSigmoid, -kInf, 0},   {K::kReciprocal, -0.0, -kInf},
      {K::kExpm1, -0.0, -0.0}, {K::kExpm1, -kInf, -1},    {K::kSinc, 0, 1},
      {K::kNeg, 0.0, -0.0},    {K::kIsnan, kNan, 1},      {K::kIsinf, -kInf, 1},
      {K::kIsfinite, kInf, 0}, {K::kIsneginf, -kInf, 1},  {K::kIsposinf, -kInf, 0},
      {K::kErfinv, 1, kInf},   {K::kErfinv, 2, kNan},     {K::kLogicalNot, kNan, 0},
      {K::kSilu, -kInf, kNan}, {K::kLogsigmoid, kInf, 0}, {K::kSoftsign, 0, 0},
  };
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const Case& c : cases) {
      TestView in({1}, dtype);
      in.set(0, c.in);
      const TestView out({1}, dtype);
      unary(c.kind, out, in, {.a = -1.0});
      const std::string what =
          fmt::format("kind {} of {} in {}", static_cast<int>(c.kind), c.in, to_string(dtype));
      if (std::isnan(c.out)) {
        EXPECT_TRUE(std::isnan(out.get(0))) << what;
      } else {
        EXPECT_EQ(out.get(0), c.out) << what;
        EXPECT_EQ(std::signbit(out.get(0)), std::signbit(c.out)) << what;
      }
    }
  }
}

TEST(Unary, ErfinvAndDigammaInvertTheirIdentities) {
  for (double y = -0.999; y < 1; y += 0.0037) {
    TestView in({1}, DType::kF64);
    in.set(0, y);
    const TestView out({1}, DType::kF64);
    unary(K::kErfinv, out, in);
    EXPECT_NEAR(std::erf(out.get(0)), y, 1e-14);
  }
  for (double x = -4.75; x < 20; x += 0.5) {
    TestView in({2}, DType::kF64);
    in.fill_from({x, x + 1});
    const TestView out({2}, DType::kF64);
    unary(K::kDigamma, out, in);
    EXPECT_NEAR(out.get(1) - out.get(0), 1 / x, 1e-12 * std::max(1.0, std::abs(out.get(0)))) << x;
  }
}

TEST(Unary, ResultsAreStoredIntoAnyDtype) {
  TestView in({3}, DType::kF32);
  in.fill_from({kNan, 1, kInf});
  const TestView flags({3}, DType::kBool);
  unary(K::kIsfinite, flags, in);
  EXPECT_EQ(flags.values(), (std::vector<double>{0, 1, 0}));
  const TestView numbers({3}, DType::kI64);
  unary(K::kNanToNum, numbers, in, {.a = 7.0, .b = 8.0, .c = 9.0});
  EXPECT_EQ(numbers.values(), (std::vector<double>{7, 1, 8}));
}

TEST(Unary, InPlaceAndEmptyAndZeroDimWork) {
  TestView x({2, 3}, DType::kF32, Arrangement::kTransposed);
  x.fill_from({1, 2, 3, 4, 5, 6});
  unary(K::kNeg, x, x);
  EXPECT_EQ(x.values(), (std::vector<double>{-1, -2, -3, -4, -5, -6}));
  const TestView empty({3, 0}, DType::kF32);
  unary(K::kNeg, empty, empty);
  TestView scalar(Dims{}, DType::kF32);
  scalar.set(0, 2);
  unary(K::kSquare, scalar, scalar);
  EXPECT_EQ(scalar.get(0), 4);
}

TEST(Unary, AKindWithoutFormulaForTheDtypeIsRefused) {
  const TestView x({2}, DType::kI64);
  EXPECT_ERROR(unary(K::kExp, x, x), ErrorCode::kUnimplemented, HasSubstr("i64"));
  const TestView y({2}, DType::kF32);
  EXPECT_ERROR(unary(K::kBitwiseNot, y, y), ErrorCode::kUnimplemented, HasSubstr("f32"));
  const TestView z({3}, DType::kF32);
  EXPECT_ERROR(unary(K::kNeg, y, z), ErrorCode::kInvalidArgument, HasSubstr("[3] and [2]"));
}
}  // namespace
}  // namespace muster::kernels::cpu
