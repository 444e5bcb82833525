// `muster status` and `muster top`: the jobs that run now.
#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "core/base/time.h"
#include "launcher/agent/unique_fd.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/job_finder.h"
#include "launcher/cli/parse_line.h"

namespace muster {
namespace {
using nlohmann::ordered_json;

constexpr size_t kShownRanks = 64;

std::string text_of(const ordered_json& json, const char* name) {
  return json.contains(name) && json[name].is_string() ? json[name].get<std::string>() : "";
}

int64_t number_of(const ordered_json& json, const char* name) {
  return json.contains(name) && json[name].is_number() ? json[name].get<int64_t>() : 0;
}

std::string progress_line(const JobProgress& progress) {
  std::string line = fmt::format("  step {}, loss {:.4f}", progress.step, progress.loss);
  if (progress.steps_per_s > 0) line += fmt::format(", {:.2f} steps/s", progress.steps_per_s);
  if (progress.tokens_per_s > 0) line += fmt::format(", {:.0f} tokens/s", progress.tokens_per_s);
  return line + "\n";
}

std::string describe(const FoundJob& job) {
  const ordered_json& status = job.status;
  const Duration age = std::chrono::seconds(number_of(status, "seconds"));
  std::string text =
      fmt::format("{}  run {}  {} for {}\n", text_of(status, "job"), text_of(status, "run_id"),
                  text_of(status, "state"), format_duration(age));
  text += fmt::format("  generation {}, attempt {}, {} of {} restarts used, {} ranks",
                      number_of(status, "generation"), number_of(status, "attempt"),
                      number_of(status, "failures"), number_of(status, "max_restarts"),
                      number_of(status, "world_size"));
  if (text_of(status, "role") != "only") {
    text += fmt::format("; node {} of {} ({}, {})", number_of(status, "group_rank"),
                        number_of(status, "group_world_size"), text_of(status, "node"),
                        text_of(status, "role"));
  }
  text += "\n";
  if (job.progress) text += progress_line(*job.progress);
  if (!text_of(status, "decision").empty()) text += "  " + text_of(status, "decision") + "\n";
  if (!text_of(status, "incident").empty()) {
    text += "  last incident: " + text_of(status, "incident") + "\n";
  }
  if (status.contains("nodes")) {
    for (const ordered_json& node : status["nodes"]) {
      const std::string gone = text_of(node, "gone");
      const std::string place =
          !gone.empty() ? "lost: " + gone
          : node.value("in_round", false)
              ? fmt::format("node {}, {} ranks from {}", number_of(node, "group_rank"),
                            number_of(node, "local_world_size"), number_of(node, "first_rank"))
              : "waits";
      text += fmt::format("  {:<28} {}\n", text_of(node, "name"), place);
    }
  }
  text += fmt::format("  {:>4}  {:>8}  {}\n", "rank", "pid", "state");
  size_t shown = 0;
  for (const ordered_json& rank : status["ranks"]) {
    if (++shown > kShownRanks) break;
    text += fmt::format("  {:>4}  {:>8}  {}\n", number_of(rank, "global_rank"),
                        number_of(rank, "pid"), text_of(rank, "state"));
  }
  if (status["ranks"].size() > kShownRanks) {
    text += fmt::format("  and {} more\n", status["ranks"].size() - kShownRanks);
  }
  return text;
}

std::string describe_all(const std::vector<FoundJob>& jobs) {
  if (jobs.empty()) return "no job runs\n";
  std::string text;
  for (const FoundJob& job : jobs) text += (text.empty() ? "" : "\n") + describe(job);
  return text;
}

std::string json_of(const std::vector<FoundJob>& jobs) {
  ordered_json all = ordered_json::array();
  for (const FoundJob& job : jobs) {
    ordered_json one = job.status;
    one["progress"] = job.progress ? ordered_json{{"step", job.progress->step},
                                                  {"loss", job.progress->loss},
                                                  {"steps_per_s", job.progress->steps_per_s},
                                                  {"tokens_per_s", job.progress->tokens_per_s}}
                                   : ordered_json();
    all.push_back(std::move(one));
  }
  return all.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

int fail(const Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return exit_status(error.code());
}

// SIGINT and SIGTERM as a descriptor, so that the screen is left in order.
UniqueFd stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  return UniqueFd(::signalfd(-1, &signals, SFD_CLOEXEC));
}

int show_until_stopped(const std::string& name, Duration interval) {
  constexpr const char* kOwnScreen = "\x1b[?1049h\x1b[?25l";
  constexpr const char* kBack = "\x1b[?25h\x1b[?1049l";
  const UniqueFd stop = stop_signals();
  fmt::print("{}", kOwnScreen);
  while (true) {
    const Result<std::vector<FoundJob>> jobs = find_jobs(name);
    const std::string text = jobs.ok() ? describe_all(*jobs) : std::string(jobs.error().what());
    fmt::print("\x1b[H\x1b[2J{}", text);
    std::fflush(stdout);
    pollfd stopped{.fd = stop.get(), .events = POLLIN, .revents = 0};
    if (::poll(&stopped, 1, Deadline::after(interval).poll_ms()) != 0) break;
  }
  fmt::print("{}", kBack);
  return 0;
}

struct Arguments {
  std::string job;
  bool json = false;
  double interval_s = 1;
};

int run(const Arguments& arguments, bool is_top) {
  if (is_top && ::isatty(STDOUT_FILENO) == 1) {
    return show_until_stopped(arguments.job,
                              Duration(static_cast<int64_t>(arguments.interval_s * 1e9)));
  }
  const Result<std::vector<FoundJob>> jobs = find_jobs(arguments.job);
  if (!jobs.ok()) return fail(jobs.error());
  fmt::print("{}", arguments.json ? json_of(*jobs) : describe_all(*jobs));
  return 0;
}

int parse_and_run(std::span<char*> args, CLI::App& app, bool is_top) {
  Arguments arguments;
  app.add_option("job", arguments.job,
                 "start of a run id, title or run folder of the job; all without it")
      ->type_name("JOB");
  if (is_top) {
    app.add_option("--interval", arguments.interval_s, "seconds between two looks")
        ->check(CLI::Range(0.1, 3600.0))
        ->type_name("SECONDS");
  } else {
    app.add_flag("--json", arguments.json, "as JSON");
  }
  if (const std::optional<int> status = parse_line(app, args)) return *status;
  try {
    return run(arguments, is_top);
  } catch (const Error& error) {
    return fail(error);
  }
}
}  // namespace

int status_command(std::span<char*> args) {
  CLI::App app(
      "Shows the jobs of this user that run on this machine: attempt, ranks, what is decided.",
      "muster status");
  return parse_and_run(args, app, false);
}

int top_command(std::span<char*> args) {
  CLI::App app(
      "Shows the jobs of this user and keeps looking; once when the output is no terminal.",
      "muster top");
  return parse_and_run(args, app, true);
}
}  // namespace muster
