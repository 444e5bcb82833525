#pragma once
/// The plan of a redistribution: one-axis steps, decided from placements alone.
///
/// All ranks make the same plan, and no step depends on what a rank holds, so no rank can skip a
/// collective. Sizes of a step are those of the local tensor before this axis and inner ones cut
/// it, which makes uneven nested shards come out right.

#include <vector>

#include "dist/tensor/shard_geometry.h"

namespace muster {

/// Moves one mesh axis from one placement to another.
struct RedistributeStep {
  int axis = 0;
  Placement from;
  Placement to;
  bool operator==(const RedistributeStep&) const = default;
};

/// Whether R -> P and S -> P(sum) are allowed: only rules of operators ask for them.
enum class PartialTargets : bool { kRefuse, kAllow };

/// Undoes inner shards that an outer change would tear, inner to outer, then moves each axis to its
/// target, outer to inner.
/// Strided shards are no part of a plan: redistribute_local() turns them into plain layouts around
/// it. @error kInvalidArgument a target that is Partial where the source is not the same Partial;
/// kOutOfRange a dim that the tensor lacks
std::vector<RedistributeStep> plan_redistribute(int64_t ndim, std::span<const Placement> source,
                                                std::span<const Placement> target,
                                                PartialTargets partial_targets);

}  // namespace muster
