#include "launcher/agent/supervise.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <optional>

#include "core/base/log.h"
#include "launcher/agent/process_tree.h"
#include "launcher/agent/unique_fd.h"
#include "launcher/rendezvous/worker_exit.h"

namespace muster {
namespace {
constexpr Duration kSweepLimit = 40s;  // above the agent's own, so that it can report first
constexpr Duration kAskPatience = 3s;

class Supervisor {
 public:
  explicit Supervisor(const SuperviseOptions& options)
      : options_(options), signals_(::signalfd(-1, &options.signals, SFD_CLOEXEC | SFD_NONBLOCK)) {}

  int run() {
    while (!child_status_) {
      // A descriptor of -1 is ignored by poll(2).
      std::array<pollfd, 2> fds = {{{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                                    {.fd = options_.parent_pidfd, .events = POLLIN, .revents = 0}}};
      ::poll(fds.data(), fds.size(), patience_.poll_ms());
      if (fds[1].revents != 0) {
        return sweep(fmt::format("the {} has died", options_.parent_name));
      }
      take_signals();
      if (!child_status_ && patience_.passed()) {
        return sweep(fmt::format("the {} did not answer the second SIGINT", options_.child_name));
      }
    }
    if (WIFSIGNALED(*child_status_)) {
      return sweep(fmt::format("the {} was killed by {}", options_.child_name,
                               signal_name(WTERMSIG(*child_status_))));
    }
    return sweep("");
  }

 private:
  void take_signals() {
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
      const auto signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGCHLD) {
        reap();
      } else if (!child_status_) {
        ::kill(options_.child, signal);
        if (signal == SIGINT && ++interrupts_ > 1 && options_.is_impatient) {
          patience_ = Deadline::after(kAskPatience);
        }
      }
    }
  }

  void reap() {
    reap_ended_children([this](pid_t pid, int status) {
      if (pid == options_.child) child_status_ = status;
    });
  }

  // Ends all that is left. With a `why` the tree was torn, so that processes may have left it.
  int sweep(const std::string& why) {
    const Result<int> swept =
        kill_descendants(Deadline::after(kSweepLimit), [this](pid_t pid, int status) {
          if (pid == options_.child) child_status_ = status;
        });
    int strays = 0;
    if (!why.empty()) {
      strays = kill_by_token_id(options_.token_id);
      MUSTER_LOG(kError, "{}; killed the job: {} processes", why, swept.value_or(0) + strays);
    }
    if (!swept.ok()) MUSTER_LOG(kError, "{}", swept.error().what());
    const WorkerExit exit = WorkerExit::from_wait_status(child_status_.value_or(SIGKILL));
    return exit.signal != 0 ? 128 + exit.signal : exit.status;
  }

  const SuperviseOptions& options_;
  UniqueFd signals_;
  std::optional<int> child_status_;
  Deadline patience_ = Deadline::never();
  int interrupts_ = 0;
};
}  // namespace

sigset_t supervised_signals(const std::vector<int>& stop_signals) {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : {SIGCHLD, SIGUSR1, SIGUSR2}) sigaddset(&mask, signal);
  for (const int signal : stop_signals) sigaddset(&mask, signal);
  return mask;
}

int supervise(const SuperviseOptions& options) { return Supervisor(options).run(); }

}  // namespace muster
