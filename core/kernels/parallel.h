#pragma once
/// The one thread pool of the kernels: OpenMP over tiles whose boundaries depend on sizes only.
///
/// A body sees the same tiles whatever the number of threads, and partial results are combined in
/// one fixed tree, so kernels give the same bits on 1 and on 64 threads. Small work, one thread,
/// and calls from inside a parallel region run inline, without entering OpenMP. Not a task
/// scheduler.

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace muster::kernels {

/// Sets how many threads the kernels of this process use; also the calling thread's OpenMP setting,
/// which oneDNN follows. At least 1.
void set_num_threads(int count);

/// Initially OMP_NUM_THREADS, else the cores this process may use divided by LOCAL_WORLD_SIZE.
/// @thread any
[[nodiscard]] int num_threads() noexcept;

/// True inside a body of parallel_tiles that runs on several threads, and in any other OpenMP
/// region.
[[nodiscard]] bool in_parallel_region() noexcept;

/// Makes results that would be denormal zero, and reads denormal operands as zero, on the calling
/// thread and on every thread of the pool, or restores IEEE arithmetic. Other threads that run
/// kernels already follow with their next parallel kernel. False when this CPU cannot.
/// @source torch.set_flush_denormal, which leaves the pool's threads alone
bool set_flush_denormal(bool flush) noexcept;
/// True when the calling thread flushes denormals.
[[nodiscard]] bool flushes_denormals() noexcept;

namespace internal {
/// Calls `call(context, k)` for each k in [0, count), on several threads. The exception of the
/// lowest k that threw is passed on after all have ended.
void run_parallel(int64_t count, void (*call)(const void* context, int64_t k), const void* context);
}  // namespace internal

constexpr int64_t num_tiles(int64_t count, int64_t grain) noexcept {
  return (count + grain - 1) / grain;
}

/// Calls `body(begin, end)` for the tiles [0, grain), [grain, 2 * grain), ... of [0, count), each
/// once, in no fixed order. A body may throw; of several exceptions that of the lowest tile wins.
template <typename Body>
void parallel_tiles(int64_t count, int64_t grain, const Body& body) {
  if (count <= grain) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
  const int64_t tiles = num_tiles(count, grain);
  const auto run = [&](int64_t k) {
    const int64_t begin = k * grain;
    const int64_t end = begin + grain;
    body(begin, end < count ? end : count);
  };
  if (num_threads() == 1 || in_parallel_region()) {
    for (int64_t k = 0; k < tiles; ++k) run(k);
    return;
  }
  using Run = decltype(run);
  internal::run_parallel(
      tiles, [](const void* context, int64_t k) { (*static_cast<const Run*>(context))(k); }, &run);
}

/// Combines parts[0..count) along a fixed binary tree over neighbours, (0,1)(2,3).., and leaves the
/// result in parts[0]. `combine(a, b)` adds b, the later one, to a. @error undefined for count 0
template <typename T, typename Combine>
void combine_in_tree(T* parts, int64_t count, const Combine& combine) {
  for (int64_t step = 1; step < count; step *= 2) {
    for (int64_t k = 0; k + step < count; k += 2 * step) combine(parts[k], parts[k + step]);
  }
}

/// One result for [0, count): `tile(begin, end)` per tile, then combine_in_tree. `identity` for
/// count 0.
template <typename T, typename Tile, typename Combine>
T reduce_tiles(int64_t count, int64_t grain, T identity, const Tile& tile, const Combine& combine) {
  if (count <= 0) return identity;
  if (count <= grain) return tile(int64_t{0}, count);
  constexpr int64_t kInline = 32;
  const int64_t tiles = num_tiles(count, grain);
  std::array<T, kInline> few;
  std::vector<T> many;
  if (tiles > kInline) many.resize(static_cast<size_t>(tiles));
  T* parts = tiles > kInline ? many.data() : few.data();
  parallel_tiles(count, grain,
                 [&](int64_t begin, int64_t end) { parts[begin / grain] = tile(begin, end); });
  combine_in_tree(parts, tiles, combine);
  return parts[0];
}

}  // namespace muster::kernels
