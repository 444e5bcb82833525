#include "launcher/agent/worker_group.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

#include "launcher/agent/process_tree.h"
#include "launcher/agent/spawn.h"

namespace muster {

WorkerGroup::WorkerGroup(EventLoop& loop, ExitFn on_exit)
    : loop_(loop), on_exit_(std::move(on_exit)), exits_(::epoll_create1(EPOLL_CLOEXEC)) {
  MUSTER_CHECK(exits_.is_open(), ErrorCode::kIo, "worker group: epoll_create1: {}",
               errno_text(errno));
  loop_.add(exits_.get(), EPOLLIN, [this](uint32_t) { drain_exits(); });
}

WorkerGroup::~WorkerGroup() { loop_.remove(exits_.get()); }

Result<void> WorkerGroup::start(const JobPlan& plan, const AttemptInfo& info, const LogPump& logs) {
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  workers_.reserve(static_cast<size_t>(plan.spec.local_world_size));
  for (int rank = 0; rank < plan.spec.local_world_size; ++rank) {
    const pid_t pid = MUSTER_TRY(spawn_worker({
        .path = plan.program,
        .argv = worker_command(plan.spec, rank),
        .environment = worker_environment(plan, info, rank),
        .stdin_fd = null.get(),
        .stdout_fd = logs.worker_fd(rank, 0),
        .stderr_fd = logs.worker_fd(rank, 1),
    }));
    Worker& worker = workers_.emplace_back();
    worker.local_rank = rank;
    worker.pid = pid;
    worker.pidfd.reset(open_pidfd(pid));
    if (!worker.pidfd.is_open()) {
      return make_error(ErrorCode::kIo, "watch pid {} of local rank {}: no pidfd", pid, rank);
    }
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = static_cast<uint32_t>(rank);
    ::epoll_ctl(exits_.get(), EPOLL_CTL_ADD, worker.pidfd.get(), &event);
  }
  return {};
}

void WorkerGroup::signal_all(int signal) {
  for (Worker& worker : workers_) {
    if (worker.exit) continue;
    // Not reaped yet, so neither its number nor that of its group can have passed to a stranger.
    ::kill(-worker.pid, signal);
    worker.told = signal;
    if (signal != SIGKILL) ::kill(-worker.pid, SIGCONT);
  }
}

void WorkerGroup::notify_all(int signal) {
  for (const Worker& worker : workers_) {
    if (!worker.exit) ::kill(-worker.pid, signal);
  }
}

void WorkerGroup::drain_exits() {
  std::array<epoll_event, 64> events;
  int n = 0;
  do {
    n = ::epoll_wait(exits_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < n; ++i) {
      Worker& worker = workers_[events[static_cast<size_t>(i)].data.u32];
      int status = 0;
      if (::waitpid(worker.pid, &status, WNOHANG) == worker.pid) note_exit(worker, status);
    }
  } while (n == static_cast<int>(events.size()));
}

void WorkerGroup::note_reaped(pid_t pid, int wait_status) {
  const auto found = std::find_if(workers_.begin(), workers_.end(), [pid](const Worker& worker) {
    return worker.pid == pid && !worker.exit;
  });
  if (found != workers_.end()) note_exit(*found, wait_status);
}

void WorkerGroup::note_exit(Worker& worker, int wait_status) {
  ::epoll_ctl(exits_.get(), EPOLL_CTL_DEL, worker.pidfd.get(), nullptr);
  worker.pidfd.reset();
  worker.exit = WorkerExit::from_wait_status(wait_status);
  worker.ended_at = real_clock().now();
  on_exit_(worker);
}

bool WorkerGroup::all_ended() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const Worker& worker) { return worker.exit.has_value(); });
}

}  // namespace muster
