#pragma once
/// What one rank writes, derived by that rank alone.
///
/// A box that several ranks hold is written once. Which holder writes it follows from the boxes
/// that the same set of holders shares, so all of them reach the same answer without a word: large
/// boxes are cut into one slab per holder, small ones go to the holder with the fewest bytes. Pure.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/plan/box.h"

namespace muster::checkpoint {

/// A box in this rank's memory, as the planner sees it.
struct HeldBox {
  std::string name;
  Dims global_sizes;
  Box box;
  int64_t item_nbytes = 1;
  std::vector<int> holders;  ///< global ranks with the same bytes, ascending; empty: only this rank
};

/// A contiguous slab of a held box that this rank writes.
struct SaveItem {
  size_t held = 0;            ///< index of the held box
  Box box;                    ///< the slab, in the global tensor
  int64_t source_nbytes = 0;  ///< where the slab starts in the held box
  int64_t nbytes = 0;
  bool operator==(const SaveItem&) const = default;
};

/// The slabs that `global_rank` writes, ordered by held box. Empty boxes are left out, but a tensor
/// without elements keeps one item of no bytes, so that it is known to exist.
/// @error throws kInvalidArgument: holders not ascending, or without `global_rank`
std::vector<SaveItem> plan_save(std::span<const HeldBox> held, int global_rank);

}  // namespace muster::checkpoint
