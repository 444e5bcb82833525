// Binary formulas in plain C++: f64 and integers throughout, f32 where no SIMD file has a better
// one.
#include <cmath>
#include <numbers>
#include <utility>

#include "core/base/error.h"
#include "core/kernels/cpu/pointwise_tables.h"

namespace muster::kernels::cpu {
namespace {
using K = BinaryKind;

template <typename T>
bool opposite_signs(T a, T b) {
  return (a < 0) != (b < 0);
}

template <typename T>
void check_divisor(T divisor, const char* operation) {
  MUSTER_CHECK(divisor != 0, ErrorCode::kInvalidArgument,
               "{}: an integer divisor must not be zero; got 0", operation);
}

// Division by -1 is a negation that wraps: the quotient of the smallest integer would trap.
template <typename T>
T quotient(T a, T b) {
  return b == -1 ? wrapping_sub(T(0), a) : static_cast<T>(a / b);
}
template <typename T>
T rest(T a, T b) {
  return b == -1 ? T(0) : static_cast<T>(a % b);
}

template <typename T>
T floor_divide(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (b == 0) return a / b;
    const T remainder = std::fmod(a, b);
    T ratio = (a - remainder) / b;
    if (remainder != 0 && opposite_signs(b, remainder)) ratio -= 1;
    if (ratio == 0) return std::copysign(T(0), a / b);
    const T floored = std::floor(ratio);
    return ratio - floored > T(0.5) ? floored + 1 : floored;
  } else {
    check_divisor(b, "floor_divide");
    return rest(a, b) != 0 && opposite_signs(a, b) ? quotient(a, b) - 1 : quotient(a, b);
  }
}

template <typename T>
T remainder_of_floor(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    const T remainder = std::fmod(a, b);
    return remainder != 0 && opposite_signs(b, remainder) ? remainder + b : remainder;
  } else {
    check_divisor(b, "remainder");
    const T remainder = rest(a, b);
    return remainder != 0 && opposite_signs(a, b) ? remainder + b : remainder;
  }
}

template <typename T>
T integer_power(T base, T exponent) {
  if (exponent < 0) {
    if (base == 1) return 1;
    if (base == -1) return exponent % 2 == 0 ? 1 : -1;
    return 0;
  }
  T result = 1;
  for (; exponent != 0; exponent /= 2) {
    if (exponent % 2 != 0) result = wrapping_mul(result, base);
    base = wrapping_mul(base, base);
  }
  return result;
}

template <BinaryKind kind, typename T>
T arithmetic(T a, T b, const Numbers<T>& p) {
  constexpr bool kFloat = std::is_floating_point_v<T>;
  if constexpr (kind == K::kAdd) return wrapping_add(a, wrapping_mul(p.a, b));
  if constexpr (kind == K::kSub) return wrapping_sub(a, wrapping_mul(p.a, b));
  if constexpr (kind == K::kMul) return wrapping_mul(a, b);
  if constexpr (kind == K::kFloorDivide) return floor_divide(a, b);
  if constexpr (kind == K::kRemainder) return remainder_of_floor(a, b);
  if constexpr (kind == K::kMaximum) return a != a ? a : b != b ? b : a < b ? b : a;
  if constexpr (kind == K::kMinimum) return a != a ? a : b != b ? b : b < a ? b : a;
  if constexpr (kind == K::kEq) return static_cast<T>(a == b);
  if constexpr (kind == K::kNe) return static_cast<T>(a != b);
  if constexpr (kind == K::kLt) return static_cast<T>(a < b);
  if constexpr (kind == K::kLe) return static_cast<T>(a <= b);
  if constexpr (kind == K::kGt) return static_cast<T>(a > b);
  if constexpr (kind == K::kGe) return static_cast<T>(a >= b);
  if constexpr (kind == K::kLogicalAnd) return static_cast<T>(a != 0 && b != 0);
  if constexpr (kind == K::kLogicalOr) return static_cast<T>(a != 0 || b != 0);
  if constexpr (kind == K::kLogicalXor) return static_cast<T>((a != 0) != (b != 0));
  if constexpr (kind == K::kHeaviside) return a == 0 ? b : static_cast<T>(a > 0);
  if constexpr (kind == K::kThresholdBackward) return b <= p.a ? T(0) : a;
  if constexpr (kind == K::kClampBackward) return b >= p.a && b <= p.b ? a : T(0);
  if constexpr (kFloat) {
    if constexpr (kind == K::kTruncDivide) return std::trunc(a / b);
    if constexpr (kind == K::kFmod) return std::fmod(a, b);
    if constexpr (kind == K::kPow) return std::pow(a, b);
    if constexpr (kind == K::kFmax) return std::fmax(a, b);
    if constexpr (kind == K::kFmin) return std::fmin(a, b);
  } else {
    if constexpr (kind == K::kTruncDivide || kind == K::kFmod) {
      check_divisor(b, kind == K::kFmod ? "fmod" : "div");
      return kind == K::kFmod ? rest(a, b) : quotient(a, b);
    }
    if constexpr (kind == K::kPow) return integer_power(a, b);
    if constexpr (kind == K::kFmax) return a < b ? b : a;
    if constexpr (kind == K::kFmin) return b < a ? b : a;
  }
  return a;
}

template <BinaryKind kind, typename T>
T bitwise(T a, T b) {
  constexpr T kBits = static_cast<T>(sizeof(T) * 8);
  if constexpr (kind == K::kBitwiseAnd) return a & b;
  if constexpr (kind == K::kBitwiseOr) return a | b;
  if constexpr (kind == K::kBitwiseXor) return a ^ b;
  const bool beyond = b < 0 || b >= kBits;
  if constexpr (kind == K::kLeftShift) {
    return beyond ? T(0) : static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) << b);
  }
  return static_cast<T>(a >> (beyond ? kBits - 1 : b));
}

template <BinaryKind kind, typename T>
T floating(T a, T b, const Numbers<T>& p) {
  if constexpr (kind == K::kDiv) return a / b;
  if constexpr (kind == K::kAtan2) return std::atan2(a, b);
  if constexpr (kind == K::kCopysign) return std::copysign(a, b);
  if constexpr (kind == K::kHypot) return std::hypot(a, b);
  if constexpr (kind == K::kLogaddexp || kind == K::kLogaddexp2) {
    if (std::isinf(a) && a == b) return a;
    const T top = a != a ? a : a < b ? b : a;
    const T distance = -std::abs(a - b);
    if constexpr (kind == K::kLogaddexp) return top + std::log1p(std::exp(distance));
    return top + std::log1p(std::exp2(distance)) * std::numbers::log2e_v<T>;
  }
  if constexpr (kind == K::kXlogy) return b != b ? b : a == 0 ? T(0) : a * std::log(b);
  if constexpr (kind == K::kNextafter) return std::nextafter(a, b);
  if constexpr (kind == K::kLerp) {
    return std::abs(p.a) < T(0.5) ? a + p.a * (b - a) : b - (b - a) * (T(1) - p.a);
  }
  if constexpr (kind == K::kSwiglu) return a / (T(1) + std::exp(-a)) * b;
  return a;
}

// g is the gradient of the output, x the saved input or output.
template <BinaryKind kind, typename T>
T backward(T g, T x, const Numbers<T>& p) {
  if constexpr (kind == K::kReluBackward) return x <= 0 ? T(0) : g;
  if constexpr (kind == K::kHardtanhBackward) return x <= p.a || x >= p.b ? T(0) : g;
  if constexpr (kind == K::kGeluBackward) {
    const T cdf = T(0.5) * std::erfc(-x / std::numbers::sqrt2_v<T>);
    const T density =
        std::exp(T(-0.5) * x * x) * std::numbers::inv_sqrtpi_v<T> / std::numbers::sqrt2_v<T>;
    return g * (cdf + x * density);
  }
  if constexpr (kind == K::kGeluTanhBackward) {
    constexpr T kScale = std::numbers::sqrt2_v<T> * std::numbers::inv_sqrtpi_v<T>;
    const T t = std::tanh(kScale * (x + T(0.044715) * x * x * x));
    const T inner = kScale * (T(1) + T(3 * 0.044715) * x * x);
    return g * (T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * inner);
  }
  if constexpr (kind == K::kSiluBackward) {
    const T s = T(1) / (T(1) + std::exp(-x));
    return g * s * (T(1) + x * (T(1) - s));
  }
  if constexpr (kind == K::kSigmoidBackward) return g * (T(1) - x) * x;
  if constexpr (kind == K::kTanhBackward) return g * (T(1) - x * x);
  if constexpr (kind == K::kSoftplusBackward) {
    return x * p.a > p.b ? g : g / (T(1) + std::exp(-x * p.a));
  }
  if constexpr (kind == K::kLogsigmoidBackward) return g / (T(1) + std::exp(x));
  if constexpr (kind == K::kEluBackward) {
    return x <= 0 ? g * p.c * p.a * p.b * std::exp(x * p.c) : g * p.b;
  }
  if constexpr (kind == K::kLeakyReluBackward) return x > 0 ? g : g * p.a;
  if constexpr (kind == K::kMishBackward) {
    const T w = std::tanh(std::log1p(std::exp(x)));
    return g * (w + x * (T(1) - w * w) / (T(1) + std::exp(-x)));
  }
  if constexpr (kind == K::kHardswishBackward) {
    return x <= T(-3) ? T(0) : x < T(3) ? g * (x / T(3) + T(0.5)) : g;
  }
  if constexpr (kind == K::kHardsigmoidBackward) {
    // The factor is an f32 also in f64, as in PyTorch.
    return x > T(-3) && x < T(3) ? g * T(1.0f / 6.0f) : T(0);
  }
  if constexpr (kind == K::kSoftshrinkBackward) return x >= -p.a && x <= p.a ? T(0) : g;
  return g;
}

constexpr bool is_bitwise(BinaryKind kind) {
  return kind >= K::kBitwiseAnd && kind <= K::kRightShift;
}
constexpr bool is_arithmetic(BinaryKind kind) { return kind < K::kBitwiseAnd && kind != K::kDiv; }
constexpr bool is_backward(BinaryKind kind) { return kind >= K::kReluBackward; }

template <BinaryKind kind, typename T>
void loop(void* out, const void* const* in, int64_t count, const PointwiseParams& params) {
  const Numbers<T> numbers(params);
  const T* a = static_cast<const T*>(in[0]);
  const T* b = static_cast<const T*>(in[1]);
  T* y = static_cast<T*>(out);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (is_bitwise(kind)) {
      y[i] = bitwise<kind, T>(a[i], b[i]);
    } else if constexpr (is_arithmetic(kind)) {
      y[i] = arithmetic<kind, T>(a[i], b[i], numbers);
    } else if constexpr (is_backward(kind)) {
      y[i] = backward<kind, T>(a[i], b[i], numbers);
    } else {
      y[i] = floating<kind, T>(a[i], b[i], numbers);
    }
  }
}

template <typename T, int index>
void fill_one(PointwiseTables& tables) {
  constexpr auto kKind = static_cast<BinaryKind>(index);
  constexpr bool kFloat = std::is_floating_point_v<T>;
  if constexpr (kFloat ? !is_bitwise(kKind) : is_bitwise(kKind) || is_arithmetic(kKind)) {
    tables.binary[static_cast<int>(kComputeTypeOf<T>)][index] = &loop<kKind, T>;
  }
}

template <typename T, int... indices>
void fill_type(PointwiseTables& tables, std::integer_sequence<int, indices...>) {
  (fill_one<T, indices>(tables), ...);
}
}  // namespace

void fill_scalar_binary(PointwiseTables& tables) {
  using All = std::make_integer_sequence<int, kNumBinary>;
  fill_type<float>(tables, All());
  fill_type<double>(tables, All());
  fill_type<int64_t>(tables, All());
  fill_type<int32_t>(tables, All());
}
}  // namespace muster::kernels::cpu
