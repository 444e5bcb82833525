#pragma once
/// A region of bytes on a device, shared by all tensors that alias it.
///
/// Carries the version counter of the sharing family: base, views and detach() results see one
/// number. The region may be absent (meta tensors, a released FSDP buffer) and may come back later
/// at another address, so nobody keeps data() across such a point.

#include <atomic>
#include <cstdint>
#include <functional>

#include "core/base/ref.h"
#include "core/tensor/allocator.h"

namespace muster {

class Storage final : public RefCounted {
 public:
  /// Allocates `nbytes` from `allocator`, which must outlive the storage.
  Storage(int64_t nbytes, Allocator& allocator);
  /// Wraps memory that somebody else owns; `release` runs when the last alias goes.
  Storage(void* data, int64_t nbytes, Device device, std::function<void()> release);
  /// No memory: for meta tensors.
  Storage(int64_t nbytes, Device device);
  ~Storage() override;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] int64_t nbytes() const noexcept { return nbytes_; }
  [[nodiscard]] Device device() const noexcept { return device_; }
  [[nodiscard]] bool has_data() const noexcept { return data_ != nullptr || nbytes_ == 0; }

  /// Counts in-place writes to any alias; saved tensors compare it.
  [[nodiscard]] uint32_t version() const noexcept {
    return version_.load(std::memory_order_relaxed);
  }
  void bump_version() noexcept { version_.fetch_add(1, std::memory_order_relaxed); }
  /// A number that no other storage of the process has or will have; drawn at the first call. Tells
  /// whether two moments saw one storage without keeping it alive. @thread any
  [[nodiscard]] uint64_t id() const noexcept;

  /// Drops the memory but keeps the identity: aliases stay valid as metadata. No version bump.
  void release_memory() noexcept;
  /// Gives the storage memory again, uninitialised, from its allocator. No version bump.
  void restore_memory();
  /// Points the storage at memory owned elsewhere (an arena). The old memory is released.
  void adopt_memory(void* data, int64_t nbytes, std::function<void()> release);

 private:
  std::byte* data_ = nullptr;
  int64_t nbytes_ = 0;
  Allocator* allocator_ = nullptr;  // null for foreign and meta memory
  std::atomic<uint32_t> version_{0};
  mutable std::atomic<uint64_t> id_{0};  // 0: not drawn yet
  Device device_;
  std::function<void()> release_;
};

}  // namespace muster
