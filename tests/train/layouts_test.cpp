// Every layout of the mesh computes what one process computes, and a checkpoint of one loads in
// another.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>

#include "tests/train/job.h"

namespace muster {
namespace {
struct Layout {
  int ranks = 1;
  std::string overrides;
};

class Layouts : public EndToEnd {
 protected:
  // The overrides that every run of these tests has: no dropout, whose masks differ by layout.
  [[nodiscard]] std::string common(const std::string& run_name) const {
    return fmt::format(
        "model.dropout=0 model.layers=4 model.heads=4 train.global_batch=16 "
        "run.dir={} ",
        dir(run_name));
  }
  std::vector<json> train(const std::string& run_name, const Layout& layout) {
    const Ended ended =
        run(fmt::format("--nproc-per-node {}", layout.ranks), common(run_name) + layout.overrides);
    EXPECT_EQ(ended.status, 0) << layout.overrides << "\n" << ended.output;
    return lines(dir(run_name) + "/metrics.jsonl");
  }
  static void expect_equal_curves(const std::vector<json>& expected, const std::vector<json>& seen,
                                  const std::string& what) {
    ASSERT_EQ(seen.size(), expected.size()) << what;
    for (size_t i = 0; i < seen.size(); ++i) {
      const double loss = expected[i].at("loss"), norm = expected[i].at("grad_norm");
      EXPECT_NEAR(seen[i].at("loss").get<double>(), loss, 1e-5 * loss)
          << what << ", step " << i + 1;
      EXPECT_NEAR(seen[i].at("grad_norm").get<double>(), norm, 1e-3 * norm)
          << what << ", step " << i + 1;
    }
  }
};

TEST_F(Layouts, GptOnEveryMeshWalksTheCurveOfOneProcess) {
  const std::vector<json> expected = train("one", {});
  const std::vector<Layout> layouts = {
      {3, ""},
      {2, "mesh.tp=2"},
      {4, "mesh.tp=2 tp.sequence_parallel=true"},
      {2, "mesh.pp=2 pipeline.schedule=gpipe"},
      {4, "mesh.pp=2"},
      {4, "mesh.dp_replicate=2"},
      {4, "mesh.pp=2 mesh.tp=2 tp.sequence_parallel=true"},
      {2, "mesh.pp=2 pipeline.schedule=interleaved_1f1b pipeline.stages_per_rank=2"},
      {2, "train.activation_checkpoint=full"},
  };
  for (size_t i = 0; i < layouts.size(); ++i) {
    expect_equal_curves(expected, train(fmt::format("layout{}", i), layouts[i]),
                        layouts[i].overrides);
  }
}

TEST_F(Layouts, LlamaOnEveryMeshWalksTheCurveOfOneProcess) {
  const std::string llama = "model.kind=llama model.kv_heads=2 ";
  const std::vector<json> expected = train("one", {1, llama});
  const std::vector<Layout> layouts = {{2, llama},
                                       {4, llama + "mesh.tp=2 tp.sequence_parallel=true"},
                                       {4, llama + "mesh.pp=2"},
                                       {4, llama + "mesh.pp=2 mesh.tp=2"},
                                       {2, llama + "mesh.tp=2 train.activation_checkpoint=full"}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    expect_equal_curves(expected, train(fmt::format("layout{}", i), layouts[i]),
                        layouts[i].overrides);
  }
}

TEST_F(Layouts, RecomputedActivationsChangeNoBit) {
  const std::vector<json> kept = train("kept", {2, "model.dropout=0.1"});
  const std::vector<json> again =
      train("again", {2, "model.dropout=0.1 train.activation_checkpoint=full"});
  ASSERT_EQ(again.size(), kept.size());
  for (size_t i = 0; i < kept.size(); ++i)
    EXPECT_EQ(again[i].at("loss_hex"), kept[i].at("loss_hex")) << i;
}

// FSDP saves, the tensor parallel mesh goes on, then the pipeline, then one process.
TEST_F(Layouts, ACheckpointGoesFromLayoutToLayout) {
  const std::vector<json> expected = train("calm", {});
  const std::vector<Layout> layouts = {
      {3, ""}, {4, "mesh.tp=2"}, {4, "mesh.pp=2"}, {1, "train.log_every=1"}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    const int64_t kill_at = static_cast<int64_t>(i + 1) * 5 + 1;  // just after a checkpoint
    const std::string fault = fmt::format(
        "MUSTER_FAULTS=\"point=train.step_begin;rank=0;attempt=0;do=kill;step={}\"", kill_at);
    const Ended ended = run(fmt::format("--nproc-per-node {}", layouts[i].ranks),
                            common("moving") + layouts[i].overrides, fault);
    const bool is_last = i + 1 == layouts.size();
    ASSERT_EQ(ended.status, is_last ? 0 : 137) << layouts[i].overrides << "\n" << ended.output;
  }
  const std::vector<json> seen = lines(dir("moving") + "/metrics.jsonl");
  expect_equal_curves(expected, seen, "moved three times");
  std::vector<int64_t> resumed;
  for (const json& event : lines(dir("moving") + "/events.jsonl"))
    if (event.at("event") == "resumed") resumed.push_back(event.at("from_step"));
  EXPECT_THAT(resumed, ::testing::ElementsAre(5, 10, 15));
}

TEST_F(Layouts, AKilledRankOfAMeshResumesBitIdentically) {
  for (const std::string overrides : {"mesh.tp=2", "mesh.pp=2"}) {
    const std::string calm = std::string("calm_") + overrides.substr(5, 2);
    const std::string hurt = std::string("hurt_") + overrides.substr(5, 2);
    const std::vector<json> expected = train(calm, {4, overrides});
    const Ended ended =
        run("--nproc-per-node 4 --max-restarts 1", common(hurt) + overrides,
            "MUSTER_FAULTS=\"point=optimizer.before_step;rank=2;attempt=0;do=kill;step=12\"");
    ASSERT_EQ(ended.status, 0) << ended.output;
    std::map<int64_t, json> seen;
    for (const json& line : lines(dir(hurt) + "/metrics.jsonl")) seen[line.at("step")] = line;
    ASSERT_EQ(seen.size(), expected.size());
    for (const json& line : expected)
      EXPECT_EQ(seen.at(line.at("step")).at("loss_hex"), line.at("loss_hex")) << overrides;
  }
}

TEST_F(Layouts, AMeshThatCannotBeIsRefusedBeforeAnythingStarts) {
  const Ended heads = run("--nproc-per-node 3", "mesh.tp=3");
  EXPECT_EQ(heads.status, 78);
  EXPECT_THAT(heads.output, ::testing::HasSubstr("must divide the heads; got tp 3, heads 2"));
  EXPECT_FALSE(std::filesystem::exists(dir("run")));
}
}  // namespace
}  // namespace muster
