#pragma once
/// The layouts that an operator's shard rules allow on one mesh axis, cheapest first. Pure.
///
/// Internal to dist/tensor: shard_rules.h combines the axes.

#include "dist/tensor/shard_rules.h"

namespace muster {

/// One way to lay out a call on one axis.
struct AxisCandidate {
  std::vector<Placement> inputs;   ///< one per RuleInput
  std::vector<Placement> outputs;  ///< one per return of the schema
  double cost = 0;                 ///< of moving the inputs, in elements sent, roughly
};

/// `outputs` are the global results. All-replicated is among the candidates unless a written tensor
/// would have to move; rules never shard what no input shards.
std::vector<AxisCandidate> axis_candidates(const Op& op, Args args,
                                           const std::vector<RuleInput>& inputs,
                                           const std::vector<TensorSpec>& outputs,
                                           const DeviceMesh& mesh, int axis);

/// True for operators that draw each number by its global place, told as `global_sizes` and
/// `box_start`.
bool is_drawn_by_box(const Op& op);

}  // namespace muster
