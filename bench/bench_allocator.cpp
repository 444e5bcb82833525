// What an allocation costs: a pair of small calls from the thread's list, a pair of large calls, a
// producer and a consumer thread, and first touch of fresh memory against reuse.
#include <benchmark/benchmark.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "bench/registered.h"
#include "core/tensor/caching_allocator.h"

namespace {
using muster::CachingAllocator;

CachingAllocator& shared_allocator() { return muster::cpu_caching_allocator(); }

void pair_of_calls(benchmark::State& state) {
  muster::Allocator& allocator = muster::cpu_allocator();
  const int64_t nbytes = state.range(0);
  for (auto _ : state) {
    void* const data = allocator.allocate(nbytes);
    benchmark::DoNotOptimize(data);
    allocator.deallocate(data, nbytes);
  }
}
BENCHMARK(pair_of_calls)->Arg(256)->Arg(4 << 10)->Arg(256 << 10)->Arg(2 << 20)->Arg(64 << 20);
BENCHMARK(pair_of_calls)->Arg(256)->Threads(2);

void pair_of_malloc_calls(benchmark::State& state) {
  const auto nbytes = static_cast<size_t>(state.range(0));
  for (auto _ : state) {
    void* const data = std::aligned_alloc(64, nbytes);
    benchmark::DoNotOptimize(data);
    std::free(data);
  }
}
BENCHMARK(pair_of_malloc_calls)->Arg(256)->Arg(256 << 10)->Arg(64 << 20);

void hundred_live_blocks(benchmark::State& state) {
  CachingAllocator& allocator = shared_allocator();
  std::array<void*, 100> blocks{};
  for (auto _ : state) {
    for (void*& block : blocks) block = allocator.allocate(512);
    for (void* block : blocks) allocator.deallocate(block, 512);
  }
  state.SetItemsProcessed(state.iterations() * 100);
}
BENCHMARK(hundred_live_blocks);

void touch_fresh_memory(benchmark::State& state) {
  CachingAllocator allocator;
  const int64_t nbytes = 64 << 20;
  for (auto _ : state) {
    void* const data = allocator.allocate(nbytes);
    std::memset(data, 1, static_cast<size_t>(nbytes));
    allocator.deallocate(data, nbytes);
    if (state.range(0) == 0) allocator.trim();
  }
  state.SetBytesProcessed(state.iterations() * nbytes);
}
BENCHMARK(touch_fresh_memory)->ArgName("cached")->Arg(0)->Arg(1);
}  // namespace

int main(int argc, char** argv) { return muster::bench::run_registered(argc, argv); }
