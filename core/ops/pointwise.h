#pragma once
/// Elementwise operators: one number per element, operands broadcast.
///
/// Names and argument order are PyTorch's; a name that ends in "_" writes `self` and returns it.
/// Dtypes are promoted by core/dispatch/promotion.h. Where an Operand stands, a tensor or a number
/// may be passed. Results keep the operands' order of dims in memory.

#include <initializer_list>
#include <string_view>

#include "core/ops/operand.h"

namespace muster {

/// self + alpha * other.
Tensor add(const Operand& self, const Operand& other, Scalar alpha = 1);
Tensor add_(const Tensor& self, const Operand& other, Scalar alpha = 1);
Tensor sub(const Operand& self, const Operand& other, Scalar alpha = 1);
Tensor sub_(const Tensor& self, const Operand& other, Scalar alpha = 1);
Tensor mul(const Operand& self, const Operand& other);
Tensor mul_(const Tensor& self, const Operand& other);
/// True division: integers give f32. `rounding_mode` "trunc" or "floor" keeps integers.
Tensor div(const Operand& self, const Operand& other);
Tensor div(const Operand& self, const Operand& other, std::string_view rounding_mode);
Tensor div_(const Tensor& self, const Operand& other);
Tensor floor_divide(const Operand& self, const Operand& other);
Tensor remainder(const Operand& self, const Operand& other);  ///< sign of the divisor
Tensor fmod(const Operand& self, const Operand& other);       ///< sign of the dividend
Tensor pow(const Operand& self, const Operand& exponent);
Tensor pow_(const Tensor& self, const Operand& exponent);
Tensor atan2(const Tensor& self, const Tensor& other);
Tensor maximum(const Tensor& self, const Tensor& other);  ///< nan wins
Tensor minimum(const Tensor& self, const Tensor& other);
Tensor fmax(const Tensor& self, const Tensor& other);  ///< the number wins over nan
Tensor fmin(const Tensor& self, const Tensor& other);
Tensor hypot(const Tensor& self, const Tensor& other);
Tensor copysign(const Operand& self, const Operand& other);
Tensor logaddexp(const Tensor& self, const Tensor& other);
Tensor logaddexp2(const Tensor& self, const Tensor& other);
Tensor xlogy(const Operand& self, const Operand& other);  ///< 0 where self is 0

// Comparisons give bool.
Tensor eq(const Operand& self, const Operand& other);
Tensor ne(const Operand& self, const Operand& other);
Tensor lt(const Operand& self, const Operand& other);
Tensor le(const Operand& self, const Operand& other);
Tensor gt(const Operand& self, const Operand& other);
Tensor ge(const Operand& self, const Operand& other);
Tensor logical_and(const Tensor& self, const Tensor& other);
Tensor logical_or(const Tensor& self, const Tensor& other);
Tensor logical_xor(const Tensor& self, const Tensor& other);
Tensor logical_not(const Tensor& self);
Tensor bitwise_and(const Operand& self, const Operand& other);
Tensor bitwise_or(const Operand& self, const Operand& other);
Tensor bitwise_xor(const Operand& self, const Operand& other);
Tensor bitwise_not(const Tensor& self);
Tensor isnan(const Tensor& self);
Tensor isinf(const Tensor& self);
Tensor isfinite(const Tensor& self);
/// True when both have equal sizes and equal values.
bool equal(const Tensor& self, const Tensor& other);

/// condition ? self : other.
Tensor where(const Tensor& condition, const Operand& self, const Operand& other);
/// mask ? value : self. The dtype of self stays.
Tensor masked_fill(const Tensor& self, const Tensor& mask, const Operand& value);
Tensor masked_fill_(const Tensor& self, const Tensor& mask, const Operand& value);
/// Limits self to [min, max]; a bound may be absent (std::nullopt).
Tensor clamp(const Tensor& self, const Operand& min, const Operand& max = std::nullopt);
Tensor clamp_(const Tensor& self, const Operand& min, const Operand& max = std::nullopt);
Tensor clamp_min(const Tensor& self, const Operand& min);
Tensor clamp_max(const Tensor& self, const Operand& max);
/// self + weight * (end - self).
Tensor lerp(const Tensor& self, const Tensor& end, const Operand& weight);
Tensor lerp_(const Tensor& self, const Tensor& end, const Operand& weight);
/// self + value * tensor1 * tensor2.
Tensor addcmul(const Tensor& self, const Tensor& tensor1, const Tensor& tensor2, Scalar value = 1);
Tensor addcmul_(const Tensor& self, const Tensor& tensor1, const Tensor& tensor2, Scalar value = 1);
/// self + value * tensor1 / tensor2.
Tensor addcdiv(const Tensor& self, const Tensor& tensor1, const Tensor& tensor2, Scalar value = 1);
Tensor addcdiv_(const Tensor& self, const Tensor& tensor1, const Tensor& tensor2, Scalar value = 1);

Tensor neg(const Tensor& self);
Tensor neg_(const Tensor& self);
Tensor abs(const Tensor& self);
Tensor sign(const Tensor& self);
Tensor sgn(const Tensor& self);
Tensor square(const Tensor& self);
Tensor sqrt(const Tensor& self);
Tensor sqrt_(const Tensor& self);
Tensor rsqrt(const Tensor& self);
Tensor reciprocal(const Tensor& self);
Tensor exp(const Tensor& self);
Tensor exp_(const Tensor& self);
Tensor exp2(const Tensor& self);
Tensor expm1(const Tensor& self);
Tensor log(const Tensor& self);
Tensor log2(const Tensor& self);
Tensor log10(const Tensor& self);
Tensor log1p(const Tensor& self);
Tensor sin(const Tensor& self);
Tensor cos(const Tensor& self);
Tensor tan(const Tensor& self);
Tensor tanh(const Tensor& self);
Tensor sinh(const Tensor& self);
Tensor cosh(const Tensor& self);
Tensor asin(const Tensor& self);
Tensor acos(const Tensor& self);
Tensor atan(const Tensor& self);
Tensor asinh(const Tensor& self);
Tensor acosh(const Tensor& self);
Tensor atanh(const Tensor& self);
Tensor sigmoid(const Tensor& self);
Tensor erf(const Tensor& self);
Tensor erfc(const Tensor& self);
Tensor erfinv(const Tensor& self);
Tensor lgamma(const Tensor& self);
Tensor digamma(const Tensor& self);
Tensor floor(const Tensor& self);
Tensor ceil(const Tensor& self);
Tensor round(const Tensor& self);  ///< half to even
Tensor trunc(const Tensor& self);
Tensor frac(const Tensor& self);
Tensor sinc(const Tensor& self);
/// log(self / (1 - self)); with eps self is clamped to [eps, 1 - eps] first.
Tensor logit(const Tensor& self, std::optional<double> eps = {});
/// Replaces nan and the infinities; without a number inf becomes the largest finite value.
Tensor nan_to_num(const Tensor& self, double nan = 0.0, std::optional<double> posinf = {},
                  std::optional<double> neginf = {});

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator+(const Tensor& a, Scalar b) { return add(a, b); }
inline Tensor operator+(Scalar a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator-(const Tensor& a, Scalar b) { return sub(a, b); }
inline Tensor operator-(Scalar a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator*(const Tensor& a, Scalar b) { return mul(a, b); }
inline Tensor operator*(Scalar a, const Tensor& b) { return mul(b, a); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator/(const Tensor& a, Scalar b) { return div(a, b); }
inline Tensor operator/(Scalar a, const Tensor& b) { return div(a, b); }
inline Tensor operator-(const Tensor& a) { return neg(a); }

}  // namespace muster
