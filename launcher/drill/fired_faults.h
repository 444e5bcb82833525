#pragma once
/// Whether the faults of a drill happened at all: one that never fired proves nothing.
///
/// Pure. A worker says so before it fails (core/base/fault.h). The word of one that kills its own
/// agent may die with it; those are counted by their agents' ends (compare.h).

#include <string>
#include <string_view>
#include <vector>

#include "core/base/fault.h"

namespace muster {

/// The faults that `output`, what launcher and agents printed, says nothing of, as texts for
/// people. Each word counts for one fault. Without those that kill an agent.
std::vector<std::string> missed_faults(const std::vector<Fault>& faults, std::string_view output);

}  // namespace muster
