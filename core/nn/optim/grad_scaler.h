#pragma once
/// GradScaler: keeps f16 gradients out of underflow by scaling the loss, and skips steps that
/// overflowed.
///
/// The scale doubles after 2000 clean steps and halves after one with an infinite or nan gradient.
/// Order of calls in a step: scale the loss, backward, unscale_ (only to clip), step each
/// optimizer, update. Not needed for bf16. @source torch.amp.GradScaler of PyTorch 2.13

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "core/nn/optim/optimizer.h"

namespace muster {

struct GradScalerOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  bool enabled = true;  ///< false: every call does what it would without a scaler
};

/// What a checkpoint keeps. `clean_steps` is PyTorch's _growth_tracker.
struct GradScalerState {
  float scale = 65536.0f;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  int64_t clean_steps = 0;
};

/// The state after one update. Products are taken in f64 and rounded once; a growth to infinity
/// keeps the scale.
GradScalerState updated_scale(GradScalerState state, bool found_nonfinite) noexcept;

class GradScaler {
 public:
  /// @error kInvalidArgument growth_factor <= 1, backoff_factor >= 1
  explicit GradScaler(const GradScalerOptions& options = {});

  /// loss * scale, recorded.
  Tensor scale(const Tensor& loss);
  /// Divides the gradients of the optimizer's parameters by the scale, once between updates.
  /// @error kFailedPrecondition called twice, after step(), or before any scale(); f16 gradients
  void unscale_(Optimizer& optimizer);
  /// Unscales if that has not happened, and steps unless a gradient is infinite or nan.
  /// @return true when the optimizer stepped
  /// @error kFailedPrecondition called twice since update(), before any scale(), or without any
  /// gradient
  bool step(Optimizer& optimizer, const StepOptions& options = {});
  /// Ends the step: grows or shrinks the scale by what was found, or sets it to `new_scale`.
  /// @error kFailedPrecondition no optimizer was unscaled or stepped since the last update
  void update(std::optional<double> new_scale = {});

  /// 1 when disabled.
  [[nodiscard]] double scale_value() const noexcept { return enabled_ ? state_.scale : 1.0; }
  [[nodiscard]] const GradScalerState& state() const noexcept { return state_; }
  void load_state(const GradScalerState& state);

  /// Ranks that hold pieces of the same gradients must skip together: `any` gets this rank's answer
  /// and returns that of all. @collective called once for each optimizer, in unscale_ or step
  void set_agreement(std::function<bool(bool found_nonfinite)> any) { any_ = std::move(any); }

 private:
  enum class Stage : uint8_t { kReady, kUnscaled, kStepped };
  struct PerOptimizer {
    Stage stage = Stage::kReady;
    bool found_nonfinite = false;
  };
  void check_scaled(const char* call) const;
  PerOptimizer& unscale(Optimizer& optimizer);

  GradScalerState state_;
  bool enabled_;
  bool was_used_ = false;
  std::map<const Optimizer*, PerOptimizer> optimizers_;  // since the last update
  std::function<bool(bool)> any_;
};

}  // namespace muster
