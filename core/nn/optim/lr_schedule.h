#pragma once
/// Learning rates as pure functions of the step: nothing to save, nothing to replay.
///
/// A schedule gives the factor on the base rate for step 0, 1, ...; a restart at step k continues
/// as if it had never stopped. @source torch.optim.lr_scheduler (closed forms), transformers'
/// warm-up schedules

#include <cstdint>

namespace muster {

struct LrSchedule {
  enum class Kind : uint8_t { kConstant, kLinear, kCosine };
  Kind kind = Kind::kConstant;
  int64_t warmup_steps = 0;  ///< the factor rises linearly from 0 and is 1 at this step
  int64_t total_steps = 0;   ///< where the decay ends; not read by kConstant
  double min_factor = 0.0;   ///< of the base rate, at total_steps and after

  /// The factor at `step`, which counts updates from 0.
  /// @error kInvalidArgument negative steps, or a decay that ends before the warm-up
  [[nodiscard]] double factor(int64_t step) const;
};

// Schedules of torch.optim.lr_scheduler: the rate at `step`.
/// LinearLR: from start_factor to end_factor over total_iters steps.
double linear_lr(double base_lr, int64_t step, double start_factor, double end_factor,
                 int64_t total_iters);
/// ConstantLR: factor until total_iters steps, then 1.
double constant_lr(double base_lr, int64_t step, double factor, int64_t total_iters);
/// CosineAnnealingLR; rises again after t_max.
double cosine_annealing_lr(double base_lr, int64_t step, int64_t t_max, double eta_min = 0.0);
/// StepLR: multiplied by gamma every step_size steps.
double step_lr(double base_lr, int64_t step, int64_t step_size, double gamma = 0.1);
/// ExponentialLR.
double exponential_lr(double base_lr, int64_t step, double gamma);
/// PolynomialLR: zero from total_iters on.
double polynomial_lr(double base_lr, int64_t step, int64_t total_iters, double power = 1.0);

}  // namespace muster
