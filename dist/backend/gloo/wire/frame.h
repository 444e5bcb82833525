#pragma once
/// What travels between two ranks: a fixed header and a payload. Both ends run this very code, so
/// integers are the machine's own; the handshake refuses another version.

#include <cstdint>
#include <cstring>
#include <string>

#include "core/base/result.h"

namespace muster::wire {

inline constexpr uint32_t kFrameMagic = 0x314c474d;  // "MGL1"
/// Payloads up to this size are sent at once; larger ones when the receiver says that it is ready.
inline constexpr int64_t kEagerNbytes = 16 << 10;
/// Above every payload that may come unasked.
inline constexpr int64_t kMaxSmallNbytes = 4 * kEagerNbytes;

enum class FrameKind : uint32_t {
  kOpen,        ///< this rank has opened the channel
  kContract,    ///< what this rank launched; slot is the sequence number
  kMessage,     ///< a point-to-point message, or the news of a large one
  kData,        ///< bytes for a posted receive; slot says which
  kReady,       ///< a receive of a large payload is posted under this slot
  kNotice,      ///< this rank gave the channel's group up, and why
  kGoodbye,     ///< nothing follows: this rank leaves
  kGoodbyeAck,  ///< all before the goodbye was read
};

struct FrameHeader {
  uint32_t magic = kFrameMagic;
  FrameKind kind = FrameKind::kOpen;
  uint64_t channel = 0;
  uint64_t slot = 0;
  int64_t nbytes = 0;  ///< of the payload behind this header
  int64_t aux = 0;     ///< kMessage: bytes of the whole message
};
static_assert(sizeof(FrameHeader) == 40);

/// What is wrong with a header that arrived, or nothing. Only kData may be large.
inline const char* fault_of(const FrameHeader& header) noexcept {
  if (header.magic != kFrameMagic) return "no frame begins here";
  if (header.kind > FrameKind::kGoodbyeAck) return "unknown kind of frame";
  if (header.nbytes < 0 || header.aux < 0) return "negative size";
  if (header.kind != FrameKind::kData && header.nbytes > kMaxSmallNbytes) return "frame too large";
  return nullptr;
}

/// Bytes of a trivially copyable value, and back.
template <typename T>
std::string to_bytes(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}
template <typename T>
T from_bytes(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

}  // namespace muster::wire
