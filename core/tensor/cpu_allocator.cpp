#include "core/tensor/allocator.h"
#include "core/tensor/caching_allocator.h"

namespace muster {
Allocator& cpu_allocator() noexcept { return cpu_caching_allocator(); }
}  // namespace muster
