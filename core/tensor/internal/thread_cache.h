#pragma once
/// The free lists of one thread, and what it counted. Written by its thread only.
///
/// Counters are atomics so that stats() may read them from another thread; the owner uses plain
/// load and store, never a locked instruction.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "core/tensor/internal/block_pool.h"

namespace muster::internal {

/// Most blocks of a class that a thread keeps: 256 KiB worth, between 2 and 128 blocks.
constexpr int64_t max_kept(size_t size_class) noexcept {
  return std::clamp<int64_t>((int64_t{256} << 10) / class_nbytes(size_class), 2, 128);
}

/// A counter that one thread writes and any reads.
class OwnedCounter {
 public:
  void add(int64_t n) noexcept { set(get() + n); }
  void set(int64_t n) noexcept { value_.store(n, std::memory_order_relaxed); }
  [[nodiscard]] int64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

struct ThreadCache {
  struct List {
    FreeBlock* head = nullptr;
    OwnedCounter count;
  };
  std::array<List, kNumSizeClasses> lists;
  OwnedCounter unreported;   ///< bytes allocated minus freed since the last report
  OwnedCounter allocations;  ///< small ones
};

}  // namespace muster::internal
