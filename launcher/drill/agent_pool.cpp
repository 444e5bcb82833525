#include "launcher/drill/agent_pool.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <nlohmann/json.hpp>

#include "core/base/file_system.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/base/time.h"
#include "launcher/agent/process_tree.h"
#include "launcher/agent/spawn.h"

namespace muster {
namespace {
constexpr Duration kEndLimit = 30s;

// The first event of this name; null while it is not there.
nlohmann::json find_event(const std::string& events, std::string_view name) {
  for (const std::string& line : split(events, '\n')) {
    nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.value("event", "") == name) return json;
  }
  return nullptr;
}

// A job that ends because a worker was killed has the same status, but its agent says so.
bool has_told_the_end(const std::string& events_path) {
  return !find_event(read_text(real_file_system(), events_path).value_or(""), "job_end").is_null();
}
}  // namespace

AgentPool::AgentPool(AgentPoolOptions options) : options_(std::move(options)) {}

AgentPool::~AgentPool() {
  for (const Agent& agent : agents_) {
    ::kill(agent.pid, SIGKILL);  // its own supervisors end what is below it
    ::waitpid(agent.pid, nullptr, 0);
  }
}

Result<void> AgentPool::attach(EventLoop& loop) {
  loop_ = &loop;
  // The file must be there to be watched; the agent appends to it.
  const UniqueFd made(
      ::open(options_.events_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  events_from_ = read_text(real_file_system(), options_.events_path).value_or("").size();
  changes_.reset(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!made.is_open() ||
      ::inotify_add_watch(changes_.get(), options_.events_path.c_str(), IN_MODIFY) < 0) {
    return make_error(ErrorCode::kIo, "drill: {}: {}", options_.events_path, errno_text(errno));
  }
  loop.add(changes_.get(), EPOLLIN, [this](uint32_t) { on_events(); });
  return {};
}

void AgentPool::on_events() {
  std::array<char, 4096> buffer;
  while (::read(changes_.get(), buffer.data(), buffer.size()) > 0) {
  }
  if (!port_.empty()) return;
  const std::string events = read_text(real_file_system(), options_.events_path).value_or("");
  const nlohmann::json place =
      find_event(events.substr(std::min(events_from_, events.size())), "rendezvous");
  if (place.is_null()) return;
  port_ = std::to_string(place.value("port", 0));
  for (int64_t i = 0; i < options_.count; ++i) start_one();
}

void AgentPool::start_one() {
  const std::string base = fmt::format("{}.agent{}", options_.output_base, ++facts_.started);
  const UniqueFd input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const UniqueFd output(
      ::open((base + ".log").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  std::vector<std::string> command = options_.command;
  for (std::string& word : command) {
    const size_t at = word.find("{port}");
    if (at != std::string::npos) word.replace(at, 6, port_);
  }
  std::vector<std::string> environment = options_.environment;
  const std::string events_path = base + "_events.jsonl";
  environment.push_back("MUSTER_EVENTS=" + events_path);
  const Result<pid_t> pid = spawn_worker({.path = command.front(),
                                          .argv = command,
                                          .environment = environment,
                                          .stdin_fd = input.get(),
                                          .stdout_fd = output.get(),
                                          .stderr_fd = output.get()});
  if (!pid.ok()) {
    MUSTER_LOG(kError, "{}", pid.error().what());
    facts_.other_failures.push_back(exit_status(pid.error().code()));
    return;
  }
  Agent& agent = agents_.emplace_back();
  agent.pid = *pid;
  agent.events_path = events_path;
  agent.pidfd.reset(open_pidfd(*pid));
  if (loop_ != nullptr) loop_->add(agent.pidfd.get(), EPOLLIN, [this](uint32_t) { take_ends(); });
}

void AgentPool::take_ends() {
  int64_t to_replace = 0;
  for (auto agent = agents_.begin(); agent != agents_.end();) {
    int status = 0;
    if (::waitpid(agent->pid, &status, WNOHANG) != agent->pid) {
      ++agent;
      continue;
    }
    if (loop_ != nullptr) loop_->remove(agent->pidfd.get());
    const int exit = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    const bool is_killed = exit == 128 + SIGKILL && !has_told_the_end(agent->events_path);
    agent = agents_.erase(agent);
    if (is_killed) {
      ++facts_.killed;
      if (options_.replaces && !is_over_) ++to_replace;
    } else if (exit != 0) {
      facts_.other_failures.push_back(exit);
    }
  }
  for (; to_replace > 0; --to_replace) start_one();
}

AgentPoolFacts AgentPool::finish() {
  is_over_ = true;
  if (loop_ != nullptr) {
    loop_->remove(changes_.get());
    for (const Agent& agent : agents_) loop_->remove(agent.pidfd.get());
    loop_ = nullptr;
  }
  const Deadline deadline = Deadline::after(kEndLimit);
  take_ends();
  while (!agents_.empty() && !deadline.passed()) {
    pollfd ended{.fd = agents_.front().pidfd.get(), .events = POLLIN, .revents = 0};
    ::poll(&ended, 1, deadline.poll_ms());
    take_ends();
  }
  for (size_t i = 0; i < agents_.size(); ++i) facts_.other_failures.push_back(128 + SIGKILL);
  return facts_;
}

}  // namespace muster
