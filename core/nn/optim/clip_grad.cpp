#include "core/nn/optim/clip_grad.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/autograd/autograd.h"
#include "core/ops/optimizer.h"
#include "core/ops/pointwise.h"
#include "core/ops/reduction.h"

namespace muster {
namespace {
std::vector<Tensor> gradients_of(std::span<const Tensor> parameters) {
  std::vector<Tensor> grads;
  for (const Tensor& parameter : parameters) {
    if (Tensor grad = grad_of(parameter); grad.defined()) grads.push_back(std::move(grad));
  }
  return grads;
}

double norm_of(std::span<const Tensor> grads, double norm_type) {
  const NoGradGuard no_grad;
  if (grads.empty()) return 0.0;
  if (norm_type == 2.0) return std::sqrt(foreach_sum_of_squares(grads).item());
  double total = 0.0;
  for (const Tensor& grad : grads) {
    const double own = grad.numel() == 0 ? 0.0 : vector_norm(grad, norm_type).item();
    if (std::isinf(norm_type)) {
      total = std::isnan(own) || own > total ? own : total;
    } else if (norm_type == 0.0) {
      total += own != 0.0 ? 1.0 : 0.0;
    } else {
      total += std::pow(own, norm_type);
    }
  }
  return std::isinf(norm_type) || norm_type == 0.0 ? total : std::pow(total, 1.0 / norm_type);
}
}  // namespace

double clip_factor(double total_norm, double max_norm) noexcept {
  const double factor = max_norm / (total_norm + 1e-6);
  return factor > 1.0 ? 1.0 : factor;  // a nan stays nan
}

double total_grad_norm(std::span<const Tensor> parameters, double norm_type) {
  return norm_of(gradients_of(parameters), norm_type);
}

double clip_grad_norm_(std::span<const Tensor> parameters, double max_norm,
                       const ClipOptions& options) {
  const std::vector<Tensor> grads = gradients_of(parameters);
  const double norm = norm_of(grads, options.norm_type);
  MUSTER_CHECK(!options.error_if_nonfinite || std::isfinite(norm), ErrorCode::kFailedPrecondition,
               "clip_grad_norm_: the total norm of order {} for gradients is non-finite, so it "
               "cannot be clipped; got {}",
               options.norm_type, norm);
  const double factor = clip_factor(norm, max_norm);
  if (factor != 1.0) foreach_mul_(grads, factor);
  return norm;
}

void clip_grad_value_(std::span<const Tensor> parameters, double clip_value) {
  const NoGradGuard no_grad;
  for (const Tensor& grad : gradients_of(parameters)) clamp_(grad, -clip_value, clip_value);
}
}  // namespace muster
