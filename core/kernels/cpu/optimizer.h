#pragma once
/// Optimizer updates fused into one pass over flat, contiguous arrays.
///
/// param, grad and state are f32 or all f64, contiguous, of one numel. Scalars are computed in
/// double once a call. An update touches each element on its own: any split of the arrays gives the
/// same bits. `grad_scale` multiplies the gradient as it is read (clipping, loss scaling);
/// `zero_grad` clears it in the same pass. Whether to step at all is the caller's business.

#include <cstdint>
#include <optional>

#include "core/tensor/tensor_view.h"

namespace muster::kernels::cpu {

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;  ///< added after sqrt(v) / sqrt(1 - beta2^step)
  double weight_decay = 0.0;
  bool decoupled_decay =
      true;  ///< AdamW: param *= 1 - lr * weight_decay; else Adam: grad += wd * param
  bool maximize = false;
  double grad_scale = 1.0;
  bool zero_grad = false;
};

struct AdamState {
  TensorView exp_avg;
  TensorView exp_avg_sq;
  std::optional<TensorView> max_exp_avg_sq;  ///< present: AMSGrad
};

/// One Adam or AdamW step; `step` counts from 1.
/// @error kInvalidArgument  naming the array whose dtype, numel or layout does not fit, or step < 1
/// @source torch.optim.AdamW, Adam (2.13)
void adam_step(const TensorView& param, const TensorView& grad, const AdamState& state,
               int64_t step, const AdamOptions& options);

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
  bool maximize = false;        ///< negates the gradient before weight decay
  bool first_momentum = false;  ///< the buffer is new: it becomes the gradient, undamped
  double grad_scale = 1.0;
  bool zero_grad = false;
};

/// One SGD step; the buffer is needed exactly when momentum != 0.
/// @source torch.optim.SGD (2.13)
void sgd_step(const TensorView& param, const TensorView& grad,
              const std::optional<TensorView>& momentum_buffer, const SgdOptions& options);

}  // namespace muster::kernels::cpu
