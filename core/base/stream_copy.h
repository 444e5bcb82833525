#pragma once
/// Copies of large memory that do not pass through the caches.
///
/// An ordinary store first reads the line that it writes; a streaming one does not, which saves a
/// third of a copy's memory traffic. It pays for what is too large to stay in the cache anyway.

#include <cstddef>
#include <cstdint>

namespace muster {

/// From here on a copy is larger than what a core's own cache keeps.
inline constexpr int64_t kStreamNbytes = int64_t{1} << 20;

/// memcpy with streaming stores where the CPU has them. Call stream_fence() before another thread
/// or process may read the bytes.
void stream_bytes(std::byte* to, const std::byte* from, int64_t nbytes) noexcept;
/// Orders the streaming stores of this thread before its later stores.
void stream_fence() noexcept;

}  // namespace muster
