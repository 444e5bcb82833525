// `muster logs`: what the ranks of a job have written, of one that runs or from its folder.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/file_system.h"
#include "core/base/text.h"
#include "core/base/time.h"
#include "launcher/agent/unique_fd.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/job_finder.h"
#include "launcher/cli/parse_line.h"
#include "launcher/report/rank_logs.h"

namespace muster {
namespace {
// A job that has ended writes no more; how soon that is noticed.
constexpr Duration kLookAgain = 500ms;

struct Arguments {
  std::string job;
  std::optional<int64_t> rank;
  bool follow = false;
  bool only_stderr = false;
  bool only_stdout = false;
  int64_t lines = -1;
};

// The files of one attempt on this machine, by global rank.
struct LogFiles {
  int64_t attempt = -1;
  std::map<int64_t, std::string> folders;
  bool is_alive = false;
};

// Of a job that runs: what its agents on this machine say.
Result<LogFiles> files_of_running(const std::string& name) {
  const std::vector<FoundJob> jobs = MUSTER_TRY(find_jobs(name));
  LogFiles files;
  for (const FoundJob& job : jobs) {
    if (job.status["run_id"] != jobs.front().status["run_id"]) {
      return make_error(ErrorCode::kInvalidArgument,
                        "logs: must be of one job; \"{}\" may mean {} and {}", name,
                        jobs.front().status["run_id"].get<std::string>(),
                        job.status["run_id"].get<std::string>());
    }
    const std::string log_dir = job.status["log_dir"];
    if (log_dir.empty()) {
      return make_error(ErrorCode::kFailedPrecondition,
                        "logs: the output of this job must be kept; it is not\n  fix: start the "
                        "job with --log-dir DIR");
    }
    files.is_alive = true;
    files.attempt = std::max<int64_t>(files.attempt, job.status["attempt"].get<int64_t>());
    for (const auto& rank : job.status["ranks"]) {
      files.folders[rank["global_rank"].get<int64_t>()] =
          fmt::format("{}/attempt_{}/{}", log_dir, job.status["attempt"].get<int64_t>(),
                      rank["local_rank"].get<int64_t>());
    }
  }
  return files;
}

LogFiles files_in_folder(const std::string& folder) {
  LogFiles files;
  for (const RankLogs& rank : find_rank_logs(folder)) {
    files.attempt = rank.attempt;
    files.folders[rank.global_rank] = rank.folder;
  }
  return files;
}

Result<LogFiles> find_files(const Arguments& arguments) {
  Result<LogFiles> running = files_of_running(arguments.job);
  if (running.ok() && (!running->folders.empty() || running->is_alive)) return running;
  if (!running.ok() && running.error().code() != ErrorCode::kNotFound) return running.error();
  if (!arguments.job.empty()) {
    LogFiles files = files_in_folder(arguments.job);
    if (!files.folders.empty()) return files;
  }
  return make_error(ErrorCode::kNotFound,
                    "logs: \"{}\" must be a job that runs, or a folder with logs of one",
                    arguments.job);
}

// Prints files as they grow; each line once, with its rank in front where several are shown.
class Printer {
 public:
  Printer(const Arguments& arguments, LogFiles files)
      : arguments_(arguments), files_(std::move(files)) {}

  Result<void> start() {
    if (arguments_.rank && !files_.folders.contains(*arguments_.rank)) {
      std::vector<std::string> known;
      for (const auto& [rank, folder] : files_.folders) known.push_back(std::to_string(rank));
      return make_error(ErrorCode::kInvalidArgument,
                        "logs: --rank must be one of this machine; got {} of {}", *arguments_.rank,
                        join(known));
    }
    for (const auto& [rank, folder] : files_.folders) {
      if (arguments_.rank && rank != *arguments_.rank) continue;
      if (!arguments_.only_stderr) open_file(rank, folder + "/stdout.log");
      if (!arguments_.only_stdout) open_file(rank, folder + "/stderr.log");
    }
    return {};
  }

  void print_new() {
    for (File& file : open_) {
      std::array<char, 65536> buffer;
      ssize_t n = 0;
      while ((n = ::read(file.fd.get(), buffer.data(), buffer.size())) > 0) {
        print(file, {buffer.data(), static_cast<size_t>(n)});
      }
    }
    std::fflush(stdout);
  }

  // What has no line end yet.
  void finish() {
    for (File& file : open_) {
      if (!file.open_line.empty()) print(file, "\n");
    }
    std::fflush(stdout);
  }

  [[nodiscard]] const LogFiles& files() const noexcept { return files_; }
  [[nodiscard]] std::vector<std::string> paths() const {
    std::vector<std::string> paths;
    for (const File& file : open_) paths.push_back(file.path);
    return paths;
  }

 private:
  struct File {
    int64_t rank = 0;
    std::string path;
    UniqueFd fd;
    std::string open_line;
  };

  void open_file(int64_t rank, const std::string& path) {
    File file{.rank = rank, .path = path, .fd = UniqueFd(), .open_line = ""};
    file.fd.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.fd.is_open()) return;  // not kept
    if (arguments_.lines >= 0) skip_to_last_lines(file.fd.get());
    open_.push_back(std::move(file));
  }

  void skip_to_last_lines(int fd) const {
    off_t at = ::lseek(fd, 0, SEEK_END);
    int64_t ends = 0;
    char byte = 0;
    const off_t size = at;
    while (at > 0 && ::pread(fd, &byte, 1, at - 1) == 1) {
      if (byte == '\n' && at != size && ++ends == arguments_.lines) break;
      if (byte == '\n' && arguments_.lines == 0) break;
      --at;
    }
    ::lseek(fd, arguments_.lines == 0 ? size : at, SEEK_SET);
  }

  void print(File& file, std::string_view bytes) {
    if (arguments_.rank) {
      std::fwrite(bytes.data(), 1, bytes.size(), stdout);
      return;
    }
    file.open_line.append(bytes);
    size_t begin = 0;
    for (size_t end = file.open_line.find('\n'); end != std::string::npos;
         end = file.open_line.find('\n', begin)) {
      fmt::print("[{}] {}\n", file.rank,
                 std::string_view(file.open_line).substr(begin, end - begin));
      begin = end + 1;
    }
    file.open_line.erase(0, begin);
  }

  const Arguments& arguments_;
  LogFiles files_;
  std::vector<File> open_;
};

// Follows one attempt until it is over; returns what follows it, nullopt at the end of the job.
std::optional<LogFiles> follow_attempt(const Arguments& arguments, Printer& printer) {
  const UniqueFd changes(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  for (const std::string& path : printer.paths()) {
    ::inotify_add_watch(changes.get(), path.c_str(), IN_MODIFY);
  }
  Deadline next_look = Deadline::after(kLookAgain);
  while (true) {
    printer.print_new();
    pollfd changed{.fd = changes.get(), .events = POLLIN, .revents = 0};
    if (::poll(&changed, 1, next_look.poll_ms()) > 0) {
      std::array<char, 4096> events;
      while (::read(changes.get(), events.data(), events.size()) > 0) {
      }
    }
    if (!next_look.passed()) continue;
    next_look = Deadline::after(kLookAgain);
    Result<LogFiles> now = files_of_running(arguments.job);
    const bool is_over = !now.ok();
    if (!is_over && (now->attempt == printer.files().attempt || now->folders.empty())) continue;
    printer.print_new();
    printer.finish();
    if (is_over) return std::nullopt;
    return std::move(now).value();
  }
}

Result<void> run(const Arguments& arguments) {
  LogFiles files = MUSTER_TRY(find_files(arguments));
  while (true) {
    Printer printer(arguments, files);
    MUSTER_TRY(printer.start());
    if (!arguments.follow || !files.is_alive) {
      printer.print_new();
      printer.finish();
      return {};
    }
    const std::optional<LogFiles> next = follow_attempt(arguments, printer);
    if (!next) return {};
    fmt::print(stderr, "attempt {}\n", next->attempt);
    files = *next;
  }
}
}  // namespace

int logs_command(std::span<char*> args) {
  CLI::App app("Prints what the ranks of a job have written in its newest attempt.", "muster logs");
  Arguments arguments;
  app.add_option("job", arguments.job,
                 "start of a run id, title or run folder; may be left out when one job runs");
  app.add_option("--rank", arguments.rank, "this global rank only, byte for byte");
  app.add_flag("-f,--follow", arguments.follow, "go on until the job ends");
  app.add_option("-n,--lines", arguments.lines, "start with the last N lines of each file")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000'000}));
  auto* err = app.add_flag("--stderr", arguments.only_stderr, "stderr only");
  app.add_flag("--stdout", arguments.only_stdout, "stdout only")->excludes(err);
  if (const std::optional<int> status = parse_line(app, args)) return *status;
  const Result<void> done = catch_error([&] { run(arguments).value(); });
  if (done.ok()) return 0;
  fmt::print(stderr, "{}\n", done.error().what());
  return exit_status(done.error().code());
}
}  // namespace muster
