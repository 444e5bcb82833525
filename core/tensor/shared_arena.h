#pragma once
/// Memory that other processes can map: one memfd of fixed capacity behind the Allocator interface.
///
/// Communication buffers live here, so that a peer reads them in place: a block is named by its
/// offset, which is the same in every process. Only the creating process allocates. The memory has
/// no name in any file system: when the last process that maps it dies, however it dies, it is
/// gone.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "core/base/result.h"
#include "core/tensor/allocator.h"

namespace muster {

struct SharedArenaOptions {
  int64_t alignment = 64;  ///< of every block, in bytes; a power of two, at least 64
  bool prefault = false;  ///< touch all memory now: no page fault later, and no late lack of memory
  bool huge_pages = true;  ///< advice; without effect where the system forbids it
};

class SharedArena final : public Allocator {
 public:
  /// A new arena; `capacity` is rounded up to pages. Memory is used as it is touched.
  /// @error kInvalidArgument capacity or alignment; kOutOfMemory when prefault finds no memory; kIo
  static Result<std::unique_ptr<SharedArena>> create(Bytes capacity,
                                                     SharedArenaOptions options = {});
  /// Maps the arena that process `pid` holds as descriptor `fd`, through /proc.
  /// @error kPeerLost no such process or it may not be seen; kMismatch the descriptor is no arena
  /// of this capacity
  static Result<std::unique_ptr<SharedArena>> attach(int pid, int fd, Bytes capacity);
  /// The same for a descriptor that was passed to this process, which is then owned.
  static Result<std::unique_ptr<SharedArena>> attach_fd(int fd, Bytes capacity);
  ~SharedArena() override;
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  /// First fit. @error kOutOfMemory names the request, the capacity, what is live and the largest
  /// hole; kFailedPrecondition in a process that only attached
  void* allocate(int64_t nbytes) override;
  void deallocate(void* data, int64_t nbytes) noexcept override;
  [[nodiscard]] Device device() const noexcept override { return kCpuDevice; }
  /// `reserved` is the capacity, touched or not.
  [[nodiscard]] AllocatorStats stats() const override;
  void reset_peak() override;
  /// Counts memory that this rank keeps for peers elsewhere, so that stats() tell of it; a negative
  /// number takes it out again. @thread any
  void account(int64_t nbytes);
  /// Gives the pages of free blocks back to the system; the capacity stays.
  void trim() override;

  /// The descriptor to give to attach(), valid as long as the arena.
  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] Bytes capacity() const noexcept { return {capacity_}; }
  [[nodiscard]] bool is_owner() const noexcept { return is_owner_; }
  [[nodiscard]] bool contains(const void* data) const noexcept {
    const auto* const at = static_cast<const std::byte*>(data);
    return at >= base_ && at < base_ + capacity_;
  }
  /// @error kOutOfRange when `data` is not in the arena
  [[nodiscard]] int64_t offset_of(const void* data) const;
  /// The address of `nbytes` bytes at an offset that a peer named.
  /// @error kOutOfRange when they leave the arena
  [[nodiscard]] std::byte* at(int64_t offset, int64_t nbytes = 1) const;

 private:
  SharedArena(int fd, std::byte* base, int64_t capacity, bool is_owner, int64_t alignment);
  [[nodiscard]] int64_t rounded(int64_t nbytes) const noexcept;
  [[nodiscard]] int64_t largest_hole() const noexcept;

  const int fd_;
  std::byte* const base_;
  const int64_t capacity_;
  const bool is_owner_;
  const int64_t alignment_;

  mutable std::mutex mutex_;
  std::map<int64_t, int64_t> holes_;  // offset -> bytes; no two touch
  std::map<int64_t, int64_t> live_;   // offset -> bytes
  int64_t allocated_ = 0;
  int64_t peak_ = 0;
  int64_t allocations_ = 0;
};

}  // namespace muster
