#include <cstdlib>
#include <mutex>

#include "core/base/error.h"
#include "core/tensor/allocator.h"

namespace muster {
namespace {
class PlainCpuAllocator final : public Allocator {
 public:
  void* allocate(int64_t nbytes) override {
    if (nbytes == 0) return nullptr;
    void* data = std::aligned_alloc(64, (static_cast<size_t>(nbytes) + 63) / 64 * 64);
    MUSTER_CHECK(data != nullptr, ErrorCode::kOutOfMemory, "allocate: {} are not to be had",
                 format_bytes({nbytes}));
    return data;
  }
  void deallocate(void* data, int64_t) noexcept override { std::free(data); }
  [[nodiscard]] Device device() const noexcept override { return kCpuDevice; }
  [[nodiscard]] AllocatorStats stats() const override { return {}; }
};
}  // namespace

Allocator& cpu_allocator() noexcept {
  static auto* instance = new PlainCpuAllocator();
  return *instance;
}
}  // namespace muster
