#pragma once
/// Gradient clipping by global norm.
///
/// Sums are double and follow the order of the list, so the norm depends on neither threads nor
/// grouping. Sharded runs sum foreach_sum_of_squares over ranks themselves and use clip_factor.
/// @source torch.nn.utils.clip_grad_norm_ (2.13)

#include <span>

#include "core/tensor/tensor.h"

namespace muster {

/// min(1, max_norm / (total_norm + 1e-6)); nan and inf norms give what that formula gives.
double clip_factor(double total_norm, double max_norm) noexcept;

struct ClipOptions {
  double norm_type = 2.0;  ///< > 0; infinity: the largest magnitude
  /// Refuses nan and infinite norms, before anything is written.
  bool error_if_nonfinite = false;
};

/// The norm of all gradients of `parameters` together; parameters without one do not count.
double total_grad_norm(std::span<const Tensor> parameters, double norm_type = 2.0);

/// Scales all gradients so that their norm is at most max_norm; returns the norm before.
/// @error kFailedPrecondition a norm that is not finite, with error_if_nonfinite
double clip_grad_norm_(std::span<const Tensor> parameters, double max_norm,
                       const ClipOptions& options = {});

/// Limits every element of every gradient to [-clip_value, clip_value]; nan stays nan.
void clip_grad_value_(std::span<const Tensor> parameters, double clip_value);

}  // namespace muster
