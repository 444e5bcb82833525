#pragma once
/// Blocks above 1 MiB: segments from the system, best fit, split and merged.
///
/// A segment starts at a multiple of 2 MiB and holds neighbouring blocks; freed neighbours merge. A
/// block wastes at most 1/8 of the request. Segments stay until trim() finds them wholly free.

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "core/tensor/internal/pages.h"

namespace muster::internal {

struct LargeBlock {
  std::byte* data = nullptr;
  int64_t nbytes = 0;
  bool is_live = false;
  bool starts_segment = false;
};

/// @thread any
class LargeBlocks {
 public:
  explicit LargeBlocks(PageSource& pages) noexcept : pages_(pages) {}
  ~LargeBlocks();
  LargeBlocks(const LargeBlocks&) = delete;
  LargeBlocks& operator=(const LargeBlocks&) = delete;

  /// A live block of at least `nbytes`; its data is null when the cap or the system refuses.
  LargeBlock allocate(int64_t nbytes);
  /// Returns the bytes of the block, 0 when `data` is not the start of a live one.
  int64_t deallocate(void* data) noexcept;
  void trim() noexcept;
  /// All blocks by address.
  [[nodiscard]] std::vector<LargeBlock> blocks() const;

 private:
  using BlockMap = std::map<std::byte*, LargeBlock>;
  BlockMap::iterator add_segment(int64_t nbytes);
  void erase_free(const LargeBlock& block) noexcept;
  void insert_free(const LargeBlock& block);
  BlockMap::iterator merge_with_next(BlockMap::iterator block) noexcept;

  PageSource& pages_;
  mutable std::mutex mutex_;
  BlockMap blocks_;
  std::set<std::pair<int64_t, std::byte*>> free_;  // by size, then address
};

}  // namespace muster::internal
