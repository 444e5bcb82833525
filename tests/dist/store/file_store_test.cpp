// What only the file store can get wrong: several processes, torn writes, and files of others.
#include "dist/store/file_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "core/base/file_system.h"
#include "dist/net/sockets.h"
#include "dist/store/internal/record_log.h"
#include "tests/dist/store/child_of_test.h"
#include "tests/support/child_process.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using internal::encode_record;
using internal::parse_records;
using internal::Record;
using ::testing::AllOf;
using testing::ChildOfTest;
using testing::FailsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Deadline soon() { return Deadline::after(20s); }

class FileStoreTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<FileStore>> open(const std::string& run_id = "run",
                                          int64_t generation = 0) {
    return FileStore::open({.path = path_, .run_id = run_id, .generation = generation});
  }
  std::string content() { return read_text(real_file_system(), path_).value(); }
  void write(const std::string& bytes) {
    const net::UniqueFd fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600));
    ASSERT_EQ(::write(fd.get(), bytes.data(), bytes.size()), std::ssize(bytes));
  }

  TempDirectory directory_;
  const std::string path_ = directory_.file("store");
};

// ---- records

TEST(RecordLog, AFileCutAnywhereGivesItsWholeRecordsAndIsNotDamaged) {
  const std::vector<std::string> records = {
      encode_record({Record::Kind::kSet, "key", "value"}),
      encode_record({Record::Kind::kAppend, "", std::string("\0\0", 2)}),
      encode_record({Record::Kind::kRemove, "key", ""})};
  const std::string whole = records[0] + records[1] + records[2];
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    int64_t expected = 0;
    for (const std::string& record : records) {
      if (expected + std::ssize(record) <= static_cast<int64_t>(cut)) {
        expected += std::ssize(record);
      } else {
        break;
      }
    }
    const auto parsed = parse_records(whole.substr(0, cut), [](const Record&) {});
    EXPECT_EQ(parsed.good_nbytes, expected) << "cut at " << cut;
    EXPECT_FALSE(parsed.is_damaged) << "cut at " << cut;
  }
  // A file system may give zeros in place of a write that never reached the disk.
  EXPECT_FALSE(parse_records(whole + std::string(100, '\0'), [](const Record&) {}).is_damaged);
}

TEST(RecordLog, AChangedByteBeforeTheEndIsDamage) {
  const std::string record = encode_record({Record::Kind::kSet, "key", "value"});
  for (size_t at = 4; at < record.size(); ++at) {  // a changed length may look like a torn tail
    std::string whole = record + record;
    whole[at] = static_cast<char>(whole[at] ^ 1);
    const auto parsed = parse_records(whole, [](const Record&) {});
    EXPECT_TRUE(parsed.is_damaged) << "byte " << at;
    EXPECT_EQ(parsed.good_nbytes, 0);
  }
}

// ---- torn writes

TEST_F(FileStoreTest, ATornLastRecordIsIgnoredAndCutOffByTheNextWrite) {
  const std::string torn = encode_record({Record::Kind::kSet, "torn", "never seen"});
  for (const size_t left : {size_t{1}, size_t{7}, size_t{9}, torn.size() - 1}) {
    const auto store = open().value();
    ASSERT_OK(store->set("key", "v"));
    write(content() + torn.substr(0, left));
    EXPECT_FALSE(store->check({"torn"}).value());
    const auto late = open().value();
    EXPECT_EQ(late->get("key", soon()).value(), "v");
    ASSERT_OK(late->set("next", "w"));
    EXPECT_EQ(store->get("next", soon()).value(), "w");
    EXPECT_THAT(content(), ::testing::Not(HasSubstr("torn")));
  }
}

TEST_F(FileStoreTest, AHeaderCutAnywhereStartsAfresh) {
  ASSERT_OK(open());
  const std::string header = content();
  for (size_t cut = 0; cut < header.size(); ++cut) {
    write(header.substr(0, cut));
    const auto store = open();
    ASSERT_OK(store);
    EXPECT_EQ(store.value()->num_keys().value(), 0);
    EXPECT_EQ(content(), header);
  }
}

TEST_F(FileStoreTest, DamageBeforeTheEndIsReportedNotSkipped) {
  const auto store = open().value();
  const size_t header_nbytes = content().size();
  ASSERT_OK(store->set("key", "value"));
  ASSERT_OK(store->set("other", "value"));
  std::string bytes = content();
  bytes[header_nbytes + 12] ^= 1;
  write(bytes);
  EXPECT_THAT(
      open().value()->try_get("key"),
      FailsWith(ErrorCode::kCorruption, AllOf(HasSubstr("damaged at byte"), HasSubstr(path_))));
}

// ---- files of others

TEST_F(FileStoreTest, AFileThatIsNoStoreIsLeftUntouched) {
  write("precious text");
  EXPECT_THAT(open(), FailsWith(ErrorCode::kCorruption, HasSubstr("\"precious\"")));
  EXPECT_EQ(content(), "precious text");
}

TEST_F(FileStoreTest, AStaleFileOfAnotherRunIsReplacedOnlyWhenNobodyUsesIt) {
  auto old = open("old").value();
  ASSERT_OK(old->set("key", "stale"));
  EXPECT_THAT(open("new"), FailsWith(ErrorCode::kFailedPrecondition,
                                     AllOf(HasSubstr("run \"old\""), HasSubstr("run \"new\""))));
  EXPECT_EQ(old->get("key", soon()).value(), "stale");
  old.reset();
  const auto fresh = open("new").value();
  EXPECT_EQ(fresh->num_keys().value(), 0);
}

TEST_F(FileStoreTest, AStaleFileOfADeadProcessIsReplaced) {
  ChildOfTest child("file_store_adder", {{"MUSTER_TEST_FILE", path_}, {"MUSTER_TEST_ADDS", "-1"}});
  ASSERT_EQ(child.read_line(), "adding");
  EXPECT_THAT(open("another"), FailsWith(ErrorCode::kFailedPrecondition, HasSubstr("in use")));
  child.kill();
  ASSERT_OK(open("another"));
}

TEST_F(FileStoreTest, ALaterGenerationStartsAfreshAndShutsTheEarlierOneOut) {
  const auto first = open("run", 1).value();
  ASSERT_OK(first->set("key", "stale"));
  const auto second = open("run", 2).value();
  EXPECT_EQ(second->try_get("key").value(), std::nullopt);
  EXPECT_THAT(first->set("key", "late"),
              FailsWith(ErrorCode::kAborted, HasSubstr("later generation")));
  EXPECT_THAT(first->wait({"absent"}, soon()),
              FailsWith(ErrorCode::kAborted, HasSubstr("generation 1")));
  EXPECT_THAT(open("run", 1), FailsWith(ErrorCode::kFailedPrecondition, HasSubstr("it has 2")));
  EXPECT_THAT(second->list_keys().value(), IsEmpty());
}

TEST_F(FileStoreTest, ARemovedFileEndsTheStore) {
  const auto store = open().value();
  ASSERT_OK(real_file_system().remove_file(path_));
  EXPECT_THAT(store->set("key", "v"), FailsWith(ErrorCode::kAborted, HasSubstr("was removed")));
  EXPECT_THAT(FileStore::open({.path = directory_.file("no/folder")}),
              FailsWith(ErrorCode::kIo, HasSubstr("no/folder")));
}

TEST_F(FileStoreTest, ALockThatIsNeverReleasedTimesOut) {
  const auto store = FileStore::open({.path = path_, .lock_limit = 30ms}).value();
  const net::UniqueFd other(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  ASSERT_EQ(::fcntl(other.get(), F_OFD_SETLK, &lock), 0);
  EXPECT_THAT(store->add("n", 1),
              FailsWith(ErrorCode::kTimeout, AllOf(HasSubstr("30 ms"), HasSubstr(path_))));
  lock.l_type = F_UNLCK;
  ASSERT_EQ(::fcntl(other.get(), F_OFD_SETLK, &lock), 0);
  EXPECT_EQ(store->add("n", 1).value(), 1);
}

// ---- several processes

int run_adder_child() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto store =
      FileStore::open({.path = std::getenv("MUSTER_TEST_FILE"), .run_id = "run"}).value();
  int64_t num_left = std::atoll(std::getenv("MUSTER_TEST_ADDS"));
  std::printf("adding\n");
  std::fflush(stdout);
  for (; num_left != 0; --num_left) store->add("counter", 1).value();
  return 0;
}
[[maybe_unused]] const bool registered =
    testing::register_child("file_store_adder", run_adder_child);

TEST_F(FileStoreTest, ProcessesLoseNoAdds) {
  const auto store = open().value();
  std::vector<std::unique_ptr<ChildOfTest>> children;
  for (int i = 0; i < 4; ++i) {
    children.push_back(std::make_unique<ChildOfTest>(
        "file_store_adder", std::map<std::string, std::string>{{"MUSTER_TEST_FILE", path_},
                                                               {"MUSTER_TEST_ADDS", "100"}}));
  }
  for (auto& child : children) EXPECT_EQ(child->wait(), 0);
  EXPECT_EQ(store->get("counter", soon()).value(), "400");
}

TEST_F(FileStoreTest, AWaitEndsByAnotherProcess) {
  const auto store = open().value();
  ChildOfTest child("file_store_adder", {{"MUSTER_TEST_FILE", path_}, {"MUSTER_TEST_ADDS", "1"}});
  EXPECT_EQ(store->get("counter", soon()).value(), "1");
}

TEST_F(FileStoreTest, AWriterKilledAtAnyInstantHarmsNobody) {
  const auto store = open().value();
  int64_t before = 0;
  for (int round = 0; round < 20; ++round) {
    ChildOfTest child("file_store_adder",
                      {{"MUSTER_TEST_FILE", path_}, {"MUSTER_TEST_ADDS", "-1"}});
    ASSERT_EQ(child.read_line(), "adding");
    while (store->add("counter", 0).value() < before + 10) {
    }
    child.kill();
    const int64_t after = store->add("counter", 1).value();
    EXPECT_GT(after, before);
    EXPECT_EQ(open().value()->get("counter", soon()).value(), std::to_string(after));
    before = after;
  }
}

}  // namespace
}  // namespace muster
