#pragma once
/// A keyed permutation of [0, n): which window of the text comes at which position of an epoch.
///
/// A Feistel network over the next power of four with cycle walking: position -> index in constant
/// time, no list is kept, and any rank can ask for any position. Same key, same order, everywhere.

#include <cstdint>

namespace muster {

class Permutation {
 public:
  /// @error kInvalidArgument n < 1
  Permutation(int64_t n, uint64_t key);
  /// The index at `position`, both in [0, n).
  [[nodiscard]] int64_t operator()(int64_t position) const noexcept;

 private:
  [[nodiscard]] uint64_t encrypt(uint64_t value) const noexcept;
  uint64_t n_;
  uint64_t key_;
  int half_bits_;
};

}  // namespace muster
