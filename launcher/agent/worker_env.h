#pragma once
/// The environment and the arguments of a worker: torchrun's contract and muster's own variables.
/// Pure functions of the plan.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/agent/job_plan.h"
#include "launcher/rendezvous/messages.h"

namespace muster {

/// What differs between the attempts of a job.
struct AttemptInfo {
  int attempt = 0;
  int64_t generation = 1;
  int failures = 0;  ///< restarts that count; `attempt` holds those because of nodes too
  NodePlace place;
  std::string master_addr;
  int master_port = 0;
};

/// The complete environment of one worker, "NAME=value". What the launcher inherited stays, but for
/// the names that are set here.
/// @source torchrun 2.13, the variables of each option
std::vector<std::string> worker_environment(const JobPlan& plan, const AttemptInfo& info,
                                            int local_rank);

/// The command of one worker; local_rank is put in where the spec asks for it.
std::vector<std::string> worker_command(const JobSpec& spec, int local_rank);

/// Which of RANK, WORLD_SIZE and the like are set in `inherited`. They are replaced for the
/// workers, which whoever had set them ought to know.
std::vector<std::string> overridden_names(const std::vector<std::string>& inherited);

/// Replaces ${name} and $name by values, "$$" by "$", and leaves the rest alone.
/// @source Python's string.Template.safe_substitute
std::string substitute_template(
    std::string_view text, const std::vector<std::pair<std::string_view, std::string>>& values);

}  // namespace muster
