#include "core/nn/optim/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/autograd/autograd.h"
#include "core/ops/optimizer.h"
#include "core/ops/pointwise.h"
#include "core/ops/reduction.h"

namespace muster {
namespace {
std::vector<Tensor> gradients_of(const Optimizer& optimizer) {
  std::vector<Tensor> grads;
  for (const NamedTensor& parameter : optimizer.parameters()) {
    Tensor grad = grad_of(parameter.tensor);
    if (!grad.defined()) continue;
    MUSTER_CHECK(grad.dtype() != DType::kF16, ErrorCode::kFailedPrecondition,
                 "GradScaler: f16 gradients cannot be unscaled; got {} of {}; keep parameters in "
                 "f32 and use autocast",
                 grad, parameter.name);
    grads.push_back(std::move(grad));
  }
  return grads;
}

bool has_nonfinite(std::span<const Tensor> grads) {
  const NoGradGuard no_grad;
  // One pass decides almost always; a square of f64 may overflow although no element is infinite.
  if (std::isfinite(foreach_sum_of_squares(grads).item())) return false;
  return std::any_of(grads.begin(), grads.end(), [](const Tensor& grad) {
    // A sum again, so that ranks that hold pieces of the gradient come to the same answer.
    const Tensor is_bad[] = {to(logical_not(isfinite(grad)), DType::kF32)};
    return foreach_sum_of_squares(is_bad).item() > 0;
  });
}
}  // namespace

GradScalerState updated_scale(GradScalerState state, bool found_nonfinite) noexcept {
  const double scale = state.scale;
  if (found_nonfinite) {
    state.scale = static_cast<float>(scale * state.backoff_factor);
    state.clean_steps = 0;
  } else if (++state.clean_steps == state.growth_interval) {
    const auto grown = static_cast<float>(scale * state.growth_factor);
    if (std::isfinite(grown)) state.scale = grown;
    state.clean_steps = 0;
  }
  return state;
}

GradScaler::GradScaler(const GradScalerOptions& options)
    : state_{static_cast<float>(options.init_scale), options.growth_factor, options.backoff_factor,
             options.growth_interval, 0},
      enabled_(options.enabled) {
  MUSTER_CHECK(!enabled_ || options.growth_factor > 1.0, ErrorCode::kInvalidArgument,
               "GradScaler: the growth factor must be above 1; got {}", options.growth_factor);
  MUSTER_CHECK(!enabled_ || options.backoff_factor < 1.0, ErrorCode::kInvalidArgument,
               "GradScaler: the backoff factor must be below 1; got {}", options.backoff_factor);
}

Tensor GradScaler::scale(const Tensor& loss) {
  if (!enabled_) return loss;
  was_used_ = true;
  return mul(loss, static_cast<double>(state_.scale));
}

void GradScaler::check_scaled(const char* call) const {
  MUSTER_CHECK(was_used_, ErrorCode::kFailedPrecondition,
               "GradScaler::{}: the scale was never used; call scale(loss) first", call);
}

GradScaler::PerOptimizer& GradScaler::unscale(Optimizer& optimizer) {
  PerOptimizer& own = optimizers_[&optimizer];
  const std::vector<Tensor> grads = gradients_of(optimizer);
  MUSTER_CHECK(!grads.empty() || any_, ErrorCode::kFailedPrecondition,
               "GradScaler: no inf checks were recorded for this optimizer; none of its {} "
               "parameters has a gradient",
               optimizer.parameters().size());
  own.found_nonfinite = !grads.empty() && has_nonfinite(grads);
  if (any_) own.found_nonfinite = any_(own.found_nonfinite);
  const auto inverse = static_cast<float>(1.0 / static_cast<double>(state_.scale));
  if (inverse != 1.0f && !grads.empty()) foreach_mul_(grads, inverse);
  own.stage = Stage::kUnscaled;
  return own;
}

void GradScaler::unscale_(Optimizer& optimizer) {
  if (!enabled_) return;
  check_scaled("unscale_");
  const Stage stage = optimizers_[&optimizer].stage;
  MUSTER_CHECK(stage != Stage::kUnscaled, ErrorCode::kFailedPrecondition,
               "GradScaler::unscale_: it was already called on this optimizer since the last "
               "update()");
  MUSTER_CHECK(stage != Stage::kStepped, ErrorCode::kFailedPrecondition,
               "GradScaler::unscale_: it is called after step()");
  unscale(optimizer);
}

bool GradScaler::step(Optimizer& optimizer, const StepOptions& options) {
  if (!enabled_) {
    optimizer.step(options);
    return true;
  }
  check_scaled("step");
  const Stage stage = optimizers_[&optimizer].stage;
  MUSTER_CHECK(stage != Stage::kStepped, ErrorCode::kFailedPrecondition,
               "GradScaler::step: it was already called since the last update()");
  PerOptimizer& own = stage == Stage::kUnscaled ? optimizers_[&optimizer] : unscale(optimizer);
  if (!own.found_nonfinite) optimizer.step(options);
  own.stage = Stage::kStepped;
  return !own.found_nonfinite;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!enabled_) return;
  check_scaled("update");
  if (new_scale) {
    state_.scale = static_cast<float>(*new_scale);
  } else {
    const bool any_checked =
        std::any_of(optimizers_.begin(), optimizers_.end(),
                    [](const auto& entry) { return entry.second.stage != Stage::kReady; });
    MUSTER_CHECK(any_checked, ErrorCode::kFailedPrecondition,
                 "GradScaler::update: no inf checks were recorded before it; call step() first");
    const bool found = std::any_of(optimizers_.begin(), optimizers_.end(),
                                   [](const auto& entry) { return entry.second.found_nonfinite; });
    state_ = updated_scale(state_, found);
  }
  optimizers_.clear();
}

void GradScaler::load_state(const GradScalerState& state) { state_ = state; }
}  // namespace muster
