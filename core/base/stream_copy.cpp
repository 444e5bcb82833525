#include "core/base/stream_copy.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace muster {

#if defined(__SSE2__)
void stream_bytes(std::byte* to, const std::byte* from, int64_t nbytes) noexcept {
  constexpr int64_t kLine = 64;
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % kLine);
  const int64_t head = std::min(nbytes, misaligned == 0 ? 0 : kLine - misaligned);
  std::memcpy(to, from, static_cast<size_t>(head));
  int64_t at = head;
  for (; at + kLine <= nbytes; at += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* line = reinterpret_cast<__m128i*>(to + at);
    for (int part = 0; part < 4; ++part)
      _mm_stream_si128(line + part, _mm_loadu_si128(source + part));
  }
  std::memcpy(to + at, from + at, static_cast<size_t>(nbytes - at));
}
void stream_fence() noexcept { _mm_sfence(); }
#else
void stream_bytes(std::byte* to, const std::byte* from, int64_t nbytes) noexcept {
  std::memcpy(to, from, static_cast<size_t>(nbytes));
}
void stream_fence() noexcept {}
#endif

}  // namespace muster
