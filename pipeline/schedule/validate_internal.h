#pragma once
/// The parts of validation that need the whole schedule to be sound otherwise.

#include <vector>

#include "pipeline/schedule/validate.h"

namespace muster::pipeline::internal {

/// A circle of ranks that wait for each other, as one fault.
std::vector<Fault> find_deadlock(const Schedule& schedule, Transport transport);
/// Messages that are received in another order than they are sent, one fault a pair of ranks.
std::vector<Fault> find_order_faults(const Schedule& schedule);
/// The first cell of each rank at which it keeps too many microbatches.
std::vector<Fault> find_memory_faults(const Schedule& schedule, const std::vector<int>& max_live);

}  // namespace muster::pipeline::internal
