#pragma once
/// How often the kernel killed a process at the memory limit of this process's control group.

#include <cstdint>
#include <string>

namespace muster {

/// The count of kills so far, of version 2 or 1 of the control groups; -1 where neither tells.
/// A rise between two calls says that a SIGKILL in between may have come from the memory limit.
int64_t count_memory_limit_kills();

namespace internal {
/// The file that holds the count, from the text of /proc/self/cgroup; "" when there is none.
std::string memory_events_path(const std::string& proc_self_cgroup);
/// The number after "oom_kill" in that file's text; -1 without one.
int64_t parse_oom_kill(const std::string& text);
}  // namespace internal

}  // namespace muster
