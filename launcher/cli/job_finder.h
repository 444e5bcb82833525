#pragma once
/// Finding the jobs that run now, through the sockets of their agents, and how far they are.
///
/// One entry for each agent on this machine: a job with two agents here is found twice. Sockets
/// that nobody listens on any more are removed on the way.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"

namespace muster {

/// How far a recipe is, by the last lines of its metrics.jsonl.
struct JobProgress {
  int64_t step = 0;
  double loss = 0;
  double steps_per_s = 0;  ///< 0 = not known yet
  double tokens_per_s = 0;
};

struct FoundJob {
  nlohmann::ordered_json status;  ///< what the agent told
  std::optional<JobProgress> progress;
};

/// The jobs that `name` means: the start of a run id or job id, a title or its file name, a run
/// folder; all when it is "". Hosts come before the other nodes of their job.
/// @error kIo the folder of the sockets; kNotFound nothing that runs has this name
Result<std::vector<FoundJob>> find_jobs(const std::string& name);

/// Steps and rates from the text of a metrics.jsonl, or its end; nullopt without a whole line.
std::optional<JobProgress> read_progress(std::string_view metrics);

}  // namespace muster
