#include "checkpoint/io/checkpointer.h"

#include <nlohmann/json.hpp>

#include "checkpoint/io/names.h"
#include "checkpoint/io/reader.h"
#include "checkpoint/io/safetensors.h"
#include "core/base/text.h"
#include "tests/checkpoint/memory_file_system.h"
#include "tests/checkpoint/small_model.h"
#include "tests/support/matchers.h"

namespace muster::checkpoint {
namespace {
using ::muster::testing::FailsWith;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Checkpointer, SavesAndLoadsOnOneRankWithoutAStore) {
  const TempDirectory dir;
  auto checkpointer =
      Checkpointer::open(test_options(real_file_system(), dir.file("ckpt"))).value();
  const RankState state(small_model(), 10, 0, 1);
  const auto report = checkpointer->save(test_request(state, 10));
  ASSERT_OK(report);
  EXPECT_EQ(report->path, dir.file("ckpt/step-00000010"));
  EXPECT_EQ(report->digest, hex64(model_digest(small_model(), 10)));
  EXPECT_EQ(report->plan_nbytes, 0);
  RankState loaded(small_model(), -1, 0, 1);
  const std::vector<TensorSlot> slots = loaded.slots();
  const auto result = checkpointer->load_latest(
      {.slots = slots, .aliases = {{"lm_head.weight", "embed.weight"}}, .step = {}});
  ASSERT_OK(result);
  ASSERT_TRUE(result->has_value());
  const LoadedState& found = **result;
  EXPECT_TRUE(loaded == state);
  EXPECT_EQ(found.step, 10);
  EXPECT_EQ(found.digest, report->digest);
  EXPECT_EQ(found.train_state_json, R"({"lr":0.1,"step":10})");
  EXPECT_THAT(found.rank_states_json, ElementsAre(R"({"cursor":0})"));
  EXPECT_EQ(found.recipe_text, "recipe: 1\n");
  EXPECT_EQ(found.code_revision, "r1");
  EXPECT_EQ(found.aliases, (Aliases{{"lm_head.weight", "embed.weight"}}));
  EXPECT_TRUE(found.skipped.empty());
}

TEST(Checkpointer, AnEmptyFolderHasNothingToLoad) {
  MemoryFileSystem fs;
  for (const auto& result : load_model(fs, "/ckpt", 2)) {
    ASSERT_OK(result);
    EXPECT_FALSE(result->has_value());
  }
}

TEST(Checkpointer, ACheckpointOfFourRanksLoadsOnAnyNumberWithTheSameDigest) {
  for (const int writers : {1, 2, 3, 4}) {
    MemoryFileSystem fs;
    for (const auto& report : save_model(fs, "/ckpt", 5, writers)) {
      ASSERT_OK(report);
      EXPECT_EQ(report->digest, hex64(model_digest(small_model(), 5)));
    }
    for (const int readers : {1, 2, 3, 4}) {
      SCOPED_TRACE(::testing::Message() << writers << " to " << readers);
      bool is_equal = false;
      for (const auto& result : load_model(fs, "/ckpt", readers, &is_equal)) {
        ASSERT_OK(result);
        ASSERT_TRUE(result->has_value());
        EXPECT_EQ((*result)->digest, hex64(model_digest(small_model(), 5)));
        EXPECT_EQ((*result)->writer_world_size, writers);
        EXPECT_EQ((*result)->rank_states_json.size(), static_cast<size_t>(writers));
        EXPECT_EQ((*result)->rank_states_json.back(),
                  "{\"cursor\":" + std::to_string(writers - 1) + "}");
      }
      EXPECT_TRUE(is_equal);
    }
  }
}

// Random tilings as several pieces of one rank: any boxes saved, any boxes loaded.
TEST(Checkpointer, AnyTilingSavedLoadsIntoAnyOther) {
  Rng rng(1234);
  MemoryFileSystem fs;
  for (int i = 0; i < 2000; ++i) {
    SCOPED_TRACE(i);
    const std::string dir = "/" + std::to_string(i);
    CheckpointerOptions options = test_options(fs, dir);
    options.chunk_nbytes = 8 * uniform(rng, 1, 40);
    auto checkpointer = Checkpointer::open(options).value();
    const DType dtype = static_cast<DType>(uniform(rng, 0, kNumDTypes - 1));
    const ModelTensor tensor{"t", dtype, random_sizes(rng), ModelTensor::Layout::kRows};
    const std::vector<std::byte> full = tensor_bytes(tensor, i);
    SaveRequest request;
    request.step = i;
    std::vector<std::vector<std::byte>> parts;
    const std::vector<Box> saved = random_tiling(rng, tensor.sizes);
    for (const Box& box : saved)
      parts.push_back(cut_box(full, tensor.sizes, box, item_nbytes(dtype)));
    for (size_t k = 0; k < saved.size(); ++k)
      request.tensors.push_back({"t", dtype, tensor.sizes, saved[k], parts[k], {}});
    const auto report = checkpointer->save(request);
    ASSERT_OK(report);
    const std::vector<Box> wanted = random_tiling(rng, tensor.sizes);
    std::vector<std::vector<std::byte>> loaded;
    for (const Box& box : wanted)
      loaded.emplace_back(static_cast<size_t>(numel(box.sizes) * item_nbytes(dtype)));
    std::vector<TensorSlot> slots;
    for (size_t k = 0; k < wanted.size(); ++k)
      slots.push_back({"t", dtype, tensor.sizes, wanted[k], loaded[k]});
    ASSERT_OK(checkpointer->load_latest({.slots = slots, .aliases = {}, .step = {}}));
    for (size_t k = 0; k < wanted.size(); ++k)
      ASSERT_EQ(loaded[k], cut_box(full, tensor.sizes, wanted[k], item_nbytes(dtype)));
    ASSERT_OK(remove_tree(fs, dir));
  }
}

TEST(Checkpointer, RankFilesAreSafetensorsThatPyTorchCanReshard) {
  MemoryFileSystem fs;
  for (const auto& report : save_model(fs, "/ckpt", 5, 3)) ASSERT_OK(report);
  const std::string path = "/ckpt/step-00000005/" + rank_file_name(1);
  const auto header = read_safetensors_header(fs, path);
  ASSERT_OK(header);
  EXPECT_EQ(header->metadata.at("format"), "pt");
  EXPECT_EQ(header->metadata.at("muster.step"), "5");
  const auto sharding = nlohmann::json::parse(header->metadata.at("DCP_SHARDING_INFO"));
  EXPECT_EQ(sharding.at("layer.0.weight").at("saved_offsets"), (Dims{6, 0}));
  EXPECT_EQ(sharding.at("layer.1.weight").at("saved_offsets"), (Dims{0, 4}));
  const auto checksums = nlohmann::json::parse(header->metadata.at("muster.xxh3_64"));
  EXPECT_EQ(header->metadata.at("muster.chunk_nbytes"), "256");
  for (const SafetensorsEntry& entry : header->tensors) {
    const auto bytes = read_safetensors_tensor(fs, path, *header, entry);
    ASSERT_OK(bytes);
    std::vector<uint64_t> chunks;
    for (size_t at = 0; at < bytes->size(); at += 256)
      chunks.push_back(
          hash_bytes(std::span(*bytes).subspan(at, std::min<size_t>(256, bytes->size() - at))));
    const uint64_t checksum =
        chunks.size() == 1 ? chunks[0] : hash_bytes(std::as_bytes(std::span(chunks)));
    EXPECT_EQ(checksums.at(entry.name), hex64(checksum)) << entry.name;
  }
  EXPECT_EQ(header->data_begin % 4096, 0);
}

// Written by version 1 on 2 ranks; every later version must read it.
TEST(Checkpointer, AStoredCheckpointOfVersionOneLoadsForEver) {
  const std::string folder = path_join(MUSTER_SOURCE_DIR, "tests/golden/checkpoints/v1");
  MemoryFileSystem fs;
  ASSERT_OK(fs.make_directories("/ckpt/step-00000003"));
  const auto names = real_file_system().list(path_join(folder, "step-00000003"));
  ASSERT_OK(names);
  for (const std::string& name : *names) {
    const std::string file = "step-00000003/" + name;
    const auto text = read_text(real_file_system(), path_join(folder, file));
    ASSERT_OK(text);
    fs.write("/ckpt/" + file, *text);
  }
  bool is_equal = false;
  const auto loaded = load_model(fs, "/ckpt", 3, &is_equal)[0];
  ASSERT_OK(loaded);
  EXPECT_EQ((*loaded)->step, 3);
  EXPECT_TRUE(is_equal);
  EXPECT_EQ((*loaded)->digest, hex64(model_digest(small_model(), 3)));
}

TEST(Checkpointer, ReplicatedTensorsAreWrittenOnce) {
  MemoryFileSystem fs;
  for (const auto& report : save_model(fs, "/ckpt", 5, 4)) ASSERT_OK(report);
  const auto checkpoint = Checkpoint::open(fs, "/ckpt/step-00000005");
  ASSERT_OK(checkpoint);
  int64_t stored = 0;
  for (const StoredTensor& tensor : checkpoint->manifest().tensors)
    for (const StoredBox& box : tensor.boxes) stored += box.nbytes;
  int64_t wanted = 0;
  for (const ModelTensor& tensor : small_model())
    wanted += numel(tensor.sizes) * item_nbytes(tensor.dtype);
  EXPECT_EQ(stored, wanted);
}

TEST(Checkpointer, AnExistingStepIsRefusedUnlessAsked) {
  MemoryFileSystem fs;
  auto checkpointer = Checkpointer::open(test_options(fs, "/ckpt")).value();
  const RankState first(small_model(), 1, 0, 1);
  const RankState second(small_model(), 2, 0, 1);
  SaveRequest request = test_request(first, 10);
  ASSERT_OK(checkpointer->save(request));
  request = test_request(second, 10);
  EXPECT_THAT(checkpointer->save(request),
              FailsWith(ErrorCode::kFailedPrecondition, HasSubstr("set overwrite")));
  EXPECT_EQ(checkpointer->failed_saves_in_a_row(), 1);
  request.overwrite = true;
  const auto report = checkpointer->save(request);
  ASSERT_OK(report);
  EXPECT_EQ(report->digest, hex64(model_digest(small_model(), 2)));
  EXPECT_EQ(checkpointer->failed_saves_in_a_row(), 0);
  EXPECT_THAT(*fs.list("/ckpt"), ElementsAre("step-00000010"));
}

TEST(Checkpointer, ADamagedStepIsReplacedWithoutAsking) {
  MemoryFileSystem fs;
  ASSERT_OK(save_model(fs, "/ckpt", 10, 1)[0]);
  ASSERT_OK(save_model(fs, "/ckpt", 20, 1)[0]);
  fs.flip_bit("/ckpt/step-00000020/" + rank_file_name(0), 8 * 5000);
  auto checkpointer = Checkpointer::open(test_options(fs, "/ckpt")).value();
  RankState loaded(small_model(), -1, 0, 1);
  const std::vector<TensorSlot> slots = loaded.slots();
  const auto result = checkpointer->load_latest(
      {.slots = slots, .aliases = {{"lm_head.weight", "embed.weight"}}, .step = {}});
  ASSERT_OK(result);
  EXPECT_EQ((*result)->step, 10);
  ASSERT_EQ((*result)->skipped.size(), 1u);
  EXPECT_EQ((*result)->skipped[0].name, "step-00000020");
  EXPECT_THAT((*result)->skipped[0].reason, HasSubstr("rank-00000.safetensors"));
  // The run goes on from 10 and comes to 20 again.
  const RankState again(small_model(), 20, 0, 1);
  ASSERT_OK(checkpointer->save(test_request(again, 20)));
  bool is_equal = false;
  EXPECT_EQ((*load_model(fs, "/ckpt", 1, &is_equal)[0])->step, 20);
  EXPECT_TRUE(is_equal);
}

TEST(Checkpointer, AChosenStepIsLoadedOrNothing) {
  MemoryFileSystem fs;
  ASSERT_OK(save_model(fs, "/ckpt", 10, 1)[0]);
  ASSERT_OK(save_model(fs, "/ckpt", 20, 1)[0]);
  auto checkpointer = Checkpointer::open(test_options(fs, "/ckpt")).value();
  RankState loaded(small_model(), -1, 0, 1);
  const std::vector<TensorSlot> slots = loaded.slots();
  LoadRequest request{slots, {{"lm_head.weight", "embed.weight"}}, 10};
  EXPECT_EQ((*checkpointer->load_latest(request))->step, 10);
  request.step = 15;
  EXPECT_THAT(checkpointer->load_latest(request),
              FailsWith(ErrorCode::kNotFound, HasSubstr("step 15 must exist")));
}

TEST(Checkpointer, WhenAllAreDamagedTheErrorListsEach) {
  MemoryFileSystem fs;
  ASSERT_OK(save_model(fs, "/ckpt", 10, 1)[0]);
  ASSERT_OK(save_model(fs, "/ckpt", 20, 1)[0]);
  fs.resize("/ckpt/step-00000010/manifest.json", 100);
  fs.resize("/ckpt/step-00000020/" + rank_file_name(0), 5000);
  EXPECT_THAT(load_model(fs, "/ckpt", 1)[0],
              FailsWith(ErrorCode::kCorruption,
                        ::testing::AllOf(HasSubstr("step-00000010: manifest"),
                                         HasSubstr("step-00000020: open checkpoint"))));
}

TEST(Checkpointer, PeekReadsTheStateAndNoTensors) {
  MemoryFileSystem fs;
  ASSERT_OK(save_model(fs, "/ckpt", 10, 2)[0]);
  ASSERT_OK(save_model(fs, "/ckpt", 20, 2)[0]);
  fs.flip_bit("/ckpt/step-00000020/train.json", 3);
  const auto state = Checkpointer::open(test_options(fs, "/ckpt")).value()->peek_latest();
  ASSERT_OK(state);
  EXPECT_EQ((*state)->step, 10);
  EXPECT_EQ((*state)->train_state_json, R"({"lr":0.1,"step":10})");
  EXPECT_EQ((*state)->skipped.size(), 1u);
}

TEST(Checkpointer, ADifferentStepOnOneRankIsAMismatchOnAll) {
  MemoryFileSystem fs;
  HashStore store;
  std::vector<Result<SaveReport>> results(3, SaveReport{});
  run_ranks(3, [&](int global_rank) {
    auto checkpointer =
        Checkpointer::open(test_options(fs, "/ckpt", &store, global_rank, 3)).value();
    const RankState state(small_model(), 1, global_rank, 3);
    results[static_cast<size_t>(global_rank)] =
        checkpointer->save(test_request(state, global_rank == 2 ? 11 : 10, global_rank));
  });
  for (const auto& result : results) {
    EXPECT_THAT(result, FailsWith(ErrorCode::kMismatch,
                                  HasSubstr("global rank 2: all ranks must save the same step; got "
                                            "11 here and 10")));
  }
  EXPECT_TRUE(fs.list("/ckpt")->empty());
}

TEST(Checkpointer, PiecesThatDoNotTileTheirTensorAreAMismatchOnAll) {
  MemoryFileSystem fs;
  HashStore store;
  std::vector<Result<SaveReport>> results(2, SaveReport{});
  run_ranks(2, [&](int global_rank) {
    auto checkpointer =
        Checkpointer::open(test_options(fs, "/ckpt", &store, global_rank, 2)).value();
    const RankState state(small_model(), 1, global_rank, 2);
    SaveRequest request = test_request(state, 10, global_rank);
    // Both ranks hold all of it, and neither says so.
    for (TensorPiece& piece : request.tensors)
      if (piece.name == "norm.scale") piece.holders.clear();
    results[static_cast<size_t>(global_rank)] = checkpointer->save(request);
  });
  for (const auto& result : results)
    EXPECT_THAT(result, FailsWith(ErrorCode::kMismatch, HasSubstr("tensor \"norm.scale\"")));
  EXPECT_TRUE(fs.list("/ckpt")->empty());
}

TEST(Checkpointer, ABadRequestOfOneRankFailsOnAllWithItsName) {
  for (const int culprit : {0, 1}) {
    MemoryFileSystem fs;
    HashStore store;
    std::vector<Result<SaveReport>> results(2, SaveReport{});
    run_ranks(2, [&](int global_rank) {
      auto checkpointer =
          Checkpointer::open(test_options(fs, "/ckpt", &store, global_rank, 2)).value();
      const RankState state(small_model(), 1, global_rank, 2);
      SaveRequest request = test_request(state, 10, global_rank);
      if (global_rank == culprit) request.rank_state_json = "[1, 2]";
      results[static_cast<size_t>(global_rank)] = checkpointer->save(request);
      request.rank_state_json = "{}";
      EXPECT_OK(checkpointer->save(request));
    });
    for (const auto& result : results) {
      EXPECT_THAT(result, FailsWith(ErrorCode::kInvalidArgument,
                                    HasSubstr("global rank " + std::to_string(culprit) +
                                              ": rank state must be a JSON object; got array")));
    }
  }
}

TEST(Checkpointer, ARankThatNeverComesIsNamedByAllOthers) {
  MemoryFileSystem fs;
  HashStore store;
  std::vector<Result<SaveReport>> results(3, SaveReport{});
  run_ranks(3, [&](int global_rank) {
    if (global_rank == 1) return;
    CheckpointerOptions options = test_options(fs, "/ckpt", &store, global_rank, 3);
    options.timeout = std::chrono::milliseconds(200);
    auto checkpointer = Checkpointer::open(options).value();
    const RankState state(small_model(), 1, global_rank, 3);
    results[static_cast<size_t>(global_rank)] =
        checkpointer->save(test_request(state, 10, global_rank));
  });
  for (const int global_rank : {0, 2}) {
    EXPECT_THAT(results[static_cast<size_t>(global_rank)],
                FailsWith(ErrorCode::kTimeout,
                          HasSubstr("save step 10: phase write: all 3 ranks must report; got "
                                    "nothing from global rank 1")));
  }
  EXPECT_TRUE(fs.list("/ckpt")->empty());
}

TEST(Checkpointer, WithoutRankZeroTheOthersTimeOut) {
  MemoryFileSystem fs;
  HashStore store;
  CheckpointerOptions options = test_options(fs, "/ckpt", &store, 1, 2);
  options.timeout = std::chrono::milliseconds(50);
  auto checkpointer = Checkpointer::open(options).value();
  const RankState state(small_model(), 1, 1, 2);
  EXPECT_THAT(checkpointer->save(test_request(state, 10, 1)),
              FailsWith(ErrorCode::kTimeout, HasSubstr("phase begin: global rank 0")));
}

TEST(Checkpointer, KeysOfPastSavesLeaveTheStore) {
  MemoryFileSystem fs;
  HashStore store;
  run_ranks(3, [&](int global_rank) {
    auto checkpointer =
        Checkpointer::open(test_options(fs, "/ckpt", &store, global_rank, 3)).value();
    for (int64_t step = 1; step <= 20; ++step) {
      const RankState state(small_model(), step, global_rank, 3);
      const auto report = checkpointer->save(test_request(state, step, global_rank));
      EXPECT_OK(report);
      EXPECT_GT(report->commit_nbytes, 0);
    }
  });
  // Those of the last save: 3 reports and 2 verdicts.
  EXPECT_EQ(*store.num_keys(), 5);
}

TEST(Checkpointer, OptionsThatMakeNoSenseAreRefused) {
  MemoryFileSystem fs;
  CheckpointerOptions options = test_options(fs, "/ckpt");
  options.world_size = 2;
  EXPECT_THAT(Checkpointer::open(options),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("2 ranks need a store")));
  options = test_options(fs, "/ckpt");
  options.global_rank = 1;
  EXPECT_THAT(Checkpointer::open(options),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("1 of 1")));
  options = test_options(fs, "/ckpt");
  options.chunk_nbytes = 12;
  EXPECT_THAT(Checkpointer::open(options),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("multiple of 8")));
}

TEST(Checkpointer, APartialReadFetchesNoMoreThanTheChunksItNeeds) {
  MemoryFileSystem fs;
  const ModelTensor tensor{"w", DType::kF32, {4096, 64}, ModelTensor::Layout::kRows};
  const std::vector<std::byte> full = tensor_bytes(tensor, 1);
  CheckpointerOptions options = test_options(fs, "/ckpt");
  options.chunk_nbytes = 4096;
  auto checkpointer = Checkpointer::open(options).value();
  SaveRequest request;
  request.step = 1;
  request.tensors.push_back({"w", DType::kF32, tensor.sizes, full_box(tensor.sizes), full, {}});
  ASSERT_OK(checkpointer->save(request));
  for (int reader = 0; reader < 3; ++reader) {
    const Box box = chunk_box(tensor.sizes, 0, reader, 3);
    std::vector<std::byte> bytes(static_cast<size_t>(numel(box.sizes) * 4));
    const std::vector<TensorSlot> slots{{"w", DType::kF32, tensor.sizes, box, bytes}};
    const auto state = checkpointer->load_latest({.slots = slots, .aliases = {}, .step = {}});
    ASSERT_OK(state);
    EXPECT_EQ(bytes, cut_box(full, tensor.sizes, box, 4));
    EXPECT_LE((*state)->read_nbytes, static_cast<int64_t>(bytes.size()) + 2 * 4096);
  }
}
}  // namespace
}  // namespace muster::checkpoint
