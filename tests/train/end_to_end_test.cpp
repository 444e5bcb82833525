// Whole jobs through the muster binary, small enough for seconds. What must hold of a job wherever
// it runs is in line_test.cpp.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "launcher/recipe/recipe.h"
#include "tests/train/job.h"

namespace muster {
namespace {
using ::testing::HasSubstr;
using json = nlohmann::json;

TEST_F(EndToEnd, KillsInThreePlacesStillGiveTheSameNumbers) {
  const Ended ended = drill(
      "  - {global_rank: 0, step: 7, point: train.step_begin, do: kill}\n"
      "  - {global_rank: 1, step: 15, point: checkpoint.after_data, do: kill, attempt: 1}\n",
      "{restarts: 2, loss_curve: bit_identical}");
  EXPECT_EQ(ended.status, 0) << ended.output;
}

TEST_F(EndToEnd, AFailedExpectationFailsTheDrill) {
  const Ended ended =
      drill("  - {global_rank: 0, step: 7, point: train.step_begin, do: kill}\n", "{restarts: 2}");
  EXPECT_EQ(ended.status, 1) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("FAIL"));
}

TEST_F(EndToEnd, ACheckpointOfFourRanksGoesOnWithOneTwoAndThree) {
  const std::string kill =
      "MUSTER_FAULTS=\"point=train.step_begin;rank=1;attempt=0;do=kill;step=12\"";
  for (const int ranks : {1, 2, 3}) {
    const std::string run_dir = dir(fmt::format("elastic{}", ranks));
    const std::string overrides = "run.dir=" + run_dir;
    ASSERT_EQ(run("--nproc-per-node 4", overrides, kill).status, 137);
    const Ended digest_of_four =
        shell(fmt::format("{} ckpt digest {}/checkpoints", binary("muster"), run_dir));
    EXPECT_EQ(digest_of_four.status, 0) << digest_of_four.output;
    const Ended resumed = run(fmt::format("--nproc-per-node {}", ranks), overrides);
    EXPECT_EQ(resumed.status, 0) << resumed.output;
    const std::vector<json> metrics = lines(run_dir + "/metrics.jsonl");
    EXPECT_EQ(metrics.back().at("step"), 20);
    bool found = false;
    for (const json& event : lines(run_dir + "/events.jsonl")) {
      found = found || (event.at("event") == "resumed" && event.at("from_step") == 10);
    }
    EXPECT_TRUE(found);
  }
}

TEST_F(EndToEnd, UnknownKeyExits78AndStartsNothing) {
  const Ended ended = run("--nproc-per-node 2", "optimizer.lrr=1");
  EXPECT_EQ(ended.status, 78);
  EXPECT_THAT(ended.output, HasSubstr("did you mean"));
  EXPECT_FALSE(std::filesystem::exists(dir("run")));
}

TEST_F(EndToEnd, MissingDataExits66AndNamesTheGlob) {
  const Ended ended = run("--nproc-per-node 2", "\"data.files=[/nowhere/at/all/*.txt]\"");
  EXPECT_EQ(ended.status, 66) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("/nowhere/at/all"));
}

TEST_F(EndToEnd, AFolderThatCannotBeMadeExits74) {
  const Ended ended = run("--nproc-per-node 2", "run.dir=/proc/muster");
  EXPECT_EQ(ended.status, 74) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("/proc/muster"));
}

TEST_F(EndToEnd, AChangedRecipeIsRefusedOnResume) {
  ASSERT_EQ(run("--nproc-per-node 2").status, 0);
  const Ended ended = run("--nproc-per-node 2", "optimizer.lr=1e-3");
  EXPECT_EQ(ended.status, 65) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("resume: the recipe"));
  EXPECT_THAT(ended.output, HasSubstr("optimizer.lr: 0.003 there, 0.001 here"));
  EXPECT_EQ(load_recipe(dir("run/recipe.resolved.yaml")).value().optimizer.lr, 3e-3)
      << "a run that is refused leaves the record of the one before";
}

TEST_F(EndToEnd, AFailedSaveAfterTheLastStepFailsTheRun) {
  // A folder that can be listed and never written.
  const Ended ended = run("--nproc-per-node 2", "checkpoint.dir=/proc/self checkpoint.every=20");
  EXPECT_EQ(ended.status, 74) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("step 20/20"));
  EXPECT_THAT(ended.output, HasSubstr("save step 20"));
  for (const json& event : lines(dir("run/events.jsonl"))) EXPECT_NE(event.at("event"), "finished");
}

TEST_F(EndToEnd, ARunOnTheFakeBackendSaysThatItsNumbersMeanNothing) {
  const Ended ended = run("", "dist.backend=fake train.steps=2");
  EXPECT_THAT(ended.output, HasSubstr("the numbers of this run mean nothing"));
}

// Without any option, and in one look: the restart, its generation, its incident, its time.
TEST_F(EndToEnd, TheReportOfARunShowsWhatTheLauncherDid) {
  const Ended ended =
      run("--nproc-per-node 2 --max-restarts 1", "",
          "MUSTER_FAULTS=\"point=train.step_begin;rank=1;attempt=0;do=kill;step=12\"");
  ASSERT_EQ(ended.status, 0) << ended.output;
  const Ended reported = shell(
      fmt::format("{} report {} --json -o {}", binary("muster"), dir("run"), dir("report.json")));
  ASSERT_EQ(reported.status, 0) << reported.output;
  const json report = json::parse(std::ifstream(dir("report.json")));
  ASSERT_EQ(report.at("attempts").size(), 2U);
  for (const int64_t attempt : {0, 1}) {
    EXPECT_EQ(report["attempts"][static_cast<size_t>(attempt)].at("generation"), attempt + 1);
  }
  EXPECT_EQ(report["attempts"][1].at("resumed_from"), 10);
  EXPECT_GT(report["attempts"][1].at("recovery_s"), 0.0);
  EXPECT_EQ(report.at("incidents").size(), 1U);
  EXPECT_TRUE(report.at("damaged").empty()) << report.at("damaged");
  std::set<std::string> seen;
  for (const json& event : report.at("agent")) seen.insert(event.at("event"));
  EXPECT_THAT(seen, ::testing::IsSupersetOf(
                        {"job_start", "attempt_start", "worker_exit", "incident", "job_end"}));
}

TEST_F(EndToEnd, EveryEventOfTheTrainerHasItsTimeAndAttempt) {
  const Ended ended =
      run("--nproc-per-node 2 --max-restarts 1", "",
          "MUSTER_FAULTS=\"point=train.step_begin;rank=1;attempt=0;do=kill;step=12\"");
  ASSERT_EQ(ended.status, 0) << ended.output;
  std::map<std::string, int> count;
  int64_t last_ns = 0;
  for (const json& event : lines(dir("run") + "/events.jsonl")) {
    ++count[event.at("event")];
    EXPECT_GT(event.at("t_ns"), last_ns) << event;
    EXPECT_EQ(event.at("attempt"), count["group_ready"] - 1) << event;
    last_ns = event.at("t_ns");
  }
  EXPECT_EQ(count["saved"], 4);
  EXPECT_EQ(count["resumed"], 1);
  EXPECT_EQ(count["finished"], 1);
}

TEST_F(EndToEnd, TensorBoardFilesComeWithTheirKey) {
  ASSERT_EQ(run("--nproc-per-node 2", "run.tensorboard=true train.steps=4").status, 0);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir("run") + "/tensorboard")) {
    EXPECT_THAT(entry.path().filename().string(), HasSubstr("tfevents"));
    const std::string bytes = read_text(real_file_system(), entry.path().string()).value();
    for (const char* tag : {"train/loss", "train/lr", "train/grad_norm", "train/tokens_per_s"})
      EXPECT_THAT(bytes, HasSubstr(tag));
    ++files;
  }
  EXPECT_EQ(files, 1);  // rank 0's
}

}  // namespace
}  // namespace muster
