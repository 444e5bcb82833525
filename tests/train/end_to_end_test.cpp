// Whole jobs through the muster binary, small enough for seconds.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/file_system.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::HasSubstr;
using json = nlohmann::json;

struct Ended {
  int status = 0;
  std::string output;
};

std::string binary(const std::string& name) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

// Runs a shell command to its end, at most two minutes.
Ended shell(const std::string& command) {
  Ended ended;
  FILE* pipe = ::popen(("timeout -k 5 120 sh -c '" + command + "' 2>&1 < /dev/null").c_str(), "r");
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), pipe))
    ended.output.append(buffer, n);
  const int raw = ::pclose(pipe);
  ended.status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
  return ended;
}

class EndToEnd : public ::testing::Test {
 protected:
  EndToEnd() {
    std::ofstream text(directory_.file("corpus.txt"));
    for (int i = 0; i < 400; ++i)
      text << "line " << i * i << " of a text that repeats itself and counts\n";
    std::ofstream(directory_.file("tiny.yaml"))
        << "recipe: 1\n"
           "run:        {name: tiny, dir: "
        << dir("run")
        << "}\n"
           "model:      {kind: gpt, layers: 2, dim: 32, heads: 2, vocab: 256, sequence: 32, "
           "dropout: 0.1}\n"
           "data:       {kind: text, files: [\""
        << directory_.file("corpus.txt")
        << "\"], seed: 1}\n"
           "optimizer:  {kind: adamw, lr: 3e-3, warmup: 2}\n"
           "train:      {steps: 20, seed: 3, global_batch: 8, microbatch: 2}\n"
           "checkpoint: {every: 5, keep: 3}\n"
           "dist:       {backend: shm, timeout: 20 s}\n";
  }
  [[nodiscard]] std::string dir(const std::string& name) const { return directory_.file(name); }
  [[nodiscard]] std::string recipe() const { return directory_.file("tiny.yaml"); }

  Ended run(const std::string& options, const std::string& overrides = "",
            const std::string& environment = "") {
    return shell(fmt::format("{} {} run {} {} {}", environment, binary("muster"), options, recipe(),
                             overrides));
  }
  Ended drill(const std::string& faults, const std::string& expect) {
    std::ofstream(directory_.file("drill.yaml"))
        << "recipe: tiny.yaml\nlaunch: {nproc: 3, max_restarts: 2}\nfaults:\n"
        << faults << "expect: " << expect << "\n";
    return shell(fmt::format("{} drill --quiet --json {} {}", binary("muster"), dir("drill.json"),
                             dir("drill.yaml")));
  }
  std::vector<json> lines(const std::string& path) {
    std::vector<json> result;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) result.push_back(json::parse(line));
    return result;
  }

  TempDirectory directory_;
};

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
}  // namespace
}  // namespace muster
