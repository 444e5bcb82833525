#pragma once
/// Who this worker is: read once from the environment that a launcher set.
///
/// muster's agent and torchrun set the same variables; without any, the process is a job of its
/// own. A partial set is an error, never a guess.

#include <memory>
#include <string>

#include "core/base/result.h"
#include "core/base/time.h"
#include "dist/store/store.h"

namespace muster {

struct WorkerEnv {
  int global_rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr;
  int master_port = 0;
  bool agent_hosts_store = false;  ///< TORCHELASTIC_USE_AGENT_STORE
  std::string job_token;           ///< MUSTER_JOB_TOKEN; empty outside muster
  int attempt = 0;
  int64_t generation = 1;
  std::string error_file;  ///< TORCHELASTIC_ERROR_FILE; "" for none

  /// @error kInvalidArgument a variable is missing from a set that is otherwise there, or is no
  /// number
  static Result<WorkerEnv> read();
};

/// The store of this generation: the agent's or rank 0's over TCP, or one in this process for a
/// single rank. Keys are fenced by generation.
/// @error kTimeout, kPeerLost
Result<std::shared_ptr<Store>> open_job_store(const WorkerEnv& env, Deadline deadline);

/// Writes what went wrong in the form that torchrun's agent reads; does nothing without a file.
void write_error_file(const WorkerEnv& env, const Error& error);

}  // namespace muster
