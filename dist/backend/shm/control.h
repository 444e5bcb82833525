#pragma once
/// The words that ranks share: layouts inside the arenas. Everything here is read by other
/// processes.
///
/// Each rank owns one block per group and only ever writes its own; peers read it. A rank's clock
/// counts two ticks an operation: 2n-1 = "arrived at operation n", 2n = "needs no peer's memory of
/// operation n any more". Announcements are double-buffered: a rank can be at most one operation
/// ahead.

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "dist/group/written_descriptor.h"

namespace muster::shm {

/// Payloads up to this size travel inside the announcement: one synchronisation instead of two.
inline constexpr int64_t kInlineNbytes = 1024;
inline constexpr int kMessagesInFlight = 32;

/// What a rank says of one operation before its clock shows the arrival.
struct Announcement {
  WrittenDescriptor descriptor;
  int64_t input_offset = -1;   ///< in the rank's arena; -1: the payload is inline
  int64_t output_offset = -1;  ///< where peers may write (all_reduce in place)
  alignas(64) std::byte payload[kInlineNbytes];
};

/// A counter that peers wait for.
struct alignas(64) Clock {
  std::atomic<uint32_t> ticks{0};
  std::atomic<uint32_t> waiters{0};
};

struct Message {
  WrittenDescriptor descriptor;
  int64_t offset = 0;
  int64_t nbytes = 0;
};

/// Messages from the owning rank to one peer.
struct alignas(64) Outbox {
  Clock sent;
  std::array<Message, kMessagesInFlight> ring;
};

/// A rank's block for one group. `outboxes` and `taken` have one entry per group rank behind it.
struct ControlBlock {
  Clock clock;
  std::atomic<uint32_t> aborted{0};  ///< an ErrorCode: this rank gave the group up
  std::array<char, 960> abort_reason{};
  std::array<Announcement, 2> announcements;
};

/// Bytes of a block with its per-peer parts.
int64_t control_nbytes(int group_size) noexcept;
/// The per-peer parts behind a block.
Outbox& outbox(ControlBlock& block, int peer) noexcept;
/// Messages that the owner of `block` took from `peer`.
Clock& taken(ControlBlock& block, int group_size, int peer) noexcept;

}  // namespace muster::shm
