#pragma once
/// gradcheck: compares derivatives with central differences.
///
/// Defaults are PyTorch's (eps 1e-6, atol 1e-5, rtol 1e-3); inputs are f64. Every element of every
/// input is perturbed, so keep inputs small. @source torch.autograd.gradcheck

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"

namespace muster {

/// The function under test: from inputs to outputs, called many times.
using GradcheckFunction = std::function<std::vector<Tensor>(std::span<const Tensor> inputs)>;

struct GradcheckOptions {
  double eps = 1e-6;
  double atol = 1e-5;
  double rtol = 1e-3;
};

/// True when analytic and numerical Jacobians agree for all inputs that require a gradient; else
/// `why` (if given) says which entry differs. Inputs are perturbed in place and restored.
/// @error kInvalidArgument an input is not f64, or overlaps itself; no input requires a gradient
bool gradcheck(const GradcheckFunction& function, std::span<const Tensor> inputs,
               std::string* why = nullptr, GradcheckOptions options = {});

/// gradcheck of the gradient: second derivatives. Incoming gradients are fixed pseudo-random
/// numbers.
bool gradgradcheck(const GradcheckFunction& function, std::span<const Tensor> inputs,
                   std::string* why = nullptr, GradcheckOptions options = {});

}  // namespace muster
