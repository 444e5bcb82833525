#include "launcher/drill/run_process.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string_view>

#include "core/base/text.h"
#include "launcher/agent/event_loop.h"
#include "launcher/agent/proc_file.h"
#include "launcher/agent/process_tree.h"
#include "launcher/agent/spawn.h"
#include "launcher/agent/unique_fd.h"

namespace muster {
namespace {
// The launcher itself gives workers 30 s when it is told to stop; this must be longer.
constexpr Duration kGrace = 40s;

// SIGINT and SIGTERM as a descriptor while it lives.
class SignalWatch {
 public:
  SignalWatch() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &signals, &before_);
    fd_.reset(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~SignalWatch() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

  // The number of the signal that came; 0 when none did.
  [[nodiscard]] int take() const {
    signalfd_siginfo info{};
    if (::read(fd_.get(), &info, sizeof(info)) != sizeof(info)) return 0;
    return static_cast<int>(info.ssi_signo);
  }

 private:
  sigset_t before_{};
  UniqueFd fd_;
};

Result<pid_t> start(const ProcessRequest& request) {
  const UniqueFd input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const UniqueFd output(
      ::open(request.output_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!input.is_open() || !output.is_open()) {
    return make_error(ErrorCode::kIo, "drill: {}: {}", request.output_path, errno_text(errno));
  }
  return spawn_worker({.path = request.command.front(),
                       .argv = request.command,
                       .environment = request.environment,
                       .stdin_fd = input.get(),
                       .stdout_fd = output.get(),
                       .stderr_fd = output.get()});
}

void drain(int fd) {
  std::array<char, 4096> buffer;
  while (::read(fd, buffer.data(), buffer.size()) > 0) {
  }
}

int status_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

bool carries(pid_t pid, const std::string& entry) {
  const std::string path = "/proc/" + std::to_string(pid) + "/environ";
  const std::string environment = '\0' + read_kernel_file(path.c_str());
  return environment.find('\0' + entry + '\0') != std::string::npos;
}
}  // namespace

Result<ProcessOutcome> run_process(const ProcessRequest& request) {
  std::optional<EventLoop> own_loop;
  EventLoop& loop = request.loop != nullptr ? *request.loop : own_loop.emplace();
  const SignalWatch signals;
  UniqueFd changes(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!request.watched_directory.empty()) {
    ::inotify_add_watch(changes.get(), request.watched_directory.c_str(),
                        IN_MODIFY | IN_CREATE | IN_MOVED_TO);
  }
  const pid_t pid = MUSTER_TRY(start(request));
  const UniqueFd exited(open_pidfd(pid));

  ProcessOutcome outcome;
  bool is_running = true;
  Deadline next_step = Deadline::after(request.limit);
  const auto end_soon = [&] {
    ::kill(pid, SIGTERM);
    next_step = Deadline::after(kGrace);
  };
  loop.add(exited.get(), EPOLLIN, [&](uint32_t) { is_running = false; });
  loop.add(signals.fd(), EPOLLIN, [&](uint32_t) {
    const int signal = signals.take();
    if (signal == 0 || outcome.interrupted_by != 0) return;
    outcome.interrupted_by = signal;
    end_soon();
  });
  loop.add(changes.get(), EPOLLIN, [&](uint32_t) {
    drain(changes.get());
    if (request.on_change) request.on_change();
  });

  bool told_to_end = false;
  while (is_running) {
    loop.run_once(next_step.at());
    told_to_end = told_to_end || outcome.interrupted_by != 0;
    if (!is_running || !next_step.passed()) continue;
    if (told_to_end) {
      ::kill(pid, SIGKILL);
      next_step = Deadline::after(kGrace);
    } else {
      outcome.timed_out = true;
      told_to_end = true;
      end_soon();
    }
  }
  for (const int fd : {exited.get(), signals.fd(), changes.get()}) loop.remove(fd);
  int wait_status = 0;
  while (::waitpid(pid, &wait_status, 0) < 0 && errno == EINTR) {
  }
  outcome.exit_status = status_of(wait_status);
  if (request.on_change) request.on_change();
  return outcome;
}

std::vector<std::string> environment_with(const std::vector<std::string>& changes) {
  const auto name_of = [](std::string_view entry) { return entry.substr(0, entry.find('=')); };
  std::vector<std::string> environment;
  for (char** entry = ::environ; *entry != nullptr; ++entry) {
    const bool is_changed = std::any_of(changes.begin(), changes.end(), [&](const auto& change) {
      return name_of(change) == name_of(*entry);
    });
    if (!is_changed) environment.emplace_back(*entry);
  }
  for (const std::string& change : changes) {
    if (change.find('=') != std::string::npos) environment.push_back(change);
  }
  return environment;
}

std::vector<pid_t> processes_with(const std::string& entry) {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const auto& folder : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = folder.path().filename();
    pid_t pid = 0;
    const auto [rest, status] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (status != std::errc() || rest != name.data() + name.size() || pid == ::getpid()) continue;
    if (carries(pid, entry)) found.push_back(pid);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string describe_process(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/comm";
  const std::string name = read_kernel_file(path.c_str());
  return fmt::format("pid {} {}", pid, trim(name));
}

void kill_processes(const std::vector<pid_t>& pids, const std::string& entry) {
  for (const pid_t pid : pids) {
    const UniqueFd pidfd(open_pidfd(pid));
    if (!pidfd.is_open() || !carries(pid, entry)) continue;
    ::syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
  }
}
}  // namespace muster
