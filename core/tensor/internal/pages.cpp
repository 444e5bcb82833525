#include "core/tensor/internal/pages.h"

#include <sys/mman.h>

#include "core/base/error.h"
#include "core/tensor/internal/size_classes.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace muster::internal {

std::byte* PageSource::map(int64_t nbytes, int64_t alignment) noexcept {
  int64_t before = reserved_.load();
  do {
    if (nbytes > cap_.load() - before) return nullptr;
  } while (!reserved_.compare_exchange_weak(before, before + nbytes));

  // mmap aligns to 4 KiB only, so take more and give the ends back.
  const int64_t slack = alignment - 4096;
  const auto whole = static_cast<size_t>(nbytes + slack);
  map_calls_.fetch_add(1, std::memory_order_relaxed);
  void* got = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) {
    reserved_ -= nbytes;
    return nullptr;
  }
  auto* const start = static_cast<std::byte*>(got);
  const auto misaligned =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(start) % static_cast<uintptr_t>(alignment));
  const int64_t lead = misaligned == 0 ? 0 : alignment - misaligned;
  if (lead > 0) ::munmap(start, static_cast<size_t>(lead));
  if (slack > lead) ::munmap(start + lead + nbytes, static_cast<size_t>(slack - lead));
  // Advice only: without huge pages everything still works, slower.
  ::madvise(start + lead, static_cast<size_t>(nbytes), MADV_HUGEPAGE);
  return start + lead;
}

void PageSource::unmap(std::byte* data, int64_t nbytes) noexcept {
  mark_gone(data, nbytes);
  ::munmap(data, static_cast<size_t>(nbytes));
  reserved_ -= nbytes;
}

#if defined(__SANITIZE_ADDRESS__)
void mark_live(void* data, int64_t nbytes, int64_t capacity) noexcept {
  auto* const start = static_cast<std::byte*>(data);
  ASAN_UNPOISON_MEMORY_REGION(start, static_cast<size_t>(nbytes));
  ASAN_POISON_MEMORY_REGION(start + nbytes, static_cast<size_t>(capacity - nbytes));
}
void mark_cached(void* data, int64_t capacity) noexcept {
  ASAN_UNPOISON_MEMORY_REGION(data, sizeof(void*));
  ASAN_POISON_MEMORY_REGION(static_cast<std::byte*>(data) + sizeof(void*),
                            static_cast<size_t>(capacity) - sizeof(void*));
}
void mark_gone(void* data, int64_t capacity) noexcept {
  ASAN_UNPOISON_MEMORY_REGION(data, static_cast<size_t>(capacity));
}
#else
void mark_live(void*, int64_t, int64_t) noexcept {}
void mark_cached(void*, int64_t) noexcept {}
void mark_gone(void*, int64_t) noexcept {}
#endif

}  // namespace muster::internal
