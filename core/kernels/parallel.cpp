#include "core/kernels/parallel.h"

#include <omp.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <limits>
#include <mutex>

namespace muster::kernels {
namespace {
int positive_from_environment(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return 0;
  const long value = std::strtol(text, nullptr, 10);
  return value > 0 && value < 4096 ? static_cast<int>(value) : 0;
}

int initial_num_threads() {
  if (const int asked = positive_from_environment("OMP_NUM_THREADS"); asked > 0) return asked;
  const int ranks = std::max(1, positive_from_environment("LOCAL_WORLD_SIZE"));
  return std::max(1, omp_get_num_procs() / ranks);
}

std::atomic<int>& thread_count() {
  static std::atomic<int> count{initial_num_threads()};
  return count;
}

#if defined(__SSE2__)
constexpr unsigned kFlushBits = _MM_FLUSH_ZERO_ON | 0x0040u;  // FTZ and DAZ of MXCSR
#endif

// What the process wants, once somebody has asked; threads of the pool take it over as they work.
enum class FlushMode : uint8_t { kNeverAsked, kKeep, kFlush };
std::atomic<FlushMode> flush_mode{FlushMode::kNeverAsked};

void follow_flush_mode() noexcept {
  const FlushMode wanted = flush_mode.load(std::memory_order_relaxed);
  if (wanted == FlushMode::kNeverAsked) return;
#if defined(__SSE2__)
  const unsigned now = _mm_getcsr();
  const unsigned then = wanted == FlushMode::kFlush ? now | kFlushBits : now & ~kFlushBits;
  if (then != now) _mm_setcsr(then);
#endif
}

// The exception of the lowest tile, so that the reported error does not depend on timing.
struct FirstFailure {
  std::mutex mutex;
  int64_t tile = std::numeric_limits<int64_t>::max();
  std::exception_ptr error;

  void keep(int64_t failed_tile) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (failed_tile >= tile) return;
    tile = failed_tile;
    error = std::current_exception();
  }
};
}  // namespace

void set_num_threads(int count) {
  thread_count().store(std::max(1, count), std::memory_order_relaxed);
  omp_set_num_threads(std::max(1, count));
}

int num_threads() noexcept { return thread_count().load(std::memory_order_relaxed); }

bool in_parallel_region() noexcept { return omp_in_parallel() != 0; }

bool set_flush_denormal(bool flush) noexcept {
#if defined(__SSE2__)
  flush_mode.store(flush ? FlushMode::kFlush : FlushMode::kKeep, std::memory_order_relaxed);
  follow_flush_mode();
  return true;
#else
  return !flush;
#endif
}

bool flushes_denormals() noexcept {
#if defined(__SSE2__)
  return (_mm_getcsr() & kFlushBits) == kFlushBits;
#else
  return false;
#endif
}

namespace internal {
void run_parallel(int64_t count, void (*call)(const void*, int64_t), const void* context) {
  FirstFailure failure;
  [[maybe_unused]] const int threads = static_cast<int>(std::min<int64_t>(num_threads(), count));
  // libgomp's barriers are invisible to the thread sanitizer, so it sees the tiles one by one.
#if !defined(__SANITIZE_THREAD__)
#pragma omp parallel for schedule(static) num_threads(threads)
#endif
  for (int64_t k = 0; k < count; ++k) {
    follow_flush_mode();
    try {
      call(context, k);
    } catch (...) {
      failure.keep(k);
    }
  }
  if (failure.error) std::rethrow_exception(failure.error);
}
}  // namespace internal
}  // namespace muster::kernels
