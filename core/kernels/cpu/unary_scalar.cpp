// Unary formulas in plain C++: f64 and integers throughout, f32 where no SIMD file has a better
// one.
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/kernels/cpu/pointwise_tables.h"
#include "core/kernels/cpu/unary_special.h"

namespace muster::kernels::cpu {
namespace {
using K = UnaryKind;

template <typename T>
T sigmoid(T x) {
  return T(1) / (T(1) + std::exp(-x));
}
template <typename T>
T clamp_keeping_nan(T x, T lower, T upper) {
  return x < lower ? lower : x > upper ? upper : x;
}

// Kinds for every type, as they are for integers; floats have their own forms of some.
template <UnaryKind kind, typename T>
T basic(T x, const Numbers<T>& p) {
  if constexpr (kind == K::kNeg) return wrapping_sub(T(0), x);
  if constexpr (kind == K::kAbs) return x < 0 ? wrapping_sub(T(0), x) : x;
  if constexpr (kind == K::kSign) return static_cast<T>((x > 0) - (x < 0));
  if constexpr (kind == K::kSquare) return wrapping_mul(x, x);
  if constexpr (kind == K::kRelu) return x < 0 ? T(0) : x;
  if constexpr (kind == K::kLogicalNot) return static_cast<T>(x == 0);
  if constexpr (kind == K::kBitwiseNot && !std::is_floating_point_v<T>) return ~x;
  // A lower bound above the upper one gives the upper one, as in PyTorch.
  if constexpr (kind == K::kClamp) {
    const T raised = x < p.a ? p.a : x;
    return raised > p.b ? p.b : raised;
  }
  if constexpr (kind == K::kThreshold) return x <= p.a ? p.b : x;
  if constexpr (kind == K::kIsnan) return static_cast<T>(x != x);
  if constexpr (kind == K::kIsfinite) return T(1);
  if constexpr (kind == K::kIsinf || kind == K::kIsposinf || kind == K::kIsneginf) return T(0);
  if constexpr (kind == K::kSignbit) return static_cast<T>(x < 0);
  return x;
}

template <UnaryKind kind, typename T>
T basic_of_float(T x, const Numbers<T>& p) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  if constexpr (kind == K::kNeg) return -x;
  if constexpr (kind == K::kAbs) return std::abs(x);
  if constexpr (kind == K::kFloor) return std::floor(x);
  if constexpr (kind == K::kCeil) return std::ceil(x);
  if constexpr (kind == K::kTrunc) return std::trunc(x);
  if constexpr (kind == K::kRound) return std::rint(x);
  if constexpr (kind == K::kIsinf) return static_cast<T>(std::abs(x) == kInfinity);
  if constexpr (kind == K::kIsfinite) return static_cast<T>(std::abs(x) < kInfinity);
  if constexpr (kind == K::kIsposinf) return static_cast<T>(x == kInfinity);
  if constexpr (kind == K::kIsneginf) return static_cast<T>(x == -kInfinity);
  if constexpr (kind == K::kSignbit) return static_cast<T>(std::signbit(x));
  if constexpr (kind == K::kNanToNum) {
    return x != x ? p.a : x == kInfinity ? p.b : x == -kInfinity ? p.c : x;
  }
  return basic<kind, T>(x, p);
}

// Elementary and special functions; floating only.
template <UnaryKind kind, typename T>
T elementary(T x, const Numbers<T>& p) {
  if constexpr (kind == K::kReciprocal) return T(1) / x;
  if constexpr (kind == K::kSqrt) return std::sqrt(x);
  if constexpr (kind == K::kRsqrt) return T(1) / std::sqrt(x);
  if constexpr (kind == K::kExp) return std::exp(x);
  if constexpr (kind == K::kExp2) return std::exp2(x);
  if constexpr (kind == K::kExpm1) return std::expm1(x);
  if constexpr (kind == K::kLog) return std::log(x);
  if constexpr (kind == K::kLog2) return std::log2(x);
  if constexpr (kind == K::kLog10) return std::log10(x);
  if constexpr (kind == K::kLog1p) return std::log1p(x);
  if constexpr (kind == K::kSin) return std::sin(x);
  if constexpr (kind == K::kCos) return std::cos(x);
  if constexpr (kind == K::kTan) return std::tan(x);
  if constexpr (kind == K::kTanh) return std::tanh(x);
  if constexpr (kind == K::kSinh) return std::sinh(x);
  if constexpr (kind == K::kCosh) return std::cosh(x);
  if constexpr (kind == K::kAsin) return std::asin(x);
  if constexpr (kind == K::kAcos) return std::acos(x);
  if constexpr (kind == K::kAtan) return std::atan(x);
  if constexpr (kind == K::kAsinh) return std::asinh(x);
  if constexpr (kind == K::kAcosh) return std::acosh(x);
  if constexpr (kind == K::kAtanh) return std::atanh(x);
  if constexpr (kind == K::kErf) return std::erf(x);
  if constexpr (kind == K::kErfc) return std::erfc(x);
  if constexpr (kind == K::kErfinv) return static_cast<T>(inverse_erf(x));
  if constexpr (kind == K::kLgamma) return static_cast<T>(log_gamma(x));
  if constexpr (kind == K::kDigamma) return static_cast<T>(digamma(x));
  if constexpr (kind == K::kFrac) return x - std::trunc(x);
  if constexpr (kind == K::kLogit) {
    const T z = p.a < 0 ? x : clamp_keeping_nan(x, p.a, T(1) - p.a);
    return std::log(z / (T(1) - z));
  }
  if constexpr (kind == K::kSinc) {
    const T scaled = x * std::numbers::pi_v<T>;
    return x == 0 ? T(1) : std::sin(scaled) / scaled;
  }
  return x;
}

// Activations; floating only.
template <UnaryKind kind, typename T>
T activation(T x, const Numbers<T>& p) {
  constexpr T kSqrtHalf = T(1) / std::numbers::sqrt2_v<T>;
  if constexpr (kind == K::kSigmoid) return sigmoid(x);
  if constexpr (kind == K::kGelu) return x * T(0.5) * std::erfc(-x * kSqrtHalf);
  if constexpr (kind == K::kGeluTanh) {
    constexpr T kScale = std::numbers::sqrt2_v<T> * std::numbers::inv_sqrtpi_v<T>;
    return T(0.5) * x * (T(1) + std::tanh(kScale * (x + T(0.044715) * x * x * x)));
  }
  if constexpr (kind == K::kSilu) return x / (T(1) + std::exp(-x));
  if constexpr (kind == K::kSoftplus) {
    return x * p.a > p.b ? x : std::log1p(std::exp(x * p.a)) / p.a;
  }
  if constexpr (kind == K::kLogsigmoid) {
    return (x < 0 ? x : T(0)) - std::log1p(std::exp(-std::abs(x)));
  }
  if constexpr (kind == K::kElu) return x <= 0 ? std::expm1(x * p.c) * p.a * p.b : x * p.b;
  if constexpr (kind == K::kLeakyRelu) return x > 0 ? x : x * p.a;
  if constexpr (kind == K::kHardtanh) return clamp_keeping_nan(x, p.a, p.b);
  if constexpr (kind == K::kHardsigmoid) return clamp_keeping_nan(x + T(3), T(0), T(6)) / T(6);
  if constexpr (kind == K::kHardswish) return x * clamp_keeping_nan(x + T(3), T(0), T(6)) / T(6);
  if constexpr (kind == K::kMish) return x * std::tanh(std::log1p(std::exp(x)));
  if constexpr (kind == K::kSoftsign) return x / (T(1) + std::abs(x));
  if constexpr (kind == K::kTanhshrink) return x - std::tanh(x);
  if constexpr (kind == K::kSoftshrink) {
    return x > p.a ? x - p.a : x < -p.a ? x + p.a : x * T(0);
  }
  if constexpr (kind == K::kHardshrink) return x >= -p.a && x <= p.a ? T(0) : x;
  return x;
}

constexpr bool is_floating_only(UnaryKind kind) { return kind >= K::kReciprocal; }
constexpr bool is_activation(UnaryKind kind) { return kind == K::kSigmoid || kind >= K::kGelu; }

template <UnaryKind kind, typename T>
void loop(void* out, const void* const* in, int64_t count, const PointwiseParams& params) {
  const Numbers<T> numbers(params);
  const T* x = static_cast<const T*>(in[0]);
  T* y = static_cast<T*>(out);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (is_activation(kind)) {
      y[i] = activation<kind, T>(x[i], numbers);
    } else if constexpr (is_floating_only(kind)) {
      y[i] = elementary<kind, T>(x[i], numbers);
    } else if constexpr (std::is_floating_point_v<T>) {
      y[i] = basic_of_float<kind, T>(x[i], numbers);
    } else {
      y[i] = basic<kind, T>(x[i], numbers);
    }
  }
}

template <typename T, int index>
void fill_one(PointwiseTables& tables) {
  constexpr auto kKind = static_cast<UnaryKind>(index);
  constexpr bool kFloat = std::is_floating_point_v<T>;
  if constexpr (kFloat ? kKind != K::kBitwiseNot : !is_floating_only(kKind)) {
    tables.unary[static_cast<int>(kComputeTypeOf<T>)][index] = &loop<kKind, T>;
  }
}

template <typename T, int... indices>
void fill_type(PointwiseTables& tables, std::integer_sequence<int, indices...>) {
  (fill_one<T, indices>(tables), ...);
}
}  // namespace

void fill_scalar_unary(PointwiseTables& tables) {
  using All = std::make_integer_sequence<int, kNumUnary>;
  fill_type<float>(tables, All());
  fill_type<double>(tables, All());
  fill_type<int64_t>(tables, All());
  fill_type<int32_t>(tables, All());
}
}  // namespace muster::kernels::cpu
