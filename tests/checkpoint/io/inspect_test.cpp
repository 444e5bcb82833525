#include "checkpoint/io/inspect.h"

#include <cmath>

#include "core/base/text.h"
#include "tests/checkpoint/memory_file_system.h"
#include "tests/checkpoint/small_model.h"
#include "tests/support/matchers.h"

namespace muster::checkpoint {
namespace {
using ::muster::testing::FailsWith;
using ::testing::HasSubstr;

TEST(Inspect, SlabsTileATensorInOrder) {
  Rng rng(77);
  for (int i = 0; i < 2000; ++i) {
    const Dims sizes = random_sizes(rng);
    const int64_t max_numel = uniform(rng, 1, 60);
    const std::vector<Box> slabs = slabs_of(sizes, max_numel);
    ASSERT_EQ(tiling_fault(sizes, slabs), std::nullopt);
    int64_t at = 0;
    for (const Box& slab : slabs) {
      ASSERT_LE(numel(slab.sizes), max_numel);
      const RunWalk walk = run_walk(slab, slab, full_box(sizes));
      ASSERT_EQ(walk.num_runs, 1);
      ASSERT_EQ(walk.begin_b, at);
      at += numel(slab.sizes);
    }
  }
}

TEST(Inspect, ListsGoodAndTornOnesNewestFirst) {
  MemoryFileSystem fs;
  for (const int64_t step : {1, 2}) ASSERT_OK(save_model(fs, "/ckpt", step, 2)[0]);
  fs.resize("/ckpt/step-00000002/train.json", 3);
  const auto listed = list_checkpoints(fs, "/ckpt");
  ASSERT_OK(listed);
  ASSERT_EQ(listed->size(), 2u);
  EXPECT_EQ((*listed)[0].name, "step-00000002");
  EXPECT_THAT((*listed)[0].reason, HasSubstr("train.json must have"));
  EXPECT_EQ((*listed)[1].reason, "");
  EXPECT_EQ((*listed)[1].world_size, 2);
  EXPECT_EQ((*listed)[1].num_tensors, 10);
  EXPECT_EQ((*listed)[1].digest, hex64(model_digest(small_model(), 1)));
  EXPECT_EQ(list_checkpoints(fs, "/ckpt/step-00000001/")->size(), 1u);
  EXPECT_THAT(list_checkpoints(fs, "/none"), FailsWith(ErrorCode::kNotFound, HasSubstr("/none")));
}

TEST(Inspect, AFolderStandsForItsNewestGoodCheckpoint) {
  MemoryFileSystem fs;
  for (const int64_t step : {1, 2}) ASSERT_OK(save_model(fs, "/ckpt", step, 2)[0]);
  EXPECT_EQ(open_checkpoint(fs, "/ckpt")->manifest().step, 2);
  fs.resize("/ckpt/step-00000002/train.json", 3);
  EXPECT_EQ(open_checkpoint(fs, "/ckpt")->manifest().step, 1);
  EXPECT_THAT(open_checkpoint(fs, "/ckpt/step-00000002"),
              FailsWith(ErrorCode::kCorruption, HasSubstr("train.json")));
  fs.resize("/ckpt/step-00000001/train.json", 3);
  EXPECT_THAT(open_checkpoint(fs, "/ckpt"),
              FailsWith(ErrorCode::kCorruption, HasSubstr("step-00000001: open checkpoint")));
  EXPECT_THAT(open_checkpoint(fs, "/none"), FailsWith(ErrorCode::kNotFound, HasSubstr("/none")));
}

TEST(Inspect, DigestsAreThoseOfTheModelInEveryLayout) {
  for (const int world_size : {1, 3}) {
    MemoryFileSystem fs;
    ASSERT_OK(save_model(fs, "/ckpt", 1, world_size)[0]);
    const auto report = digest_checkpoint(*open_checkpoint(fs, "/ckpt"));
    ASSERT_OK(report);
    EXPECT_EQ(report->total, hex64(model_digest(small_model(), 1)));
    EXPECT_EQ(report->tensors.size(), 10u);
    EXPECT_EQ(report->tensors[0].name, "embed.weight");
  }
}

TEST(Inspect, LayoutsDoNotMakeADifference) {
  MemoryFileSystem fs;
  ASSERT_OK(save_model(fs, "/a", 1, 2)[0]);
  ASSERT_OK(save_model(fs, "/b", 1, 3)[0]);
  const auto report = diff_checkpoints(*open_checkpoint(fs, "/a"), *open_checkpoint(fs, "/b"));
  ASSERT_OK(report);
  EXPECT_TRUE(report->tensors.empty());
  // The third rank has a state of its own.
  ASSERT_EQ(report->state.size(), 1u);
  EXPECT_EQ(report->state[0].path, "rank/2");
  EXPECT_EQ(report->state[0].b, R"({"cursor":2})");
}

// A checkpoint of a few float values and what train.json says.
void save_values(MemoryFileSystem& fs, const std::string& directory, const std::string& name,
                 std::vector<float> values, const Dims& sizes, const std::string& train = "{}") {
  auto checkpointer = Checkpointer::open(test_options(fs, directory)).value();
  SaveRequest request;
  request.step = 1;
  request.tensors.push_back(
      {name, DType::kF32, sizes, full_box(sizes), std::as_bytes(std::span(values)), {}});
  request.train_state_json = train;
  checkpointer->save(request).value();
}

DiffReport diff(MemoryFileSystem& fs) {
  return diff_checkpoints(*open_checkpoint(fs, "/a"), *open_checkpoint(fs, "/b")).value();
}

TEST(Inspect, OneDifferentWeightIsFoundWithItsIndexAndDistance) {
  MemoryFileSystem fs;
  std::vector<float> values(60, 1.0f);
  save_values(fs, "/a", "w", values, {5, 12});
  values[31] = 3.5f;
  values[32] = 1.25f;
  save_values(fs, "/b", "w", values, {5, 12});
  const DiffReport report = diff(fs);
  ASSERT_EQ(report.tensors.size(), 1u);
  EXPECT_EQ(report.tensors[0].first_index, (Dims{2, 7}));
  EXPECT_EQ(report.tensors[0].max_abs, 2.5);
  EXPECT_EQ(report.tensors[0].num_different, 2);
  EXPECT_EQ(report.tensors[0].detail, "2 of 60 elements differ; max abs 2.5; first at [2, 7]");
  EXPECT_FALSE(report.is_equal());
}

TEST(Inspect, NanIsEqualToItselfAndFarFromNumbers) {
  MemoryFileSystem fs;
  save_values(fs, "/a", "w", {NAN, 1.0f, 2.0f}, {3});
  save_values(fs, "/b", "w", {NAN, NAN, 5.0f}, {3});
  const DiffReport report = diff(fs);
  ASSERT_EQ(report.tensors.size(), 1u);
  EXPECT_EQ(report.tensors[0].first_index, (Dims{1}));
  EXPECT_TRUE(std::isnan(report.tensors[0].max_abs));
}

TEST(Inspect, NamesAndShapesAreCompared) {
  MemoryFileSystem fs;
  save_values(fs, "/a", "w", {1, 2, 3, 4}, {4});
  save_values(fs, "/b", "w", {1, 2, 3, 4}, {2, 2});
  EXPECT_EQ(diff(fs).tensors.at(0).detail, "[4] in a, [2, 2] in b");
  MemoryFileSystem other;
  save_values(other, "/a", "v", {1}, {1});
  save_values(other, "/b", "w", {1}, {1});
  EXPECT_EQ(diff(other).tensors.at(0).what, "only in a");
  EXPECT_EQ(diff(other).tensors.at(1).what, "only in b");
}

TEST(Inspect, StateIsComparedLeafByLeaf) {
  MemoryFileSystem fs;
  save_values(fs, "/a", "w", {1}, {1}, R"({"lr": 0.1, "data": {"epoch": 1, "index": [3, 4]}})");
  save_values(fs, "/b", "w", {1}, {1}, R"({"lr": 0.1, "data": {"epoch": 1, "index": [3, 5]}})");
  const DiffReport report = diff(fs);
  EXPECT_TRUE(report.tensors.empty());
  ASSERT_EQ(report.state.size(), 1u);
  EXPECT_EQ(report.state[0].path, "train/data/index/1");
  EXPECT_EQ(report.state[0].a, "4");
  EXPECT_EQ(report.state[0].b, "5");
}

TEST(Inspect, DamageIsAnErrorNotADifference) {
  MemoryFileSystem fs;
  save_values(fs, "/a", "w", {1, 2}, {2});
  save_values(fs, "/b", "w", {1, 2}, {2});
  const std::string path = "/b/step-00000001/rank-00000.safetensors";
  fs.flip_bit(path, fs.info(path)->nbytes * 8 - 1);
  EXPECT_THAT(diff_checkpoints(*open_checkpoint(fs, "/a"), *open_checkpoint(fs, "/b")),
              FailsWith(ErrorCode::kCorruption, HasSubstr("tensor \"w\"")));
  EXPECT_THAT(digest_checkpoint(*open_checkpoint(fs, "/b")),
              FailsWith(ErrorCode::kCorruption, HasSubstr("tensor \"w\"")));
}
}  // namespace
}  // namespace muster::checkpoint
