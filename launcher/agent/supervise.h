#pragma once
/// The two supervisors above the agent: launcher and guardian.
///
/// Each waits for the process below it, passes signals down and, whatever happens, ends everything
/// below itself before it returns. They hold no state of the job, so that there is little in them
/// that can fail.

#include <sys/types.h>

#include <csignal>
#include <string>
#include <vector>

namespace muster {

/// The signals that the supervisors and the agent take through a descriptor: those that stop the
/// job, SIGCHLD, and the two user signals, which are only passed on.
sigset_t supervised_signals(const std::vector<int>& stop_signals);

struct SuperviseOptions {
  pid_t child = 0;
  const char* child_name = "";  ///< for messages: "guardian", "agent"
  int parent_pidfd = -1;        ///< when it becomes readable everything below is killed
  const char* parent_name = "";
  std::string token_id;  ///< marks the job's processes
  sigset_t signals{};    ///< blocked, from supervised_signals
  /// Ends a child that does not answer this long after the second SIGINT; only the launcher does.
  bool is_impatient = false;
};

/// Returns the exit status: the child's own, or 128+n when a signal killed it.
/// @blocks until the child has ended and nothing is left below this process
int supervise(const SuperviseOptions& options);

}  // namespace muster
