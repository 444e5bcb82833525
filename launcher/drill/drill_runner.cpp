#include "launcher/drill/drill_runner.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <utility>

#include "core/base/file_system.h"
#include "core/base/text.h"
#include "launcher/agent/random_id.h"
#include "launcher/drill/agent_pool.h"
#include "launcher/drill/fired_faults.h"
#include "launcher/drill/progress.h"
#include "launcher/drill/run_process.h"
#include "launcher/recipe/recipe.h"

namespace muster {
namespace {
constexpr Duration kCompareLimit = 5min;
constexpr const char* kHostEndpoint = "127.0.0.1:0";

// The line that is rewritten while a run goes on; plain lines, seldom, where there is no terminal.
class ProgressDisplay {
 public:
  explicit ProgressDisplay(bool shown)
      : shown_(shown), is_terminal_(::isatty(STDERR_FILENO) == 1) {}

  void show(const std::string& line) {
    if (!shown_) return;
    if (is_terminal_) {
      fmt::print(stderr, "\r\033[K{}", line);
      std::fflush(stderr);
    } else if (next_.passed()) {
      fmt::print(stderr, "{}\n", line);
      next_ = Deadline::after(10s);
    }
  }
  void finish(const std::string& line) {
    if (shown_) fmt::print(stderr, "{}{}\n", is_terminal_ ? "\r\033[K" : "", line);
  }

 private:
  bool shown_;
  bool is_terminal_;
  Deadline next_ = Deadline::after(0s);
};

std::string text_or_empty(const std::string& path) {
  return read_text(real_file_system(), path).value_or("");
}

// One drill on its way; its parts share the options and the id.
class Runner {
 public:
  Runner(const Drill& drill, const DrillOptions& options)
      : drill_(drill), options_(options), id_entry_("MUSTER_DRILL_ID=" + random_hex(16)) {}

  Result<DrillOutcome> run() {
    overrides_ = drill_.overrides;
    overrides_.insert(overrides_.end(), options_.overrides.begin(), options_.overrides.end());
    const Recipe recipe = MUSTER_TRY(load_recipe(drill_.recipe, overrides_));
    MUSTER_TRY(check(recipe));
    DrillOutcome outcome;
    DrillEvidence& evidence = outcome.report.evidence;
    outcome.report.drill = drill_.source;
    evidence.steps = recipe.train.steps;
    evidence.killed_agents =
        std::count_if(drill_.faults.begin(), drill_.faults.end(), [this](const Fault& fault) {
          return fault.action == Fault::Action::kKillAgent &&
                 fault.global_rank >= drill_.launch.nproc;  // ranks of the first agent come first
        });
    for (RunFacts* facts : {&evidence.reference, &evidence.faulted}) {
      const bool is_faulted = facts == &evidence.faulted;
      outcome.interrupted_by = MUSTER_TRY(run_once(recipe, is_faulted, *facts));
      if (outcome.interrupted_by != 0) return outcome;
    }
    evidence.is_resized = drill_.launch.then_nproc.has_value();
    evidence.num_faults = static_cast<int64_t>(drill_.faults.size());
    evidence.missed_faults = missed_faults(drill_.faults, printed_by(evidence.faulted));
    if (drill_.expect.is_bit_identical && recipe.checkpoint.every_steps > 0) {
      evidence.checkpoints = compare_checkpoints(evidence);
    }
    outcome.report.checks = judge(drill_.expect, evidence);
    return outcome;
  }

 private:
  // What only the recipe and the drill together can tell, before minutes are spent on it.
  Result<void> check(const Recipe& recipe) const {
    MUSTER_TRY(check_recipe(recipe, static_cast<int>(drill_.launch.world_size())));
    if (drill_.launch.min_agents < drill_.launch.agents) {
      MUSTER_TRY(
          check_recipe(recipe, static_cast<int>(drill_.launch.nproc * drill_.launch.min_agents)));
    }
    if (drill_.launch.then_nproc) {
      MUSTER_TRY(
          check_recipe(recipe, static_cast<int>(*drill_.launch.then_nproc * drill_.launch.agents)));
    }
    for (size_t i = 0; i < drill_.faults.size(); ++i) {
      const Fault& fault = drill_.faults[i];
      if (!fault.step || *fault.step <= recipe.train.steps) continue;
      return make_error(ErrorCode::kBadRecipe,
                        "{}: faults[{}].step: must be at most train.steps; got {} of {} steps",
                        drill_.source, i, *fault.step, recipe.train.steps);
    }
    for (const char* name : {"reference", "faulted"}) {
      const std::string directory = path_join(options_.directory, name);
      if (!MUSTER_TRY(real_file_system().info(directory)).exists) continue;
      return make_error(ErrorCode::kFailedPrecondition,
                        "drill: the folder must not hold an earlier drill, whose checkpoints would "
                        "be resumed; got {}; remove it or name another one",
                        directory);
    }
    return {};
  }

  // `endpoint` is where several agents meet; the one with port 0 hosts.
  std::vector<std::string> launch_command(const Recipe& recipe, const RunFacts& facts,
                                          int64_t nproc, const std::string& endpoint) const {
    const Drill::Launch& launch = drill_.launch;
    std::vector<std::string> command = options_.launcher;
    for (std::string part :
         {std::string("run"), std::string("--nproc-per-node"), std::to_string(nproc),
          std::string("--max-restarts"), std::to_string(launch.max_restarts)}) {
      command.push_back(std::move(part));
    }
    if (launch.agents > 1) {
      for (std::string part :
           {std::string("--nnodes"), fmt::format("{}:{}", launch.min_agents, launch.agents),
            std::string("--rdzv-endpoint"), endpoint, std::string("--rdzv-conf"),
            fmt::format("is_host={},last_call_timeout=30 s", endpoint == kHostEndpoint)}) {
        command.push_back(std::move(part));
      }
    }
    command.push_back(drill_.recipe);
    command.insert(command.end(), overrides_.begin(), overrides_.end());
    command.push_back("run.dir=" + facts.directory);
    // A folder that the recipe names would be shared by both runs.
    if (!recipe.checkpoint.dir.empty()) {
      command.push_back("checkpoint.dir=" + path_join(facts.directory, "checkpoints"));
    }
    return command;
  }

  // One launch of a run: how many workers each agent has, and what the run adds to it.
  struct Launch {
    int64_t nproc = 1;
    std::string name;  // of its files, beside the run's folder
    std::vector<std::string> changes;
    std::function<void()> on_change;
  };

  // Launches the job and waits until all of its agents have ended.
  Result<ProcessOutcome> launch(const Recipe& recipe, RunFacts& facts, Launch what) const {
    const int64_t agents = drill_.launch.agents;
    if (agents > 1) what.changes.push_back("MUSTER_JOB_TOKEN=" + token_);
    ProcessRequest request{.command = launch_command(recipe, facts, what.nproc, kHostEndpoint),
                           .environment = environment_with(what.changes),
                           .output_path = what.name + ".log",
                           .limit = drill_.launch.limit,
                           .watched_directory = facts.directory,
                           .on_change = std::move(what.on_change)};
    if (agents == 1) return run_process(request);
    EventLoop loop;  // outlives the pool that it calls
    std::vector<std::string> of_others = environment_with(what.changes);
    std::erase_if(of_others,
                  [](const std::string& entry) { return entry.starts_with("MUSTER_EVENTS="); });
    AgentPool others({.command = launch_command(recipe, facts, what.nproc, "127.0.0.1:{port}"),
                      .environment = std::move(of_others),
                      .events_path = events_path(facts),
                      .output_base = what.name,
                      .count = agents - 1,
                      .replaces = drill_.launch.min_agents == agents});
    MUSTER_TRY(others.attach(loop));
    request.loop = &loop;
    Result<ProcessOutcome> outcome = run_process(request);
    facts.agents.emplace_back(others.finish());
    return outcome;
  }

  // What the launcher and the agents beside it printed.
  std::string printed_by(const RunFacts& facts) const {
    std::string text = text_or_empty(facts.directory + ".log");
    for (const std::string& name : real_file_system().list(options_.directory).value_or({})) {
      if (name.starts_with(facts.name + ".agent") && name.ends_with(".log"))
        text += "\n" + text_or_empty(path_join(options_.directory, name));
    }
    return text;
  }

  static std::string events_path(const RunFacts& facts) {
    return facts.directory + ".agent_events.jsonl";
  }

  // Runs the recipe once. Returns the signal that interrupted it, or 0.
  Result<int> run_once(const Recipe& recipe, bool is_faulted, RunFacts& facts) {
    facts.name = is_faulted ? "faulted" : "reference";
    facts.directory = path_join(options_.directory, facts.name);
    MUSTER_TRY(real_file_system().make_directories(facts.directory));
    const std::vector<std::string> calm = {id_entry_, "MUSTER_EVENTS=" + events_path(facts),
                                           "MUSTER_FAULTS"};
    std::vector<std::string> changes = calm;
    if (is_faulted) changes.back() = "MUSTER_FAULTS=" + encode_faults(drill_.faults);

    MetricsFollower follower(path_join(facts.directory, "metrics.jsonl"));
    ProgressMeter meter(facts.name, recipe.train.steps);
    ProgressDisplay display(options_.shows_progress);
    display.show(meter.line());
    const auto look = [&] {
      const int64_t now_ns = real_clock().now().time_since_epoch().count();
      const std::vector<StepRecord> steps = follower.read_new();
      for (const StepRecord& step : steps) meter.saw(step, now_ns);
      if (!steps.empty()) display.show(meter.line());
    };
    ProcessOutcome outcome = MUSTER_TRY(
        launch(recipe, facts, {drill_.launch.nproc, facts.directory, std::move(changes), look}));
    if (is_faulted && drill_.launch.then_nproc && outcome.interrupted_by == 0) {
      outcome = MUSTER_TRY(launch(
          recipe, facts, {*drill_.launch.then_nproc, facts.directory + ".resized", calm, look}));
    }
    display.finish(meter.line());

    facts.exit_status = outcome.exit_status;
    facts.timed_out = outcome.timed_out;
    const std::vector<pid_t> left = processes_with(id_entry_);
    for (const pid_t pid : left) facts.leftovers.push_back(describe_process(pid));
    kill_processes(left, id_entry_);
    facts.first_step_seen_ns = meter.first_step_seen_ns();
    read_metrics(text_or_empty(path_join(facts.directory, "metrics.jsonl")), facts.records);
    read_train_events(text_or_empty(path_join(facts.directory, "events.jsonl")), facts.records);
    read_agent_events(text_or_empty(events_path(facts)), facts.records);
    read_incidents(facts);
    facts.newest_checkpoint = newest_checkpoint(path_join(facts.directory, "checkpoints"));
    return outcome.interrupted_by;
  }

  static void read_incidents(RunFacts& facts) {
    const auto names = real_file_system().list(facts.directory);
    if (!names.ok()) return;
    for (const std::string& name : *names) {
      if (!name.starts_with("incident-") || !name.ends_with(".json")) continue;
      read_incident(text_or_empty(path_join(facts.directory, name)), facts.records);
    }
  }

  CheckpointVerdict compare_checkpoints(const DrillEvidence& evidence) const {
    for (const RunFacts* facts : {&evidence.reference, &evidence.faulted}) {
      if (!facts->newest_checkpoint) {
        return {false, fmt::format("the {} run left no complete checkpoint", facts->name)};
      }
    }
    const std::string& a = *evidence.reference.newest_checkpoint;
    const std::string& b = *evidence.faulted.newest_checkpoint;
    const auto name_of = [](const std::string& path) { return path.substr(path.rfind('/') + 1); };
    if (name_of(a) != name_of(b)) {
      return {false, fmt::format("newest is {} in the reference run and {} in the faulted run",
                                 name_of(a), name_of(b))};
    }
    const std::string output_path = path_join(options_.directory, "checkpoint_diff.json");
    std::vector<std::string> command = options_.tools;
    for (const std::string& part :
         {std::string("ckpt"), std::string("diff"), a, b, std::string("--json")}) {
      command.push_back(part);
    }
    const Result<ProcessOutcome> outcome = run_process({.command = command,
                                                        .environment = environment_with({}),
                                                        .output_path = output_path,
                                                        .limit = kCompareLimit,
                                                        .watched_directory = "",
                                                        .on_change = {}});
    if (!outcome.ok()) return {false, outcome.error().what()};
    if (outcome->exit_status == 0) {
      return {true,
              fmt::format("{}: weights, optimizer and training state, bit-identical", name_of(a))};
    }
    const std::string text = text_or_empty(output_path);
    return {false,
            fmt::format("{}: ckpt diff exits {}, see {}: {}", name_of(a), outcome->exit_status,
                        output_path, trim(text.substr(0, std::min<size_t>(text.size(), 400))))};
  }

  const Drill& drill_;
  const DrillOptions& options_;
  const std::string id_entry_;
  const std::string token_ = random_hex(32);  // that the agents of one run share
  std::vector<std::string> overrides_;        // the drill's, then the command line's
};
}  // namespace

Result<DrillOutcome> run_drill(const Drill& drill, const DrillOptions& options) {
  MUSTER_TRY(real_file_system().make_directories(options.directory));
  return Runner(drill, options).run();
}

std::optional<std::string> newest_checkpoint(const std::string& directory) {
  const auto names = real_file_system().list(directory);
  if (!names.ok()) return std::nullopt;
  static constexpr std::string_view kPrefix = "step-";
  std::string newest;
  for (const std::string& name : *names) {
    const bool is_named = name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
                          std::all_of(name.begin() + kPrefix.size(), name.end(),
                                      [](char c) { return c >= '0' && c <= '9'; });
    if (!is_named) continue;
    const auto manifest =
        real_file_system().info(path_join(path_join(directory, name), "manifest.json"));
    if (!manifest.ok() || !manifest->exists) continue;
    // Zero-padded: a longer name is a later step.
    if (std::pair(name.size(), name) > std::pair(newest.size(), newest)) newest = name;
  }
  if (newest.empty()) return std::nullopt;
  return path_join(directory, newest);
}
}  // namespace muster
