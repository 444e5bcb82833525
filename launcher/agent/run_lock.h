#pragma once
/// One job at a time in a run folder, and an end to what an earlier job has left there.
///
/// The lock is the kernel's: it goes with the last supervisor of the job, however that ends. It
/// does not cover other hosts on file systems without shared locks.

#include <string>

#include "core/base/result.h"
#include "launcher/agent/unique_fd.h"

namespace muster {

/// Locks `run_dir` for the life of the descriptor and of its copies in child processes. The file
/// job.lock in it names the job by `token_id`; processes of the job that was named there before are
/// killed, since none of its supervisors can be alive.
/// @blocks up to a second while a job that was just killed is being swept
/// @error  kFailedPrecondition another job runs there; kIo
Result<UniqueFd> lock_run_dir(const std::string& run_dir, const std::string& token_id);

}  // namespace muster
