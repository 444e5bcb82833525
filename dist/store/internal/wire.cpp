#include "dist/store/internal/wire.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>

namespace muster::internal {
namespace {
static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

constexpr std::array<std::string_view, 19> kNames = {
    "VALIDATE",   "SET",        "COMPARE_SET", "GET",       "ADD",       "CHECK",       "WAIT",
    "GETNUMKEYS", "DELETE_KEY", "APPEND",      "MULTI_GET", "MULTI_SET", "CANCEL_WAIT", "PING",
    "QUEUE_PUSH", "QUEUE_POP",  "QUEUE_LEN",   "LIST_KEYS", "BARRIER"};

template <typename T>
T load(std::string_view bytes) {
  T value{};
  if (bytes.size() == sizeof(T)) std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

template <typename T>
void store(std::string& text, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  text.append(bytes, sizeof(T));
}
}  // namespace

std::string opcode_name(uint8_t opcode) {
  if (opcode < kNames.size()) return std::string(kNames[opcode]);
  if (opcode == static_cast<uint8_t>(Opcode::kAuthBegin)) return "AUTH_BEGIN";
  if (opcode == static_cast<uint8_t>(Opcode::kAuthProof)) return "AUTH_PROOF";
  return fmt::format("opcode {}", opcode);
}

WireWriter& WireWriter::u8(uint8_t value) {
  text_.push_back(static_cast<char>(value));
  return *this;
}

WireWriter& WireWriter::u32(uint32_t value) {
  store(text_, value);
  return *this;
}

WireWriter& WireWriter::u64(uint64_t value) {
  store(text_, value);
  return *this;
}

WireWriter& WireWriter::bytes(std::string_view value) {
  u64(value.size());
  return raw(value);
}

WireWriter& WireWriter::raw(std::string_view value) {
  text_.append(value);
  return *this;
}

std::string_view WireReader::raw(size_t nbytes) {
  if (!ok()) return {};
  if (data_.size() - at_ < nbytes) {
    state_ = State::kShort;
    return {};
  }
  const std::string_view taken = data_.substr(at_, nbytes);
  at_ += nbytes;
  return taken;
}

uint8_t WireReader::u8() { return load<uint8_t>(raw(sizeof(uint8_t))); }
uint32_t WireReader::u32() { return load<uint32_t>(raw(sizeof(uint32_t))); }
uint64_t WireReader::u64() { return load<uint64_t>(raw(sizeof(uint64_t))); }

std::string_view WireReader::bytes(int64_t max_nbytes) {
  const uint64_t nbytes = u64();
  if (!ok()) return {};
  if (nbytes > static_cast<uint64_t>(max_nbytes)) {
    state_ = State::kTooLong;
    refused_nbytes_ = nbytes;
    return {};
  }
  return raw(static_cast<size_t>(nbytes));
}

}  // namespace muster::internal
