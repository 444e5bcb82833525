#include "core/nn/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/base/error.h"

namespace muster {

double LrSchedule::factor(int64_t step) const {
  MUSTER_CHECK(step >= 0 && warmup_steps >= 0, ErrorCode::kInvalidArgument,
               "lr_schedule: steps must not be negative; got step {}, warmup {}", step,
               warmup_steps);
  if (step < warmup_steps) return static_cast<double>(step) / static_cast<double>(warmup_steps);
  if (kind == Kind::kConstant) return 1.0;
  MUSTER_CHECK(total_steps >= warmup_steps, ErrorCode::kInvalidArgument,
               "lr_schedule: the decay must end after the warm-up; got {} total and {} warm-up "
               "steps",
               total_steps, warmup_steps);
  const int64_t length = total_steps - warmup_steps;
  const double progress =
      length == 0
          ? 1.0
          : std::min(1.0, static_cast<double>(step - warmup_steps) / static_cast<double>(length));
  const double left =
      kind == Kind::kLinear ? 1.0 - progress : 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return min_factor + (1.0 - min_factor) * left;
}

double linear_lr(double base_lr, int64_t step, double start_factor, double end_factor,
                 int64_t total_iters) {
  const double done = static_cast<double>(std::min(step, total_iters)) /
                      static_cast<double>(std::max<int64_t>(total_iters, 1));
  return base_lr * (start_factor + (end_factor - start_factor) * done);
}

double constant_lr(double base_lr, int64_t step, double factor, int64_t total_iters) {
  return step < total_iters ? base_lr * factor : base_lr;
}

double cosine_annealing_lr(double base_lr, int64_t step, int64_t t_max, double eta_min) {
  const double angle = std::numbers::pi * static_cast<double>(step) / static_cast<double>(t_max);
  return eta_min + (base_lr - eta_min) * (1.0 + std::cos(angle)) / 2.0;
}

double step_lr(double base_lr, int64_t step, int64_t step_size, double gamma) {
  return base_lr * std::pow(gamma, static_cast<double>(step / step_size));
}

double exponential_lr(double base_lr, int64_t step, double gamma) {
  return base_lr * std::pow(gamma, static_cast<double>(step));
}

double polynomial_lr(double base_lr, int64_t step, int64_t total_iters, double power) {
  const double left = 1.0 - static_cast<double>(std::min(step, total_iters)) /
                                static_cast<double>(std::max<int64_t>(total_iters, 1));
  return base_lr * std::pow(left, power);
}
}  // namespace muster
