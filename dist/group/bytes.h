#pragma once
/// Strings of bytes between ranks: what others call object collectives. Nothing is interpreted.
///
/// A rank that could not make its bytes hands its error in instead of staying away: all ranks get
/// the same error then, none is left waiting, and the group goes on.

#include <source_location>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/time.h"
#include "dist/group/process_group.h"

namespace muster {

/// Each rank's bytes, in group order. @collective every rank of the group
/// @error that of the first rank that handed one in, on all ranks alike; else as of Work::wait
[[nodiscard]] Result<std::vector<std::string>> all_gather_bytes(
    ProcessGroup& group, const Result<std::string>& own, Deadline deadline,
    std::source_location site = std::source_location::current());

/// The source's bytes, on every rank; what other ranks hand in is not looked at.
/// @collective every rank of the group @error the source's, on all ranks; else as of Work::wait
[[nodiscard]] Result<std::string> broadcast_bytes(
    ProcessGroup& group, const Result<std::string>& own, int group_src, Deadline deadline,
    std::source_location site = std::source_location::current());

}  // namespace muster
