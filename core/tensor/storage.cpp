#include "core/tensor/storage.h"

#include <utility>

#include "core/base/error.h"

namespace muster {

Storage::Storage(int64_t nbytes, Allocator& allocator)
    : data_(static_cast<std::byte*>(allocator.allocate(nbytes))),
      nbytes_(nbytes),
      allocator_(&allocator),
      device_(allocator.device()) {}

Storage::Storage(void* data, int64_t nbytes, Device device, std::function<void()> release)
    : data_(static_cast<std::byte*>(data)),
      nbytes_(nbytes),
      device_(device),
      release_(std::move(release)) {}

Storage::Storage(int64_t nbytes, Device device) : nbytes_(nbytes), device_(device) {}

Storage::~Storage() { release_memory(); }

uint64_t Storage::id() const noexcept {
  static std::atomic<uint64_t> last{0};
  uint64_t id = id_.load(std::memory_order_relaxed);
  if (id != 0) return id;
  const uint64_t drawn = last.fetch_add(1, std::memory_order_relaxed) + 1;
  // Of two threads that ask at once, the first decides; the other's number is lost.
  return id_.compare_exchange_strong(id, drawn, std::memory_order_relaxed) ? drawn : id;
}

void Storage::release_memory() noexcept {
  if (allocator_ != nullptr && data_ != nullptr) allocator_->deallocate(data_, nbytes_);
  data_ = nullptr;
  if (release_) std::exchange(release_, nullptr)();
}

void Storage::restore_memory() {
  if (data_ != nullptr || nbytes_ == 0) return;
  MUSTER_ASSERT(allocator_ != nullptr, "storage of {} bytes has no allocator to restore from",
                nbytes_);
  data_ = static_cast<std::byte*>(allocator_->allocate(nbytes_));
}

void Storage::adopt_memory(void* data, int64_t nbytes, std::function<void()> release) {
  MUSTER_ASSERT(nbytes >= nbytes_, "storage of {} bytes cannot adopt {} bytes", nbytes_, nbytes);
  release_memory();
  allocator_ = nullptr;
  data_ = static_cast<std::byte*>(data);
  release_ = std::move(release);
}
}  // namespace muster
