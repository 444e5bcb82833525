// Failures of the file system in a save: it fails on every rank with one clear error, the previous
// checkpoint is intact, nothing is left behind, and the next save works.
#include <fmt/format.h>

#include <atomic>

#include "checkpoint/io/checkpointer.h"
#include "checkpoint/io/discovery.h"
#include "core/base/text.h"
#include "tests/checkpoint/memory_file_system.h"
#include "tests/checkpoint/small_model.h"
#include "tests/support/matchers.h"

namespace muster::checkpoint {
namespace {
using ::muster::testing::FailsWith;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kWorld = 3;

// Ranks of one job that lives through several saves. Each rank has its own hook.
class Job {
 public:
  explicit Job(MemoryFileSystem& fs, int keep = 2) {
    for (int global_rank = 0; global_rank < kWorld; ++global_rank) {
      CheckpointerOptions options = test_options(fs, "/ckpt", &store_, global_rank, kWorld);
      options.keep = keep;
      ranks_.push_back(Checkpointer::open(options).value());
    }
  }
  std::vector<Result<SaveReport>> save(int64_t step) {
    std::vector<Result<SaveReport>> results(kWorld, SaveReport{});
    run_ranks(kWorld, [&](int global_rank) {
      const RankState state(small_model(), step, global_rank, kWorld);
      results[static_cast<size_t>(global_rank)] =
          ranks_[static_cast<size_t>(global_rank)]->save(test_request(state, step, global_rank));
    });
    return results;
  }
  Checkpointer& rank(int global_rank) { return *ranks_[static_cast<size_t>(global_rank)]; }

 private:
  HashStore store_;
  std::vector<std::unique_ptr<Checkpointer>> ranks_;
};

Error no_space(const std::string& operation) {
  return make_error(ErrorCode::kIo, "{}: No space left on device", operation);
}

int64_t count_operations(int64_t saves_before) {
  MemoryFileSystem fs;
  Job job(fs);
  for (int64_t step = 1; step <= saves_before; ++step) job.save(step);
  std::atomic<int64_t> count = 0;
  fs.set_hook([&](const std::string&) {
    ++count;
    return Result<void>();
  });
  job.save(saves_before + 1);
  return count;
}

// What must hold after a save of step 3 failed at some operation.
void expect_step_two_is_whole(MemoryFileSystem& fs) {
  for (const std::vector<std::string> names = *fs.list("/ckpt"); const std::string& name : names) {
    EXPECT_THAT(name, AnyOf("step-00000001", "step-00000002"));
  }
  bool is_equal = false;
  const auto loaded = load_model(fs, "/ckpt", 2, &is_equal);
  ASSERT_TRUE(loaded[0].ok()) << loaded[0].error().what();
  EXPECT_EQ((*loaded[0])->step, 2);
  EXPECT_TRUE(is_equal);
}

TEST(Failure, NoSpaceAtAnyOperationFailsOnAllRanksAndLeavesNothing) {
  const int64_t num_operations = count_operations(2);
  ASSERT_GT(num_operations, 30);
  int64_t num_failed = 0;
  for (int64_t k = 0; k < num_operations; ++k) {
    MemoryFileSystem fs;
    Job job(fs);
    for (const int64_t step : {1, 2}) ASSERT_OK(job.save(step)[0]);
    std::atomic<int64_t> at = 0;
    std::string failed;
    fs.set_hook([&](const std::string& operation) -> Result<void> {
      if (at++ != k) return {};
      failed = operation;
      return no_space(operation);
    });
    const auto results = job.save(3);
    fs.set_hook({});
    SCOPED_TRACE(fmt::format("operation {}: {}", k, failed));
    if (results[0].ok()) {
      // Only retention may fail without failing the save.
      for (const auto& result : results) ASSERT_OK(result);
      ASSERT_THAT(failed, AnyOf(HasSubstr("trash"), HasSubstr("sync_directory /ckpt")));
      EXPECT_EQ((*load_model(fs, "/ckpt", 1)[0])->step, 3);
      continue;
    }
    ++num_failed;
    for (const auto& result : results) {
      ASSERT_THAT(result, FailsWith(ErrorCode::kIo, HasSubstr("No space left on device")));
      EXPECT_EQ(result.error().message(), results[0].error().message());
      EXPECT_THAT(result.error().what(), HasSubstr("global rank"));
      EXPECT_THAT(result.error().message(), HasSubstr(failed));
    }
    expect_step_two_is_whole(fs);
    EXPECT_EQ(job.rank(1).failed_saves_in_a_row(), 1);
    for (const auto& result : job.save(3)) ASSERT_OK(result);
    EXPECT_EQ((*load_model(fs, "/ckpt", 1)[0])->step, 3);
  }
  EXPECT_GT(num_failed, 25);
}

TEST(Failure, NoSpaceThatStaysFailsEachSaveAndCountsThem) {
  MemoryFileSystem fs;
  Job job(fs);
  for (const int64_t step : {1, 2}) ASSERT_OK(job.save(step)[0]);
  fs.set_hook([&](const std::string& operation) -> Result<void> {
    if (operation.starts_with("append")) return no_space(operation);
    return {};
  });
  for (int i = 1; i <= 3; ++i) {
    for (const auto& result : job.save(2 + i)) EXPECT_FALSE(result.ok());
    EXPECT_EQ(job.rank(0).failed_saves_in_a_row(), i);
  }
  fs.set_hook({});
  expect_step_two_is_whole(fs);
}

TEST(Failure, AReadOnlyFolderIsNamedOnAllRanks) {
  MemoryFileSystem fs;
  Job job(fs);
  fs.set_hook([](const std::string& operation) -> Result<void> {
    return make_error(ErrorCode::kIo, "{}: Permission denied", operation);
  });
  for (const auto& result : job.save(1)) {
    EXPECT_THAT(result, FailsWith(ErrorCode::kIo,
                                  HasSubstr("save step 1: global rank 0: mkdir /ckpt/.tmp-step-")));
  }
}

TEST(Failure, AFolderThatCannotBeMadeIsAnErrorOfOpen) {
  const TempDirectory dir;
  ASSERT_OK(write_file_durably(real_file_system(), dir.file("file"), "x"));
  EXPECT_THAT(Checkpointer::open(test_options(real_file_system(), dir.file("file/ckpt"))),
              FailsWith(ErrorCode::kIo, HasSubstr("file/ckpt: Not a directory")));
}

TEST(Failure, PowerLossAtAnyInstantLeavesThePreviousOrTheNewCheckpoint) {
  // Images of the disk before each operation of a save, as the ranks happen to interleave.
  MemoryFileSystem fs;
  Job job(fs);
  for (const int64_t step : {1, 2}) ASSERT_OK(job.save(step)[0]);
  std::mutex mutex;
  std::vector<std::unique_ptr<MemoryFileSystem>> images;
  std::vector<std::string> operations;
  fs.set_hook([&](const std::string& operation) -> Result<void> {
    const std::lock_guard lock(mutex);
    images.push_back(fs.clone());
    operations.push_back(operation);
    return {};
  });
  for (const auto& result : job.save(3)) ASSERT_OK(result);
  fs.set_hook({});
  images.push_back(fs.clone());
  operations.emplace_back("the end");
  Rng rng(5);
  int64_t num_old = 0;
  int64_t num_new = 0;
  for (size_t i = 0; i < images.size(); ++i) {
    for (int variant = 0; variant < 12; ++variant) {
      const PowerLoss loss = variant == 0   ? PowerLoss::kNothing
                             : variant == 1 ? PowerLoss::kNamesOnly
                                            : PowerLoss::kRandom;
      SCOPED_TRACE(fmt::format("before {}, variant {}", operations[i], variant));
      const auto disk = images[i]->after_power_loss(loss, rng);
      bool is_equal = false;
      const auto loaded = load_model(*disk, "/ckpt", 1, &is_equal)[0];
      ASSERT_OK(loaded);
      ASSERT_TRUE(loaded->has_value());
      ASSERT_TRUE(is_equal);
      ASSERT_THAT((*loaded)->step, AnyOf(2, 3));
      ++((*loaded)->step == 2 ? num_old : num_new);
      EXPECT_EQ((*loaded)->digest, hex64(model_digest(small_model(), (*loaded)->step)));
    }
  }
  // Once the save has returned, nothing takes it away again.
  for (const PowerLoss loss : {PowerLoss::kNothing, PowerLoss::kNamesOnly}) {
    const auto disk = images.back()->after_power_loss(loss, rng);
    EXPECT_EQ((*load_model(*disk, "/ckpt", 1)[0])->step, 3);
  }
  EXPECT_GT(num_old, 100);
  EXPECT_GT(num_new, 20);
}

TEST(Failure, PowerLossWhileAStepIsReplacedLeavesOneOfTheTwo) {
  MemoryFileSystem fs;
  ASSERT_OK(save_model(fs, "/ckpt", 1, 1)[0]);
  auto checkpointer = Checkpointer::open(test_options(fs, "/ckpt")).value();
  std::vector<std::unique_ptr<MemoryFileSystem>> images;
  fs.set_hook([&](const std::string&) -> Result<void> {
    images.push_back(fs.clone());
    return {};
  });
  const RankState other(small_model(), 2, 0, 1);
  SaveRequest request = test_request(other, 1);
  request.overwrite = true;
  ASSERT_OK(checkpointer->save(request));
  fs.set_hook({});
  Rng rng(6);
  for (size_t i = 0; i < images.size(); ++i) {
    for (const PowerLoss loss : {PowerLoss::kNothing, PowerLoss::kNamesOnly, PowerLoss::kRandom,
                                 PowerLoss::kRandom, PowerLoss::kRandom, PowerLoss::kRandom}) {
      const auto disk = images[i]->after_power_loss(loss, rng);
      const auto loaded = load_model(*disk, "/ckpt", 1)[0];
      ASSERT_OK(loaded);
      ASSERT_TRUE(loaded->has_value()) << "image " << i;
      EXPECT_THAT((*loaded)->digest, AnyOf(hex64(model_digest(small_model(), 1)),
                                           hex64(model_digest(small_model(), 2))));
    }
  }
}

TEST(Failure, AKillAtAnyInstantNeedsNoLuck) {
  // As above, but everything that was written is there: what SIGKILL leaves.
  MemoryFileSystem fs;
  Job job(fs, /*keep=*/1);
  for (const int64_t step : {1, 2}) ASSERT_OK(job.save(step)[0]);
  std::mutex mutex;
  std::vector<std::unique_ptr<MemoryFileSystem>> images;
  fs.set_hook([&](const std::string&) -> Result<void> {
    const std::lock_guard lock(mutex);
    images.push_back(fs.clone());
    return {};
  });
  for (const auto& result : job.save(3)) ASSERT_OK(result);
  for (const auto& disk : images) {
    bool is_equal = false;
    const auto loaded = load_model(*disk, "/ckpt", 2, &is_equal)[0];
    ASSERT_OK(loaded);
    EXPECT_THAT((*loaded)->step, AnyOf(2, 3));
    EXPECT_TRUE(is_equal);
    // And the start has swept up.
    for (const std::vector<std::string> names = *disk->list("/ckpt");
         const std::string& name : names)
      EXPECT_TRUE(name.starts_with("step-"));
    ASSERT_OK(save_model(*disk, "/ckpt", 4, 1)[0]);
  }
}
}  // namespace
}  // namespace muster::checkpoint
