// Whole jobs through the muster binary, small enough for seconds.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/train/job.h"

namespace muster {
namespace {
using ::testing::HasSubstr;
using json = nlohmann::json;

TEST_F(EndToEnd, KilledWorkerResumesBitIdentically) {
  const Ended ended = drill(
      "  - {global_rank: 2, step: 13, point: optimizer.before_step, do: kill}\n",
      "{restarts: 1, resumed_from_step: 10, loss_curve: bit_identical, recovery: under 20 s}");
  EXPECT_EQ(ended.status, 0) << ended.output;
  const json report = json::parse(std::ifstream(dir("drill.json")));
  EXPECT_EQ(report.at("ok"), true);
  EXPECT_EQ(report.at("restarts"), 1);
  EXPECT_EQ(report.at("resumed_from_step"), 10);
  EXPECT_EQ(report.at("leftovers"), 0);
}

TEST_F(EndToEnd, KillsInThreePlacesStillGiveTheSameNumbers) {
  const Ended ended = drill(
      "  - {global_rank: 0, step: 7, point: train.step_begin, do: kill}\n"
      "  - {global_rank: 1, step: 15, point: checkpoint.after_data, do: kill, attempt: 1}\n",
      "{restarts: 2, loss_curve: bit_identical}");
  EXPECT_EQ(ended.status, 0) << ended.output;
}

TEST_F(EndToEnd, TornCheckpointFallsBackToTheOneBefore) {
  const Ended ended = drill(
      "  - {global_rank: 1, step: 10, point: checkpoint.after_commit, do: torn_write}\n"
      "  - {global_rank: 2, step: 12, point: train.step_begin, do: kill}\n",
      "{restarts: 1, resumed_from_step: 5, loss_curve: bit_identical, checkpoint_skipped: 10}");
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
}

TEST_F(EndToEnd, AnExitCodeOfTheUserClassIsNotRestarted) {
  const Ended ended =
      run("--nproc-per-node 2 --max-restarts 3", "",
          "MUSTER_FAULTS=\"point=train.step_begin;rank=1;attempt=0;do=exit;status=64\"");
  EXPECT_EQ(ended.status, 64) << ended.output;
  EXPECT_FALSE(std::filesystem::exists(dir("run") + "/logs/attempt_1"));
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

// The small forms of stop_worker.yaml, mismatch.yaml, slow_rank.yaml and resize.yaml.
TEST_F(EndToEnd, AStoppedWorkerIsNamedByItsPeersAndReplaced) {
  const Ended ended = drill("  - {global_rank: 2, step: 12, point: train.step_begin, do: stop}\n",
                            "{restarts: 1, named: {global_rank: 2, by: 2}, resumed_from_step: 10, "
                            "loss_curve: bit_identical}",
                            "set: {dist.timeout: 5 s}\nlaunch: {nproc: 3, max_restarts: 1}");
  EXPECT_EQ(ended.status, 0) << ended.output;
}

TEST_F(EndToEnd, ADivergedRankIsNamedOnAllRanksAndNotRestarted) {
  const Ended ended = drill("  - {global_rank: 1, step: 7, point: train.all_reduce, do: diverge}\n",
                            "{exit: 70, restarts: 0, named: {global_rank: 1, by: 2}}");
  EXPECT_EQ(ended.status, 0) << ended.output;
}

TEST_F(EndToEnd, ASlowRankIsNamedAndNotEnded) {
  const Ended ended =
      drill("  - {global_rank: 2, step: 7, point: optimizer.before_step, do: delay 4 s}\n",
            "{restarts: 0, slow_rank: 2, loss_curve: bit_identical}",
            "set: {dist.slow_after: 2 s}\nlaunch: {nproc: 3}");
  EXPECT_EQ(ended.status, 0) << ended.output;
}

TEST_F(EndToEnd, FewerRanksGoOnFromWhatMoreHadSaved) {
  const Ended ended = drill("  - {global_rank: 2, step: 13, point: train.step_begin, do: kill}\n",
                            "{resumed_from_step: 10}", "launch: {nproc: 3, then_nproc: 2}");
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("was saved with digest"));
}
}  // namespace
}  // namespace muster
