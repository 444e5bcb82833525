#pragma once
/// The operations a process group knows, and how values are reduced.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace muster {

enum class CollectiveKind : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kSend,
  kRecv,
  kBarrier,
};
inline constexpr size_t kNumCollectiveKinds = 11;

/// Between two ranks: send and recv.
constexpr bool is_pair(CollectiveKind kind) noexcept {
  return kind == CollectiveKind::kSend || kind == CollectiveKind::kRecv;
}

/// kAvg takes floating tensors only; kBand, kBor and kBxor take integers and bools only.
enum class ReduceOp : uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor };

/// "all_reduce", "send", ...: the name users call.
std::string_view to_string(CollectiveKind kind) noexcept;
/// "sum", "avg", ...
std::string_view to_string(ReduceOp op) noexcept;

}  // namespace muster
