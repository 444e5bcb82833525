#pragma once
/// Fused updates of lists of parameters, and the sums that gradient clipping needs.
///
/// Each writes its tensors in place, one pass per tensor, and counts the write in their versions.
/// Lists are parallel: entry i of each belongs to parameter i. Use core/nn/optim for optimizers.

#include <span>
#include <vector>

#include "core/tensor/tensor.h"

namespace muster {

struct AdamArguments {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool decoupled_decay = true;  ///< AdamW; false: Adam, where decay is added to the gradient
  bool maximize = false;
  double grad_scale = 1.0;  ///< multiplies gradients as they are read
  bool zero_grad = false;   ///< clears gradients in the same pass
};

/// One Adam step; steps[i] counts from 1. `max_exp_avg_sqs` empty: no AMSGrad.
/// @error kInvalidArgument lists of different lengths, or tensors that do not fit
void fused_adamw_(std::span<const Tensor> params, std::span<const Tensor> grads,
                  std::span<const Tensor> exp_avgs, std::span<const Tensor> exp_avg_sqs,
                  std::span<const Tensor> max_exp_avg_sqs, Dims steps,
                  const AdamArguments& arguments);

struct SgdArguments {
  double lr = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
  bool maximize = false;
  double grad_scale = 1.0;
  bool zero_grad = false;
};

/// One SGD step. `momentum_buffers` is empty without momentum; first_steps[i] = 1 where the buffer
/// is new and takes the gradient undamped.
void fused_sgd_(std::span<const Tensor> params, std::span<const Tensor> grads,
                std::span<const Tensor> momentum_buffers, Dims first_steps,
                const SgdArguments& arguments);

/// Sum of squares of all elements of all tensors, in double: 0-dim f64. The order is that of the
/// list, so the sum of several lists' sums is that of their concatenation.
Tensor foreach_sum_of_squares(std::span<const Tensor> tensors);

/// Multiplies each tensor by a number.
void foreach_mul_(std::span<const Tensor> tensors, double factor);

}  // namespace muster
