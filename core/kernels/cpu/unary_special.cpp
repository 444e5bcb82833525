#include "core/kernels/cpu/unary_special.h"

#include <cmath>
#include <limits>
#include <numbers>

namespace muster::kernels::cpu {
double inverse_erf(double y) noexcept {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (!(std::abs(y) <= 1)) return std::numeric_limits<double>::quiet_NaN();
  if (std::abs(y) == 1) return std::copysign(kInfinity, y);
  if (y == 0) return y;
  // A start from the asymptotic form (Winitzki), then Halley steps on erf, or on log erfc where erf
  // is flat.
  const double a = 0.147;
  const double log_term = std::log1p(-y * y);
  const double half = 2 / (std::numbers::pi * a) + log_term / 2;
  double x = std::sqrt(std::sqrt(half * half - log_term / a) - half);
  const double target = std::abs(y);
  const double tail = 1 - target;
  for (int step = 0; step < 4; ++step) {
    const double slope = 2 * std::numbers::inv_sqrtpi * std::exp(-x * x);
    const double error = tail < 0.5 ? tail - std::erfc(x) : std::erf(x) - target;
    const double newton = error / slope;
    x -= newton / (1 + x * newton);
  }
  return std::copysign(x, y);
}

double log_gamma(double x) noexcept {
  int sign = 0;
  return ::lgamma_r(x, &sign);
}

double digamma(double x) noexcept {
  if (x == 0) return std::copysign(std::numeric_limits<double>::infinity(), -x);
  if (x < 0) {
    if (x == std::trunc(x)) return std::numeric_limits<double>::quiet_NaN();
    // Reflection; the tangent of the fraction keeps its digits for large x.
    const double fraction = std::fmod(x, 1.0);
    return digamma(1 - x) - std::numbers::pi / std::tan(std::numbers::pi * fraction);
  }
  double result = 0;
  for (; x < 10; x += 1) result -= 1 / x;
  // The asymptotic series by Bernoulli numbers.
  const double z = 1 / (x * x);
  const double series =
      z * (1.0 / 12 - z * (1.0 / 120 -
                           z * (1.0 / 252 -
                                z * (1.0 / 240 - z * (1.0 / 132 - z * (691.0 / 32760 - z / 12))))));
  return result + std::log(x) - 0.5 / x - (x < 1e17 ? series : 0);
}
}  // namespace muster::kernels::cpu
