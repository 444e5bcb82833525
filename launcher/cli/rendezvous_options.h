#pragma once
/// The options of `muster run` that say how several nodes find each other: torchrun's, read into a
/// JobSpec.
///
/// @source torch 2.13: --nnodes, --rdzv-*, --node-rank, --master-*, with what Kubernetes sets as
/// PET_* variables

#include "core/base/result.h"
#include "launcher/agent/job.h"
#include "launcher/cli/run_options.h"

namespace muster {

/// Reads them all; for one node it also takes what --rdzv-endpoint says about the store.
/// @error kInvalidArgument what is wrong with which option
Result<void> take_nodes(const RunArguments& arguments, const Environment& environment,
                        JobSpec& spec);

/// The secret that agents of this user on this machine share when nobody has set one: made once in
/// a folder that only the user can read. @error kIo
Result<std::string> own_job_token(const Environment& environment);

}  // namespace muster
