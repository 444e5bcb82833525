#pragma once
/// What the attention kernels share: the checked problem, planes of one head, masks, and the
/// careful computation of one head. Internal to core/kernels.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "core/kernels/cpu/sdpa.h"

namespace muster::kernels::cpu::internal {

/// Sizes of a checked attention problem.
struct SdpaShape {
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t queries = 0;        ///< L
  int64_t keys = 0;           ///< S
  int64_t key_dim = 0;        ///< E
  int64_t value_dim = 0;      ///< Ev
  int64_t causal_offset = 0;  ///< key j is visible to query i when j <= i + causal_offset

  [[nodiscard]] int64_t group() const noexcept { return heads / kv_heads; }
  /// Operations of one head, forward, when all keys are visible.
  [[nodiscard]] int64_t head_flops() const noexcept {
    return 2 * queries * keys * (key_dim + value_dim);
  }
  /// Keys [0, n) may be visible to query i.
  [[nodiscard]] int64_t visible_keys(int64_t i) const noexcept {
    return std::clamp<int64_t>(i + causal_offset + 1, 0, keys);
  }
};

/// How many tasks of `flops` operations each make one tile: waking a thread costs microseconds.
constexpr int64_t task_grain(int64_t flops) noexcept {
  return std::max<int64_t>(1, (int64_t{1} << 19) / std::max<int64_t>(1, flops));
}

/// @error kInvalidArgument  naming the operand that does not fit
SdpaShape check_forward(const char* operation, const TensorView& out,
                        const std::optional<TensorView>& lse, const TensorView& q,
                        const TensorView& k, const TensorView& v, const SdpaOptions& options);
SdpaShape check_backward(const char* operation, const SdpaGradients& gradients,
                         const SdpaBackwardInputs& inputs, const SdpaOptions& options);

/// The last two dims of [B, H, ..] at (b, h).
TensorView plane(const TensorView& view, int64_t b, int64_t h);

/// Copies a plane into rows of `ld` elements, widened.
template <typename A>
void pack_rows(const TensorView& from, A* to, int64_t ld);
/// Copies a plane's transpose: row e holds element e of every row.
template <typename A>
void pack_columns(const TensorView& from, A* to, int64_t ld);
/// Copies rows of `ld` elements into a plane, narrowed.
template <typename A>
void unpack_rows(const A* from, int64_t ld, const TensorView& to);
/// Copies the transpose of rows of `ld` elements into a plane, narrowed.
template <typename A>
void unpack_columns(const A* from, int64_t ld, const TensorView& to);

/// The mask of one head: what to add to scores; -inf hides.
class HeadMask {
 public:
  HeadMask(const std::optional<TensorView>& mask, int64_t b, int64_t h) {
    if (mask) plane_.emplace(plane(*mask, b, h));
  }
  [[nodiscard]] bool present() const noexcept { return plane_.has_value(); }
  /// Writes the terms of query i for keys [begin, end) at to[0], to[step], ...
  template <typename A>
  void read(int64_t i, int64_t begin, int64_t end, A* to, int64_t step = 1) const;

 private:
  std::optional<TensorView> plane_;
};

/// One head, forward. `lse` may be null.
template <typename A>
struct SdpaHead {
  TensorView q, k, v, out;
  A* lse;
};

/// One head, backward. dk and dv are dense [S, E] and [S, Ev], added to; dq is overwritten.
template <typename A>
struct SdpaHeadBackward {
  TensorView q, k, v, dout;
  const A* dlse;  ///< null: zero
  TensorView dq;
  A* dk;
  A* dv;
  std::optional<TensorView> dmask;
};

/// Query by query, skipping hidden keys: slow, but right whatever hidden keys and values hold.
template <typename A>
void careful_head(const SdpaHead<A>& head, const HeadMask& mask, const SdpaShape& shape,
                  double scale);
template <typename A>
void careful_head_backward(const SdpaHeadBackward<A>& head, const HeadMask& mask,
                           const SdpaShape& shape, double scale);

}  // namespace muster::kernels::cpu::internal
