#pragma once
/// Starting one worker: as fast as vfork, in its own session, tied to the life of the agent.

#include <sys/types.h>

#include <string>
#include <vector>

#include "core/base/result.h"

namespace muster {

/// What a worker starts with. The descriptors stay the caller's.
struct SpawnRequest {
  std::string path;               ///< of the executable, resolved
  std::vector<std::string> argv;  ///< argv[0] included
  std::vector<std::string> environment;
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
};

/// Starts a process: new session, SIGKILL when the calling thread's process dies, default signals,
/// no descriptor above 2. Returns its pid once the program has been loaded.
/// @thread the main thread only: the death signal follows the thread that spawned
/// @error  kNotFound, kInvalidArgument, kOutOfMemory or kIo: the program could not be started
Result<pid_t> spawn_worker(const SpawnRequest& request);

/// The file that execvp would run: `program` itself if it holds a slash, else the first match on
/// PATH. @error kNotFound no such file; kInvalidArgument it is not executable
Result<std::string> resolve_program(const std::string& program);

}  // namespace muster
