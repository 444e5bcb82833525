// Loops over a contiguous row, and exp, for row kernels; included once per SIMD target.
//
// A body is a generic lambda `(d, i)`: d is a tag of whole vectors, or of one lane for the tail, so
// each formula is written once. Sums run over fixed lanes, so they depend on the values and n only.

#if defined(MUSTER_SIMD_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MUSTER_SIMD_ROWS_INL_H_
#undef MUSTER_SIMD_ROWS_INL_H_
#else
#define MUSTER_SIMD_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace muster::kernels::cpu::internal::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename A, typename Body>
HWY_INLINE void for_row(int64_t n, const Body& body) {
  const hn::ScalableTag<A> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body(d, i);
  const hn::CappedTag<A, 1> one;
  for (; i < n; ++i) body(one, i);
}

// Combines body(d, i) over the row with an associative `combine(d, a, b)`, starting from
// `identity`.
template <typename A, typename Body, typename Combine>
HWY_INLINE A fold_row(int64_t n, A identity, const Body& body, const Combine& combine) {
  const hn::ScalableTag<A> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto a0 = hn::Set(d, identity), a1 = a0, a2 = a0, a3 = a0;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    a0 = combine(d, a0, body(d, i));
    a1 = combine(d, a1, body(d, i + lanes));
    a2 = combine(d, a2, body(d, i + 2 * lanes));
    a3 = combine(d, a3, body(d, i + 3 * lanes));
  }
  for (; i + lanes <= n; i += lanes) a0 = combine(d, a0, body(d, i));
  const auto all = combine(d, combine(d, a0, a1), combine(d, a2, a3));
  HWY_ALIGN A parts[HWY_MAX_BYTES / sizeof(A)];
  hn::Store(all, d, parts);
  const hn::CappedTag<A, 1> one;
  for (int64_t step = 1; step < lanes; step *= 2) {
    for (int64_t k = 0; k + step < lanes; k += 2 * step) {
      const auto pair = combine(one, hn::LoadU(one, parts + k), hn::LoadU(one, parts + k + step));
      hn::StoreU(pair, one, parts + k);
    }
  }
  auto result = hn::LoadU(one, parts);
  for (; i < n; ++i) result = combine(one, result, body(one, i));
  return hn::GetLane(result);
}

template <typename A, typename Body>
HWY_INLINE A sum_row(int64_t n, const Body& body) {
  return fold_row(n, A(0), body, [](auto /*d*/, auto a, auto b) HWY_ATTR { return hn::Add(a, b); });
}

// The largest value, nan aside; -inf when there is none. A nan still shows in the sum of exp.
template <typename A>
HWY_INLINE A max_row(const A* x, int64_t n) {
  return fold_row(
      n, -std::numeric_limits<A>::infinity(),
      [&](auto d, int64_t i) HWY_ATTR { return hn::LoadU(d, x + i); },
      // With a nan on either side x86 gives the second operand, the maximum so far.
      [](auto /*d*/, auto so_far, auto value) HWY_ATTR { return hn::Max(value, so_far); });
}

template <typename A>
HWY_INLINE bool has_nan(const A* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    if (x[i] != x[i]) return true;
  return false;
}

template <class D, class V>
HWY_INLINE V exp_polynomial(D d, V r, float /*tag*/) {
  // (e^r - 1 - r) / r^2 on |r| <= ln(2) / 2, interpolated at Chebyshev nodes: 1e-8 relative.
  auto p = hn::Set(d, 0.0013926213466332444f);
  p = hn::MulAdd(p, r, hn::Set(d, 0.008363202971575855f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.04166655443768594f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.16666576845993977f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  return hn::Add(hn::Set(d, 1.0f), hn::MulAdd(hn::Mul(r, r), p, r));
}

template <class D, class V>
HWY_INLINE V exp_polynomial(D d, V r, double /*tag*/) {
  constexpr double kCoefficients[] = {2.0914717341716378e-09,
                                      2.5105259538448494e-08,
                                      2.755727357010214e-07,
                                      2.7557255297969643e-06,
                                      2.4801587325605324e-05,
                                      0.0001984126987490126,
                                      0.001388888888888373,
                                      0.008333333333326112,
                                      0.04166666666666667,
                                      0.1666666666666667,
                                      0.5};
  auto p = hn::Set(d, kCoefficients[0]);
  for (int k = 1; k < 11; ++k) p = hn::MulAdd(p, r, hn::Set(d, kCoefficients[k]));
  return hn::Add(hn::Set(d, 1.0), hn::MulAdd(hn::Mul(r, r), p, r));
}

template <typename A>
struct ExpConstants;
template <>
struct ExpConstants<float> {
  static constexpr int kMantissaBits = 23;
  // 1.5 * 2^23 + 127: adding it rounds to an integer and leaves that integer, biased as an exponent
  // is, in the low bits.
  static constexpr float kRound = 12582912.0f + 127.0f;
  static constexpr float kLn2High = 0.693359375f;
  static constexpr float kLn2Low = -2.12194440054690583e-4f;
  static constexpr float kSmallest = -87.33654f;
};
template <>
struct ExpConstants<double> {
  static constexpr int kMantissaBits = 52;
  static constexpr double kRound = 6755399441055744.0 + 1023.0;
  static constexpr double kLn2High = 0.693147180369123816490;
  static constexpr double kLn2Low = 1.90821492927058770002e-10;
  static constexpr double kSmallest = -708.39;
};

// e^x for x <= 88 (f32) or 709 (f64), 1.5 ulp; not checked above. Results below the smallest normal
// number are 0, -inf gives 0, nan stays nan.
template <class D, class V>
HWY_INLINE V exp_fast(D d, V x) {
  using A = hn::TFromD<D>;
  using C = ExpConstants<A>;
  const hn::RebindToSigned<D> di;
  const auto round = hn::Set(d, C::kRound);
  const auto biased = hn::MulAdd(x, hn::Set(d, static_cast<A>(1.4426950408889634)), round);
  const auto n = hn::Sub(biased, round);
  auto r = hn::NegMulAdd(n, hn::Set(d, C::kLn2High), x);
  r = hn::NegMulAdd(n, hn::Set(d, C::kLn2Low), r);
  const auto power = hn::BitCast(d, hn::ShiftLeft<C::kMantissaBits>(hn::BitCast(di, biased)));
  const auto y = hn::Mul(exp_polynomial(d, r, A{}), power);
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, C::kSmallest)), y);
}

}  // namespace muster::kernels::cpu::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
