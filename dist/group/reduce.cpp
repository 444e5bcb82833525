#include "dist/group/reduce.h"

#include <algorithm>
#include <type_traits>

#include "core/base/stream_copy.h"

namespace muster {
namespace {
// Small enough for the L1 cache, so that the accumulator is written to memory once.
constexpr int64_t kTile = 1024;

template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>, float, T>;

// Integers wrap, as in PyTorch: computed without sign, where that is defined.
template <typename W>
using Wrapping =
    std::conditional_t<!std::is_integral_v<W>, W,
                       std::conditional_t<(sizeof(W) > sizeof(uint32_t)), uint64_t, uint32_t>>;

template <ReduceOp kOp, typename W>
W combine(W a, W b) {
  using V = Wrapping<W>;
  if constexpr (kOp == ReduceOp::kProduct) {
    return static_cast<W>(static_cast<V>(a) * static_cast<V>(b));
  }
  // nan wins, as in torch.minimum and torch.maximum.
  if constexpr (kOp == ReduceOp::kMin) return b < a || b != b ? b : a;
  if constexpr (kOp == ReduceOp::kMax) return b > a || b != b ? b : a;
  if constexpr (std::is_integral_v<W>) {
    if constexpr (kOp == ReduceOp::kBand) return static_cast<W>(a & b);
    if constexpr (kOp == ReduceOp::kBor) return static_cast<W>(a | b);
    if constexpr (kOp == ReduceOp::kBxor) return static_cast<W>(a ^ b);
  }
  return static_cast<W>(static_cast<V>(a) + static_cast<V>(b));
}

template <ReduceOp kOp, typename T>
void reduce_typed(T* out, std::span<const std::byte* const> sources, int64_t count) {
  using W = Wide<T>;
  const bool streams = count * static_cast<int64_t>(sizeof(T)) >= kStreamNbytes;
  W sum[kTile];
  for (int64_t from = 0; from < count; from += kTile) {
    const int64_t n = std::min(kTile, count - from);
    const T* first = reinterpret_cast<const T*>(sources[0]) + from;
    for (int64_t i = 0; i < n; ++i) sum[i] = static_cast<W>(first[i]);
    for (size_t r = 1; r < sources.size(); ++r) {
      const T* next = reinterpret_cast<const T*>(sources[r]) + from;
      for (int64_t i = 0; i < n; ++i) sum[i] = combine<kOp, W>(sum[i], static_cast<W>(next[i]));
    }
    if constexpr (kOp == ReduceOp::kAvg && !std::is_integral_v<T>) {
      const W divisor = static_cast<W>(sources.size());
      for (int64_t i = 0; i < n; ++i) sum[i] /= divisor;
    }
    if (!streams) {
      for (int64_t i = 0; i < n; ++i) out[from + i] = static_cast<T>(sum[i]);
    } else if constexpr (std::is_same_v<W, T>) {
      stream_bytes(reinterpret_cast<std::byte*>(out + from),
                   reinterpret_cast<const std::byte*>(sum), n * sizeof(T));
    } else {
      T rounded[kTile];
      for (int64_t i = 0; i < n; ++i) rounded[i] = static_cast<T>(sum[i]);
      stream_bytes(reinterpret_cast<std::byte*>(out + from),
                   reinterpret_cast<const std::byte*>(rounded), n * sizeof(T));
    }
  }
  if (streams) stream_fence();
}

template <ReduceOp kOp>
void reduce_op(DType dtype, std::byte* out, std::span<const std::byte* const> sources,
               int64_t count) {
  visit_dtype(dtype, [&](auto type) {
    using T = decltype(type);
    // Bools are bytes here: sum is "or", product is "and".
    if constexpr (std::is_same_v<T, bool>) {
      constexpr bool kIsAnd =
          kOp == ReduceOp::kProduct || kOp == ReduceOp::kMin || kOp == ReduceOp::kBand;
      constexpr ReduceOp kBoolOp = kOp == ReduceOp::kBxor ? kOp
                                   : kIsAnd               ? ReduceOp::kMin
                                                          : ReduceOp::kMax;
      reduce_typed<kBoolOp, uint8_t>(reinterpret_cast<uint8_t*>(out), sources, count);
    } else {
      reduce_typed<kOp, T>(reinterpret_cast<T*>(out), sources, count);
    }
  });
}
}  // namespace

void reduce_buffers(ReduceOp op, DType dtype, std::byte* out,
                    std::span<const std::byte* const> sources, int64_t count) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce_op<ReduceOp::kSum>(dtype, out, sources, count);
    case ReduceOp::kAvg:
      return reduce_op<ReduceOp::kAvg>(dtype, out, sources, count);
    case ReduceOp::kProduct:
      return reduce_op<ReduceOp::kProduct>(dtype, out, sources, count);
    case ReduceOp::kMin:
      return reduce_op<ReduceOp::kMin>(dtype, out, sources, count);
    case ReduceOp::kMax:
      return reduce_op<ReduceOp::kMax>(dtype, out, sources, count);
    case ReduceOp::kBand:
      return reduce_op<ReduceOp::kBand>(dtype, out, sources, count);
    case ReduceOp::kBor:
      return reduce_op<ReduceOp::kBor>(dtype, out, sources, count);
    case ReduceOp::kBxor:
      return reduce_op<ReduceOp::kBxor>(dtype, out, sources, count);
  }
}
}  // namespace muster
