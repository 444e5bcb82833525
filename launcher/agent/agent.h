#pragma once
/// The agent: shows the job to decide() after every event and carries out what it says.
///
/// One process, one loop, one attempt at a time. When an attempt is over, everything below the
/// agent is dead before the next one starts. It links neither tensors nor devices, so that what
/// kills workers does not kill it.

#include <sys/types.h>

#include <array>
#include <memory>
#include <string>

#include "launcher/agent/console.h"
#include "launcher/agent/event_log.h"
#include "launcher/agent/event_loop.h"
#include "launcher/agent/incident.h"
#include "launcher/agent/job_plan.h"
#include "launcher/agent/log_pump.h"
#include "launcher/agent/worker_env.h"
#include "launcher/agent/worker_group.h"
#include "launcher/rendezvous/decide.h"

namespace muster {
class TcpStoreServer;

class Agent {
 public:
  /// `guardian_pidfd` and `launcher_pidfd` end the job when they become readable; they stay the
  /// caller's. The signals of the spec and SIGCHLD must be blocked.
  Agent(JobPlan plan, EventLog events, int guardian_pidfd, int launcher_pidfd);
  ~Agent();

  /// Runs the job; returns its exit status.
  /// @blocks until the job has ended and no descendant of this process is left
  int run();

 private:
  Result<void> start_attempt();
  Result<void> make_folders_and_pipes();
  void stop_group(const Decision& decision);
  void sweep();
  void report_failure(const Decision& decision);
  void prepare_restart(const Decision& decision);
  int finish(int exit_status);

  void on_signals();
  void on_signal(int signal);
  void on_exit(Worker& worker);
  [[noreturn]] void on_supervisor_death(const char* name);
  void note(const Decision& decision);

  JobPlan plan_;
  EventLog events_;
  EventLoop loop_;
  UniqueFd signals_;
  Console stdout_;
  Console stderr_;
  std::unique_ptr<TcpStoreServer> store_;
  std::unique_ptr<LogPump> logs_;
  std::unique_ptr<WorkerGroup> group_;
  JobView view_;
  AttemptInfo info_;
  TimePoint started_at_{};
  TimePoint failed_at_{};
  int64_t memory_kills_ = -1;  ///< of the control group when the attempt started
  int64_t lost_log_nbytes_ = 0;
  bool stopping_ = false;
  bool kill_now_ = false;
  int interrupts_ = 0;
  std::string last_reason_;
};

}  // namespace muster
