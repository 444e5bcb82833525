#pragma once
/// Memory from the system: aligned anonymous mappings with huge-page advice, counted and capped.
///
/// The only place of the CPU allocator that calls mmap. Returns null instead of throwing, because
/// the caller first gives cached memory back and tries again.

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace muster::internal {

/// @thread any
class PageSource {
 public:
  /// A mapping of `nbytes` at a multiple of `alignment`, both multiples of 2 MiB, or null when the
  /// cap or the system refuses.
  std::byte* map(int64_t nbytes, int64_t alignment) noexcept;
  void unmap(std::byte* data, int64_t nbytes) noexcept;

  [[nodiscard]] int64_t reserved_nbytes() const noexcept { return reserved_.load(); }
  /// mmap calls so far, not munmap.
  [[nodiscard]] int64_t num_map_calls() const noexcept { return map_calls_.load(); }

  /// Most bytes that may be reserved at once; INT64_MAX for no cap.
  void set_cap(int64_t nbytes) noexcept { cap_ = nbytes; }
  [[nodiscard]] int64_t cap() const noexcept { return cap_.load(); }

 private:
  std::atomic<int64_t> reserved_{0};
  std::atomic<int64_t> map_calls_{0};
  std::atomic<int64_t> cap_{INT64_MAX};
};

/// What AddressSanitizer shall know of a block; nothing happens in other builds.
/// A live block may be used up to `nbytes` of its `capacity`.
void mark_live(void* data, int64_t nbytes, int64_t capacity) noexcept;
/// A cached block may only be used for its link, the first 8 bytes.
void mark_cached(void* data, int64_t capacity) noexcept;
/// The memory goes back to the system.
void mark_gone(void* data, int64_t capacity) noexcept;

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kPoisons = true;
#else
inline constexpr bool kPoisons = false;
#endif

}  // namespace muster::internal
