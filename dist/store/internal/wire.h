#pragma once
/// The bytes of PyTorch's TCPStore protocol, and our two opcodes for the job token.
///
/// A request is one opcode byte and its fields; integers are little-endian; bytes are a u64 length
/// and the bytes. There is no frame around it, so a reader must know each opcode. An error is never
/// answered: the connection closes.
/// @source c10d TCPStore of PyTorch 2.13, recorded in tests/golden/tcpstore

#include <cstdint>
#include <string>
#include <string_view>

#include "dist/store/store.h"

namespace muster::internal {

enum class Opcode : uint8_t {
  kValidate = 0,
  kSet = 1,
  kCompareSet = 2,
  kGet = 3,
  kAdd = 4,
  kCheck = 5,
  kWait = 6,
  kNumKeys = 7,
  kDeleteKey = 8,
  kAppend = 9,
  kMultiGet = 10,
  kMultiSet = 11,
  kCancelWait = 12,
  kPing = 13,
  kQueuePush = 14,
  kQueuePop = 15,
  kQueueLen = 16,
  kListKeys = 17,
  kBarrier = 18,
  // Ours. The client proves the token first, so that a server tells strangers nothing:
  // kAuthBegin client_nonce -> server_nonce; kAuthProof client_proof -> server_proof.
  kAuthBegin = 0x80,
  kAuthProof = 0x81,
};

inline constexpr uint32_t kValidateMagic = 0x3C85F7CE;
inline constexpr uint8_t kCheckReady = 0;
inline constexpr uint8_t kCheckNotReady = 1;
inline constexpr uint8_t kStopWaiting = 0;
inline constexpr uint8_t kWaitCanceled = 1;

/// Name of an opcode for messages; "opcode 200" when it has none.
std::string opcode_name(uint8_t opcode);

/// Appends fields to a request or reply.
class WireWriter {
 public:
  WireWriter& opcode(Opcode value) { return u8(static_cast<uint8_t>(value)); }
  WireWriter& u8(uint8_t value);
  WireWriter& u32(uint32_t value);
  WireWriter& u64(uint64_t value);
  WireWriter& i64(int64_t value) { return u64(static_cast<uint64_t>(value)); }
  /// A length and the bytes.
  WireWriter& bytes(std::string_view value);
  /// The bytes alone.
  WireWriter& raw(std::string_view value);
  [[nodiscard]] std::string& text() noexcept { return text_; }

 private:
  std::string text_;
};

/// Takes fields from bytes that may end anywhere. The first field that is not all there, or that is
/// above its limit, sets state(); every later call then returns an empty value.
class WireReader {
 public:
  enum class State { kOk, kShort, kTooLong };

  explicit WireReader(std::string_view data) : data_(data) {}

  uint8_t u8();
  uint32_t u32();
  uint64_t u64();
  int64_t i64() { return static_cast<int64_t>(u64()); }
  /// A length and the bytes; the length alone is enough to refuse.
  std::string_view bytes(int64_t max_nbytes);
  std::string_view raw(size_t nbytes);
  std::string_view key() { return bytes(Store::kMaxKeyNbytes); }
  std::string_view value() { return bytes(Store::kMaxValueNbytes); }

  [[nodiscard]] bool ok() const noexcept { return state_ == State::kOk; }
  [[nodiscard]] State state() const noexcept { return state_; }
  [[nodiscard]] size_t consumed() const noexcept { return at_; }
  /// The length that was refused, when state() is kTooLong.
  [[nodiscard]] uint64_t refused_nbytes() const noexcept { return refused_nbytes_; }

 private:
  std::string_view data_;
  size_t at_ = 0;
  State state_ = State::kOk;
  uint64_t refused_nbytes_ = 0;
};

}  // namespace muster::internal
