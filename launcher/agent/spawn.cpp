#include "launcher/agent/spawn.h"

#include <linux/close_range.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "core/base/text.h"

namespace muster {
namespace {

constexpr size_t kChildStackNbytes = size_t{64} << 10;

// Shared with the child, which runs in the parent's memory until it has called exec.
struct ChildPlan {
  const char* path;
  char* const* argv;
  char* const* environment;
  int fds[3];
  pid_t parent;
  int error;  // errno of what failed, written by the child
};

// Runs in the child on its own stack but in the parent's memory: system calls only, no allocation.
int child_main(void* argument) {
  auto* plan = static_cast<ChildPlan*>(argument);
  ::setsid();
  // If the parent died before the request was made no signal will come: then the parent differs.
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != plan->parent) ::_exit(127);
  // By the system call: the library refuses to touch the two signals that it keeps to itself, which
  // may have been inherited as ignored too. All zero is the default action, in any layout.
  static constexpr unsigned long kDefaultAction[8] = {};
  for (int number = 1; number < NSIG; ++number) {
    ::syscall(SYS_rt_sigaction, number, kDefaultAction, nullptr, sizeof(unsigned long));
  }
  for (int fd = 0; fd < 3; ++fd) {
    if (::dup2(plan->fds[fd], fd) < 0) {
      plan->error = errno;
      ::_exit(127);
    }
  }
  ::close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(plan->path, plan->argv, plan->environment);
  plan->error = errno;
  ::_exit(127);
}

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

ErrorCode code_of(int error_number) {
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
      return ErrorCode::kNotFound;
    case ENOMEM:
    case EAGAIN:
      return ErrorCode::kOutOfMemory;
    case EIO:
    case EMFILE:
    case ENFILE:
      return ErrorCode::kIo;
    default:
      return ErrorCode::kInvalidArgument;
  }
}

// One mapping for the life of the process: children use it one after the other.
char* child_stack() {
  static char* const stack = [] {
    void* mapped = ::mmap(nullptr, kChildStackNbytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    return mapped == MAP_FAILED ? nullptr : static_cast<char*>(mapped);
  }();
  return stack;
}

}  // namespace

Result<pid_t> spawn_worker(const SpawnRequest& request) {
  const std::vector<char*> argv = pointers_to(request.argv);
  const std::vector<char*> environment = pointers_to(request.environment);
  ChildPlan plan{.path = request.path.c_str(),
                 .argv = argv.data(),
                 .environment = environment.data(),
                 .fds = {request.stdin_fd, request.stdout_fd, request.stderr_fd},
                 .parent = ::getpid(),
                 .error = 0};
  char* const stack = child_stack();
  if (stack == nullptr) {
    return make_error(ErrorCode::kOutOfMemory, "spawn {}: no memory for a stack", request.path);
  }
  // A handler of ours must not run in the child, in our memory.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid =
      ::clone(child_main, stack + kChildStackNbytes, CLONE_VM | CLONE_VFORK | SIGCHLD, &plan);
  const int clone_error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) {
    return make_error(code_of(clone_error), "spawn {}: {}", request.path, errno_text(clone_error));
  }
  if (plan.error != 0) {
    return make_error(code_of(plan.error), "spawn {}: {}", request.path, errno_text(plan.error));
  }
  return pid;
}

Result<std::string> resolve_program(const std::string& program) {
  std::vector<std::string> candidates;
  if (program.find('/') != std::string::npos) {
    candidates.push_back(program);
  } else {
    const char* path = std::getenv("PATH");
    for (const std::string& folder : split(path == nullptr ? "/bin:/usr/bin" : path, ':')) {
      candidates.push_back((folder.empty() ? "." : folder) + '/' + program);
    }
  }
  std::string unusable;
  for (const std::string& candidate : candidates) {
    struct stat info {};
    if (::stat(candidate.c_str(), &info) != 0) continue;
    if (S_ISREG(info.st_mode) && ::access(candidate.c_str(), X_OK) == 0) return candidate;
    if (unusable.empty()) unusable = candidate;
  }
  if (!unusable.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "run {}: the program must be an executable file; {} is not", program,
                      unusable);
  }
  return make_error(ErrorCode::kNotFound, "run {}: no such program{}", program,
                    program.find('/') != std::string::npos ? "" : " on PATH");
}

}  // namespace muster
