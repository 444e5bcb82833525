#include "core/tensor/caching_allocator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/base/error.h"
#include "core/tensor/internal/block_pool.h"
#include "core/tensor/internal/large_blocks.h"
#include "core/tensor/internal/pages.h"
#include "core/tensor/internal/size_classes.h"
#include "core/tensor/internal/span_source.h"
#include "core/tensor/internal/thread_cache.h"

namespace muster {
using namespace internal;  // NOLINT(google-build-using-namespace): this layer's own parts

namespace {
// Beyond this a thread adds its small blocks to the shared count, from which the peak comes.
constexpr int64_t kReportNbytes = int64_t{64} << 10;
constexpr int64_t kLargestRequest = int64_t{1} << 47;
// A process has one CPU allocator; more exist in tests.
constexpr int kNumSlots = 8;

// Never destroyed: threads may end after static destructors ran.
struct Registry {
  std::mutex mutex;
  std::array<CachingAllocator*, kNumSlots> allocators{};
};
Registry& registry() {
  static auto* instance = new Registry();
  return *instance;
}

constinit thread_local std::array<ThreadCache*, kNumSlots> t_caches{};
constinit thread_local bool t_thread_is_ending = false;
}  // namespace

struct CachingAllocator::Impl {
  PageSource pages;
  SpanSource spans{pages};
  BlockPool pool{spans};
  LargeBlocks large{pages};

  std::atomic<int64_t> allocated{0};
  std::atomic<int64_t> peak{0};
  std::atomic<int64_t> other_allocations{0};  // large ones, and small ones without a thread cache

  struct Thread {
    ThreadCache* cache;
    ThreadCache** home;  // the entry of its thread's table
  };
  mutable std::mutex threads_mutex;
  std::vector<Thread> threads;
  int64_t small_allocations_of_ended_threads = 0;

  void count(int64_t nbytes) noexcept {
    const int64_t now = allocated.fetch_add(nbytes, std::memory_order_relaxed) + nbytes;
    int64_t highest = peak.load(std::memory_order_relaxed);
    while (now > highest && !peak.compare_exchange_weak(highest, now, std::memory_order_relaxed)) {
    }
  }
  void note(ThreadCache& cache, int64_t nbytes) noexcept {
    cache.unreported.add(nbytes);
    if (std::abs(cache.unreported.get()) >= kReportNbytes) [[unlikely]]
      report(cache);
  }
  void report(ThreadCache& cache) noexcept {
    const int64_t nbytes = cache.unreported.get();
    cache.unreported.set(0);
    count(nbytes);
  }
  void give_back(ThreadCache& cache, size_t size_class, int64_t keep) noexcept;
  void empty(ThreadCache& cache) noexcept {
    for (size_t i = 0; i < kNumSizeClasses; ++i) give_back(cache, i, 0);
    report(cache);
  }
  [[nodiscard]] std::string live_sizes() const;
  [[noreturn]] void throw_out_of_memory(int64_t nbytes, const AllocatorStats& stats) const;
};

void CachingAllocator::Impl::give_back(ThreadCache& cache, size_t size_class,
                                       int64_t keep) noexcept {
  ThreadCache::List& list = cache.lists[size_class];
  BlockChain surplus;
  for (int64_t left = list.count.get(); left > keep; --left) {
    FreeBlock* const block = list.head;
    list.head = block->next;
    surplus.push(block);
  }
  list.count.add(-surplus.count);
  if (surplus.count > 0) pool.give(size_class, surplus);
}

// Makes and ends the caches of threads.
struct CachingAllocatorThreads {
  ~CachingAllocatorThreads() {
    t_thread_is_ending = true;
    const std::lock_guard lock(registry().mutex);
    for (size_t slot = 0; slot < kNumSlots; ++slot) {
      if (t_caches[slot] != nullptr) end_cache(*registry().allocators[slot]->impl_, t_caches[slot]);
      t_caches[slot] = nullptr;
    }
  }

  // Null when this thread must do without: it is ending, or the table is full.
  static ThreadCache* cache_of(const CachingAllocator& allocator) {
    if (allocator.slot_ < 0 || t_thread_is_ending) return nullptr;
    ThreadCache*& home = t_caches[static_cast<size_t>(allocator.slot_)];
    if (home == nullptr) {
      thread_local CachingAllocatorThreads at_thread_exit;
      static_cast<void>(at_thread_exit);
      auto cache = std::make_unique<ThreadCache>();
      const std::lock_guard lock(allocator.impl_->threads_mutex);
      allocator.impl_->threads.push_back({cache.get(), &home});
      home = cache.release();
    }
    return home;
  }

  static void end_cache(CachingAllocator::Impl& impl, ThreadCache* cache) noexcept {
    const std::lock_guard lock(impl.threads_mutex);
    impl.empty(*cache);
    impl.small_allocations_of_ended_threads += cache->allocations.get();
    std::erase_if(impl.threads, [&](const auto& thread) { return thread.cache == cache; });
    delete cache;
  }

  static int enter(CachingAllocator* allocator) {
    const std::lock_guard lock(registry().mutex);
    auto& allocators = registry().allocators;
    const auto unused = std::find(allocators.begin(), allocators.end(), nullptr);
    if (unused == allocators.end()) return -1;
    *unused = allocator;
    return static_cast<int>(unused - allocators.begin());
  }

  static void leave(CachingAllocator& allocator) {
    const std::lock_guard lock(registry().mutex);
    if (allocator.slot_ < 0) return;
    registry().allocators[static_cast<size_t>(allocator.slot_)] = nullptr;
    for (const auto& thread : allocator.impl_->threads) {
      *thread.home = nullptr;
      delete thread.cache;
    }
  }
};

CachingAllocator::CachingAllocator()
    : impl_(std::make_unique<Impl>()), slot_(CachingAllocatorThreads::enter(this)) {}

CachingAllocator::~CachingAllocator() { CachingAllocatorThreads::leave(*this); }

void* CachingAllocator::allocate(int64_t nbytes) {
  if (nbytes >= 1 && nbytes <= kMaxSmallNbytes && slot_ >= 0) [[likely]] {
    ThreadCache* const cache = t_caches[static_cast<size_t>(slot_)];
    if (cache != nullptr) [[likely]] {
      const size_t size_class = size_class_of(nbytes);
      ThreadCache::List& list = cache->lists[size_class];
      if (list.head != nullptr) [[likely]] {
        FreeBlock* const block = list.head;
        list.head = block->next;
        list.count.add(-1);
        cache->allocations.add(1);
        impl_->note(*cache, class_nbytes(size_class));
        if constexpr (kPoisons) mark_live(block, nbytes, class_nbytes(size_class));
        return block;
      }
    }
  }
  return allocate_slowly(nbytes);
}

void* CachingAllocator::allocate_slowly(int64_t nbytes) {
  if (nbytes == 0) return nullptr;
  MUSTER_CHECK(nbytes > 0, ErrorCode::kInvalidArgument,
               "allocate: the size must not be negative; got {} bytes", nbytes);
  if (nbytes > kMaxSmallNbytes) return allocate_large(nbytes);
  const size_t size_class = size_class_of(nbytes);
  void* block = take_small(size_class);
  if (block == nullptr) {
    trim();
    block = take_small(size_class);
  }
  if (block == nullptr) impl_->throw_out_of_memory(nbytes, stats());
  if constexpr (kPoisons) mark_live(block, nbytes, class_nbytes(size_class));
  return block;
}

void* CachingAllocator::take_small(size_t size_class) {
  ThreadCache* const cache = CachingAllocatorThreads::cache_of(*this);
  const int64_t wanted = cache == nullptr ? 1 : std::max<int64_t>(1, max_kept(size_class) / 2);
  BlockChain chain = impl_->pool.take(size_class, wanted);
  if (chain.head == nullptr) return nullptr;
  FreeBlock* const block = chain.pop();
  if (cache == nullptr) {
    impl_->count(class_nbytes(size_class));
    impl_->other_allocations.fetch_add(1, std::memory_order_relaxed);
    return block;
  }
  ThreadCache::List& list = cache->lists[size_class];
  list.count.add(chain.count);
  while (chain.head != nullptr) {
    FreeBlock* const kept = chain.pop();
    kept->next = list.head;
    list.head = kept;
  }
  cache->allocations.add(1);
  impl_->note(*cache, class_nbytes(size_class));
  return block;
}

void* CachingAllocator::allocate_large(int64_t nbytes) {
  LargeBlock block;
  if (nbytes <= kLargestRequest) {
    block = impl_->large.allocate(nbytes);
    if (block.data == nullptr) {
      trim();
      block = impl_->large.allocate(nbytes);
    }
  }
  if (block.data == nullptr) impl_->throw_out_of_memory(nbytes, stats());
  impl_->count(block.nbytes);
  impl_->other_allocations.fetch_add(1, std::memory_order_relaxed);
  if constexpr (kPoisons) mark_live(block.data, nbytes, block.nbytes);
  return block.data;
}

void CachingAllocator::deallocate(void* data, int64_t nbytes) noexcept {
  if (data == nullptr) return;
  if (nbytes < 1 || nbytes > kMaxSmallNbytes) [[unlikely]] {
    const int64_t freed = impl_->large.deallocate(data);
    MUSTER_ASSERT(freed >= nbytes && freed > 0, "deallocate: {} is not a live block of {} bytes",
                  data, nbytes);
    impl_->count(-freed);
    return;
  }
  const size_t size_class = size_class_of(nbytes);
  auto* const block = static_cast<FreeBlock*>(data);
  if constexpr (kPoisons) mark_cached(data, class_nbytes(size_class));
  ThreadCache* cache = slot_ >= 0 ? t_caches[static_cast<size_t>(slot_)] : nullptr;
  if (cache == nullptr) [[unlikely]] {
    cache = CachingAllocatorThreads::cache_of(*this);
    if (cache == nullptr) {
      BlockChain chain;
      chain.push(block);
      impl_->pool.give(size_class, chain);
      impl_->count(-class_nbytes(size_class));
      return;
    }
  }
  ThreadCache::List& list = cache->lists[size_class];
  block->next = list.head;
  list.head = block;
  list.count.add(1);
  impl_->note(*cache, -class_nbytes(size_class));
  if (list.count.get() > max_kept(size_class)) [[unlikely]] {
    impl_->give_back(*cache, size_class, max_kept(size_class) / 2);
  }
}

AllocatorStats CachingAllocator::stats() const {
  AllocatorStats stats;
  const std::lock_guard lock(impl_->threads_mutex);
  stats.allocated = {impl_->allocated.load()};
  stats.allocations = impl_->other_allocations.load() + impl_->small_allocations_of_ended_threads;
  for (const auto& thread : impl_->threads) {
    stats.allocated.count += thread.cache->unreported.get();
    stats.allocations += thread.cache->allocations.get();
  }
  stats.reserved = {impl_->pages.reserved_nbytes()};
  stats.peak_allocated = {std::max(impl_->peak.load(), stats.allocated.count)};
  stats.system_calls = impl_->pages.num_map_calls();
  return stats;
}

void CachingAllocator::reset_peak() { impl_->peak = stats().allocated.count; }

void CachingAllocator::trim() {
  if (ThreadCache* const cache = CachingAllocatorThreads::cache_of(*this)) impl_->empty(*cache);
  impl_->pool.trim();
  impl_->spans.trim();
  impl_->large.trim();
}

void CachingAllocator::set_cap(Bytes cap) { impl_->pages.set_cap(cap.count); }
void CachingAllocator::clear_cap() { impl_->pages.set_cap(INT64_MAX); }

// "16 MiB x3, 2 MiB, 64 KiB x12": the sizes that hold the most memory.
std::string CachingAllocator::Impl::live_sizes() const {
  std::map<int64_t, int64_t> counts;
  for (const LargeBlock& block : large.blocks()) {
    if (block.is_live) ++counts[block.nbytes];
  }
  auto num_out = pool.num_out();
  {
    const std::lock_guard lock(threads_mutex);
    for (size_t i = 0; i < kNumSizeClasses; ++i) {
      for (const Thread& thread : threads) num_out[i] -= thread.cache->lists[i].count.get();
      if (num_out[i] > 0) counts[class_nbytes(i)] += num_out[i];
    }
  }
  std::vector<std::pair<int64_t, int64_t>> sizes(counts.begin(), counts.end());
  std::stable_sort(sizes.begin(), sizes.end(), [](const auto& a, const auto& b) {
    return a.first * a.second > b.first * b.second;
  });
  if (sizes.size() > 5) sizes.resize(5);
  std::string text;
  for (const auto& [nbytes, count] : sizes) {
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", format_bytes({nbytes}),
                        count > 1 ? fmt::format(" x{}", count) : "");
  }
  return text.empty() ? "none" : text;
}

void CachingAllocator::Impl::throw_out_of_memory(int64_t nbytes,
                                                 const AllocatorStats& stats) const {
  const int64_t cap = pages.cap();
  throw_error(ErrorCode::kOutOfMemory,
              "allocate: {} must be available; got {} live in tensors, {} cached, {}\n"
              "  most memory is in live blocks of: {}\n"
              "  use a smaller batch, more ranks or activation checkpointing{}",
              format_bytes({nbytes}), format_bytes(stats.allocated),
              format_bytes(stats.reserved - stats.allocated),
              cap == INT64_MAX ? "and the system refused more"
                               : fmt::format("under a cap of {}", format_bytes({cap})),
              live_sizes(), cap == INT64_MAX ? "" : ", or raise the cap");
}

std::string CachingAllocator::snapshot() const {
  const AllocatorStats now = stats();
  nlohmann::ordered_json root = {{"reserved", now.reserved.count},
                                 {"allocated", now.allocated.count},
                                 {"peak_allocated", now.peak_allocated.count},
                                 {"segments", nlohmann::ordered_json::array()}};
  auto& segments = root["segments"];
  for (const LargeBlock& block : impl_->large.blocks()) {
    if (block.starts_segment) {
      segments.push_back({{"address", reinterpret_cast<uintptr_t>(block.data)},
                          {"nbytes", 0},
                          {"type", "large"},
                          {"blocks", nlohmann::ordered_json::array()}});
    }
    auto& segment = segments.back();
    segment["blocks"].push_back({{"offset", segment["nbytes"]},
                                 {"nbytes", block.nbytes},
                                 {"state", block.is_live ? "live" : "free"}});
    segment["nbytes"] = segment["nbytes"].get<int64_t>() + block.nbytes;
  }
  for (const SpanInfo& span : impl_->pool.spans()) {
    segments.push_back({{"address", reinterpret_cast<uintptr_t>(span.data)},
                        {"nbytes", span_nbytes(span.size_class)},
                        {"type", "small"},
                        {"block_nbytes", class_nbytes(span.size_class)},
                        {"carved", span.num_carved},
                        {"free", span.num_free}});
  }
  return root.dump(1);
}

CachingAllocator& cpu_caching_allocator() noexcept {
  static auto* instance = new CachingAllocator();
  return *instance;
}
}  // namespace muster
