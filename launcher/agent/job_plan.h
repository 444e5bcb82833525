#pragma once
/// What a job needs that is settled once, before any process starts: names, secrets, folders.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "launcher/agent/job.h"
#include "launcher/agent/unique_fd.h"

namespace muster {

struct JobPlan {
  JobSpec spec;                  ///< run_id filled in
  std::string program;           ///< path of spec.command[0]
  std::string log_dir;           ///< holds attempt_<n>/<local rank>/; "" = no files
  std::string run_dir;           ///< MUSTER_RUN_DIR, absolute; "" = none
  std::string incident_dir;      ///< holds incident-<n>.json; "" = none
  std::string events_path;       ///< of the agent that decides; "" = no events
  std::string node_events_path;  ///< of an agent that obeys one on another node
  std::string temporary_dir;     ///< removed after a success in which nothing was logged; "" = none
  bool write_files = false;      ///< all streams go to files, selected or not
  std::string token;             ///< secret of the job, 32 hexadecimal digits
  std::string token_id;          ///< public name of the job, marks its processes
  int64_t first_generation = 1;  ///< of attempt 0
  int64_t reserved_generations = 0;  ///< from it on; 0 = without limit, no other job can have them
  int threads_per_worker = 1;        ///< OMP_NUM_THREADS
  std::shared_ptr<UniqueFd> run_lock;  ///< of a recipe's run_dir, held as long as the job runs
  std::vector<std::string> inherited;  ///< environment of the launcher
};

/// Resolves the program, makes the folders and the names.
/// @error kNotFound, kInvalidArgument the program; kIo a folder; kFailedPrecondition another job
/// runs
///        in the recipe's run_dir
Result<JobPlan> make_job_plan(const JobSpec& spec);

/// Makes a recipe's run_dir this job's: the lock, the generations. Part of make_job_plan for a job
/// on one node; with several nodes the host does it once it is the host.
/// @error kFailedPrecondition another job runs in it; kIo
Result<void> claim_run_dir(JobPlan& plan);

/// Reserves as many generations again; returns the first of them. @error kIo
Result<int64_t> reserve_more_generations(const JobPlan& plan);

/// The folder of one worker in one attempt; "" without log_dir.
std::string worker_log_dir(const JobPlan& plan, int attempt, int local_rank);

/// True when output goes to files that stay.
bool keeps_logs(const JobPlan& plan);

/// CPU cores this process may use: affinity mask and control-group quota, at least 1.
int allowed_cores();

}  // namespace muster
