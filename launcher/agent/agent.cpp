#include "launcher/agent/agent.h"

#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <nlohmann/json.hpp>

#include "core/base/file_system.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "dist/store/tcp_store_server.h"
#include "launcher/agent/memory_events.h"
#include "launcher/agent/process_tree.h"
#include "launcher/agent/supervise.h"

namespace muster {
namespace {
using Action = Decision::Action;
using nlohmann::ordered_json;

// What is stuck in the kernel for longer than this (a device driver, a dead file server) will not
// end by waiting.
constexpr Duration kSweepLimit = 30s;
constexpr Duration kConsoleLimit = 30s;

StreamPlan plan_stream(const JobPlan& plan, const std::string& folder, int local_rank, int stream) {
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
    const std::string rank = std::to_string(local_rank);
    result.prefix =
        substitute_template(logs.prefix_template,
                            {{"role_name", plan.spec.role}, {"rank", rank}, {"local_rank", rank}});
  }
  return result;
}
}  // namespace

Agent::Agent(JobPlan plan, EventLog events, int guardian_pidfd, int launcher_pidfd)
    : plan_(std::move(plan)),
      events_(std::move(events)),
      stdout_(loop_, STDOUT_FILENO),
      stderr_(loop_, STDERR_FILENO) {
  view_.world_size = plan_.spec.local_world_size;
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

Agent::~Agent() = default;

int Agent::run() {
  while (true) {
    const Decision decision = decide(view_, plan_.spec.policy, real_clock().now());
    note(decision);
    switch (decision.action) {
      case Action::kWait:
        loop_.run_once(decision.ask_again);
        break;
      case Action::kStart: {
        const Result<void> started = start_attempt();
        if (started.ok()) break;
        stopping_ = true;
        sweep();
        MUSTER_LOG(kError, "{}", started.error().what());
        return finish(exit_status(started.error().code()));
      }
      case Action::kRestartGroup:
        stop_group(decision);
        report_failure(decision);
        prepare_restart(decision);
        break;
      case Action::kGiveUp:
        stop_group(decision);
        if (view_.started) report_failure(decision);
        return finish(decision.exit_status);
      case Action::kFinish:
        stopping_ = true;
        sweep();
        return finish(0);
    }
  }
}

void Agent::note(const Decision& decision) {
  if (decision.reason == last_reason_) return;
  last_reason_ = decision.reason;
  events_.emit("decision", {{"action", to_string(decision.action)}, {"reason", decision.reason}});
  if (decision.action == Action::kRestartGroup) {
    MUSTER_LOG(kWarn, "{}", decision.reason);
  } else {
    MUSTER_LOG(kDebug, "{}", decision.reason);
  }
}

Result<void> Agent::start_attempt() {
  const JobSpec& spec = plan_.spec;
  stopping_ = false;
  memory_kills_ = count_memory_limit_kills();
  store_ = MUSTER_TRY(TcpStoreServer::open({
      .host = spec.master_addr,
      .port = spec.master_port,
      .required_token = spec.is_recipe ? plan_.token : "",
      .on_reject = {},
  }));
  info_ = {.attempt = view_.attempt,
           .generation = plan_.first_generation + view_.attempt,
           .master_port = store_->port()};
  MUSTER_TRY(make_folders_and_pipes());
  group_ = std::make_unique<WorkerGroup>(loop_, [this](Worker& worker) { on_exit(worker); });
  started_at_ = real_clock().now();
  MUSTER_TRY(group_->start(plan_, info_, *logs_));
  logs_->close_worker_ends();
  view_.started = true;
  ordered_json pids = ordered_json::array();
  for (const Worker& worker : group_->workers()) pids.push_back(worker.pid);
  events_.emit("attempt_start", {{"attempt", info_.attempt},
                                 {"generation", info_.generation},
                                 {"port", info_.master_port},
                                 {"pids", pids}});
  if (view_.attempt > 0) {
    const Duration since = real_clock().now() - failed_at_;
    events_.emit("respawned", {{"attempt", info_.attempt},
                               {"ms", std::chrono::duration<double, std::milli>(since).count()}});
  }
  return {};
}

Result<void> Agent::make_folders_and_pipes() {
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < plan_.spec.local_world_size; ++rank) {
    const std::string folder = worker_log_dir(plan_, info_.attempt, rank);
    if (!folder.empty()) MUSTER_TRY(real_file_system().make_directories(folder));
    plans.push_back({plan_stream(plan_, folder, rank, 0), plan_stream(plan_, folder, rank, 1)});
  }
  logs_ = MUSTER_TRY(LogPump::open(loop_, {&stdout_, &stderr_}, plans));
  return {};
}

void Agent::on_exit(Worker& worker) {
  WorkerExit& exit = *worker.exit;
  if (exit.signal == SIGKILL && worker.told == 0) {
    exit.oom_killed = memory_kills_ >= 0 && count_memory_limit_kills() > memory_kills_;
  }
  ordered_json fields = {{"rank", worker.local_rank}, {"pid", worker.pid}};
  if (exit.signal != 0) {
    fields["signal"] = signal_name(exit.signal);
  } else {
    fields["status"] = exit.status;
  }
  fields["class"] = to_string(exit.exit_class());
  fields["told"] = worker.told == 0 ? ordered_json() : ordered_json(signal_name(worker.told));
  events_.emit("worker_exit", fields);
  if (stopping_) return;
  view_.exits.push_back({.global_rank = worker.local_rank, .exit = exit, .at = worker.ended_at});
}

void Agent::on_signals() {
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

void Agent::on_signal(int signal) {
  const std::vector<int>& stops = plan_.spec.stop_signals;
  if (std::find(stops.begin(), stops.end(), signal) == stops.end()) {
    if (group_ != nullptr && !stopping_) group_->notify_all(signal);
    return;
  }
  if (signal == SIGINT && ++interrupts_ > 1) kill_now_ = true;
  if (view_.stop_signal) return;
  view_.stop_signal = signal;
  MUSTER_LOG(kWarn, "got {}: stopping {}{}", signal_name(signal), plan_.spec.title,
             signal == SIGINT ? "; interrupt again to kill it" : "");
  if (stopping_ && group_ != nullptr) group_->signal_all(signal);
}

void Agent::on_supervisor_death(const char* name) {
  MUSTER_LOG(kError, "the {} of this job has died; killing the job", name);
  // The error cannot be acted upon here: the other supervisor sweeps after this process.
  const Result<int> swept = kill_descendants(Deadline::after(kSweepLimit));
  ::_exit(swept.ok() ? 128 + SIGKILL : exit_status(swept.error().code()));
}

void Agent::stop_group(const Decision& decision) {
  failed_at_ = decision.cause ? view_.exits[*decision.cause].at : real_clock().now();
  stopping_ = true;
  if (!view_.started) return;
  if (decision.grace > Duration(0)) {
    group_->signal_all(view_.stop_signal.value_or(SIGTERM));
    const TimePoint deadline = real_clock().now() + decision.grace;
    while (!group_->all_ended() && !kill_now_ && real_clock().now() < deadline) {
      loop_.run_once(deadline);
    }
    if (!group_->all_ended()) {
      MUSTER_LOG(kWarn, "{}: killing the ranks that still run",
                 kill_now_ ? "second SIGINT"
                           : fmt::format("no end within {}", format_duration(decision.grace)));
    }
  }
  sweep();
}

void Agent::sweep() {
  if (group_ != nullptr) group_->signal_all(SIGKILL);
  const Result<int> swept =
      kill_descendants(Deadline::after(kSweepLimit), [this](pid_t pid, int status) {
        if (group_ != nullptr) group_->note_reaped(pid, status);
      });
  store_.reset();
  if (logs_ != nullptr) logs_->drain();
  if (swept.ok()) return;
  MUSTER_LOG(kError, "{}", swept.error().what());
  ::_exit(finish(exit_status(ErrorCode::kInternal)));
}

void Agent::report_failure(const Decision& decision) {
  Incident incident{.plan = &plan_,
                    .info = info_,
                    .decision = decision,
                    .cause_rank = -1,
                    .workers = &group_->workers(),
                    .logs = logs_.get(),
                    .started_at = started_at_};
  if (decision.cause) incident.cause_rank = view_.exits[*decision.cause].global_rank;
  std::string record;
  if (decision.cause && !plan_.incident_dir.empty()) {
    const Result<std::string> written = write_incident(plan_.incident_dir, incident);
    if (written.ok()) {
      record = *written;
      events_.emit("incident", {{"path", record}});
      plan_.temporary_dir.clear();
    } else {
      MUSTER_LOG(kError, "{}", written.error().what());
    }
  }
  if (decision.action == Action::kGiveUp) {
    MUSTER_LOG(kError, "{}", incident_summary(incident, record));
    pass_on_error_file(incident);
  }
}

void Agent::prepare_restart(const Decision& decision) {
  const WorkerExit& exit = view_.exits[*decision.cause].exit;
  if (exit.exit_class() == ExitClass::kData) ++view_.data_restarts;
  lost_log_nbytes_ += logs_->lost_nbytes();
  group_.reset();
  logs_.reset();
  ++view_.attempt;
  view_.started = false;
  view_.exits.clear();
}

int Agent::finish(int exit_status_of_job) {
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
  events_.emit("job_end", {{"exit", exit_status_of_job}, {"restarts", view_.attempt}});
  return exit_status_of_job;
}

}  // namespace muster
