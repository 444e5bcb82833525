#include "launcher/agent/local_node.h"

#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>

#include "core/base/file_system.h"
#include "core/base/log.h"
#include "launcher/agent/memory_events.h"
#include "launcher/agent/process_tree.h"
#include "launcher/agent/supervise.h"

namespace muster {
namespace {
using nlohmann::ordered_json;

// What is stuck in the kernel for longer than this (a device driver, a dead file server) will not
// end by waiting.
constexpr Duration kSweepLimit = 30s;
constexpr Duration kConsoleLimit = 30s;

int global_rank_of(const AttemptInfo& info, int local_rank) {
  return static_cast<int>(info.place.first_rank) + local_rank;
}

StreamPlan plan_stream(const JobPlan& plan, const AttemptInfo& info, const std::string& folder,
                       int local_rank, int stream) {
  const LogOptions& logs = plan.spec.logs;
  const bool teed = logs.tee.selects(local_rank, stream);
  const bool redirected = logs.redirects.selects(local_rank, stream);
  StreamPlan result;
  if (!folder.empty() && (plan.write_files || teed || redirected)) {
    result.file = folder + (stream == 0 ? "/stdout.log" : "/stderr.log");
  }
  const bool shown = !logs.console_ranks || logs.console_ranks->contains(local_rank);
  if (!shown || (redirected && !teed && !folder.empty())) {
    result.to_console = StreamPlan::ToConsole::kNo;
  } else if (teed) {
    result.to_console = StreamPlan::ToConsole::kPrefixed;
    result.prefix = substitute_template(logs.prefix_template,
                                        {{"role_name", plan.spec.role},
                                         {"rank", std::to_string(global_rank_of(info, local_rank))},
                                         {"local_rank", std::to_string(local_rank)}});
  }
  return result;
}
}  // namespace

LocalNode::LocalNode(JobPlan plan, EventLog events, int guardian_pidfd, int launcher_pidfd)
    : plan_(std::move(plan)),
      events_(std::move(events)),
      stdout_(loop_, STDOUT_FILENO),
      stderr_(loop_, STDERR_FILENO),
      began_at_(real_clock().now()) {
  const sigset_t mask = supervised_signals(plan_.spec.stop_signals);
  signals_.reset(::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  loop_.add(signals_.get(), EPOLLIN, [this](uint32_t) { on_signals(); });
  loop_.add(guardian_pidfd, EPOLLIN, [this](uint32_t) { on_supervisor_death("guardian"); });
  loop_.add(launcher_pidfd, EPOLLIN, [this](uint32_t) { on_supervisor_death("launcher"); });
  const auto resume = [this] {
    if (logs_ != nullptr) logs_->resume();
  };
  stdout_.set_on_drained(resume);
  stderr_.set_on_drained(resume);
}

LocalNode::~LocalNode() = default;

Result<void> LocalNode::start(const AttemptInfo& info) {
  const TimePoint failed_at = std::exchange(failed_at_, TimePoint{});
  info_ = info;
  has_started_ = true;
  stopping_ = false;
  memory_kills_ = count_memory_limit_kills();
  MUSTER_TRY(make_folders_and_pipes());
  group_ = std::make_unique<WorkerGroup>(loop_, [this](Worker& worker) { on_exit(worker); });
  started_at_ = real_clock().now();
  MUSTER_TRY(group_->start(plan_, info_, *logs_));
  logs_->close_worker_ends();
  ordered_json pids = ordered_json::array();
  for (const Worker& worker : group_->workers()) pids.push_back(worker.pid);
  events_.emit("attempt_start", {{"attempt", info_.attempt},
                                 {"generation", info_.generation},
                                 {"port", info_.master_port},
                                 {"group_rank", info_.place.group_rank},
                                 {"first_rank", info_.place.first_rank},
                                 {"world_size", info_.place.world_size},
                                 {"pids", pids}});
  if (info_.attempt > 0 && failed_at != TimePoint{}) {
    const Duration since = real_clock().now() - failed_at;
    events_.emit("respawned", {{"attempt", info_.attempt},
                               {"ms", std::chrono::duration<double, std::milli>(since).count()}});
  }
  return {};
}

Result<void> LocalNode::make_folders_and_pipes() {
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < plan_.spec.local_world_size; ++rank) {
    const std::string folder = worker_log_dir(plan_, info_.attempt, rank);
    if (!folder.empty()) MUSTER_TRY(real_file_system().make_directories(folder));
    plans.push_back(
        {plan_stream(plan_, info_, folder, rank, 0), plan_stream(plan_, info_, folder, rank, 1)});
  }
  logs_ = MUSTER_TRY(LogPump::open(loop_, {&stdout_, &stderr_}, plans));
  return {};
}

void LocalNode::on_exit(Worker& worker) {
  WorkerExit& exit = *worker.exit;
  if (exit.signal == SIGKILL && worker.told == 0) {
    exit.oom_killed = memory_kills_ >= 0 && count_memory_limit_kills() > memory_kills_;
  }
  ordered_json fields = {{"rank", global_rank_of(info_, worker.local_rank)}, {"pid", worker.pid}};
  if (exit.signal != 0) {
    fields["signal"] = signal_name(exit.signal);
  } else {
    fields["status"] = exit.status;
  }
  fields["class"] = to_string(exit.exit_class());
  fields["told"] = worker.told == 0 ? ordered_json() : ordered_json(signal_name(worker.told));
  events_.emit("worker_exit", fields);
  if (stopping_) return;
  on_exit_({.global_rank = global_rank_of(info_, worker.local_rank),
            .exit = exit,
            .at = worker.ended_at});
}

void LocalNode::on_signals() {
  signalfd_siginfo info{};
  bool children = false;
  while (::read(signals_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    if (info.ssi_signo == SIGCHLD) {
      children = true;
    } else {
      on_signal(static_cast<int>(info.ssi_signo));
    }
  }
  if (!children) return;
  // Workers first, in the order of their deaths; what is left are orphans of theirs.
  if (group_ != nullptr) group_->drain_exits();
  reap_ended_children([this](pid_t pid, int status) {
    if (group_ != nullptr) group_->note_reaped(pid, status);
  });
}

void LocalNode::on_signal(int signal) {
  const std::vector<int>& stops = plan_.spec.stop_signals;
  if (std::find(stops.begin(), stops.end(), signal) == stops.end()) {
    if (group_ != nullptr && !stopping_) group_->notify_all(signal);
    return;
  }
  if (signal == SIGINT && ++interrupts_ > 1) {
    kill_now_ = true;
    if (on_kill_now_) on_kill_now_();
  }
  if (stop_signal_) return;
  stop_signal_ = signal;
  MUSTER_LOG(kWarn, "got {}: stopping {}{}", signal_name(signal), plan_.spec.title,
             signal == SIGINT ? "; interrupt again to kill it" : "");
  if (stopping_ && group_ != nullptr) group_->signal_all(signal);
}

void LocalNode::on_supervisor_death(const char* name) {
  MUSTER_LOG(kError, "the {} of this job has died; killing the job", name);
  // The error cannot be acted upon here: the other supervisor sweeps after this process.
  const Result<int> swept = kill_descendants(Deadline::after(kSweepLimit));
  ::_exit(swept.ok() ? 128 + SIGKILL : exit_status(swept.error().code()));
}

void LocalNode::await_own_ends(Duration limit) {
  const TimePoint deadline = real_clock().now() + limit;
  while (group_ != nullptr && !group_->all_ended() && !kill_now_ && !stop_signal() &&
         real_clock().now() < deadline) {
    loop_.run_once(deadline);
  }
}

void LocalNode::stop(int signal, Duration grace, TimePoint failed_at) {
  failed_at_ = failed_at;
  stopping_ = true;
  if (group_ != nullptr && grace > Duration(0)) {
    group_->signal_all(signal);
    const TimePoint deadline = real_clock().now() + grace;
    while (!group_->all_ended() && !kill_now_ && real_clock().now() < deadline) {
      loop_.run_once(deadline);
    }
    if (!group_->all_ended()) {
      MUSTER_LOG(
          kWarn, "{}: killing the ranks that still run",
          kill_now_ ? "second SIGINT" : fmt::format("no end within {}", format_duration(grace)));
    }
  }
  sweep();
}

void LocalNode::sweep() {
  stopping_ = true;
  if (group_ != nullptr) group_->signal_all(SIGKILL);
  const Result<int> swept =
      kill_descendants(Deadline::after(kSweepLimit), [this](pid_t pid, int status) {
        if (group_ != nullptr) group_->note_reaped(pid, status);
      });
  if (logs_ != nullptr) logs_->drain();
  if (swept.ok()) return;
  MUSTER_LOG(kError, "{}", swept.error().what());
  ::_exit(finish(exit_status(ErrorCode::kInternal), info_.attempt));
}

void LocalNode::report(const Verdict& verdict) {
  if (!has_started_ || group_ == nullptr) return;
  const int64_t cause_rank = verdict.cause_rank;
  Incident incident{.plan = &plan_,
                    .info = info_,
                    .decision = verdict.decision,
                    .cause_rank = -1,
                    .cause_elsewhere = -1,
                    .workers = &group_->workers(),
                    .logs = logs_.get(),
                    .started_at = started_at_};
  const int64_t local_rank = cause_rank - info_.place.first_rank;
  const bool is_here = cause_rank >= 0 && local_rank >= 0 &&
                       local_rank < static_cast<int64_t>(group_->workers().size());
  if (is_here) incident.cause_rank = static_cast<int>(local_rank);
  if (!is_here) incident.cause_elsewhere = cause_rank;
  const std::string path = record(incident, is_here || verdict.is_node_lost);
  if (verdict.is_final) {
    MUSTER_LOG(kError, "{}", incident_summary(incident, path));
    pass_on_error_file(incident);
  }
}

std::string LocalNode::record(const Incident& incident, bool is_numbered) {
  if (plan_.incident_dir.empty() || !(is_numbered || has_error_files(incident))) return "";
  const Result<std::string> written = is_numbered ? write_incident(plan_.incident_dir, incident)
                                                  : write_node_record(plan_.incident_dir, incident);
  if (!written.ok()) {
    MUSTER_LOG(kError, "{}", written.error().what());
    return "";
  }
  incident_path_ = *written;
  events_.emit("incident", {{"path", *written}});
  plan_.temporary_dir.clear();
  return *written;
}

void LocalNode::forget_attempt() {
  if (logs_ != nullptr) lost_log_nbytes_ += logs_->lost_nbytes();
  group_.reset();
  logs_.reset();
  has_started_ = false;
}

int LocalNode::finish(int exit_status_of_job, int restarts) {
  if (logs_ != nullptr) lost_log_nbytes_ += logs_->lost_nbytes();
  stdout_.flush(Deadline::after(kConsoleLimit));
  stderr_.flush(Deadline::after(kConsoleLimit));
  if (lost_log_nbytes_ > 0) {
    MUSTER_LOG(kError, "{} bytes of output are missing in the log files of {}", lost_log_nbytes_,
               plan_.log_dir);
    if (exit_status_of_job == 0) exit_status_of_job = exit_status(ErrorCode::kIo);
  }
  if (exit_status_of_job == 0 && !plan_.temporary_dir.empty()) {
    // Left-overs in a temporary folder are no reason to fail a job that succeeded.
    static_cast<void>(remove_tree(real_file_system(), plan_.temporary_dir).ok());
  }
  events_.emit("job_end", {{"exit", exit_status_of_job}, {"restarts", restarts}});
  return exit_status_of_job;
}

}  // namespace muster
