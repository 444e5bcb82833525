#pragma once
/// Spans for small blocks: 64 KiB, 512 KiB, 2 MiB or 8 MiB, cut from aligned slabs.
///
/// A slab holds spans of one size; it goes back to the system when trim() finds all of them unused.

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "core/tensor/internal/pages.h"

namespace muster::internal {

/// @thread any
class SpanSource {
 public:
  explicit SpanSource(PageSource& pages) noexcept : pages_(pages) {}
  ~SpanSource();
  SpanSource(const SpanSource&) = delete;
  SpanSource& operator=(const SpanSource&) = delete;

  /// A span at a multiple of its size, or null when the cap or the system refuses a slab.
  std::byte* take(int64_t span_nbytes);
  void give(std::byte* span, int64_t span_nbytes) noexcept;
  void trim() noexcept;

 private:
  struct Slab {
    std::byte* data = nullptr;
    int64_t num_used = 0;
    std::vector<std::byte*> unused;
  };
  struct Kind {
    std::mutex mutex;
    std::vector<Slab> slabs;
  };
  Kind& kind_of(int64_t span_nbytes) noexcept;

  PageSource& pages_;
  std::array<Kind, 4> kinds_;
};

}  // namespace muster::internal
