#pragma once
/// Activations: elementwise operators of neural networks, with fused derivatives.
///
/// Names and argument order are those of torch.nn.functional. Each is one kernel forward and one
/// backward; when the backward pass is itself recorded it is composed of differentiable operators.

#include <string_view>

#include "core/ops/operand.h"

namespace muster {

Tensor relu(const Tensor& self);
Tensor relu_(const Tensor& self);
Tensor relu6(const Tensor& self);
/// `approximate` is "none" or "tanh".
Tensor gelu(const Tensor& self, std::string_view approximate = "none");
Tensor silu(const Tensor& self);
Tensor softplus(const Tensor& self, Scalar beta = 1, Scalar threshold = 20);
Tensor logsigmoid(const Tensor& self);
Tensor elu(const Tensor& self, Scalar alpha = 1, Scalar scale = 1, Scalar input_scale = 1);
Tensor celu(const Tensor& self, double alpha = 1.0);
Tensor selu(const Tensor& self);
Tensor leaky_relu(const Tensor& self, Scalar negative_slope = 0.01);
Tensor leaky_relu_(const Tensor& self, Scalar negative_slope = 0.01);
Tensor hardtanh(const Tensor& self, Scalar min_val = -1, Scalar max_val = 1);
Tensor hardsigmoid(const Tensor& self);
Tensor hardswish(const Tensor& self);
Tensor mish(const Tensor& self);
Tensor softsign(const Tensor& self);
Tensor tanhshrink(const Tensor& self);
Tensor softshrink(const Tensor& self, Scalar lambd = 0.5);
Tensor hardshrink(const Tensor& self, Scalar lambd = 0.5);
/// self > threshold ? self : value.
Tensor threshold(const Tensor& self, Scalar threshold, Scalar value);
/// First half of `dim` times the sigmoid of the second. @error kInvalidArgument for an odd size
Tensor glu(const Tensor& self, int64_t dim = -1);
/// Slope `weight` for negative elements: one number, or one per channel (dim 1).
Tensor prelu(const Tensor& self, const Tensor& weight);
/// silu(gate) * up: the gate of the SwiGLU feed-forward layer. @source arXiv:2002.05202
Tensor swiglu(const Tensor& gate, const Tensor& up);

}  // namespace muster
