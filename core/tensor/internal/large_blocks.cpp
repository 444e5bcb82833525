#include "core/tensor/internal/large_blocks.h"

#include <algorithm>
#include <iterator>

#include "core/tensor/internal/size_classes.h"

namespace muster::internal {
namespace {
constexpr int64_t kGranularity = int64_t{64} << 10;
// Blocks of a few MiB share a segment, so that a new shape rarely needs the system.
constexpr int64_t kSharedSegmentNbytes = 16 * kHugePageNbytes;
constexpr int64_t kLargestShared = kSharedSegmentNbytes / 4;

int64_t round_up(int64_t nbytes, int64_t step) { return (nbytes + step - 1) / step * step; }
}  // namespace

LargeBlocks::~LargeBlocks() {
  std::byte* segment = nullptr;
  int64_t nbytes = 0;
  for (const auto& [data, block] : blocks_) {
    if (block.starts_segment) {
      if (segment != nullptr) pages_.unmap(segment, nbytes);
      segment = data;
      nbytes = 0;
    }
    nbytes += block.nbytes;
  }
  if (segment != nullptr) pages_.unmap(segment, nbytes);
}

LargeBlock LargeBlocks::allocate(int64_t nbytes) {
  const int64_t wanted = round_up(nbytes, kGranularity);
  const std::lock_guard lock(mutex_);
  const auto fit = free_.lower_bound({wanted, nullptr});
  BlockMap::iterator found;
  if (fit != free_.end()) {
    found = blocks_.find(fit->second);
    free_.erase(fit);
  } else {
    found = add_segment(wanted);
    if (found == blocks_.end()) return {};
  }
  LargeBlock& block = found->second;
  const int64_t rest = block.nbytes - wanted;
  if (rest > wanted / 8) {
    LargeBlock tail{block.data + wanted, rest, false, false};
    block.nbytes = wanted;
    blocks_.emplace_hint(std::next(found), tail.data, tail);
    insert_free(tail);
  }
  block.is_live = true;
  return block;
}

LargeBlocks::BlockMap::iterator LargeBlocks::add_segment(int64_t nbytes) {
  int64_t segment = round_up(nbytes, kHugePageNbytes);
  std::byte* data = nullptr;
  if (segment <= kLargestShared) data = pages_.map(kSharedSegmentNbytes, kHugePageNbytes);
  if (data != nullptr) {
    segment = kSharedSegmentNbytes;
  } else {
    data = pages_.map(segment, kHugePageNbytes);  // under a tight cap, just what is needed
  }
  if (data == nullptr) return blocks_.end();
  return blocks_.emplace(data, LargeBlock{data, segment, false, true}).first;
}

void LargeBlocks::erase_free(const LargeBlock& block) noexcept {
  free_.erase({block.nbytes, block.data});
}

void LargeBlocks::insert_free(const LargeBlock& block) {
  free_.insert({block.nbytes, block.data});
  mark_cached(block.data, block.nbytes);
}

// Both must be out of `free_`.
LargeBlocks::BlockMap::iterator LargeBlocks::merge_with_next(BlockMap::iterator block) noexcept {
  const auto next = std::next(block);
  block->second.nbytes += next->second.nbytes;
  blocks_.erase(next);
  return block;
}

int64_t LargeBlocks::deallocate(void* data) noexcept {
  const std::lock_guard lock(mutex_);
  auto block = blocks_.find(static_cast<std::byte*>(data));
  if (block == blocks_.end() || !block->second.is_live) return 0;
  const int64_t nbytes = block->second.nbytes;
  block->second.is_live = false;
  const auto next = std::next(block);
  if (next != blocks_.end() && !next->second.is_live && !next->second.starts_segment) {
    erase_free(next->second);
    block = merge_with_next(block);
  }
  if (!block->second.starts_segment && !std::prev(block)->second.is_live) {
    const auto before = std::prev(block);
    erase_free(before->second);
    block = merge_with_next(before);
  }
  insert_free(block->second);
  return nbytes;
}

void LargeBlocks::trim() noexcept {
  const std::lock_guard lock(mutex_);
  for (auto block = blocks_.begin(); block != blocks_.end();) {
    const auto next = std::next(block);
    const bool is_whole =
        block->second.starts_segment && (next == blocks_.end() || next->second.starts_segment);
    if (is_whole && !block->second.is_live) {
      erase_free(block->second);
      pages_.unmap(block->first, block->second.nbytes);
      blocks_.erase(block);
    }
    block = next;
  }
}

std::vector<LargeBlock> LargeBlocks::blocks() const {
  const std::lock_guard lock(mutex_);
  std::vector<LargeBlock> all;
  all.reserve(blocks_.size());
  for (const auto& [data, block] : blocks_) all.push_back(block);
  return all;
}
}  // namespace muster::internal
