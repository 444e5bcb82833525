// Damage of stored bytes: all of it is noticed on load, with the names of tensor and file.
#include <fmt/format.h>

#include "checkpoint/io/discovery.h"
#include "checkpoint/io/load_session.h"
#include "checkpoint/io/names.h"
#include "checkpoint/io/reader.h"
#include "core/base/fault.h"
#include "tests/checkpoint/memory_file_system.h"
#include "tests/checkpoint/small_model.h"
#include "tests/checkpoint/wrapping_file_system.h"
#include "tests/support/matchers.h"

namespace muster::checkpoint {
namespace {
using ::muster::testing::FailsWith;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr const char* kDir = "/ckpt/step-00000001";

// What a load of everything by one process checks.
Result<void> load_everything(const Checkpoint& checkpoint, std::span<const TensorSlot> slots) {
  MUSTER_TRY(checkpoint.read_state());
  MUSTER_TRY(checkpoint.read_slots(slots));
  for (const StoredFile& file : checkpoint.manifest().files)
    MUSTER_TRY(checkpoint.verify_file(file));
  return {};
}

// The tensor whose bytes hold an offset of a file; empty for headers and objects.
std::string tensor_at(const Manifest& manifest, size_t file, int64_t offset) {
  for (const StoredTensor& tensor : manifest.tensors) {
    for (const StoredBox& box : tensor.boxes) {
      if (box.file == file && offset >= box.offset && offset < box.offset + box.nbytes)
        return tensor.name;
    }
  }
  return "";
}

// A checkpoint of about 64 KiB on 2 ranks.
class DamagedCheckpoint : public ::testing::Test {
 protected:
  void save(const std::string& directory) {
    HashStore store;
    run_ranks(2, [&](int global_rank) {
      CheckpointerOptions options = test_options(fs_, directory, &store, global_rank, 2);
      options.chunk_nbytes = 2048;
      auto checkpointer = Checkpointer::open(options).value();
      std::vector<std::vector<std::byte>> parts;
      SaveRequest request;
      request.step = 1;
      for (const ModelTensor& tensor : model_) {
        const Box box = chunk_box(tensor.sizes, 0, global_rank, 2);
        parts.push_back(
            cut_box(tensor_bytes(tensor, 1), tensor.sizes, box, item_nbytes(tensor.dtype)));
      }
      for (size_t i = 0; i < model_.size(); ++i) {
        request.tensors.push_back({model_[i].name,
                                   model_[i].dtype,
                                   model_[i].sizes,
                                   chunk_box(model_[i].sizes, 0, global_rank, 2),
                                   parts[i],
                                   {}});
      }
      checkpointer->save(request).value();
    });
  }

  void SetUp() override {
    save("/ckpt");
    for (const ModelTensor& tensor : model_) {
      loaded_.emplace_back(static_cast<size_t>(numel(tensor.sizes) * item_nbytes(tensor.dtype)));
      slots_.push_back({tensor.name, tensor.dtype, tensor.sizes, full_box(tensor.sizes), {}});
    }
    for (size_t i = 0; i < slots_.size(); ++i) slots_[i].destination = loaded_[i];
  }

  std::vector<ModelTensor> model_{
      {"wte.weight", DType::kF32, {64, 96}, ModelTensor::Layout::kRows},
      {"block.weight", DType::kBF16, {96, 96}, ModelTensor::Layout::kRows},
      {"block.bias", DType::kF32, {96}, ModelTensor::Layout::kRows},
      {"moment", DType::kF64, {20, 40}, ModelTensor::Layout::kRows}};
  MemoryFileSystem fs_;
  std::vector<std::vector<std::byte>> loaded_;
  std::vector<TensorSlot> slots_;
};

TEST_F(DamagedCheckpoint, EverySingleFlippedBitOfEveryFileIsNoticedAndNamed) {
  const Checkpoint checkpoint = Checkpoint::open(fs_, kDir).value();
  ASSERT_OK(load_everything(checkpoint, slots_));
  const Manifest& manifest = checkpoint.manifest();
  EXPECT_GT(manifest.total_nbytes(), 50 << 10);
  int64_t flips = 0;
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    const StoredFile& file = manifest.files[i];
    const std::string path = path_join(kDir, file.name);
    for (int64_t bit = 0; bit < file.nbytes * 8; ++bit) {
      fs_.flip_bit(path, bit);
      const Result<void> result = load_everything(checkpoint, slots_);
      fs_.flip_bit(path, bit);
      ++flips;
      ASSERT_FALSE(result.ok()) << file.name << " bit " << bit;
      const std::string& text = result.error().message();
      ASSERT_EQ(result.error().code(), ErrorCode::kCorruption) << text;
      ASSERT_NE(text.find(file.name), std::string::npos) << text;
      const std::string tensor = tensor_at(manifest, i, bit / 8);
      if (!tensor.empty()) {
        ASSERT_NE(text.find("\"" + tensor + "\""), std::string::npos) << text;
      }
    }
  }
  EXPECT_GT(flips, 400'000);
  ASSERT_OK(load_everything(checkpoint, slots_));
}

TEST_F(DamagedCheckpoint, EverySingleFlippedBitOfTheManifestIsNoticed) {
  const std::string path = path_join(kDir, std::string(kManifestName));
  const int64_t nbytes = fs_.info(path)->nbytes;
  for (int64_t bit = 0; bit < nbytes * 8; ++bit) {
    fs_.flip_bit(path, bit);
    const auto opened = Checkpoint::open(fs_, kDir);
    fs_.flip_bit(path, bit);
    ASSERT_FALSE(opened.ok()) << bit;
    ASSERT_EQ(opened.error().code(), ErrorCode::kCorruption) << opened.error().what();
  }
  EXPECT_OK(Checkpoint::open(fs_, kDir));
}

TEST_F(DamagedCheckpoint, AnyCutOrGrowthOfAnyFileIsNoticedWhenItIsOpened) {
  for (const std::vector<std::string> names = *fs_.list(kDir); const std::string& name : names) {
    const std::string path = path_join(kDir, name);
    const std::vector<std::byte> bytes = *fs_.read(path);
    const int64_t nbytes = static_cast<int64_t>(bytes.size());
    for (const int64_t other : {nbytes - 1, nbytes + 1, nbytes / 2, int64_t{0}}) {
      fs_.resize(path, other);
      EXPECT_THAT(Checkpoint::open(fs_, kDir),
                  FailsWith(ErrorCode::kCorruption,
                            AnyOf(HasSubstr(name), HasSubstr("the checksum of all others"))))
          << name << " of " << other;
      fs_.write(path, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    }
  }
}

TEST_F(DamagedCheckpoint, AMissingFileIsNamed) {
  for (const std::vector<std::string> names = *fs_.list(kDir); const std::string& name : names) {
    const auto copy = fs_.clone();
    ASSERT_OK(copy->remove_file(path_join(kDir, name)));
    const auto opened = Checkpoint::open(*copy, kDir);
    ASSERT_FALSE(opened.ok());
    EXPECT_THAT(opened.error().message(), HasSubstr(name));
  }
}

TEST_F(DamagedCheckpoint, AFileOfAnotherSaveIsNotAccepted) {
  // The same state saved twice: all sizes are equal, only the save ids differ.
  save("/other");
  const std::string name = rank_file_name(1);
  const std::vector<std::byte> other = *fs_.read("/other/step-00000001/" + name);
  ASSERT_EQ(other.size(), fs_.read(path_join(kDir, name))->size());
  fs_.write(path_join(kDir, name),
            std::string(reinterpret_cast<const char*>(other.data()), other.size()));
  const Checkpoint checkpoint = Checkpoint::open(fs_, kDir).value();
  EXPECT_THAT(load_everything(checkpoint, slots_),
              FailsWith(ErrorCode::kCorruption, HasSubstr("file rank-00001.safetensors: bytes 0")));
}

TEST_F(DamagedCheckpoint, DeepVerificationListsAllDamageAtOnce) {
  fs_.flip_bit(path_join(kDir, rank_file_name(0)), 10 * 8);    // header
  fs_.flip_bit(path_join(kDir, rank_file_name(1)), 6000 * 8);  // data
  fs_.flip_bit(path_join(kDir, rank_file_name(1)), 20000 * 8);
  fs_.flip_bit(path_join(kDir, "train.json"), 5);
  fs_.write(path_join(kDir, "stray.txt"), "hello");
  const std::vector<Damage> damages = Checkpoint::open(fs_, kDir)->verify_deep();
  std::vector<std::string> files;
  for (const Damage& damage : damages) files.push_back(damage.file);
  EXPECT_THAT(files, ::testing::UnorderedElementsAre(rank_file_name(0), rank_file_name(1),
                                                     rank_file_name(1), "train.json", "stray.txt"));
}

TEST_F(DamagedCheckpoint, AWholeOneHasNoDamage) {
  EXPECT_THAT(Checkpoint::open(fs_, kDir)->verify_deep(), SizeIs(0));
}

// A reshard that put boxes into each other's place would pass every checksum; the digest of what
// the ranks hold in the end does not.
TEST_F(DamagedCheckpoint, ExchangedBoxesAreNoticedByTheDigest) {
  const Checkpoint checkpoint = Checkpoint::open(fs_, kDir).value();
  ASSERT_OK(checkpoint.read_slots(slots_));
  std::vector<SlotDigest> digests;
  const auto digest_half = [&](int half, int from) {
    const Dims& sizes = model_[0].sizes;
    const Box box = chunk_box(sizes, 0, half, 2);
    const std::vector<std::byte> bytes =
        cut_box(loaded_[0], sizes, chunk_box(sizes, 0, from, 2), 4);
    return SlotDigest{"wte.weight", box, digest_box(DType::kF32, sizes, box, bytes)};
  };
  EXPECT_EQ(digest_fault(checkpoint.manifest(), {digest_half(0, 0), digest_half(1, 1)}),
            std::nullopt);
  EXPECT_THAT(digest_fault(checkpoint.manifest(), {digest_half(0, 1), digest_half(1, 0)}),
              ::testing::Optional(HasSubstr("tensor \"wte.weight\": the digest after loading")));
  EXPECT_THAT(digest_fault(checkpoint.manifest(), {digest_half(0, 0), digest_half(0, 1)}),
              ::testing::Optional(HasSubstr("replicas of box [0:32, 0:96]")));
}

TEST(Damage, BytesThatChangeOnTheWayToTheDiskAreNoticed) {
  MemoryFileSystem memory;
  WrappingFileSystem fs(memory, {.before = {}, .append = [](auto& file, auto bytes) {
                                   std::vector<std::byte> copy(bytes.begin(), bytes.end());
                                   if (copy.size() == 256) copy[17] ^= std::byte{4};
                                   return file.append(copy);
                                 }});
  ASSERT_OK(save_model(fs, "/ckpt", 1, 1)[0]);
  EXPECT_THAT(load_model(fs, "/ckpt", 1)[0],
              FailsWith(ErrorCode::kCorruption, HasSubstr("tensor \"embed.weight\": bytes")));
}

TEST(Damage, ATornWriteOfADrillIsPassedOverOnLoad) {
  MemoryFileSystem fs;
  ASSERT_OK(save_model(fs, "/ckpt", 10, 1)[0]);
  Fault fault;
  fault.point = "checkpoint.after_commit";
  fault.action = Fault::Action::kTornWrite;
  ::setenv("MUSTER_FAULTS", encode_faults({fault}).c_str(), 1);
  ASSERT_OK(arm_faults_from_environment(0, 0));
  // With keep = 1 the torn one must not count as the newest.
  ASSERT_OK(save_model(fs, "/ckpt", 20, 1, /*keep=*/1)[0]);
  ::unsetenv("MUSTER_FAULTS");
  bool is_equal = false;
  const auto loaded = load_model(fs, "/ckpt", 1, &is_equal)[0];
  ASSERT_OK(loaded);
  EXPECT_EQ((*loaded)->step, 10);
  EXPECT_TRUE(is_equal);
  ASSERT_EQ((*loaded)->skipped.size(), 1u);
  EXPECT_THAT((*loaded)->skipped[0].reason, HasSubstr("rank-00000.safetensors must have"));
}
}  // namespace
}  // namespace muster::checkpoint
