#pragma once
/// Scaled dot-product attention: softmax(scale * query @ key^T + mask) @ value.
///
/// One call, several kernels. The first kernel of an ordered list that is allowed and eligible
/// runs; sdpa_explain says which one that is and why the others are not. A row that sees no key
/// gives 0 with finite gradients, and masked positions are never read into a result.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor/tensor.h"

namespace muster {

enum class SdpaKernel : uint8_t {
  kFlash,  ///< blocks of queries and keys, never the whole of the scores
  kMath,   ///< the plain formula; takes every problem
};
inline constexpr int kNumSdpaKernels = 2;

/// "flash", "math".
std::string_view to_string(SdpaKernel kernel) noexcept;

/// Where the causal triangle starts when L queries meet S keys.
enum class CausalAlignment : uint8_t {
  kNone,
  kUpperLeft,   ///< query i sees keys 0..i: is_causal of PyTorch
  kLowerRight,  ///< query i sees keys 0..i + S - L: decoding with a cache
};

struct SdpaOptions {
  /// [.., L, S], broadcast: bool (true: visible), or floating, added to the scaled scores.
  Tensor attn_mask = {};
  /// Each weight becomes 0 with this probability, the others are divided by 1 - p. Applied
  /// whenever it is > 0: pass 0 in evaluation.
  double dropout_p = 0.0;
  CausalAlignment causal = CausalAlignment::kNone;
  std::optional<double> scale = {};  ///< 1 / sqrt(E) unless given
  /// Query heads are a multiple of key heads: each key head serves several query heads.
  bool enable_gqa = false;
  /// These heads are share `head_share` of `head_shares` equal ones: dropout draws for them what a
  /// call with all heads would.
  int64_t head_share = 0;
  int64_t head_shares = 1;
};

/// @shape query [.., L, E], key [.., S, E], value [.., S, Ev] -> [.., L, Ev]; leading dims
///        broadcast, the last of them being heads
/// @error kInvalidArgument an operand does not fit, or a mask together with causal;
///        kUnimplemented no allowed kernel is eligible (names each and its reason)
Tensor scaled_dot_product_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const SdpaOptions& options = {});

struct SdpaResult {
  Tensor out;
  Tensor lse;  ///< [.., L]: log of the sum of exp(scores), natural; -inf for a row without a key
};
/// The same with the rows' log-sum-exp, which carries a gradient too.
SdpaResult scaled_dot_product_attention_lse(const Tensor& query, const Tensor& key,
                                            const Tensor& value, const SdpaOptions& options = {});

/// One kernel's answer to a problem.
struct SdpaVerdict {
  SdpaKernel kernel = SdpaKernel::kMath;
  std::string rejection;  ///< "" when the kernel can run it
};

struct SdpaChoice {
  std::optional<SdpaKernel> kernel;   ///< what would run; nothing if none can
  std::vector<SdpaVerdict> verdicts;  ///< of every kernel, in order of preference
  std::string problem;                ///< "q[1, 8, 1, 64] k[1, 8, 99, 64] bf16 cpu, mask bool"
  /// The choice and every rejection, one a line.
  [[nodiscard]] std::string describe() const;
};

/// What scaled_dot_product_attention would do with these arguments on this thread.
/// @error kInvalidArgument as the call itself
SdpaChoice sdpa_explain(const Tensor& query, const Tensor& key, const Tensor& value,
                        const SdpaOptions& options = {});

/// Allows only these kernels on this thread, in this order of preference, until it goes.
/// @source torch.nn.attention.sdpa_kernel with set_priority
class SdpaKernelGuard {
 public:
  SdpaKernelGuard(std::initializer_list<SdpaKernel> kernels);
  ~SdpaKernelGuard();
  SdpaKernelGuard(const SdpaKernelGuard&) = delete;
  SdpaKernelGuard& operator=(const SdpaKernelGuard&) = delete;

 private:
  std::vector<SdpaKernel> saved_;
};

}  // namespace muster
