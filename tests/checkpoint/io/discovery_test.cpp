#include "checkpoint/io/discovery.h"

#include "checkpoint/io/folder_lock.h"
#include "checkpoint/io/reader.h"
#include "tests/checkpoint/memory_file_system.h"
#include "tests/checkpoint/small_model.h"
#include "tests/support/matchers.h"

namespace muster::checkpoint {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kId(32, 'a');

TEST(FolderName, OnlyWholeNamesCount) {
  EXPECT_EQ(step_name(1000), "step-00001000");
  EXPECT_EQ(step_name(1234567890), "step-1234567890");
  EXPECT_EQ(parse_folder_name("step-00001000")->step, 1000);
  EXPECT_EQ(parse_folder_name("step-1234567890")->step, 1234567890);
  for (const char* name :
       {"step-1000", "step-00001000.bak", "xstep-00001000", "step-0000100a", "step--0001000",
        "step-", "step-00001000/", "step-01234567890", ".tmp-step-00001000",
        ".tmp-step-00001000.abc", "step-99999999999999999999", "latest", ".step-00001000"}) {
    EXPECT_FALSE(parse_folder_name(name)) << name;
  }
  for (const auto kind :
       {FolderName::Kind::kTemporary, FolderName::Kind::kReplaced, FolderName::Kind::kTrash}) {
    const auto parsed = parse_folder_name(folder_name({kind, 7, kId}));
    ASSERT_TRUE(parsed);
    EXPECT_EQ(parsed->kind, kind);
    EXPECT_EQ(parsed->step, 7);
    EXPECT_EQ(parsed->save_id, kId);
  }
}

TEST(FolderName, SaveIdsAreRandom) {
  EXPECT_EQ(new_save_id().size(), 32u);
  EXPECT_NE(new_save_id(), new_save_id());
}

// A folder with checkpoints of the steps.
void fill(MemoryFileSystem& fs, std::initializer_list<int64_t> steps) {
  for (const int64_t step : steps) save_model(fs, "/ckpt", step, 1, /*keep=*/0)[0].value();
}

void tear(MemoryFileSystem& fs, int64_t step) {
  const std::string path = "/ckpt/" + step_name(step) + "/" + rank_file_name(0);
  fs.resize(path, fs.info(path)->nbytes - 1);
}

std::vector<std::string> names(MemoryFileSystem& fs) { return fs.list("/ckpt").value(); }

TEST(Discovery, TheNewestWholeOneWinsAndTheOthersHaveReasons) {
  MemoryFileSystem fs;
  fill(fs, {1, 2, 3, 4});
  tear(fs, 4);
  ASSERT_OK(fs.remove_file("/ckpt/step-00000003/manifest.json"));
  ASSERT_OK(fs.make_directories("/ckpt/step-00000009"));
  ASSERT_OK(fs.make_directories("/ckpt/.tmp-step-00000010." + kId));
  ASSERT_OK(fs.make_directories("/ckpt/step-00000011.old"));
  const auto newest = find_newest(fs, "/ckpt");
  ASSERT_OK(newest);
  EXPECT_EQ(newest->candidate->name, "step-00000002");
  ASSERT_EQ(newest->skipped.size(), 3u);
  EXPECT_EQ(newest->skipped[0].name, "step-00000009");
  EXPECT_THAT(newest->skipped[0].reason, HasSubstr("there is no manifest.json"));
  EXPECT_EQ(newest->skipped[1].name, "step-00000004");
  EXPECT_THAT(newest->skipped[1].reason, HasSubstr("rank-00000.safetensors must have"));
  EXPECT_EQ(newest->skipped[2].name, "step-00000003");
}

TEST(Discovery, AMissingDirectoryHasNoCandidates) {
  MemoryFileSystem fs;
  EXPECT_THAT(*list_candidates(fs, "/none"), IsEmpty());
}

TEST(Retention, TwoTornOnesNewerThanTwoGoodOnesTakeNoPlace) {
  MemoryFileSystem fs;
  fill(fs, {1, 2, 3, 4});
  tear(fs, 3);
  tear(fs, 4);
  EXPECT_THAT(*apply_retention(fs, "/ckpt", 2, {}), IsEmpty());
  EXPECT_THAT(names(fs),
              ElementsAre("step-00000001", "step-00000002", "step-00000003", "step-00000004"));
}

TEST(Retention, KeepsTheNewestVerifiedAndSaysWhy) {
  MemoryFileSystem fs;
  fill(fs, {1, 2, 3, 4, 5});
  tear(fs, 4);
  const auto choices = choose_retention(fs, "/ckpt", 2, {});
  ASSERT_OK(choices);
  std::vector<std::string> lines;
  for (const RetentionChoice& choice : *choices)
    lines.push_back((choice.remove ? "remove " : "keep ") + choice.candidate.name + ": " +
                    choice.reason.substr(0, 30));
  EXPECT_THAT(lines, ElementsAre("keep step-00000005: newest verified",
                                 "keep step-00000004: not verified: open checkpoint ",
                                 "keep step-00000003: verified, 2 newest first; 2 ke",
                                 "remove step-00000002: verified, 3 newest first; 2 ke",
                                 "remove step-00000001: verified, 4 newest first; 2 ke"));
  EXPECT_THAT(*apply_retention(fs, "/ckpt", 2, {}), ElementsAre("step-00000002", "step-00000001"));
  EXPECT_THAT(names(fs), ElementsAre("step-00000003", "step-00000004", "step-00000005"));
}

TEST(Retention, KeepOneNeverRemovesTheNewestVerified) {
  MemoryFileSystem fs;
  fill(fs, {1, 2});
  tear(fs, 2);
  EXPECT_THAT(*apply_retention(fs, "/ckpt", 1, {}), IsEmpty());
  EXPECT_THAT(names(fs), ElementsAre("step-00000001", "step-00000002"));
}

TEST(Retention, ZeroKeepsAll) {
  MemoryFileSystem fs;
  fill(fs, {1, 2, 3, 4, 5});
  EXPECT_THAT(*apply_retention(fs, "/ckpt", 0, {}), IsEmpty());
}

TEST(Retention, WhatDidNotLoadDoesNotCount) {
  MemoryFileSystem fs;
  fill(fs, {1, 2});
  const std::string bad = Checkpoint::open(fs, "/ckpt/step-00000002")->manifest().save_id;
  EXPECT_THAT(*apply_retention(fs, "/ckpt", 1, {bad}), IsEmpty());
}

TEST(Retention, ASaveAppliesIt) {
  MemoryFileSystem fs;
  for (const int64_t step : {1, 2, 3}) ASSERT_OK(save_model(fs, "/ckpt", step, 1, 2)[0]);
  EXPECT_THAT(names(fs), ElementsAre("step-00000002", "step-00000003"));
}

TEST(Retention, AReplacedStepStaysLoadableUntilItsSuccessorIsThere) {
  MemoryFileSystem fs;
  fill(fs, {1});
  const std::string replaced = ".replaced-step-00000001." + kId;
  ASSERT_OK(fs.rename("/ckpt/step-00000001", "/ckpt/" + replaced));
  EXPECT_EQ(find_newest(fs, "/ckpt")->candidate->name, replaced);
  EXPECT_THAT(*apply_retention(fs, "/ckpt", 1, {}), IsEmpty());
  bool is_equal = false;
  EXPECT_EQ((*load_model(fs, "/ckpt", 1, &is_equal)[0])->step, 1);
  EXPECT_TRUE(is_equal);
  fill(fs, {1});
  EXPECT_THAT(names(fs), ElementsAre("step-00000001"));
}

TEST(Retention, ACheckpointThatIsBeingReadStays) {
  const TempDirectory dir;
  FileSystem& fs = real_file_system();
  for (const int64_t step : {1, 2, 3}) ASSERT_OK(save_model(fs, dir.path(), step, 1, 0)[0]);
  {
    const Checkpoint reader = Checkpoint::open(fs, dir.file("step-00000001")).value();
    EXPECT_THAT(*apply_retention(fs, dir.path(), 1, {}), ElementsAre("step-00000002"));
  }
  EXPECT_THAT(*apply_retention(fs, dir.path(), 1, {}), ElementsAre("step-00000001"));
}

TEST(Leftovers, OfDeadSavesAreRemovedAtStartAndThoseInUseStay) {
  const TempDirectory dir;
  FileSystem& fs = real_file_system();
  ASSERT_OK(save_model(fs, dir.path(), 1, 1)[0]);
  const std::string used = ".tmp-step-00000002." + kId;
  const std::string dead = ".tmp-step-00000002." + std::string(32, 'b');
  const std::string trash = ".trash-step-00000001." + kId;
  for (const std::string& name : {used, dead, trash, std::string(".tmp-mine")}) {
    ASSERT_OK(fs.make_directories(dir.file(name)));
    ASSERT_OK(write_file_durably(fs, dir.file(name) + "/file", "x"));
  }
  {
    const FolderLock writer = FolderLock::share(dir.file(used));
    ASSERT_OK(Checkpointer::open(test_options(fs, dir.path())));
    EXPECT_THAT(*fs.list(dir.path()), ElementsAre(".tmp-mine", used, "step-00000001"));
  }
  ASSERT_OK(Checkpointer::open(test_options(fs, dir.path())));
  EXPECT_THAT(*fs.list(dir.path()), ElementsAre(".tmp-mine", "step-00000001"));
}

TEST(FolderLock, TwoShareAndNobodyElseGetsIt) {
  const TempDirectory dir;
  EXPECT_TRUE(FolderLock::is_free(dir.path()));
  {
    const FolderLock one = FolderLock::share(dir.path());
    FolderLock two = FolderLock::share(dir.path());
    EXPECT_FALSE(FolderLock::is_free(dir.path()));
    two = FolderLock();
    EXPECT_FALSE(FolderLock::is_free(dir.path()));
  }
  EXPECT_TRUE(FolderLock::is_free(dir.path()));
  EXPECT_TRUE(FolderLock::is_free("/no/such/folder"));
}
}  // namespace
}  // namespace muster::checkpoint
