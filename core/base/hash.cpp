#include "core/base/hash.h"

#include <xxhash.h>

namespace muster {

uint64_t hash_bytes(std::span<const std::byte> bytes, uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}
uint64_t hash_text(std::string_view text, uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}
uint64_t hash_combine(uint64_t seed, uint64_t value) noexcept {
  uint64_t mixed =
      (seed ^ (value + 0x9E3779B97F4A7C15ull + (seed << 6) + (seed >> 2))) * 0xBF58476D1CE4E5B9ull;
  mixed ^= mixed >> 29;
  return mixed;
}

struct StreamingHash::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

StreamingHash::StreamingHash() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(state_->xxh);
}
StreamingHash::~StreamingHash() = default;
StreamingHash::StreamingHash(StreamingHash&&) noexcept = default;
StreamingHash& StreamingHash::operator=(StreamingHash&&) noexcept = default;
void StreamingHash::update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_->xxh, bytes.data(), bytes.size());
}
uint64_t StreamingHash::digest() const { return XXH3_64bits_digest(state_->xxh); }
}  // namespace muster
