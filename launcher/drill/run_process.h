#pragma once
/// Running one command of a drill to its end: time limit, interruption, leftovers.
///
/// Every process below carries MUSTER_DRILL_ID in its environment, which is how a process that
/// outlives its launcher is found. The thin part of the drill: it decides nothing.

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/time.h"
#include "launcher/agent/event_loop.h"

namespace muster {

struct ProcessRequest {
  std::vector<std::string> command;      ///< the first is a path
  std::vector<std::string> environment;  ///< "NAME=value", complete
  std::string output_path;               ///< takes stdout and stderr
  Duration limit{0};                     ///< SIGTERM after it, SIGKILL a grace later
  std::string watched_directory;         ///< "" = none
  std::function<void()> on_change;       ///< something in watched_directory was written
  EventLoop* loop = nullptr;  ///< in which to wait, for what else the caller watches; own when null
};

struct ProcessOutcome {
  int exit_status = 0;  ///< 128 + n for a signal
  bool timed_out = false;
  int interrupted_by = 0;  ///< SIGINT or SIGTERM that this process got meanwhile; 0 = none
};

/// Starts the command and waits for it. SIGINT and SIGTERM are passed on as SIGTERM.
/// @blocks at most `limit` and a grace of 40 s
/// @thread the main thread only
/// @error  kNotFound, kInvalidArgument, kIo: it could not be started
Result<ProcessOutcome> run_process(const ProcessRequest& request);

/// This process's environment with `changes` ("NAME=value" sets, "NAME" removes).
std::vector<std::string> environment_with(const std::vector<std::string>& changes);

/// The processes of this user, but this one, that carry `entry` ("NAME=value") in their
/// environment.
std::vector<pid_t> processes_with(const std::string& entry);

/// "pid 123 muster-train".
std::string describe_process(pid_t pid);

/// Kills those of `pids` that still carry `entry`, so that no stranger with a reused number is hit.
void kill_processes(const std::vector<pid_t>& pids, const std::string& entry);

}  // namespace muster
