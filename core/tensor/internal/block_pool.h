#pragma once
/// Small blocks of all threads: one list per size class, carved from spans.
///
/// Threads come here in batches only; their own lists (caching_allocator) serve the common case. A
/// span holds one class until trim() takes it back. Free blocks hold the link to the next.

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "core/tensor/internal/size_classes.h"
#include "core/tensor/internal/span_source.h"

namespace muster::internal {

/// A free block: its first bytes link to the next one.
struct FreeBlock {
  FreeBlock* next;
};

/// Free blocks of one class, linked.
struct BlockChain {
  FreeBlock* head = nullptr;
  int64_t count = 0;

  void push(FreeBlock* block) noexcept {
    block->next = head;
    head = block;
    ++count;
  }
  FreeBlock* pop() noexcept {
    FreeBlock* const block = head;
    head = block->next;
    --count;
    return block;
  }
};

/// What is known of one span, for reports.
struct SpanInfo {
  std::byte* data = nullptr;
  size_t size_class = 0;
  int64_t num_carved = 0;  ///< blocks handed out at least once
  int64_t num_free = 0;    ///< of these, in the pool's list now; the rest is live or with a thread
};

/// @thread any
class BlockPool {
 public:
  explicit BlockPool(SpanSource& spans) noexcept : span_source_(spans) {}

  /// Between 1 and `wanted` blocks, or none when the system or the cap refuses a span.
  BlockChain take(size_t size_class, int64_t wanted);
  void give(size_t size_class, BlockChain chain) noexcept;
  /// Gives back the spans whose blocks are all in the pool.
  void trim();
  /// Blocks handed out and not given back, per class: live ones and those that threads keep.
  [[nodiscard]] std::array<int64_t, kNumSizeClasses> num_out() const;
  [[nodiscard]] std::vector<SpanInfo> spans() const;

 private:
  struct alignas(64) ClassPool {
    mutable std::mutex mutex;
    BlockChain free;
    std::byte* next = nullptr;  // first block of the newest span that was never handed out
    int64_t num_fresh = 0;      // how many of these are left
    int64_t num_out = 0;
    std::vector<std::byte*> spans;
  };
  bool add_span(size_t size_class, ClassPool& pool);
  static std::vector<SpanInfo> describe(size_t size_class, const ClassPool& pool);

  SpanSource& span_source_;
  std::array<ClassPool, kNumSizeClasses> pools_;
};

}  // namespace muster::internal
