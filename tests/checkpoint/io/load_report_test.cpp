#include "checkpoint/io/load_report.h"

#include "checkpoint/io/checkpointer.h"
#include "tests/checkpoint/memory_file_system.h"
#include "tests/checkpoint/small_model.h"
#include "tests/support/matchers.h"

namespace muster::checkpoint {
namespace {
using ::muster::testing::FailsWith;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Manifest manifest_of(std::vector<StoredTensor> tensors, Aliases aliases = {}) {
  Manifest manifest;
  manifest.tensors = std::move(tensors);
  manifest.aliases = std::move(aliases);
  return manifest;
}

StoredTensor whole(const std::string& name, DType dtype, const Dims& sizes) {
  StoredTensor tensor{name, dtype, sizes, 0, {}};
  tensor.boxes.push_back({0, 0, 0, full_box(sizes), {}});
  return tensor;
}

TEST(LoadReport, NothingToSayWhenAllFits) {
  std::vector<std::byte> bytes(16);
  const std::vector<TensorSlot> slots{{"a", DType::kF32, {4}, full_box({4}), bytes}};
  const LoadReport report =
      compare_with_slots(manifest_of({whole("a", DType::kF32, {4})}), slots, {});
  EXPECT_TRUE(report.faults.empty());
  EXPECT_TRUE(report.unused.empty());
}

TEST(LoadReport, EachKindOfFaultHasItsLine) {
  std::vector<std::byte> bytes(16);
  StoredTensor hole = whole("hole", DType::kF32, {4});
  hole.boxes[0].box.sizes = {3};
  const Manifest manifest =
      manifest_of({whole("dtype", DType::kF32, {4}), hole, whole("shape", DType::kF32, {5}),
                   whole("small", DType::kF32, {4}), whole("tied", DType::kF32, {4}),
                   whole("unused", DType::kF32, {4})},
                  {{"alias", "tied"}});
  const std::vector<TensorSlot> slots{
      {"alias", DType::kF32, {4}, full_box({4}), bytes},
      {"dtype", DType::kI32, {4}, full_box({4}), bytes},
      {"hole", DType::kF32, {4}, full_box({4}), bytes},
      {"missing", DType::kF32, {4}, full_box({4}), bytes},
      {"shape", DType::kF32, {4}, full_box({4}), bytes},
      {"small", DType::kF32, {4}, full_box({4}), std::span(bytes).first(8)},
      {"tied", DType::kF32, {4}, full_box({4}), bytes},
  };
  const LoadReport report = compare_with_slots(manifest, slots, {{"other", "tied"}});
  EXPECT_THAT(
      report.faults,
      ElementsAre("alias: the checkpoint ties \"alias\" to \"tied\", the model does not",
                  "alias: the model ties \"other\" to \"tied\", the checkpoint does not",
                  "coverage: \"hole\" is not whole: 1 of 4 elements of sizes [4] are in no box",
                  "coverage: \"small\" box [0:4] of f32 needs 16 bytes; the slot has 8",
                  "dtype: \"dtype\" is i32 in the model and f32 in the checkpoint",
                  "missing: \"missing\" f32 [4] is in the model and not in the checkpoint",
                  "shape: \"shape\" is [4] in the model and [5] in the checkpoint"));
  EXPECT_THAT(report.unused, ElementsAre("unused"));
  EXPECT_EQ(unexpected_fault(manifest, "unused"),
            "unexpected: \"unused\" f32 [4] is in the checkpoint and not in the model");
}

TEST(LoadReport, FiveFaultsAreReportedAtOnceAndNoByteIsChanged) {
  MemoryFileSystem fs;
  for (const auto& report : save_model(fs, "/ckpt", 3, 2)) ASSERT_OK(report);
  HashStore store;
  run_ranks(2, [&](int global_rank) {
    auto checkpointer =
        Checkpointer::open(test_options(fs, "/ckpt", &store, global_rank, 2)).value();
    RankState state(small_model(), 77, global_rank, 2);
    std::vector<TensorSlot> slots = state.slots();
    std::erase_if(slots, [](const TensorSlot& slot) { return slot.name == "table"; });
    for (TensorSlot& slot : slots) {
      if (slot.name == "embed.weight") slot.dtype = DType::kF16;
      if (slot.name == "head.bias") slot.name = "head.offset";
      if (slot.name == "layer.0.weight") slot.global_sizes = {16, 25};
    }
    const auto result = checkpointer->load_latest({.slots = slots, .aliases = {}, .step = {}});
    EXPECT_THAT(
        result,
        FailsWith(ErrorCode::kFailedPrecondition,
                  AllOf(HasSubstr("got 6 differences"),
                        HasSubstr("alias: the checkpoint ties \"lm_head.weight\""),
                        HasSubstr("dtype: \"embed.weight\" is f16 in the model and bf16"),
                        HasSubstr("missing: \"head.offset\""),
                        HasSubstr("unexpected: \"head.bias\" f32 [5]"),
                        HasSubstr("unexpected: \"table\" u8 [2, 3, 4]"),
                        HasSubstr("shape: \"layer.0.weight\" is [16, 25] in the model and"))));
    EXPECT_TRUE(state == RankState(small_model(), 77, global_rank, 2));
  });
}

TEST(LoadReport, ATensorThatOnlyOtherRanksWantIsNotUnexpected) {
  MemoryFileSystem fs;
  for (const auto& report : save_model(fs, "/ckpt", 3, 2)) ASSERT_OK(report);
  HashStore store;
  run_ranks(2, [&](int global_rank) {
    auto checkpointer =
        Checkpointer::open(test_options(fs, "/ckpt", &store, global_rank, 2)).value();
    // As pipeline stages: each rank has half of the tensors, whole.
    RankState state(small_model(), 77, 0, 1);
    std::vector<TensorSlot> slots = state.slots();
    std::vector<TensorSlot> mine;
    for (size_t i = 0; i < slots.size(); ++i)
      if (static_cast<int>(i % 2) == global_rank) mine.push_back(slots[i]);
    EXPECT_OK(checkpointer->load_latest(
        {.slots = mine, .aliases = {{"lm_head.weight", "embed.weight"}}, .step = {}}));
  });
}
}  // namespace
}  // namespace muster::checkpoint
