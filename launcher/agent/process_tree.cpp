#include "launcher/agent/process_tree.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <string>

#include "core/base/text.h"
#include "launcher/agent/proc_file.h"
#include "launcher/agent/unique_fd.h"

namespace muster {
namespace {

// How long a sweep waits for the next child to end before it looks again: only a lost SIGCHLD or a
// process that forked during the snapshot needs the second look.
constexpr timespec kNextLook{.tv_sec = 0, .tv_nsec = 2'000'000};

// Calls `visit` for each entry of a /proc folder that is a number.
template <typename Visit>
void for_each_number(const char* directory, Visit&& visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(directory), ::closedir);
  if (dir == nullptr) return;
  while (const dirent* entry = ::readdir(dir.get())) {
    pid_t number = 0;
    const char* end = entry->d_name + std::strlen(entry->d_name);
    const auto [rest, error] = std::from_chars(entry->d_name, end, number);
    if (error == std::errc() && rest == end) visit(number);
  }
}

void append_numbers(std::string_view text, std::vector<pid_t>& numbers) {
  const char* at = text.data();
  const char* end = at + text.size();
  while (at < end) {
    pid_t number = 0;
    const auto [rest, error] = std::from_chars(at, end, number);
    if (error == std::errc()) numbers.push_back(number);
    at = error == std::errc() ? rest + 1 : at + 1;
  }
}

// The parent of a process, 0 when it is gone. The name in field 2 may hold blanks and brackets.
pid_t parent_of(pid_t pid) {
  std::array<char, 32> path;
  std::snprintf(path.data(), path.size(), "/proc/%d/stat", pid);
  const std::string stat = read_kernel_file(path.data());
  const size_t name_end = stat.rfind(") ");
  if (name_end == std::string::npos || name_end + 4 > stat.size()) return 0;
  std::vector<pid_t> fields;
  append_numbers(std::string_view(stat).substr(name_end + 4), fields);
  return fields.empty() ? 0 : fields.front();
}

bool kernel_lists_children() {
  static const bool listed = [] {
    std::array<char, 64> path;
    std::snprintf(path.data(), path.size(), "/proc/self/task/%d/children", ::getpid());
    return ::access(path.data(), R_OK) == 0;
  }();
  return listed;
}

int send_signal_by_pidfd(int pidfd, int signal) {
  return static_cast<int>(::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0));
}

// Kills a descendant found in a snapshot. Its number may have passed to a stranger since; the
// descriptor pins the process, and its parent must still be one of ours.
void kill_if_ours(pid_t pid, pid_t self, const std::vector<pid_t>& ours) {
  const UniqueFd pidfd(open_pidfd(pid));
  if (!pidfd.is_open()) return;
  const pid_t parent = parent_of(pid);
  if (parent != self && std::find(ours.begin(), ours.end(), parent) == ours.end()) return;
  send_signal_by_pidfd(pidfd.get(), SIGKILL);
}

}  // namespace

int open_pidfd(pid_t pid) noexcept {
  const long fd = ::syscall(SYS_pidfd_open, pid, 0);
  return fd < 0 ? -errno : static_cast<int>(fd);
}

std::vector<pid_t> internal::descendants_by_children_lists(pid_t root) {
  std::vector<pid_t> found{root};
  for (size_t i = 0; i < found.size(); ++i) {
    std::array<char, 64> tasks;
    std::snprintf(tasks.data(), tasks.size(), "/proc/%d/task", found[i]);
    for_each_number(tasks.data(), [&](pid_t task) {
      std::array<char, 96> path;
      std::snprintf(path.data(), path.size(), "%s/%d/children", tasks.data(), task);
      append_numbers(read_kernel_file(path.data()), found);
    });
  }
  found.erase(found.begin());
  return found;
}

std::vector<pid_t> internal::descendants_by_scan(pid_t root) {
  std::multimap<pid_t, pid_t> by_parent;
  for_each_number("/proc", [&](pid_t pid) { by_parent.emplace(parent_of(pid), pid); });
  std::vector<pid_t> found{root};
  for (size_t i = 0; i < found.size(); ++i) {
    const auto [first, last] = by_parent.equal_range(found[i]);
    for (auto it = first; it != last; ++it) found.push_back(it->second);
  }
  found.erase(found.begin());
  return found;
}

std::vector<pid_t> descendants_of(pid_t root) {
  return kernel_lists_children() ? internal::descendants_by_children_lists(root)
                                 : internal::descendants_by_scan(root);
}

void reap_ended_children(const ReapedFn& on_reaped) {
  int status = 0;
  pid_t pid = 0;
  while ((pid = ::waitpid(-1, &status, WNOHANG)) > 0) {
    if (on_reaped) on_reaped(pid, status);
  }
}

Result<int> kill_descendants(Deadline deadline, const ReapedFn& on_reaped) {
  sigset_t child_signal;
  sigemptyset(&child_signal);
  sigaddset(&child_signal, SIGCHLD);
  const pid_t self = ::getpid();
  int reaped = 0;
  while (true) {
    int status = 0;
    pid_t pid = 0;
    while ((pid = ::waitpid(-1, &status, WNOHANG)) > 0) {
      ++reaped;
      if (on_reaped) on_reaped(pid, status);
    }
    if (pid < 0 && errno == ECHILD) return reaped;
    const std::vector<pid_t> left = descendants_of(self);
    // Children first: should this process be killed half-way, a supervisor below it is either still
    // there to go on, or has nothing left below itself.
    for (auto it = left.rbegin(); it != left.rend(); ++it) kill_if_ours(*it, self, left);
    if (deadline.passed()) {
      std::vector<std::string> names;
      for (const pid_t descendant : left) names.push_back(std::to_string(descendant));
      return make_error(ErrorCode::kTimeout,
                        "kill_descendants: every process of the job must end on SIGKILL; still "
                        "there: {}",
                        join(names));
    }
    sigtimedwait(&child_signal, nullptr, &kNextLook);
  }
}

int kill_by_token_id(std::string_view token_id) {
  const std::string entry = '\0' + ("MUSTER_JOB_TOKEN_ID=" + std::string(token_id)) + '\0';
  const pid_t self = ::getpid();
  int killed = 0;
  for_each_number("/proc", [&](pid_t pid) {
    if (pid == self) return;
    std::array<char, 32> path;
    std::snprintf(path.data(), path.size(), "/proc/%d", pid);
    struct stat info {};
    if (::stat(path.data(), &info) != 0 || info.st_uid != ::geteuid()) return;
    const UniqueFd pidfd(open_pidfd(pid));
    if (!pidfd.is_open()) return;
    std::snprintf(path.data(), path.size(), "/proc/%d/environ", pid);
    const std::string environment = '\0' + read_kernel_file(path.data());
    if (environment.find(entry) == std::string::npos) return;
    if (send_signal_by_pidfd(pidfd.get(), SIGKILL) == 0) ++killed;
  });
  return killed;
}

}  // namespace muster
