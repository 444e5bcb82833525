#pragma once
/// The worker processes of one attempt: started together, watched, told to stop.
///
/// Exits are seen through pidfds in the order in which they happened, which is what makes the first
/// failure the cause. It decides nothing and knows no restart.

#include <sys/types.h>

#include <functional>
#include <optional>
#include <vector>

#include "core/base/result.h"
#include "core/base/time.h"
#include "launcher/agent/event_loop.h"
#include "launcher/agent/log_pump.h"
#include "launcher/agent/unique_fd.h"
#include "launcher/agent/worker_env.h"
#include "launcher/rendezvous/worker_exit.h"

namespace muster {

/// One worker. `exit` is empty while it runs.
struct Worker {
  int local_rank = 0;
  pid_t pid = 0;
  UniqueFd pidfd;
  std::optional<WorkerExit> exit;
  TimePoint ended_at{};
  int told = 0;  ///< the last signal that the agent sent it while it ran; 0 none
};

class WorkerGroup {
 public:
  using ExitFn = std::function<void(Worker&)>;

  /// `on_exit` is called once for each worker that ends, in order.
  WorkerGroup(EventLoop& loop, ExitFn on_exit);
  ~WorkerGroup();
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  /// Starts all ranks. After an error some may run: the caller ends them.
  /// @thread main thread only, see spawn_worker
  Result<void> start(const JobPlan& plan, const AttemptInfo& info, const LogPump& logs);

  /// Sends a signal to the process groups of the workers that still run, and wakes stopped ones.
  void signal_all(int signal);
  /// Passes a signal on to the same groups without telling them to stop.
  void notify_all(int signal);

  /// Takes note of the workers that have ended.
  void drain_exits();
  /// The same for a child that was reaped elsewhere; other pids are ignored.
  void note_reaped(pid_t pid, int wait_status);

  [[nodiscard]] bool all_ended() const;
  [[nodiscard]] const std::vector<Worker>& workers() const noexcept { return workers_; }

 private:
  void note_exit(Worker& worker, int wait_status);

  EventLoop& loop_;
  ExitFn on_exit_;
  UniqueFd exits_;  ///< epoll set of the pidfds: its ready list keeps their order
  std::vector<Worker> workers_;
};

}  // namespace muster
