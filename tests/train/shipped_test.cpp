// What is shipped in configs/ works as it stands: every recipe over gloo, every drill on both
// backends, with a model and a text that are small enough for a test.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "dist/backends/backends.h"
#include "tests/launcher/agent/cluster.h"
#include "tests/train/job.h"

namespace muster {
namespace {
using json = nlohmann::json;

// The files of configs/`folder`, by name.
std::vector<std::string> shipped(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(MUSTER_SOURCE_DIR) + "/configs/" + folder)) {
    paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

class Shipped : public EndToEnd {
 protected:
  void SetUp() override {
    const std::string why{why_left_out("gloo")};
    if (!why.empty()) GTEST_SKIP() << why;
    if (testing::why_no_agents() != nullptr) GTEST_SKIP() << testing::why_no_agents();
  }

  // Overrides for a small model on the text of this test.
  [[nodiscard]] std::string small() const {
    return fmt::format(
        "model.dim=32 model.sequence=32 \"data.files=[{}]\" \"data.exclude=[]\" "
        "train.log_every=1000",
        directory_.file("corpus.txt"));
  }
  // The losses of a run, to the last bit.
  std::vector<std::string> losses(const std::string& run_dir) {
    std::vector<std::string> all;
    for (const json& line : lines(run_dir + "/metrics.jsonl")) all.push_back(line.at("loss_hex"));
    return all;
  }
};

TEST_F(Shipped, EveryRecipeComputesOverGlooWhatItComputesOverShm) {
  const std::vector<std::string> recipes = shipped("recipes");
  ASSERT_GE(recipes.size(), 5U);
  const std::string few_steps = " train.steps=4 optimizer.warmup=1 checkpoint.every=2";
  for (size_t i = 0; i < recipes.size(); ++i) {
    std::vector<std::string> expected;
    for (const std::string backend : {"shm", "gloo"}) {
      const std::string run_dir = dir(fmt::format("{}{}", backend, i));
      const Ended ended =
          shell(fmt::format("{} run --nproc-per-node 4 {} {} run.dir={} dist.backend={}",
                            binary("muster"), recipes[i], small() + few_steps, run_dir, backend));
      ASSERT_EQ(ended.status, 0) << recipes[i] << "\n" << ended.output;
      if (backend == "shm") expected = losses(run_dir);
      EXPECT_EQ(losses(run_dir), expected) << recipes[i];
    }
    EXPECT_EQ(expected.size(), 4U);
    // A drill without faults: two runs of two agents each.
    std::ofstream(directory_.file("agents.yaml"))
        << "recipe: " << recipes[i] << "\nlaunch: {agents: 2, nproc: 2}\n"
        << "expect: {loss_curve: bit_identical}\n";
    const std::string kept = dir(fmt::format("agents{}", i));
    const Ended ended =
        shell(fmt::format("{} drill --quiet --keep {} {} {} dist.backend=gloo", binary("muster"),
                          kept, dir("agents.yaml"), small() + few_steps));
    EXPECT_EQ(ended.status, 0) << recipes[i] << "\n" << ended.output;
    EXPECT_EQ(losses(kept + "/reference"), expected) << recipes[i];
  }
}

TEST_F(Shipped, EveryDrillProvesItsExpectationsOnBothBackends) {
  const std::vector<std::string> drills = shipped("drills");
  ASSERT_GE(drills.size(), 8U);
  for (const std::string& drill : drills) {
    for (const std::string backend : {"shm", "gloo"}) {
      const Ended ended = shell(fmt::format(
          "{} drill --quiet --json {} {} {} model.layers=1 model.heads=2 train.steps=150 "
          "train.global_batch=4 train.microbatch=1 dist.backend={}",
          binary("muster"), dir("drill.json"), drill, small(), backend));
      EXPECT_EQ(ended.status, 0) << drill << " over " << backend << "\n" << ended.output;
      const json report = json::parse(std::ifstream(dir("drill.json")));
      EXPECT_EQ(report.at("ok"), true) << report.dump(2);
      EXPECT_EQ(report.at("drill"), drill);
    }
  }
}
}  // namespace
}  // namespace muster
