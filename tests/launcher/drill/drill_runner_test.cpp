#include "launcher/drill/drill_runner.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/file_system.h"
#include "core/base/text.h"
#include "launcher/drill/fired_faults.h"
#include "launcher/drill/run_process.h"
#include "tests/support/child_process.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::FailsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kSteps = 6;

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  if (!text.empty()) text.pop_back();
  return split(text, '\0');
}

std::string environment_value(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string metrics_line(int step, int attempt) {
  const double loss = 6.0 / step;
  return fmt::format("{{\"step\":{},\"attempt\":{},\"loss\":{},\"loss_hex\":\"{}\"}}\n", step,
                     attempt, loss, hex_float(loss));
}

// What `muster run` of a job would leave behind: calm without MUSTER_FAULTS, else killed in step 5
// and gone on from step 4. TEST_MODE makes it misbehave.
int fake_run(const std::vector<std::string>& arguments) {
  const std::string mode = environment_value("TEST_MODE");
  const std::string faults = environment_value("MUSTER_FAULTS");
  std::string run_dir;
  for (const std::string& argument : arguments) {
    if (argument.starts_with("run.dir=")) run_dir = argument.substr(8);
  }
  std::ofstream(path_join(run_dir, "arguments")) << join(arguments, " ") << "\n" << faults;
  if (!faults.empty() && mode != "miss") {
    fmt::print("W rank 1: fault point train.step_begin at step 5: kill\n");
  }
  std::fflush(stdout);
  if (mode == "fail" && !faults.empty()) return 70;
  if (mode == "hang") {
    while (true) ::pause();
  }
  if (mode == "leave" && !faults.empty() && ::fork() == 0) {
    while (true) ::pause();
  }
  std::ofstream metrics(path_join(run_dir, "metrics.jsonl"));
  std::ofstream events(path_join(run_dir, "events.jsonl"));
  std::ofstream agent(environment_value("MUSTER_EVENTS"));
  agent << R"({"event":"attempt_start","t_ns":1,"attempt":0})"
        << "\n";
  const bool is_killed = !faults.empty();
  for (int step = 1; step <= (is_killed ? 4 : kSteps); ++step) metrics << metrics_line(step, 0);
  metrics.flush();
  if (is_killed) {
    agent << R"({"event":"worker_exit","t_ns":2,"signal":9})"
          << "\n"
          << R"({"event":"attempt_start","t_ns":3,"attempt":1})"
          << "\n";
    events << R"({"event":"resumed","from_step":4,"attempt":1})"
           << "\n";
    for (int step = 5; step <= kSteps; ++step) metrics << metrics_line(step, 1);
  }
  agent << fmt::format("{{\"event\":\"job_end\",\"t_ns\":9,\"exit\":0,\"restarts\":{}}}\n",
                       is_killed ? 1 : 0);
  const std::string checkpoint = path_join(run_dir, "checkpoints/step-00000006");
  if (!real_file_system().make_directories(checkpoint).ok()) return 74;
  std::ofstream(path_join(checkpoint, "manifest.json")) << "{}";
  return 0;
}

// Stands for both `muster` and `muster-tools`, by its first argument.
const bool kFake = testing::register_child("drill_fake", [] {
  const std::vector<std::string> arguments = own_arguments();
  if (arguments.at(1) == "run") return fake_run(arguments);
  if (arguments.at(1) == "ckpt") {
    fmt::print("{{\"compared\":\"{}\"}}\n", arguments.at(3));
    return environment_value("TEST_MODE") == "differ" ? 1 : 0;
  }
  return 64;
});

class DrillRunner : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(kFake);
    std::array<char, 4096> path{};
    ASSERT_GT(::readlink("/proc/self/exe", path.data(), path.size() - 1), 0);
    self_ = path.data();
    ::setenv("MUSTER_TEST_CHILD", "drill_fake", 1);
    ::setenv("MUSTER_FAULTS", "inherited nonsense", 1);
    write("recipe.yaml", fmt::format("data: {{files: [x]}}\ntrain: {{steps: {}}}\n"
                                     "checkpoint: {{every: 2, dir: shared}}\n",
                                     kSteps));
    write("drill.yaml", R"(
recipe: recipe.yaml
launch: {nproc: 2, max_restarts: 1, limit: 20 s}
faults: [{global_rank: 1, step: 5, point: train.step_begin, do: kill}]
expect: {restarts: 1, resumed_from_step: 4, loss_curve: bit_identical, recovery: under 10000 h}
)");
  }
  void TearDown() override {
    ::unsetenv("MUSTER_TEST_CHILD");
    ::unsetenv("MUSTER_FAULTS");
    ::unsetenv("TEST_MODE");
  }

  void write(const std::string& name, const std::string& text) {
    ASSERT_OK(write_file_durably(real_file_system(), folder_.file(name), text));
  }
  std::string read(const std::string& name) {
    return read_text(real_file_system(), folder_.file(name)).value();
  }

  Result<DrillOutcome> run(const std::string& mode = "", std::vector<std::string> overrides = {}) {
    ::setenv("TEST_MODE", mode.c_str(), 1);
    drill_ = load_drill(folder_.file("drill.yaml")).value();
    if (mode == "hang") drill_.launch.limit = 100ms;
    return run_drill(drill_, {.launcher = {self_},
                              .tools = {self_},
                              .directory = folder_.file("runs"),
                              .overrides = std::move(overrides)});
  }

  static std::vector<std::string> failed(const DrillReport& report) {
    std::vector<std::string> names;
    for (const Check& check : report.checks) {
      if (!check.ok) names.push_back(check.name);
    }
    return names;
  }

  TempDirectory folder_;
  std::string self_;
  Drill drill_;
};

TEST_F(DrillRunner, ComparesACalmRunWithAFaultedOne) {
  const Result<DrillOutcome> outcome = run("", {"train.seed=9"});
  ASSERT_OK(outcome);
  EXPECT_THAT(failed(outcome->report), IsEmpty()) << report_table(outcome->report);
  EXPECT_THAT(report_table(outcome->report), HasSubstr("final checkpoint"));

  const std::string runs = folder_.file("runs");
  const std::string reference = read("runs/reference/arguments");
  EXPECT_THAT(reference, HasSubstr(fmt::format(" run --nproc-per-node 2 --max-restarts 1 {} "
                                               "train.seed=9 run.dir={}/reference "
                                               "checkpoint.dir={}/reference/checkpoints\n",
                                               folder_.file("recipe.yaml"), runs, runs)));
  EXPECT_THAT(reference, Not(HasSubstr("inherited nonsense")));
  EXPECT_THAT(read("runs/faulted/arguments"),
              HasSubstr("point=train.step_begin;rank=1;attempt=0;do=kill;step=5"));
  EXPECT_THAT(read("runs/checkpoint_diff.json"),
              HasSubstr("runs/reference/checkpoints/step-00000006"));
}

TEST_F(DrillRunner, AFailedRunFailsTheDrill) {
  const Result<DrillOutcome> outcome = run("fail");
  ASSERT_OK(outcome);
  EXPECT_FALSE(outcome->report.ok());
  EXPECT_EQ(outcome->report.evidence.faulted.exit_status, 70);
  EXPECT_THAT(failed(outcome->report), ElementsAre("faulted exit", "restarts", "resumed from step",
                                                   "loss curve", "final checkpoint", "recovery"));
}

TEST_F(DrillRunner, AFaultThatNeverFiredFailsTheDrill) {
  const Result<DrillOutcome> outcome = run("miss");
  ASSERT_OK(outcome);
  EXPECT_THAT(failed(outcome->report), ElementsAre("faults fired"));
  EXPECT_THAT(
      report_table(outcome->report),
      HasSubstr("1 of 1 never did: train.step_begin of global rank 1 at step 5, attempt 0"));
}

TEST(FiredFaults, EachWordCountsForOneFaultOfItsRankPointAndStep) {
  Fault first;
  first.point = "train.step_begin";
  first.global_rank = 1;
  Fault anywhere = first, agent = first;
  first.step = 5;
  agent.action = Fault::Action::kKillAgent;
  const std::string word = "T W rank 1: fault point train.step_begin at step 5: kill\n";
  EXPECT_THAT(missed_faults({first, agent}, word), IsEmpty());
  EXPECT_THAT(missed_faults({anywhere}, word), IsEmpty());
  EXPECT_EQ(missed_faults({first, anywhere}, word).size(), 1u);
  EXPECT_THAT(missed_faults({first, anywhere}, word + word), IsEmpty());
  for (const char* other : {"rank 11: fault point train.step_begin at step 5: kill",
                            "rank 1: fault point train.step_begin at step 50: kill",
                            "rank 1: fault point train.step_end at step 5: kill"}) {
    EXPECT_EQ(missed_faults({first}, other).size(), 1u) << other;
  }
}

TEST_F(DrillRunner, DifferentCheckpointsFailTheDrill) {
  const Result<DrillOutcome> outcome = run("differ");
  ASSERT_OK(outcome);
  EXPECT_THAT(failed(outcome->report), ElementsAre("final checkpoint"));
  EXPECT_THAT(report_table(outcome->report), HasSubstr("ckpt diff exits 1"));
}

TEST_F(DrillRunner, AProcessThatOutlivesItsLauncherIsReportedAndEnded) {
  const Result<DrillOutcome> outcome = run("leave");
  ASSERT_OK(outcome);
  EXPECT_THAT(failed(outcome->report), ElementsAre("faulted leftovers"));
  EXPECT_EQ(outcome->report.evidence.faulted.leftovers.size(), 1u);
  const nlohmann::json json = nlohmann::json::parse(report_json(outcome->report));
  EXPECT_EQ(json["leftovers"], 1);
  EXPECT_EQ(json["ok"], false);
}

TEST_F(DrillRunner, ARunPastItsLimitIsEnded) {
  const Result<DrillOutcome> outcome = run("hang");
  ASSERT_OK(outcome);
  EXPECT_TRUE(outcome->report.evidence.reference.timed_out);
  EXPECT_EQ(outcome->report.evidence.reference.exit_status, 128 + SIGTERM);
  EXPECT_THAT(failed(outcome->report), Contains("reference exit"));
  EXPECT_THAT(outcome->report.evidence.reference.leftovers, IsEmpty());
}

TEST_F(DrillRunner, AnEarlierDrillInTheFolderIsRefused) {
  ASSERT_OK(run());
  EXPECT_THAT(run(), FailsWith(ErrorCode::kFailedPrecondition, HasSubstr("runs/reference")));
}

TEST_F(DrillRunner, WhatCannotWorkIsToldBeforeAnythingRuns) {
  EXPECT_THAT(run("", {"train.steps=4"}),
              FailsWith(ErrorCode::kBadRecipe, HasSubstr("faults[0].step: must be at most "
                                                         "train.steps; got 5 of 4 steps")));
  EXPECT_THAT(run("", {"train.global_batch=1"}),
              FailsWith(ErrorCode::kBadRecipe, HasSubstr("world size is 2")));
  EXPECT_THAT(run("", {"train.stepz=4"}), FailsWith(ErrorCode::kBadRecipe, HasSubstr("stepz")));
  EXPECT_THAT(real_file_system().list(folder_.file("runs")).value(), IsEmpty());
}

TEST_F(DrillRunner, AMissingLauncherIsNamed) {
  self_ = "/nonexistent/muster";
  EXPECT_THAT(run(), FailsWith(ErrorCode::kNotFound, HasSubstr("/nonexistent/muster")));
}

TEST(NewestCheckpoint, IsTheHighestCompleteStep) {
  const TempDirectory folder;
  EXPECT_EQ(newest_checkpoint(folder.file("none")), std::nullopt);
  for (const std::string name : {"step-00000010", "step-00000020", "step-00000030",
                                 "step-00000040.tmp", "tmp-step-00000050"}) {
    ASSERT_OK(real_file_system().make_directories(folder.file(name)));
    if (name == "step-00000030") continue;  // no manifest: never committed
    ASSERT_OK(write_file_durably(real_file_system(), folder.file(name + "/manifest.json"), "{}"));
  }
  EXPECT_EQ(newest_checkpoint(folder.path()), folder.file("step-00000020"));
  const std::string later = folder.file("step-100000000");
  ASSERT_OK(real_file_system().make_directories(later));
  ASSERT_OK(write_file_durably(real_file_system(), path_join(later, "manifest.json"), "{}"));
  EXPECT_EQ(newest_checkpoint(folder.path()), later);
}

TEST(EnvironmentWith, SetsReplacesAndRemoves) {
  ::setenv("DRILL_TEST_A", "1", 1);
  ::setenv("DRILL_TEST_B", "1", 1);
  const auto environment = environment_with({"DRILL_TEST_A=2", "DRILL_TEST_B", "DRILL_TEST_C=3"});
  EXPECT_THAT(environment, Contains("DRILL_TEST_A=2"));
  EXPECT_THAT(environment, Not(Contains("DRILL_TEST_A=1")));
  EXPECT_THAT(environment, Not(Contains("DRILL_TEST_B=1")));
  EXPECT_THAT(environment, Contains("DRILL_TEST_C=3"));
  ::unsetenv("DRILL_TEST_A");
  ::unsetenv("DRILL_TEST_B");
}

TEST(RunProcess, ReportsSignalsAndStatusesAlike) {
  const TempDirectory folder;
  const auto run = [&](const char* script) {
    return run_process({.command = {"/bin/sh", "-c", script},
                        .environment = environment_with({}),
                        .output_path = folder.file("log"),
                        .limit = 20s,
                        .watched_directory = "",
                        .on_change = {}})
        .value();
  };
  EXPECT_EQ(run("exit 3").exit_status, 3);
  EXPECT_EQ(run("kill -KILL $$").exit_status, 128 + SIGKILL);
  EXPECT_EQ(run("echo out; echo err >&2").exit_status, 0);
  EXPECT_EQ(read_text(real_file_system(), folder.file("log")).value(), "out\nerr\n");
}

TEST(RunProcess, AnInterruptIsPassedOnAndTold) {
  const TempDirectory folder;
  const std::string me = std::to_string(::getpid());
  const auto outcome =
      run_process({.command = {"/bin/sh", "-c",
                               "trap 'exit 7' TERM; kill -INT " + me + "; while :; do :; done"},
                   .environment = environment_with({}),
                   .output_path = folder.file("log"),
                   .limit = 20s,
                   .watched_directory = "",
                   .on_change = {}});
  ASSERT_OK(outcome);
  EXPECT_EQ(outcome->interrupted_by, SIGINT);
  EXPECT_EQ(outcome->exit_status, 7);
  EXPECT_FALSE(outcome->timed_out);
}

TEST(RunProcess, TellsWhenTheWatchedFolderChanges) {
  const TempDirectory folder;
  const TempDirectory logs;
  int changes = 0;
  ASSERT_OK(run_process({.command = {"/bin/sh", "-c", "echo a > " + folder.file("x")},
                         .environment = environment_with({}),
                         .output_path = logs.file("log"),
                         .limit = 20s,
                         .watched_directory = folder.path(),
                         .on_change = [&] { ++changes; }}));
  EXPECT_GE(changes, 1);
}
}  // namespace
}  // namespace muster
