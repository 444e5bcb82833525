#pragma once
/// Finding and ending every process below this one.
///
/// The launcher, the guardian and the agent are all child subreapers, so whatever a worker leaves
/// behind in any session becomes a child of the lowest of them that lives. "No process is left" is
/// therefore what waitpid(2) says, not what a scan of /proc says. Never touches a process outside
/// the own subtree, except those that carry the job's own id in their environment.

#include <sys/types.h>

#include <functional>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/base/time.h"

namespace muster {

/// All living descendants of a process, parents before children. A snapshot: may miss a process
/// that is being started or moved.
std::vector<pid_t> descendants_of(pid_t root);

namespace internal {
/// The same by two ways: the kernel's lists of children (fast, may be compiled out), and a scan of
/// all processes.
std::vector<pid_t> descendants_by_children_lists(pid_t root);
std::vector<pid_t> descendants_by_scan(pid_t root);
}  // namespace internal

/// Told of every child that was reaped: its pid and its wait status.
using ReapedFn = std::function<void(pid_t, int)>;

/// Kills every descendant of this process and reaps those that are or become its children, until
/// none is left. Returns how many it reaped.
/// Needs: this process is a child subreaper, SIGCHLD is blocked in all its threads.
/// @blocks until no child is left, normally a millisecond or two
/// @error  kTimeout names the processes that did not die in time (stuck in the kernel)
Result<int> kill_descendants(Deadline deadline, const ReapedFn& on_reaped = {});

/// Reaps children that have ended, without waiting.
void reap_ended_children(const ReapedFn& on_reaped);

/// Kills the processes of this user that carry MUSTER_JOB_TOKEN_ID=`token_id` in their environment:
/// stragglers that have left the subtree because several supervisors died at once. Returns how many
/// it killed.
int kill_by_token_id(std::string_view token_id);

/// A descriptor that becomes readable when the process ends; negative errno on failure.
int open_pidfd(pid_t pid) noexcept;

}  // namespace muster
