#pragma once
/// What the generators share.

#include "pipeline/schedule/generate.h"

namespace muster::pipeline::internal {

struct Shape {
  int stages = 1;
  int microbatches = 1;
  int ranks = 1;
  int per_rank = 1;  ///< stages a rank
};

/// Checks what every schedule needs. `stages_per_rank` 0: any number.
/// @error kInvalidArgument (throws)
Shape check_shape(const ScheduleShape& shape, const char* name, int stages_per_rank);
/// A schedule with one empty row a rank.
Schedule empty_schedule(const Shape& shape, const char* name);

}  // namespace muster::pipeline::internal
