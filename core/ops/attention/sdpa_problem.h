#pragma once
/// An attention call in the form that kernels take, and the list of kernels. For core/ops only.

#include "core/ops/attention/sdpa.h"
#include "core/tensor/tensor.h"

namespace muster::ops {

/// Operands as [B, H, length, dim] with broadcast batches, mask as [B, H, L, S] or undefined.
struct SdpaProblem {
  Tensor query, key, value, mask;
  double dropout_p = 0.0;
  int64_t head_share = 0;  ///< of head_shares
  int64_t head_shares = 1;
  CausalAlignment causal = CausalAlignment::kNone;
  double scale = 1.0;
  DimVector out_sizes;  ///< of the caller's result
  bool mask_requires_grad = false;

  [[nodiscard]] std::string describe() const;
};

/// Checks the operands of a call and brings them into kernel form. Recorded.
/// @error kInvalidArgument
SdpaProblem make_sdpa_problem(const Tensor& query, const Tensor& key, const Tensor& value,
                              const SdpaOptions& options);

/// One entry of the ordered list: add a kernel there and nowhere else.
struct SdpaCandidate {
  SdpaKernel kernel;
  /// "" when the kernel can run the problem, else why not.
  std::string (*rejection)(const SdpaProblem& problem);
  /// Returns out and lse in kernel form. Recorded.
  SdpaResult (*run)(const SdpaProblem& problem);
};

/// Flash first, then math.
std::span<const SdpaCandidate> sdpa_candidates();

/// The choice among the kernels that this thread allows.
SdpaChoice choose_sdpa(const SdpaProblem& problem);

/// The plain formula of differentiable operators, with dropout.
SdpaResult composed_sdpa(const SdpaProblem& problem);

}  // namespace muster::ops
