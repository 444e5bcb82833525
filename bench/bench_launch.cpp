// How fast `muster run` starts workers and starts them again after one was killed.
//
// The worker is this binary: first thing in main it sends its rank, attempt and pid to a socket of
// the bench. Figures: launch_ms, from starting `muster` to the first worker's main and to the last;
// restart_ms, from SIGKILL of one of four workers to all four back in main. With --agents two
// agents with two workers each, on loopback: restart_ms as before, the victims on both of them in
// turn, and join_ms, from starting an agent to all workers of the larger job in main. One JSON line
// at the end. Its command line is read by hand: what the worker links counts in the figures.
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/file_system.h"
#include "core/base/time.h"
#include "launcher/agent/unique_fd.h"

extern char** environ;

namespace muster {
namespace {

constexpr int kWorkers = 4;
constexpr Duration kPatience = 20s;

struct Hello {
  int rank = 0;
  int attempt = 0;
  pid_t pid = 0;
  int64_t at_ns = 0;
};

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  return address;
}

int64_t now_ns() { return real_clock().now().time_since_epoch().count(); }

int run_worker(const char* socket_path, bool stays) {
  Hello hello;
  hello.at_ns = now_ns();
  hello.rank = std::atoi(std::getenv("RANK"));
  hello.attempt = std::atoi(std::getenv("MUSTER_ATTEMPT"));
  hello.pid = ::getpid();
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = address_of(socket_path);
  if (::sendto(fd.get(), &hello, sizeof(hello), 0, reinterpret_cast<const sockaddr*>(&address),
               sizeof(address)) < 0) {
    return 74;
  }
  while (stays) ::pause();
  return 0;
}

class Listener {
 public:
  explicit Listener(const std::string& path)
      : fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_un address = address_of(path);
    MUSTER_CHECK(
        ::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0,
        ErrorCode::kIo, "bench: bind {}: {}", path, errno_text(errno));
  }

  Hello next() {
    pollfd ready{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    const int n = ::poll(&ready, 1, Deadline::after(kPatience).poll_ms());
    MUSTER_CHECK(n == 1, ErrorCode::kTimeout, "bench: a worker must report within {}",
                 format_duration(kPatience));
    Hello hello;
    MUSTER_CHECK(::recv(fd_.get(), &hello, sizeof(hello), 0) == sizeof(hello), ErrorCode::kIo,
                 "bench: recv: {}", errno_text(errno));
    return hello;
  }

 private:
  UniqueFd fd_;
};

pid_t start_muster(const std::vector<std::string>& options, const std::string& socket_path,
                   bool stays) {
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<std::string> argv = {(self.parent_path() / "muster").string(), "run"};
  argv.insert(argv.end(), options.begin(), options.end());
  for (const std::string word :
       {"--", self.c_str(), "--worker", socket_path.c_str(), stays ? "stays" : "leaves"}) {
    argv.push_back(word);
  }
  std::vector<char*> pointers;
  for (std::string& word : argv) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t pid = 0;
  const int error =
      ::posix_spawn(&pid, argv[0].c_str(), &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  MUSTER_CHECK(error == 0, ErrorCode::kNotFound, "bench: {}: {}", argv[0], errno_text(error));
  return pid;
}

struct Percentiles {
  double p50 = 0;
  double p99 = 0;
};

Percentiles percentiles(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double q) {
    return values[std::min(values.size() - 1,
                           static_cast<size_t>(q * static_cast<double>(values.size())))];
  };
  return {at(0.5), at(0.99)};
}

double to_ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }

struct Launches {
  std::vector<double> first;
  std::vector<double> last;
  std::vector<double> whole;  ///< until `muster` has exited
};

struct AgentTimes {
  std::vector<double> restart;
  std::vector<double> join;
};

// Waits for the hellos of all workers of `attempt`, passing over those of earlier ones; returns
// when the last one came and keeps the pids.
int64_t await_attempt(Listener& listener, int attempt, int workers, std::vector<pid_t>& pids) {
  pids.assign(static_cast<size_t>(workers), 0);
  int64_t last = 0;
  for (int seen = 0; seen < workers;) {
    const Hello hello = listener.next();
    if (hello.attempt < attempt) continue;
    MUSTER_CHECK(hello.attempt == attempt && hello.rank < workers, ErrorCode::kInternal,
                 "bench: attempt {} with {} workers must follow; got attempt {}, rank {}", attempt,
                 workers, hello.attempt, hello.rank);
    pids[static_cast<size_t>(hello.rank)] = hello.pid;
    last = std::max(last, hello.at_ns);
    ++seen;
  }
  return last;
}

std::vector<std::string> agent_options(const std::string& nodes, int port, int restarts) {
  return {"--nnodes",         nodes,
          "--rdzv-endpoint",  "127.0.0.1:" + std::to_string(port),
          "--rdzv-conf",      "last_call_timeout=0.01",
          "--nproc-per-node", std::to_string(kWorkers / 2),
          "--max-restarts",   std::to_string(restarts)};
}

AgentTimes measure_agents(const TempDirectory& directory, int joins, int restarts) {
  AgentTimes result;
  const std::string path = directory.file("agents");
  Listener listener(path);
  ::setenv("XDG_RUNTIME_DIR", directory.path().c_str(), 1);  // the token of this bench
  std::vector<pid_t> pids;
  const int port = 20000 + ::getpid() % 10000;
  const pid_t host = start_muster(agent_options("1:2", port, restarts), path, true);
  int attempt = 0;
  await_attempt(listener, attempt, kWorkers / 2, pids);
  pid_t node = -1;
  for (int i = 0; i < joins; ++i) {
    const int64_t start = now_ns();
    node = start_muster(agent_options("1:2", port, restarts), path, true);
    result.join.push_back(to_ms(await_attempt(listener, ++attempt, kWorkers, pids) - start));
    if (i + 1 == joins) break;
    ::kill(node, SIGTERM);  // leaves
    ::waitpid(node, nullptr, 0);
    await_attempt(listener, ++attempt, kWorkers / 2, pids);
  }
  for (int i = 0; i < restarts; ++i) {
    const pid_t victim = pids[static_cast<size_t>(i % kWorkers)];
    const int64_t killed = now_ns();
    ::kill(victim, SIGKILL);
    result.restart.push_back(to_ms(await_attempt(listener, ++attempt, kWorkers, pids) - killed));
  }
  ::kill(host, SIGTERM);
  ::waitpid(host, nullptr, 0);
  ::waitpid(node, nullptr, 0);
  return result;
}

int run_agents_bench(int joins, int restarts) {
  const TempDirectory directory("muster_bench");
  const AgentTimes times = measure_agents(directory, joins, restarts);
  const Percentiles join = percentiles(times.join);
  const Percentiles back = percentiles(times.restart);
  std::printf(
      "{\"bench\": \"launch\", \"agents\": 2, \"workers\": %d, \"joins\": %d, \"restarts\": %d, "
      "\"join_ms\": {\"p50\": %.2f, \"p99\": %.2f}, "
      "\"restart_ms\": {\"p50\": %.2f, \"p99\": %.2f}}\n",
      kWorkers, joins, restarts, join.p50, join.p99, back.p50, back.p99);
  return 0;
}

Launches measure_launches(const TempDirectory& directory, int count) {
  Launches result;
  const std::string path = directory.file("launch");
  Listener listener(path);
  for (int i = 0; i < count; ++i) {
    const int64_t start = now_ns();
    const pid_t pid = start_muster({"--nproc-per-node", std::to_string(kWorkers)}, path, false);
    int64_t first = INT64_MAX;
    int64_t last = 0;
    for (int worker = 0; worker < kWorkers; ++worker) {
      const int64_t at = listener.next().at_ns;
      first = std::min(first, at);
      last = std::max(last, at);
    }
    ::waitpid(pid, nullptr, 0);
    result.whole.push_back(to_ms(now_ns() - start));
    result.first.push_back(to_ms(first - start));
    result.last.push_back(to_ms(last - start));
  }
  return result;
}

std::vector<double> measure_restarts(const TempDirectory& directory, int count) {
  std::vector<double> result;
  const std::string path = directory.file("restart");
  Listener listener(path);
  const pid_t pid = start_muster(
      {"--nproc-per-node", std::to_string(kWorkers), "--max-restarts", std::to_string(count)}, path,
      true);
  std::array<pid_t, kWorkers> pids{};
  for (int attempt = 0; attempt <= count; ++attempt) {
    const int64_t killed = now_ns();
    if (attempt > 0) ::kill(pids[static_cast<size_t>(attempt % kWorkers)], SIGKILL);
    int64_t last = 0;
    for (int worker = 0; worker < kWorkers; ++worker) {
      const Hello hello = listener.next();
      MUSTER_CHECK(hello.attempt == attempt, ErrorCode::kInternal,
                   "bench: attempt {} must follow; got {}", attempt, hello.attempt);
      pids[static_cast<size_t>(hello.rank)] = hello.pid;
      last = std::max(last, hello.at_ns);
    }
    if (attempt > 0) result.push_back(to_ms(last - killed));
  }
  ::kill(pid, SIGTERM);
  ::waitpid(pid, nullptr, 0);
  return result;
}

int run_bench(int launches, int restarts) {
  const TempDirectory directory("muster_bench");
  const Launches launch = measure_launches(directory, launches);
  const std::vector<double> restart = measure_restarts(directory, restarts);
  const Percentiles first = percentiles(launch.first);
  const Percentiles last = percentiles(launch.last);
  const Percentiles whole = percentiles(launch.whole);
  const Percentiles back = percentiles(restart);
  std::printf(
      "{\"bench\": \"launch\", \"workers\": %d, \"launches\": %d, \"restarts\": %d, "
      "\"launch_first_ms\": {\"p50\": %.2f, \"p99\": %.2f}, "
      "\"launch_all_ms\": {\"p50\": %.2f, \"p99\": %.2f}, "
      "\"job_ms\": {\"p50\": %.2f, \"p99\": %.2f}, "
      "\"restart_ms\": {\"p50\": %.2f, \"p99\": %.2f}}\n",
      kWorkers, launches, restarts, first.p50, first.p99, last.p50, last.p99, whole.p50, whole.p99,
      back.p50, back.p99);
  return 0;
}

constexpr const char* kUsage =
    "usage: bench_launch [--agents] [LAUNCHES] [RESTARTS]\n"
    "Measures how fast `muster run` starts four workers and starts them again; 100 of each.\n"
    "  --agents  two agents with two workers each; LAUNCHES counts how often one joins\n";

// A count above 0; 100 where the word is missing.
int count_at(std::span<char*> words, size_t at) {
  if (at >= words.size()) return 100;
  const std::string_view text = words[at];
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  MUSTER_CHECK(error == std::errc() && end == text.data() + text.size() && count > 0,
               ErrorCode::kInvalidArgument,
               "bench_launch: must be a count above 0; got \"{}\"; --help lists the options", text);
  return count;
}

int run_line(std::span<char*> words) {
  if (!words.empty() && std::string_view(words[0]) == "--help") {
    std::fputs(kUsage, stdout);
    return 0;
  }
  const bool agents = !words.empty() && std::string_view(words[0]) == "--agents";
  if (agents) words = words.subspan(1);
  MUSTER_CHECK(words.size() <= 2, ErrorCode::kInvalidArgument,
               "bench_launch: must have two counts at most; got {}; --help lists the options",
               words.size());
  const int launches = count_at(words, 0);
  const int restarts = count_at(words, 1);
  return agents ? run_agents_bench(launches, restarts) : run_bench(launches, restarts);
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "--worker") == 0) {
    return muster::run_worker(argv[2], std::strcmp(argv[3], "stays") == 0);
  }
  try {
    return muster::run_line({argv + 1, argv + argc});
  } catch (const muster::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return muster::exit_status(error.code());
  }
}
