#include "tests/launcher/agent/run_muster.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>

#include "core/base/text.h"
#include "launcher/agent/job_plan.h"
#include "launcher/agent/proc_file.h"
#include "launcher/agent/process_tree.h"
#include "launcher/agent/random_id.h"
#include "launcher/agent/unique_fd.h"

extern char** environ;

namespace muster::testing {
namespace stdfs = std::filesystem;

namespace {
constexpr std::string_view kMarkName = "MUSTER_TEST_MARK=";

// Reads what is there; false at the end of the stream.
bool read_available(int fd, std::string& into) {
  std::array<char, 65536> buffer;
  while (true) {
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n > 0) {
      into.append(buffer.data(), static_cast<size_t>(n));
    } else {
      return n < 0 && errno == EAGAIN;
    }
  }
}

int count_of(std::string_view text, std::string_view part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}
}  // namespace

std::string binary_directory() {
  return stdfs::read_symlink("/proc/self/exe").parent_path().string();
}

std::vector<std::string> child_worker(const std::string& name) {
  return {"--", "/usr/bin/env", "MUSTER_TEST_CHILD=" + name,
          stdfs::read_symlink("/proc/self/exe").string()};
}

std::string source_directory() { return MUSTER_SOURCE_DIR; }

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<pid_t> marked_processes(std::string_view mark) {
  const std::string entry = '\0' + std::string(kMarkName) + std::string(mark) + '\0';
  std::vector<pid_t> found;
  for (const auto& item : stdfs::directory_iterator("/proc")) {
    const std::string name = item.path().filename().string();
    if (!std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      continue;
    }
    const std::string path = "/proc/" + name + "/environ";
    const std::string environment = '\0' + read_kernel_file(path.c_str());
    if (environment.find(entry) != std::string::npos) found.push_back(std::stoi(name));
  }
  return found;
}

bool await_ends(const std::vector<pid_t>& pids, Deadline deadline) {
  std::vector<UniqueFd> pidfds;
  for (const pid_t pid : pids) {
    UniqueFd pidfd(open_pidfd(pid));
    if (pidfd.is_open()) pidfds.push_back(std::move(pidfd));
  }
  return std::all_of(pidfds.begin(), pidfds.end(), [&](const UniqueFd& pidfd) {
    pollfd ended{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
    return ::poll(&ended, 1, deadline.poll_ms()) == 1;
  });
}

Duration patient(Duration limit) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  limit *= 5;
#endif
  const std::vector<std::string> fields = split(read_kernel_file("/proc/loadavg"), ' ');
  if (fields.size() < 4) return limit;
  const int waiting = std::max(std::atoi(fields[0].c_str()), std::atoi(fields[3].c_str()));
  const int turns = waiting / allowed_cores();
  return turns <= 1 ? limit : 2 * limit * turns;
}

MusterProcess::MusterProcess(Options options) : mark_(random_hex(8)) {
  const std::string events = directory_.file("events");
  ::mkfifo(events.c_str(), 0600);
  event_fd_ = ::open(events.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!options.environment.contains(text.substr(0, text.find('=')))) environment.push_back(text);
  }
  options.environment.try_emplace("MUSTER_EVENTS", events);
  for (const auto& [name, value] : options.environment) environment.push_back(name + '=' + value);
  environment.push_back(std::string(kMarkName) + mark_);
  std::vector<std::string> argv = {options.binary.empty() ? binary_directory() + "/muster"
                                                          : options.binary};
  argv = std::move(argv) + options.args;

  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> result;
    for (std::string& text : texts) result.push_back(text.data());
    result.push_back(nullptr);
    return result;
  };
  std::array<int, 2> out{};
  std::array<int, 2> err{};
  if (::pipe2(out.data(), O_CLOEXEC) != 0 || ::pipe2(err.data(), O_CLOEXEC) != 0) return;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
  if (!options.directory.empty()) {
    posix_spawn_file_actions_addchdir_np(&actions, options.directory.c_str());
  }
  ::posix_spawn(&pid_, argv[0].c_str(), &actions, nullptr, pointers(argv).data(),
                pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(out[1]);
  ::close(err[1]);
  out_fd_ = out[0];
  err_fd_ = err[0];
  ::fcntl(out_fd_, F_SETFL, O_NONBLOCK);
  ::fcntl(err_fd_, F_SETFL, O_NONBLOCK);
  pidfd_ = open_pidfd(pid_);
}

MusterProcess::~MusterProcess() {
  for (const pid_t left : marked_processes(mark_)) ::kill(left, SIGKILL);
  if (status_ < 0 && pid_ > 0) ::waitpid(pid_, nullptr, 0);
  for (const int fd : {pidfd_, out_fd_, err_fd_, event_fd_}) {
    if (fd >= 0) ::close(fd);
  }
}

void MusterProcess::signal(int number) const { ::kill(pid_, number); }

void MusterProcess::read_events() {
  read_available(event_fd_, event_text_);
  for (size_t end = event_text_.find('\n'); end != std::string::npos;
       end = event_text_.find('\n')) {
    events_.push_back(nlohmann::json::parse(event_text_.substr(0, end)));
    event_text_.erase(0, end + 1);
  }
}

// Waits for something to happen and takes it in.
void MusterProcess::pump(Deadline deadline) {
  std::array<pollfd, 4> fds = {{{.fd = out_fd_, .events = POLLIN, .revents = 0},
                                {.fd = err_fd_, .events = POLLIN, .revents = 0},
                                {.fd = event_fd_, .events = POLLIN, .revents = 0},
                                {.fd = status_ < 0 ? pidfd_ : -1, .events = POLLIN, .revents = 0}}};
  ::poll(fds.data(), fds.size(), deadline.poll_ms());
  for (int* fd : {&out_fd_, &err_fd_}) {
    if (*fd >= 0 && !read_available(*fd, fd == &out_fd_ ? out_ : err_)) {
      ::close(*fd);
      *fd = -1;
    }
  }
  read_events();
  int wait_status = 0;
  if (status_ < 0 && ::waitpid(pid_, &wait_status, WNOHANG) == pid_) {
    status_ = WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
  }
}

bool MusterProcess::await_output(std::string_view text, int count, Duration limit) {
  const Deadline deadline = Deadline::after(limit);
  while (count_of(out_, text) + count_of(err_, text) < count) {
    if (deadline.passed() || (out_fd_ < 0 && err_fd_ < 0)) return false;
    pump(deadline);
  }
  return true;
}

nlohmann::json MusterProcess::await_event(std::string_view name, Duration limit) {
  const Deadline deadline = Deadline::after(limit);
  while (true) {
    read_events();
    while (next_event_ < events_.size()) {
      const nlohmann::json& event = events_[next_event_++];
      if (event["event"] == name) return event;
    }
    if (deadline.passed() || status_ >= 0) return nullptr;
    pump(deadline);
  }
}

Outcome MusterProcess::wait(Duration limit) {
  const Deadline deadline = Deadline::after(limit);
  while (!deadline.passed() && (status_ < 0 || out_fd_ >= 0 || err_fd_ >= 0)) pump(deadline);
  read_events();
  return {.status = status_, .out = out_, .err = err_};
}

Outcome run_muster(const std::vector<std::string>& args,
                   const std::map<std::string, std::string>& environment) {
  return MusterProcess({.args = args, .environment = environment, .directory = ""}).wait();
}

}  // namespace muster::testing
