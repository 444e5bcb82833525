#include "launcher/agent/job.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/base/log.h"
#include "core/base/text.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/event_log.h"
#include "launcher/agent/job_plan.h"
#include "launcher/agent/member_agent.h"
#include "launcher/agent/open_rendezvous.h"
#include "launcher/agent/process_tree.h"
#include "launcher/agent/supervise.h"
#include "launcher/agent/unique_fd.h"
#include "launcher/agent/worker_env.h"
#include "launcher/rendezvous/proof.h"

namespace muster {
namespace {

// Descriptors the agent needs for each worker: two pipes of two ends, two files, a pidfd.
constexpr rlim_t kDescriptorsPerWorker = 7;
constexpr rlim_t kDescriptorsPerNode = 4;
constexpr rlim_t kOtherDescriptors = 128;

// Later descriptors must not become 0, 1 or 2 of a worker by accident.
void open_standard_descriptors() {
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= 2);
  if (fd > 2) ::close(fd);
}

void detach_stdin() {
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (null.is_open()) ::dup2(null.get(), STDIN_FILENO);
}

void raise_descriptor_limit(int workers, int nodes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = kDescriptorsPerWorker * static_cast<rlim_t>(workers) +
                        kDescriptorsPerNode * static_cast<rlim_t>(nodes) + kOtherDescriptors;
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void become_subreaper(const char* process_name) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::prctl(PR_SET_NAME, process_name);
}

// A descriptor of the parent, opened while it is surely this process's parent still.
UniqueFd watch_parent(pid_t parent) {
  UniqueFd pidfd(open_pidfd(parent));
  if (!pidfd.is_open() || ::getppid() != parent) ::_exit(128 + SIGKILL);
  return pidfd;
}

struct Family {
  const JobPlan& plan;
  EventLog& events;
  sigset_t signals;
  pid_t launcher;
};

// With several nodes: becomes the host of the rendezvous, or comes to it.
int run_node_of_several(LocalNode& node) {
  JobPlan& plan = node.plan();
  JobSpec& spec = plan.spec;
  RendezvousLink opened = open_rendezvous(spec.rendezvous).value();
  if (!opened.is_host) {
    const std::string host = fmt::format("{}:{}", spec.rendezvous.host, spec.rendezvous.port);
    node.events().open_file(plan.node_events_path).value();
    node.events().emit("rendezvous", {{"role", "node"}, {"host", host}});
    return MemberAgent(node, std::move(opened.link), host).run();
  }
  spec.master_addr = spec.rendezvous.host;
  spec.store_host = opened.address;
  if (!spec.rendezvous.local_addr.empty()) {
    spec.master_addr = spec.store_host = spec.rendezvous.local_addr;
  }
  plan.token = worker_token(spec.rendezvous.token, spec.run_id);
  if (spec.is_recipe) claim_run_dir(plan).value();
  node.events().open_file(plan.events_path).value();
  MUSTER_LOG(kInfo, "hosting the rendezvous of job {} at {}:{}", spec.run_id, spec.rendezvous.host,
             opened.link->port());
  node.events().emit("rendezvous", {{"role", "host"}, {"port", opened.link->port()}});
  return Agent(node, std::move(opened.link)).run();
}

int run_node(LocalNode& node) {
  if (!node.plan().spec.rendezvous.host.empty()) return run_node_of_several(node);
  return Agent(node, nullptr).run();
}

[[noreturn]] void run_agent(Family& family, pid_t guardian, int launcher_pidfd) {
  const UniqueFd guardian_pidfd = watch_parent(guardian);
  become_subreaper("muster-agent");
  set_log_role("agent");
  raise_descriptor_limit(family.plan.spec.local_world_size,
                         family.plan.spec.policy.nodes.max_nodes);
  int status = exit_status(ErrorCode::kInternal);
  try {
    family.events.emit("job_start", {{"run_id", family.plan.spec.run_id},
                                     {"world_size", family.plan.spec.local_world_size},
                                     {"launcher", family.launcher},
                                     {"guardian", guardian},
                                     {"agent", ::getpid()}});
    LocalNode node(family.plan, std::move(family.events), guardian_pidfd.get(), launcher_pidfd);
    status = run_node(node);
  } catch (const Error& error) {
    status = exit_status(error.code());
    MUSTER_LOG(kError, "{}", error.what());
  } catch (const std::exception& error) {
    MUSTER_LOG(kError, "{}", error.what());
  }
  ::_exit(status);  // the guardian ends what an exception may have left
}

[[noreturn]] void run_guardian(Family& family) {
  // Its own session: a terminal's Ctrl-C reaches the launcher alone, which passes it on once.
  ::setsid();
  const UniqueFd launcher_pidfd = watch_parent(family.launcher);
  become_subreaper("muster-guardian");
  set_log_role("guardian");
  detach_stdin();
  const pid_t guardian = ::getpid();
  const pid_t agent = ::fork();
  if (agent == 0) run_agent(family, guardian, launcher_pidfd.get());
  if (agent < 0) {
    MUSTER_LOG(kError, "fork of the agent: {}", errno_text(errno));
    ::_exit(exit_status(ErrorCode::kOutOfMemory));
  }
  ::_exit(supervise({.child = agent,
                     .child_name = "agent",
                     .parent_pidfd = launcher_pidfd.get(),
                     .parent_name = "launcher",
                     .token_id = family.plan.token_id,
                     .signals = family.signals}));
}

// With several nodes the file depends on who hosts: it is opened when that is known.
Result<EventLog> open_events(const JobPlan& plan) {
  if (plan.events_path.empty()) return EventLog();
  if (plan.events_path != plan.node_events_path && !plan.spec.rendezvous.host.empty()) {
    return EventLog::waiting();
  }
  return EventLog::open(plan.events_path);
}

void tell_once(const JobPlan& plan) {
  const JobSpec& spec = plan.spec;
  const std::vector<std::string> replaced = overridden_names(plan.inherited);
  if (!replaced.empty()) {
    MUSTER_LOG(kWarn, "{} of this environment {} replaced in the workers'", join(replaced),
               replaced.size() == 1 ? "is" : "are");
  }
  if (keeps_logs(plan) && spec.logs.dir.empty() && !spec.is_recipe) {
    MUSTER_LOG(kInfo, "log files go to {}", plan.log_dir);
  }
  const auto is_omp = [](const std::string& entry) {
    return entry.starts_with("OMP_NUM_THREADS=");
  };
  if (spec.local_world_size > 1 &&
      std::none_of(plan.inherited.begin(), plan.inherited.end(), is_omp)) {
    MUSTER_LOG(kInfo, "OMP_NUM_THREADS={} for each of {} workers ({} cores); set it to choose",
               plan.threads_per_worker, spec.local_world_size, allowed_cores());
  }
}

}  // namespace

bool StreamSelection::selects(int local_rank, int stream) const {
  const int bit = stream == 0 ? 1 : 2;
  if (by_rank.empty()) return (all & bit) != 0;
  const auto found = by_rank.find(local_rank);
  return found != by_rank.end() && (found->second & bit) != 0;
}

bool StreamSelection::empty() const { return all == 0 && by_rank.empty(); }

Result<int> run_job(const JobSpec& spec) {
  MUSTER_CHECK(!spec.command.empty() && spec.local_world_size > 0, ErrorCode::kInvalidArgument,
               "run_job: needs a command and at least one worker; got {} workers",
               spec.local_world_size);
  open_standard_descriptors();
  const JobPlan plan = MUSTER_TRY(make_job_plan(spec));
  EventLog events = MUSTER_TRY(open_events(plan));
  tell_once(plan);

  ::signal(SIGPIPE, SIG_IGN);
  Family family{.plan = plan,
                .events = events,
                .signals = supervised_signals(spec.stop_signals),
                .launcher = ::getpid()};
  sigset_t before;
  ::sigprocmask(SIG_BLOCK, &family.signals, &before);
  become_subreaper("muster");
  std::fflush(nullptr);  // or both sides of the fork would write it
  const pid_t guardian = ::fork();
  if (guardian == 0) run_guardian(family);
  if (guardian < 0) {
    const int error_number = errno;
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    return make_error(ErrorCode::kOutOfMemory, "run_job: fork of the guardian: {}",
                      errno_text(error_number));
  }
  const int status = supervise({.child = guardian,
                                .child_name = "guardian",
                                .token_id = plan.token_id,
                                .signals = family.signals,
                                .is_impatient = true});
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  return status;
}

}  // namespace muster
