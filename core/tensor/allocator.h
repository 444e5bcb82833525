#pragma once
/// Where bytes come from: one interface for heap caches and shared-memory arenas.
///
/// The CPU allocator caches freed blocks by size class and never returns them to the system until
/// trim(): a steady training step makes no mmap call. Blocks are at least 64-byte aligned.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/units.h"
#include "core/tensor/device.h"

namespace muster {

/// What an allocator did so far.
struct AllocatorStats {
  Bytes allocated;           ///< held by live blocks, rounded sizes
  Bytes reserved;            ///< obtained from the system
  Bytes peak_allocated;      ///< largest `allocated` since reset_peak()
  int64_t system_calls = 0;  ///< mmap calls so far: constant in a steady step
  int64_t allocations = 0;
};

/// @thread any
class Allocator {
 public:
  virtual ~Allocator() = default;
  /// At least `nbytes` bytes, 64-byte aligned; null for 0 bytes.
  /// @error kOutOfMemory with the size asked for, what is live and what is cached
  virtual void* allocate(int64_t nbytes) = 0;
  virtual void deallocate(void* data, int64_t nbytes) noexcept = 0;
  [[nodiscard]] virtual Device device() const noexcept = 0;
  [[nodiscard]] virtual AllocatorStats stats() const = 0;
  virtual void reset_peak() {}
  /// Returns cached, unused blocks to the system.
  virtual void trim() {}
};

/// The caching allocator of the CPU; lives as long as the process.
Allocator& cpu_allocator() noexcept;

}  // namespace muster
