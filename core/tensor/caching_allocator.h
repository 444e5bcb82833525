#pragma once
/// The CPU's allocator: freed blocks are kept by size and handed out again, without the system.
///
/// Blocks up to 1 MiB come from per-thread lists by size class (no lock, no atomic
/// read-modify-write); larger ones from one best-fit cache. A block may be freed on any thread.
/// Memory goes back to the system in trim() only, which an allocation also tries before it fails.

#include <cstdint>
#include <memory>
#include <string>

#include "core/tensor/allocator.h"

namespace muster {

class CachingAllocator final : public Allocator {
 public:
  CachingAllocator();
  /// Unmaps everything. No block may be live, and no other thread may be in a call.
  ~CachingAllocator() override;
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  /// Address is a multiple of 64. @error kOutOfMemory names the request, the live and the cached
  /// bytes, the cap and the largest live sizes; kInvalidArgument for a negative size
  void* allocate(int64_t nbytes) override;
  /// `nbytes` is what was asked for.
  void deallocate(void* data, int64_t nbytes) noexcept override;
  [[nodiscard]] Device device() const noexcept override { return kCpuDevice; }

  /// `allocated` is exact; `peak_allocated` may miss up to 64 KiB of small blocks per thread.
  [[nodiscard]] AllocatorStats stats() const override;
  void reset_peak() override;
  /// Other threads' lists (a few hundred KiB per size class at most) stay as they are.
  void trim() override;

  /// Most bytes that may be obtained from the system at once; no value lifts the cap. Memory that
  /// is already reserved is not given back by this call.
  void set_cap(Bytes cap);
  void clear_cap();

  /// Segments and their blocks as JSON: `{"reserved", "allocated", "peak_allocated", "segments": [
  /// {"address", "nbytes", "type": "large", "blocks": [{"offset", "nbytes", "state"}]},
  /// {"address", "nbytes", "type": "small", "block_nbytes", "carved", "free"}]}`; the carved blocks
  /// of a small segment that are not free are live or in a thread's list.
  [[nodiscard]] std::string snapshot() const;

 private:
  struct Impl;
  friend struct CachingAllocatorThreads;

  void* allocate_slowly(int64_t nbytes);
  void* allocate_large(int64_t nbytes);
  void* take_small(size_t size_class);

  const std::unique_ptr<Impl> impl_;
  const int slot_;  // index of this allocator in each thread's table; -1 when the table is full
};

/// What cpu_allocator() returns, with its own interface.
CachingAllocator& cpu_caching_allocator() noexcept;

}  // namespace muster
