/// SIMD f32 functions for files compiled once per target: exp, log, tanh, erfc, ... on Highway
/// vectors.
///
/// Within 2 ulp for exp, log, log1p and expm1, 5 ulp for the others; nan passes, the limits at inf
/// are exact, subnormals are kept. Polynomials are own Chebyshev fits over the stated interval.
/// Each lane depends on its input only, so blocks, tails and shards agree to the bit.
///
/// Included inside foreach_target files after <hwy/highway.h>; guarded per target, not by pragma
/// once.

// clang-format off
#if defined(MUSTER_VEC_MATH_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef MUSTER_VEC_MATH_INL
#undef MUSTER_VEC_MATH_INL
#else
#define MUSTER_VEC_MATH_INL
#endif
// clang-format on

#include <hwy/highway.h>

#include <cstdint>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace muster::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using VF = hn::Vec<F32>;
using I32 = hn::RebindToSigned<F32>;

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

HWY_INLINE VF K(float value) { return hn::Set(F32(), value); }

/// The first `count` (< Lanes) floats; other lanes are 0. Reads nothing beyond.
HWY_INLINE VF load_some(const float* from, int64_t count) {
  const F32 d;
#if HWY_TARGET <= HWY_AVX2
  return hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(count)), d, from);
#else
  HWY_ALIGN float lanes[hn::MaxLanes(d)] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i] = from[i];
  return hn::Load(d, lanes);
#endif
}
HWY_INLINE void store_some(VF value, float* to, int64_t count) {
  const F32 d;
#if HWY_TARGET <= HWY_AVX2
  hn::BlendedStore(value, hn::FirstN(d, static_cast<size_t>(count)), d, to);
#else
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(value, d, lanes);
  for (int64_t i = 0; i < count; ++i) to[i] = lanes[i];
#endif
}

HWY_INLINE VF horner(VF, VF sum) { return sum; }
template <typename... Rest>
HWY_INLINE VF horner(VF x, VF sum, float next, Rest... rest) {
  return horner(x, hn::MulAdd(sum, x, K(next)), rest...);
}
/// A polynomial, coefficient of the highest power first.
template <typename... Rest>
HWY_INLINE VF poly(VF x, float highest, Rest... rest) {
  return horner(x, K(highest), rest...);
}

HWY_INLINE VF keep_nan(VF x, VF y) { return hn::IfThenElse(hn::Eq(x, x), y, x); }

/// 2^n for n in [-126, 127].
HWY_INLINE VF power_of_two(hn::Vec<I32> n) {
  return hn::BitCast(F32(), hn::ShiftLeft<23>(n + hn::Set(I32(), 127)));
}

/// (exp(r) - 1 - r) / r^2 on [-ln2/2, ln2/2]; relative error of exp(r) - 1: 2.4e-8.
HWY_INLINE VF exp_tail(VF r) {
  return poly(r, 1.392639242e-03f, 8.363345638e-03f, 4.166655242e-02f, 1.666657627e-01f, 0.5f);
}
/// x = n ln2 + r. |x| < 110.
HWY_INLINE VF reduce_by_ln2(VF x, hn::Vec<I32>* n) {
  *n = hn::NearestInt(x * K(1.44269504f));
  const VF nf = hn::ConvertTo(F32(), *n);
  // The high part has 9 bits, so its product with n is exact also without FMA.
  return hn::NegMulAdd(nf, K(-2.12194440e-4f), hn::NegMulAdd(nf, K(0.693359375f), x));
}

HWY_INLINE VF vexp(VF x) {
  hn::Vec<I32> n;
  const VF r = reduce_by_ln2(hn::Min(hn::Max(x, K(-105.0f)), K(89.0f)), &n);
  const VF y = hn::MulAdd(hn::MulAdd(exp_tail(r), r, K(1.0f)), r, K(1.0f));
  // In two steps: 2^n alone may be neither representable nor its product rounded right.
  const hn::Vec<I32> half = hn::ShiftRight<1>(n);
  return keep_nan(x, y * power_of_two(half) * power_of_two(n - half));
}

HWY_INLINE VF vexpm1(VF x) {
  hn::Vec<I32> n;
  const VF r = reduce_by_ln2(hn::Min(hn::Max(x, K(-30.0f)), K(89.0f)), &n);
  const VF p = hn::MulAdd(exp_tail(r) * r, r, r);
  const VF half_scale = power_of_two(n - hn::Set(I32(), 1));
  const VF half_y = hn::MulAdd(half_scale, p, half_scale - K(0.5f));
  const VF y = half_y + half_y;
  // The halves lose what is subnormal, and the sign of zero.
  return hn::IfThenElse(hn::Lt(hn::Abs(x), K(0x1p-30f)), x, keep_nan(x, y));
}

HWY_INLINE VF vlog(VF x) {
  const I32 di;
  const VF scaled = hn::IfThenElse(hn::Lt(x, K(1.17549435e-38f)), x * K(8388608.0f), x);
  const VF scale_e = hn::IfThenElseZero(hn::Lt(x, K(1.17549435e-38f)), K(-23.0f));
  // m in [sqrt(1/2), sqrt(2)), so that log(m) is small and e is 0 around 1.
  const auto bits = hn::BitCast(di, scaled);
  const auto e = hn::ShiftRight<23>(bits - hn::Set(di, 0x3F3504F3));
  const VF m = hn::BitCast(F32(), bits - hn::ShiftLeft<23>(e));
  const VF ef = hn::ConvertTo(F32(), e) + scale_e;
  const VF f = m - K(1.0f);
  // (log(1 + f) - f + f^2 / 2) / f^3; relative error of log(1 + f): 3e-9.
  const VF q = poly(f, 6.971611828e-02f, -1.147973388e-01f, 1.168541983e-01f, -1.242568716e-01f,
                    1.424905807e-01f, -1.666780263e-01f, 2.000071555e-01f, -2.499999702e-01f,
                    3.333333135e-01f);
  VF y = hn::MulAdd(q, f, K(-0.5f)) * (f * f);
  y = hn::MulAdd(ef, K(-2.12194440e-4f), y) + f;
  y = hn::MulAdd(ef, K(0.693359375f), y);
  const auto normal = hn::And(hn::Gt(x, hn::Zero(F32())), hn::Lt(x, K(kInf)));
  const VF special = hn::IfThenElse(hn::Eq(x, hn::Zero(F32())), K(-kInf),
                                    hn::IfThenElse(hn::Eq(x, K(kInf)), x, K(kNan)));
  return hn::IfThenElse(normal, y, special);
}

HWY_INLINE VF vlog1p(VF x) {
  const VF u = x + K(1.0f);
  // What the rounding of 1 + x lost.
  const VF lost = (x - (u - K(1.0f))) / u;
  const auto finite = hn::And(hn::Gt(u, hn::Zero(F32())), hn::Lt(u, K(kInf)));
  const VF y = vlog(u) + hn::IfThenElseZero(finite, lost);
  return hn::IfThenElse(hn::Eq(x, hn::Zero(F32())), x, y);
}

HWY_INLINE VF vsigmoid(VF x) {
  const VF e = vexp(hn::Neg(hn::Abs(x)));
  const VF numerator = hn::IfThenElse(hn::Lt(x, hn::Zero(F32())), e, K(1.0f));
  return keep_nan(x, numerator / (K(1.0f) + e));
}

HWY_INLINE VF vtanh(VF x) {
  const VF a = hn::Min(hn::Abs(x), K(10.0f));
  const VF t = vexpm1(a + a);
  return keep_nan(x, hn::CopySign(t / (t + K(2.0f)), x));
}

/// x * x - square to the last bit, square being the rounded product.
HWY_INLINE VF lost_by_squaring(VF x, VF square) {
#if HWY_TARGET <= HWY_AVX2
  return hn::MulSub(x, x, square);
#else
  // Without FMA: the upper half of the digits squares exactly.
  const VF high = hn::And(x, hn::BitCast(F32(), hn::Set(I32(), static_cast<int32_t>(0xFFFFF000u))));
  const VF low = x - high;
  return ((high * high - square) + (high + high) * low) + low * low;
#endif
}

/// exp(-x^2 / 2) without the error of squaring.
HWY_INLINE VF exp_minus_half_square(VF x) {
  const VF square = x * x;
  const VF lost = lost_by_squaring(x, square);
  const VF e = vexp(square * K(-0.5f));
  return hn::NegMulAdd(e, lost * K(0.5f), e);
}
/// erfc(t) * exp(t^2) on [0.5, 10.2]; relative error 2e-8.
HWY_INLINE VF scaled_erfc(VF t) {
  const VF u = K(1.0f) / hn::MulAdd(t, K(0.4f), K(1.0f));
  return u * poly(u, 6.089770421e-02f, -2.235183567e-01f, 2.336522490e-01f, -6.101324409e-02f,
                  1.692810208e-01f, 1.602139324e-01f, 2.092793137e-01f, 2.255392969e-01f,
                  2.256806493e-01f);
}
/// erfc(t) for t in [0.5, 10.2].
HWY_INLINE VF erfc_of_large(VF t) {
  const VF square = t * t;
  const VF lost = lost_by_squaring(t, square);
  const VF e = vexp(hn::Neg(square));
  return scaled_erfc(t) * hn::NegMulAdd(e, lost, e);
}
/// erf(x) for |x| <= 1/2; relative error 6e-8.
HWY_INLINE VF erf_of_small(VF x) {
  return x * poly(x * x, 4.719082732e-03f, -2.675773203e-02f, 1.128283143e-01f, -3.761260808e-01f,
                  1.128379107e+00f);
}

HWY_INLINE VF verfc(VF x) {
  const VF t = hn::Abs(x);
  const VF tail = erfc_of_large(hn::Min(t, K(10.2f)));
  const VF large = hn::IfThenElse(hn::Lt(x, hn::Zero(F32())), K(2.0f) - tail, tail);
  const VF y = hn::IfThenElse(hn::Lt(t, K(0.5f)), K(1.0f) - erf_of_small(x), large);
  return keep_nan(x, y);
}

HWY_INLINE VF verf(VF x) {
  const VF t = hn::Abs(x);
  const VF large = hn::CopySign(K(1.0f) - erfc_of_large(hn::Min(t, K(10.2f))), x);
  return keep_nan(x, hn::IfThenElse(hn::Lt(t, K(0.5f)), erf_of_small(x), large));
}

/// The normal distribution function and its density, |x| <= 20; both from one exp. Within 5 ulp,
/// also where it is small.
HWY_INLINE VF normal_cdf(VF x, VF* density) {
  const VF size = hn::Abs(x);
  const VF e = exp_minus_half_square(x);
  *density = e * K(0.398942280f);
  const VF t = hn::Min(size * K(0.707106781f), K(10.2f));
  const VF half_erfc = K(0.5f) * scaled_erfc(t) * e;
  const VF large = hn::IfThenElse(hn::Lt(x, hn::Zero(F32())), half_erfc, K(1.0f) - half_erfc);
  // cdf(x) - 1/2 over x on [-0.71, 0.71]; relative error 4e-8.
  const VF slope = poly(x * x, 1.041727010e-04f, -1.182443229e-03f, 9.972683154e-03f,
                        -6.649032235e-02f, 3.989422917e-01f);
  return hn::IfThenElse(hn::Lt(size, K(0.707f)), hn::MulAdd(x, slope, K(0.5f)), large);
}

}  // namespace muster::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MUSTER_VEC_MATH_INL
