#pragma once
/// Special functions that <cmath> lacks or that it has with side effects, in f64.

namespace muster::kernels::cpu {

/// The x with erf(x) = y; nan outside [-1, 1], inf at the ends.
double inverse_erf(double y) noexcept;
/// log |gamma(x)|, without the global `signgam` of std::lgamma.
double log_gamma(double x) noexcept;
/// Derivative of log gamma; nan at negative integers, -inf at 0 and inf at -0, as PyTorch.
double digamma(double x) noexcept;

}  // namespace muster::kernels::cpu
