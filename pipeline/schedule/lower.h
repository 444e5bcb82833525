#pragma once
/// From a compute-only order to one that can be executed: parameters, gradients, messages. Pure.
///
/// Each send is put right behind the action that makes its value, and the receive into the peer's
/// row at the same moment of a common walk over all rows. So every pair can meet: the result runs
/// even where neither side of a message goes on before the other is there.
/// @source lowering passes of torch.distributed.pipelining 2.13 (golden files)

#include "pipeline/schedule/schedule.h"

namespace muster::pipeline {

struct LowerOptions {
  /// Adds UNSHARD, RESHARD and REDUCE_GRAD, for stages with sharded parameters.
  bool is_sharded = true;
  /// A stage is made whole when it is among the next stages that a rank works on, and given up
  /// when it is not.
  int stages_ahead = 3;
};

/// All passes below. Idle cells are dropped.
/// @error kInvalidArgument the order cannot be run; names what each rank waits for
Result<Schedule> lower(const Schedule& schedule, const LowerOptions& options = {});

Schedule add_unshard_reshard(const Schedule& schedule, int stages_ahead = 3);
/// REDUCE_GRAD behind each stage's last B or W.
Schedule add_reduce_grad(const Schedule& schedule);
/// @error kInvalidArgument as lower
Result<Schedule> add_messages(const Schedule& schedule);

/// Joins each I with the W of the same stage and microbatch that follows it (blanks between do not
/// count) into B; drops idle cells.
std::vector<Cell> merge_backward(const std::vector<Cell>& row);

/// The forwards alone, with their messages: what evaluation runs.
Schedule forward_part(const Schedule& schedule);

}  // namespace muster::pipeline
