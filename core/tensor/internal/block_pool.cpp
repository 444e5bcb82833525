#include "core/tensor/internal/block_pool.h"

#include <algorithm>

namespace muster::internal {
namespace {
std::byte* span_of(const void* block, size_t size_class) noexcept {
  const auto address = reinterpret_cast<uintptr_t>(block);
  return reinterpret_cast<std::byte*>(address &
                                      ~static_cast<uintptr_t>(span_nbytes(size_class) - 1));
}
}  // namespace

BlockChain BlockPool::take(size_t size_class, int64_t wanted) {
  ClassPool& pool = pools_[size_class];
  const std::lock_guard lock(pool.mutex);
  BlockChain chain;
  while (chain.count < wanted && pool.free.head != nullptr) chain.push(pool.free.pop());
  if (chain.count == 0 && pool.num_fresh == 0 && !add_span(size_class, pool)) return {};
  // Fresh blocks come one page at a time at most, so that memory is not touched before it is used.
  const int64_t fresh =
      std::min({wanted - chain.count, pool.num_fresh, 1 + 4096 / class_nbytes(size_class)});
  for (int64_t i = 0; i < fresh; ++i) {
    chain.push(reinterpret_cast<FreeBlock*>(pool.next));
    pool.next += class_nbytes(size_class);
  }
  pool.num_fresh -= fresh;
  pool.num_out += chain.count;
  return chain;
}

bool BlockPool::add_span(size_t size_class, ClassPool& pool) {
  std::byte* const span = span_source_.take(span_nbytes(size_class));
  if (span == nullptr) return false;
  pool.spans.push_back(span);
  pool.next = span;
  pool.num_fresh = blocks_per_span(size_class);
  return true;
}

void BlockPool::give(size_t size_class, BlockChain chain) noexcept {
  ClassPool& pool = pools_[size_class];
  const std::lock_guard lock(pool.mutex);
  pool.num_out -= chain.count;
  while (chain.head != nullptr) pool.free.push(chain.pop());
}

std::vector<SpanInfo> BlockPool::describe(size_t size_class, const ClassPool& pool) {
  std::vector<SpanInfo> infos;
  for (std::byte* span : pool.spans) {
    const bool is_newest = span == pool.spans.back();
    const int64_t num_carved = blocks_per_span(size_class) - (is_newest ? pool.num_fresh : 0);
    infos.push_back({span, size_class, num_carved, 0});
  }
  const auto by_address = [](const SpanInfo& a, const SpanInfo& b) { return a.data < b.data; };
  std::sort(infos.begin(), infos.end(), by_address);
  for (FreeBlock* block = pool.free.head; block != nullptr; block = block->next) {
    const SpanInfo wanted{span_of(block, size_class), size_class};
    ++std::lower_bound(infos.begin(), infos.end(), wanted, by_address)->num_free;
  }
  return infos;
}

void BlockPool::trim() {
  for (size_t size_class = 0; size_class < kNumSizeClasses; ++size_class) {
    ClassPool& pool = pools_[size_class];
    const std::lock_guard lock(pool.mutex);
    for (const SpanInfo& info : describe(size_class, pool)) {
      if (info.num_free != info.num_carved) continue;
      BlockChain kept;
      while (pool.free.head != nullptr) {
        FreeBlock* const block = pool.free.pop();
        if (span_of(block, size_class) != info.data) kept.push(block);
      }
      pool.free = kept;
      if (info.data == pool.spans.back()) pool.num_fresh = 0;
      std::erase(pool.spans, info.data);
      span_source_.give(info.data, span_nbytes(size_class));
    }
  }
}

std::array<int64_t, kNumSizeClasses> BlockPool::num_out() const {
  std::array<int64_t, kNumSizeClasses> counts{};
  for (size_t i = 0; i < kNumSizeClasses; ++i) {
    const std::lock_guard lock(pools_[i].mutex);
    counts[i] = pools_[i].num_out;
  }
  return counts;
}

std::vector<SpanInfo> BlockPool::spans() const {
  std::vector<SpanInfo> all;
  for (size_t i = 0; i < kNumSizeClasses; ++i) {
    const std::lock_guard lock(pools_[i].mutex);
    const auto infos = describe(i, pools_[i]);
    all.insert(all.end(), infos.begin(), infos.end());
  }
  return all;
}
}  // namespace muster::internal
