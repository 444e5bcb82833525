#pragma once
/// Where the bytes of one wanted box come from.
///
/// The plan is the intersection of the wanted box with every saved box of the tensor; it proves by
/// volume that nothing is missing, given that the saved boxes are disjoint (tiling_fault). Pure.

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/plan/box.h"
#include "checkpoint/plan/shard_map.h"

namespace muster::checkpoint {

/// A part of the wanted box and the saved box that holds it.
struct LoadPiece {
  size_t saved = 0;  ///< index of the saved box
  Box overlap;       ///< in the global tensor
  bool operator==(const LoadPiece&) const = default;
};

/// The pieces of `wanted`, in the order of `saved`. They cover it if and only if
/// coverage_fault(wanted, saved) is empty.
std::vector<LoadPiece> plan_load(const Box& wanted, std::span<const Box> saved);

}  // namespace muster::checkpoint
