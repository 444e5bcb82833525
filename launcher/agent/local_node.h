#pragma once
/// The workers of this node: started, watched, stopped, swept, reported on.
///
/// What an agent does with its own hands, whether it decides (Agent) or obeys (MemberAgent). One
/// loop, one attempt at a time: when an attempt is over, everything below the agent is dead before
/// the next one starts. It links neither tensors nor devices, so that what kills workers does not
/// kill it.

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "launcher/agent/console.h"
#include "launcher/agent/event_log.h"
#include "launcher/agent/event_loop.h"
#include "launcher/agent/incident.h"
#include "launcher/agent/job_plan.h"
#include "launcher/agent/log_pump.h"
#include "launcher/agent/status_socket.h"
#include "launcher/agent/worker_env.h"
#include "launcher/agent/worker_group.h"
#include "launcher/rendezvous/decide.h"

namespace muster {

class LocalNode {
 public:
  /// `guardian_pidfd` and `launcher_pidfd` end the job when they become readable; they stay the
  /// caller's. The signals of the spec and SIGCHLD must be blocked.
  LocalNode(JobPlan plan, EventLog events, int guardian_pidfd, int launcher_pidfd);
  ~LocalNode();
  LocalNode(const LocalNode&) = delete;
  LocalNode& operator=(const LocalNode&) = delete;

  /// Told of each worker that ends by itself, by its global rank.
  void set_on_exit(std::function<void(const RankExit&)> on_exit) { on_exit_ = std::move(on_exit); }
  /// Told when a second SIGINT takes the rest of the grace away.
  void set_on_kill_now(std::function<void()> told) { on_kill_now_ = std::move(told); }

  /// Answers on the job's socket from now on; `describe` adds what the agent knows beyond this
  /// node.
  void serve_status(std::function<void(nlohmann::ordered_json&)> describe);

  [[nodiscard]] EventLoop& loop() noexcept { return loop_; }
  [[nodiscard]] EventLog& events() noexcept { return events_; }
  [[nodiscard]] JobPlan& plan() noexcept { return plan_; }
  [[nodiscard]] const AttemptInfo& info() const noexcept { return info_; }
  [[nodiscard]] const WorkerGroup* workers() const noexcept { return group_.get(); }
  /// The first signal that asked the job to stop.
  [[nodiscard]] std::optional<int> stop_signal() const noexcept { return stop_signal_; }

  /// Starts the workers of an attempt.
  /// @error  the folders, the pipes, the program; what was started until then is swept by the
  /// caller
  Result<void> start(const AttemptInfo& info);

  /// Lets workers that are ending anyway end by themselves, with their last words.
  /// @blocks until none is left, a second SIGINT or `limit`
  void await_own_ends(Duration limit);
  /// Ends the attempt: `signal`, `grace`, SIGKILL, and a sweep of everything below this process.
  /// `failed_at` is when the reason for it was there; only for the event log.
  /// @blocks until nothing is left
  void stop(int signal, Duration grace, TimePoint failed_at);
  /// A stop without a grace.
  void sweep();
  /// Takes the rest of the grace away.
  void kill_now() { kill_now_ = true; }

  /// Why an attempt was stopped, and who says so.
  struct Verdict {
    Decision decision;
    int64_t cause_rank = -1;    ///< global; -1 when it was no rank
    bool is_final = false;      ///< the job ends with it
    bool is_node_lost = false;  ///< a whole node was lost, and this one decides what follows
  };
  /// Writes the incident record of the attempt that was stopped: a numbered one on the node of the
  /// cause, or for a lost node on the one that decides; one beside it on every other node whose
  /// ranks had something to say. For a job that ends the table, too.
  void report(const Verdict& verdict);
  /// Forgets the attempt, before the next one.
  void forget_attempt();
  /// The end of the job on this node: the rest of the output, what became of the logs.
  int finish(int exit_status, int restarts);

 private:
  Result<void> make_folders_and_pipes();
  [[nodiscard]] std::string record(const Incident& incident, bool is_numbered);
  [[nodiscard]] std::string status_text() const;
  void on_signals();
  void on_signal(int signal);
  void on_exit(Worker& worker);
  [[noreturn]] void on_supervisor_death(const char* name);

  JobPlan plan_;
  EventLog events_;
  EventLoop loop_;
  UniqueFd signals_;
  Console stdout_;
  Console stderr_;
  std::function<void(const RankExit&)> on_exit_;
  std::function<void()> on_kill_now_;
  std::function<void(nlohmann::ordered_json&)> describe_;
  std::unique_ptr<StatusSocket> status_;
  std::unique_ptr<LogPump> logs_;
  std::unique_ptr<WorkerGroup> group_;
  AttemptInfo info_;
  TimePoint began_at_;
  TimePoint started_at_{};
  TimePoint failed_at_{};
  std::optional<int> stop_signal_;
  std::string incident_path_;  ///< of the latest incident; "" = none
  int64_t memory_kills_ = -1;  ///< of the control group when the attempt started
  int64_t lost_log_nbytes_ = 0;
  bool has_started_ = false;  ///< an attempt is there, running or stopped
  bool stopping_ = false;
  bool kill_now_ = false;
  int interrupts_ = 0;
};

}  // namespace muster
