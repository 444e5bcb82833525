#include "launcher/agent/job_plan.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "core/base/file_system.h"
#include "core/base/text.h"
#include "launcher/agent/node_options.h"
#include "launcher/agent/proc_file.h"
#include "launcher/agent/random_id.h"
#include "launcher/agent/run_lock.h"
#include "launcher/agent/spawn.h"

extern char** environ;

namespace muster {
namespace {
namespace stdfs = std::filesystem;

// Restarts because nodes come and go count for nothing, so their number is not known.
constexpr int64_t kGenerationsForNodes = 1000;

// Makes a folder and proves that files can be made in it: permission bits do not tell everything
// (read-only mounts, quotas).
Result<void> make_writable_directory(const std::string& path) {
  MUSTER_TRY(real_file_system().make_directories(path), "log folder " + path);
  const std::string probe = path_join(path, ".muster-" + random_hex(4));
  const Result<std::unique_ptr<WritableFile>> file = real_file_system().create(probe);
  if (!file.ok()) {
    return make_error(ErrorCode::kIo, "log folder {}: must be writable; got {}", path,
                      file.error().message());
  }
  return real_file_system().remove_file(probe);
}

// An older run's logs move aside, so that the newest always lie under the same name.
Result<void> move_old_logs_aside(const std::string& logs) {
  if (!MUSTER_TRY(real_file_system().info(logs)).exists) return {};
  for (int number = 1;; ++number) {
    const std::string aside = fmt::format("{}-{}", logs, number);
    if (MUSTER_TRY(real_file_system().info(aside)).exists) continue;
    return real_file_system().rename(logs, aside);
  }
}

// A folder of its own for a job, named after its run id.
Result<std::string> make_job_directory(const std::string& parent, const std::string& run_id) {
  std::string name = run_id;
  std::replace(name.begin(), name.end(), '/', '_');
  const std::string path = path_join(parent, name + "_" + random_hex(4));
  MUSTER_TRY(make_writable_directory(path));
  return path;
}

// Numbers for as many generations as this job can have, beyond those that any earlier job on the
// same folder could have used: one durable write a job instead of one a restart.
Result<int64_t> reserve_generations(const std::string& run_dir, int64_t count) {
  const std::string path = path_join(run_dir, "generation");
  int64_t used = 0;
  const Result<std::string> text = read_text(real_file_system(), path);
  if (text.ok()) {
    const std::string_view digits = trim(*text);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), used);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      return make_error(ErrorCode::kCorruption, "{}: must hold a number; got \"{}\"", path, digits);
    }
  } else if (text.error().code() != ErrorCode::kNotFound) {
    return text.error();
  }
  MUSTER_TRY(write_file_durably(real_file_system(), path, fmt::format("{}\n", used + count)));
  return used + 1;
}

bool has_several_nodes(const JobSpec& spec) { return !spec.rendezvous.host.empty(); }

// Of this node among those that share a folder; which rank it will have is not known yet.
std::string node_folder_name(const JobSpec& spec) {
  std::string name = node_options(spec).name;
  std::replace(name.begin(), name.end(), ':', '-');
  return name;
}

void plan_events(JobPlan& plan) {
  const JobSpec& spec = plan.spec;
  plan.events_path = plan.node_events_path = spec.events_path;
  if (!spec.events_path.empty() || !spec.is_recipe) return;
  plan.events_path = path_join(plan.run_dir, "agent_events.jsonl");
  plan.node_events_path =
      path_join(plan.run_dir, fmt::format("agent_events.{}.jsonl", node_folder_name(spec)));
}

Result<void> plan_folders(JobPlan& plan) {
  const JobSpec& spec = plan.spec;
  if (spec.is_recipe) {
    plan.run_dir = stdfs::absolute(spec.run_dir).lexically_normal().string();
    MUSTER_TRY(make_writable_directory(plan.run_dir));
    plan.incident_dir = plan.run_dir;
    if (!has_several_nodes(spec)) MUSTER_TRY(claim_run_dir(plan));
  }
  if (spec.logs.none) return {};
  plan.write_files = true;
  if (!spec.logs.dir.empty()) {
    const FileInfo found = MUSTER_TRY(real_file_system().info(spec.logs.dir));
    if (found.exists && !found.is_directory) {
      return make_error(ErrorCode::kIo, "log folder {}: must be a folder; got a file",
                        spec.logs.dir);
    }
    plan.log_dir = MUSTER_TRY(make_job_directory(spec.logs.dir, spec.run_id));
    if (!spec.is_recipe) plan.incident_dir = spec.logs.dir;
  } else if (spec.is_recipe) {
    plan.log_dir = path_join(plan.run_dir, "logs");
    if (has_several_nodes(spec)) {
      plan.log_dir = path_join(plan.log_dir, node_folder_name(spec));
    }
    MUSTER_TRY(move_old_logs_aside(plan.log_dir));
    MUSTER_TRY(make_writable_directory(plan.log_dir));
  } else {
    const char* base = std::getenv("TMPDIR");
    const std::string parent =
        path_join(base == nullptr || *base == '\0' ? "/tmp" : base, "muster_" + random_hex(4));
    plan.log_dir = MUSTER_TRY(make_job_directory(parent, spec.run_id));
    plan.incident_dir = parent;
    plan.write_files = false;
    if (spec.logs.tee.empty() && spec.logs.redirects.empty()) plan.temporary_dir = parent;
  }
  if (plan.run_dir.empty()) plan.run_dir = stdfs::absolute(plan.log_dir).string();
  return {};
}

int quota_cores() {
  // Version 2: "max 100000" or "200000 100000"; version 1 has the two numbers in two files.
  const std::vector<std::string> v2 = split(trim(read_kernel_file("/sys/fs/cgroup/cpu.max")), ' ');
  double quota = v2.size() == 2 ? std::atof(v2[0].c_str()) : 0;
  double period = v2.size() == 2 ? std::atof(v2[1].c_str()) : 0;
  if (v2.size() != 2) {
    quota = std::atof(read_kernel_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").c_str());
    period = std::atof(read_kernel_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us").c_str());
  }
  if (quota <= 0 || period <= 0) return CPU_SETSIZE;
  return std::max(1, static_cast<int>(quota / period + 0.5));
}
}  // namespace

Result<void> claim_run_dir(JobPlan& plan) {
  plan.run_lock = std::make_shared<UniqueFd>(MUSTER_TRY(lock_run_dir(plan.run_dir, plan.token_id)));
  plan.reserved_generations = int64_t{plan.spec.policy.max_restarts} + 1;
  if (has_several_nodes(plan.spec)) plan.reserved_generations += kGenerationsForNodes;
  plan.first_generation = MUSTER_TRY(reserve_generations(plan.run_dir, plan.reserved_generations));
  return {};
}

Result<int64_t> reserve_more_generations(const JobPlan& plan) {
  return reserve_generations(plan.run_dir, plan.reserved_generations);
}

int allowed_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const int masked = ::sched_getaffinity(0, sizeof(mask), &mask) == 0
                         ? CPU_COUNT(&mask)
                         : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  return std::max(1, std::min(masked, quota_cores()));
}

std::string worker_log_dir(const JobPlan& plan, int attempt, int local_rank) {
  if (plan.log_dir.empty()) return "";
  return fmt::format("{}/attempt_{}/{}", plan.log_dir, attempt, local_rank);
}

bool keeps_logs(const JobPlan& plan) {
  const LogOptions& logs = plan.spec.logs;
  return plan.write_files ||
         (!plan.log_dir.empty() && !(logs.tee.empty() && logs.redirects.empty()));
}

Result<JobPlan> make_job_plan(const JobSpec& spec) {
  JobPlan plan;
  plan.spec = spec;
  plan.program = MUSTER_TRY(resolve_program(spec.command.front()));
  if (plan.spec.run_id.empty()) plan.spec.run_id = random_uuid();
  plan.token = random_hex(16);
  plan.token_id = random_hex(8);
  MUSTER_TRY(plan_folders(plan));
  plan_events(plan);
  plan.threads_per_worker = std::max(1, allowed_cores() / spec.local_world_size);
  for (char** entry = environ; *entry != nullptr; ++entry) plan.inherited.emplace_back(*entry);
  return plan;
}

}  // namespace muster
