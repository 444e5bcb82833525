#pragma once
/// Philox4x32-10: random numbers as a pure function of (seed, offset, element index).
///
/// Each random operator takes one offset; element i of the *logical* tensor draws word i mod 4 of
/// counter (i / 4, offset), see core/kernels/cpu/random.h. So results do not depend on threads,
/// tile order or sharding: a shard asks for the indices it holds. The state to save is two
/// integers.

#include <array>
#include <cstdint>

namespace muster {

/// Ten rounds of Philox on one counter: four independent 32-bit words.
inline std::array<uint32_t, 4> philox4x32(uint64_t seed, uint64_t offset, uint64_t index) noexcept {
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                               static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ key0, static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

/// A stream of offsets under one seed.
class Generator {
 public:
  explicit Generator(uint64_t seed = 0) noexcept : seed_(seed) {}
  [[nodiscard]] uint64_t seed() const noexcept { return seed_; }
  [[nodiscard]] uint64_t offset() const noexcept { return offset_; }
  /// Sets the whole state.
  void set_state(uint64_t seed, uint64_t offset) noexcept {
    seed_ = seed;
    offset_ = offset;
  }
  /// The offset for one operator; the next call gets another.
  uint64_t next_offset() noexcept { return offset_++; }

 private:
  uint64_t seed_;
  uint64_t offset_ = 0;
};

/// The generator that operators use when none is passed. One per thread, so that ranks that are
/// threads of one process do not disturb each other.
Generator& default_generator() noexcept;
/// Seeds the thread's default generator.
void manual_seed(uint64_t seed) noexcept;

}  // namespace muster
