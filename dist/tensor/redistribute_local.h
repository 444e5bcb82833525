#pragma once
/// Runs a redistribution plan on this rank's piece. No history: redistribute.h records.

#include "dist/tensor/dtensor.h"
#include "dist/tensor/redistribute_plan.h"

namespace muster {

/// This rank's piece under `target`, from its piece under spec.placements; the same tensor when
/// nothing moves. Empty pieces take part in every collective.
/// @collective all ranks of the mesh @blocks up to the timeout of the axes' groups
/// @error as plan_redistribute
Tensor redistribute_local(const Tensor& local, const DTensorSpec& spec,
                          std::span<const Placement> target,
                          PartialTargets partial_targets = PartialTargets::kRefuse);

/// all_reduce with the reduction of a Partial; a fresh tensor.
/// @collective all ranks of the group
Tensor reduce_partial(const Tensor& local, ProcessGroup& group, PartialOp op);

}  // namespace muster
