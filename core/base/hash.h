#pragma once
/// XXH3-64 of bytes: checksums of checkpoints and digests of tensors. Not a cryptographic hash.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace muster {

/// XXH3-64 of one buffer.
uint64_t hash_bytes(std::span<const std::byte> bytes, uint64_t seed = 0) noexcept;
uint64_t hash_text(std::string_view text, uint64_t seed = 0) noexcept;

/// Mixes `value` into `seed`; order matters.
uint64_t hash_combine(uint64_t seed, uint64_t value) noexcept;

/// XXH3-64 of bytes that arrive in pieces; equals hash_bytes of their concatenation.
class StreamingHash {
 public:
  StreamingHash();
  ~StreamingHash();
  StreamingHash(StreamingHash&&) noexcept;
  StreamingHash& operator=(StreamingHash&&) noexcept;
  void update(std::span<const std::byte> bytes);
  [[nodiscard]] uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace muster
