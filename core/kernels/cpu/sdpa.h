#pragma once
/// Scaled dot-product attention: out = softmax(scale * q @ k^T + mask) @ v, forward and backward.
///
/// `sdpa_math_*` is the plain reference: it holds one head's L x S scores. `sdpa_flash_*` walks
/// blocks of queries and keys with an online softmax and never holds L x S. Both agree on the
/// edges: a row without a visible key gives out 0 and lse -inf with zero gradients, and masked
/// positions are never read into a result, so nan in masked keys or values does not leak. Neither
/// chooses between kernels nor applies dropout.

#include <cstdint>
#include <optional>

#include "core/tensor/tensor_view.h"

namespace muster::kernels::cpu {

/// Which keys a query sees. Query i of L, key j of S.
enum class Causal : uint8_t {
  kNone,
  kUpperLeft,   ///< j <= i: PyTorch's is_causal
  kLowerRight,  ///< j <= i + (S - L): decoding with a key-value cache
};

struct SdpaOptions {
  double scale = 1.0;  ///< usually 1 / sqrt(E); 0 and negative values are allowed
  Causal causal = Causal::kNone;
  /// [B, H, L, S] by strides (0 repeats): bool, true = visible; or q's dtype, added to the scaled
  /// scores, where -inf hides a key. May be combined with `causal`.
  std::optional<TensorView> mask;
};

/// Plain attention. f32, f64; bf16 and f16 with f32 arithmetic.
/// @shape q [B, H, L, E], k [B, Hkv, S, E], v [B, Hkv, S, Ev], out [B, H, L, Ev], any strides;
///        H % Hkv == 0, query head h reads key head h / (H / Hkv); lse (optional) [B, H, L]
///        contiguous, f32 (f64 for f64), natural log
/// @error kInvalidArgument  naming the operand that does not fit
void sdpa_math(const TensorView& out, const std::optional<TensorView>& lse, const TensorView& q,
               const TensorView& k, const TensorView& v, const SdpaOptions& options);

/// What the backward pass reads: the forward pass's operands and results, and what flows in.
struct SdpaBackwardInputs {
  TensorView dout;  ///< [B, H, L, Ev], any strides
  TensorView q, k, v;
  TensorView out;                  ///< the forward pass's result
  TensorView lse;                  ///< [B, H, L] contiguous
  std::optional<TensorView> dlse;  ///< [B, H, L] contiguous, gradient that flows into lse
};

/// Gradients of q, k, v, each of its operand's sizes and dtype, any strides; overwritten.
struct SdpaGradients {
  TensorView dq, dk, dv;
  /// [B, H, L, S], any strides without overlap: gradient of a float mask before it is reduced to
  /// the mask's own sizes. sdpa_math_backward only.
  std::optional<TensorView> dmask;
};

void sdpa_math_backward(const SdpaGradients& gradients, const SdpaBackwardInputs& inputs,
                        const SdpaOptions& options);

/// Blocked attention, f32 (bf16 and f16 are widened block by block). Shapes as sdpa_math; lse is
/// required, since the backward pass rebuilds the probabilities from it.
void sdpa_flash(const TensorView& out, const TensorView& lse, const TensorView& q,
                const TensorView& k, const TensorView& v, const SdpaOptions& options);

/// @error kInvalidArgument  also when gradients.dmask is asked for
void sdpa_flash_backward(const SdpaGradients& gradients, const SdpaBackwardInputs& inputs,
                         const SdpaOptions& options);

}  // namespace muster::kernels::cpu
