// What every store must do. A store joins by one line at the end: a name, its abilities, and how a
// further handle on the same keys is opened, as another rank would.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "core/base/file_system.h"
#include "dist/store/file_store.h"
#include "dist/store/hash_store.h"
#include "dist/store/prefix_store.h"
#include "dist/store/store.h"
#include "dist/store/tcp_store.h"
#include "dist/store/tcp_store_server.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FailsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Optional;

constexpr Duration kLong = 20s;    // never reached when all is well
constexpr Duration kShort = 30ms;  // always reached

Deadline soon() { return Deadline::after(kLong); }

/// One place where keys live, and any number of handles on it.
class Place {
 public:
  virtual ~Place() = default;
  virtual std::shared_ptr<Store> open() = 0;
};

struct StoreAbilities {
  bool handles_cancel_alone = true;  ///< a handle is an object of its own
};

struct StoreCase {
  std::string name;
  StoreAbilities abilities;
  std::function<std::unique_ptr<Place>()> make_place;
};

void PrintTo(const StoreCase& store_case, std::ostream* out) { *out << store_case.name; }

class StoreSuite : public ::testing::TestWithParam<StoreCase> {
 protected:
  void SetUp() override {
    place_ = GetParam().make_place();
    store_ = place_->open();
  }
  std::shared_ptr<Store> another() { return place_->open(); }

  std::unique_ptr<Place> place_;
  std::shared_ptr<Store> store_;
};

/// Runs a body in a thread and joins it.
class Background {
 public:
  explicit Background(std::function<void()> body) : thread_(std::move(body)) {}
  ~Background() { join(); }
  void join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::thread thread_;
};

// ---- values

TEST_P(StoreSuite, GetReturnsWhatWasSetByAnotherHandle) {
  ASSERT_OK(another()->set("key", "value"));
  EXPECT_EQ(store_->get("key", soon()).value(), "value");
}

TEST_P(StoreSuite, SetReplacesTheValue) {
  ASSERT_OK(store_->set("key", "one"));
  ASSERT_OK(store_->set("key", "two!"));
  EXPECT_EQ(another()->get("key", soon()).value(), "two!");
}

TEST_P(StoreSuite, ValuesAndKeysAreBytes) {
  const std::string value("\0a\xff\0\n", 5);
  const std::string key("nul\0key", 7);
  ASSERT_OK(store_->set(key, value));
  EXPECT_EQ(another()->get(key, soon()).value(), value);
  EXPECT_THAT(another()->try_get("nul").value(), ::testing::Eq(std::nullopt));
}

TEST_P(StoreSuite, AnEmptyValueAndAnEmptyKeyExist) {
  ASSERT_OK(store_->set("", ""));
  EXPECT_THAT(another()->try_get("").value(), Optional(std::string()));
  EXPECT_EQ(another()->get("", soon()).value(), "");
  EXPECT_TRUE(another()->check({""}).value());
}

TEST_P(StoreSuite, TheLargestValueArrivesWhole) {
  std::string value(static_cast<size_t>(Store::kMaxValueNbytes), '\0');
  for (size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 2654435761U >> 13);
  ASSERT_OK(store_->set("large", value));
  EXPECT_TRUE(another()->get("large", soon()).value() == value);
}

TEST_P(StoreSuite, AKeyOrValueAboveTheLimitIsRefusedWithItsLength) {
  const std::string long_key(static_cast<size_t>(Store::kMaxKeyNbytes) + 1, 'k');
  const std::string long_value(static_cast<size_t>(Store::kMaxValueNbytes) + 1, 'v');
  EXPECT_THAT(store_->get(long_key, soon()),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("8192")));
  EXPECT_THAT(store_->set("key", long_value),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("\"")));
  ASSERT_OK(store_->append("key", long_value.substr(1)));
  EXPECT_THAT(store_->append("key", "x"),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("8 MiB")));
  EXPECT_EQ(store_->get("key", soon()).value().size(), long_value.size() - 1);
}

TEST_P(StoreSuite, TryGetTellsAMissingKeyAtOnce) {
  EXPECT_EQ(store_->try_get("absent").value(), std::nullopt);
}

TEST_P(StoreSuite, AppendStartsEmptyAndGrows) {
  ASSERT_OK(store_->append("key", "ab"));
  ASSERT_OK(another()->append("key", std::string("\0c", 2)));
  EXPECT_EQ(store_->get("key", soon()).value(), std::string("ab\0c", 4));
}

TEST_P(StoreSuite, RemoveTellsWhetherTheKeyExisted) {
  ASSERT_OK(store_->set("key", "value"));
  EXPECT_TRUE(another()->remove("key").value());
  EXPECT_FALSE(store_->remove("key").value());
  EXPECT_FALSE(store_->check({"key"}).value());
}

TEST_P(StoreSuite, KeysAreCountedAndListedSorted) {
  EXPECT_EQ(store_->num_keys().value(), 0);
  EXPECT_THAT(store_->list_keys().value(), IsEmpty());
  ASSERT_OK(store_->set("b", "1"));
  ASSERT_OK(store_->set("a/c", "2"));
  ASSERT_OK(store_->add("counter", 1));
  EXPECT_EQ(another()->num_keys().value(), 3);
  EXPECT_THAT(another()->list_keys().value(), ElementsAre("a/c", "b", "counter"));
  ASSERT_OK(store_->remove("b"));
  EXPECT_THAT(another()->list_keys().value(), ElementsAre("a/c", "counter"));
}

TEST_P(StoreSuite, CheckNeedsAllKeysAndNoneIsReady) {
  ASSERT_OK(store_->set("a", ""));
  EXPECT_TRUE(store_->check({"a"}).value());
  EXPECT_FALSE(store_->check({"a", "b"}).value());
  EXPECT_TRUE(store_->check({}).value());
}

TEST_P(StoreSuite, GetManyKeepsTheOrderOfTheKeys) {
  ASSERT_OK(store_->set("a", "1"));
  ASSERT_OK(store_->set("b", ""));
  Background late([store = another()] { EXPECT_OK(store->set("c", "3")); });
  EXPECT_THAT(store_->get_many({"c", "a", "b", "a"}, soon()).value(),
              ElementsAre("3", "1", "", "1"));
  EXPECT_THAT(store_->get_many({}, soon()).value(), IsEmpty());
}

TEST_P(StoreSuite, GetManyReadsThousandsOfLargeValues) {
  std::vector<std::string> keys;
  const std::string value(4096, 'v');
  for (int i = 0; i < 1000; ++i) {
    keys.push_back("key" + std::to_string(i));
    ASSERT_OK(store_->set(keys.back(), value + std::to_string(i)));
  }
  const std::vector<std::string> values = store_->get_many(keys, soon()).value();
  ASSERT_EQ(values.size(), keys.size());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], value + std::to_string(i));
}

// ---- counters

TEST_P(StoreSuite, AddCountsFromZeroAsDecimalText) {
  EXPECT_EQ(store_->add("counter", 1).value(), 1);
  EXPECT_EQ(another()->add("counter", 41).value(), 42);
  EXPECT_EQ(store_->get("counter", soon()).value(), "42");
  EXPECT_EQ(store_->add("counter", -50).value(), -8);
  EXPECT_EQ(store_->add("zero", 0).value(), 0);
  EXPECT_TRUE(store_->check({"zero"}).value());
}

TEST_P(StoreSuite, AddGoesOnFromTextAndWrapsAround) {
  ASSERT_OK(store_->set("counter", " 12abc"));
  EXPECT_EQ(store_->add("counter", 3).value(), 15);
  ASSERT_OK(store_->set("counter", "9223372036854775807"));
  EXPECT_EQ(store_->add("counter", 1).value(), INT64_MIN);
}

TEST_P(StoreSuite, AddOnWhatIsNoNumberFailsAndChangesNothing) {
  for (const std::string text : {"abc", "", "99999999999999999999"}) {
    ASSERT_OK(store_->set("key", text));
    EXPECT_THAT(store_->add("key", 1),
                FailsWith(ErrorCode::kFailedPrecondition, HasSubstr("key\" must be a number")));
    EXPECT_EQ(store_->get("key", soon()).value(), text);
  }
}

TEST_P(StoreSuite, ConcurrentAddsLoseNothingAndNeverRepeat) {
  constexpr int kThreads = 8;
  constexpr int kAdds = 50;
  std::vector<std::vector<int64_t>> seen(kThreads);
  {
    std::vector<std::unique_ptr<Background>> threads;
    for (int t = 0; t < kThreads; ++t) {
      // Half of the threads share a handle.
      auto store = t % 2 == 0 ? store_ : another();
      threads.push_back(std::make_unique<Background>([&seen, t, store] {
        for (int i = 0; i < kAdds; ++i) seen[t].push_back(store->add("counter", 1).value());
      }));
    }
  }
  std::vector<int64_t> all;
  for (const auto& part : seen) all.insert(all.end(), part.begin(), part.end());
  std::sort(all.begin(), all.end());
  ASSERT_EQ(all.size(), size_t{kThreads * kAdds});
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<int64_t>(i) + 1);
}

// ---- compare and set

TEST_P(StoreSuite, CompareSetCreatesWhenNothingIsExpected) {
  EXPECT_EQ(store_->compare_set("key", "", "first").value(), "first");
  EXPECT_EQ(another()->compare_set("key", "", "second").value(), "first");
  EXPECT_EQ(another()->get("key", soon()).value(), "first");
}

TEST_P(StoreSuite, CompareSetReplacesOnlyWhatIsExpected) {
  ASSERT_OK(store_->set("key", "first"));
  EXPECT_EQ(store_->compare_set("key", "wrong", "second").value(), "first");
  EXPECT_EQ(store_->compare_set("key", "first", "second").value(), "second");
  EXPECT_EQ(store_->compare_set("key", "second", "second").value(), "second");
  EXPECT_EQ(store_->compare_set("key", "second", "").value(), "");
  EXPECT_EQ(store_->compare_set("key", "", "third").value(), "third");
}

TEST_P(StoreSuite, CompareSetOnAMissingKeyStoresNothingAndSaysSo) {
  EXPECT_EQ(store_->compare_set("key", "expected", "desired").value(), "");
  EXPECT_EQ(store_->compare_set("key", "same", "same").value(), "");
  EXPECT_FALSE(store_->check({"key"}).value());
}

TEST_P(StoreSuite, OneOfManyWinsACompareSet) {
  std::atomic<int> winners{0};
  {
    std::vector<std::unique_ptr<Background>> threads;
    for (int t = 0; t < 8; ++t) {
      threads.push_back(std::make_unique<Background>([&winners, t, store = another()] {
        const std::string mine = "rank" + std::to_string(t);
        if (store->compare_set("leader", "", mine).value() == mine) ++winners;
      }));
    }
  }
  EXPECT_EQ(winners, 1);
}

// ---- waits

TEST_P(StoreSuite, GetWaitsUntilTheKeyIsSet) {
  std::atomic<bool> waiting{false};
  Background setter([&waiting, store = another()] {
    while (!waiting) std::this_thread::yield();
    EXPECT_OK(store->set("key", "late"));
  });
  waiting = true;
  EXPECT_EQ(store_->get("key", soon()).value(), "late");
}

TEST_P(StoreSuite, EveryKindOfWriteEndsAWait) {
  const std::vector<std::function<Result<void>(Store&)>> writes = {
      [](Store& store) { return store.set("key", "v"); },
      [](Store& store) -> Result<void> {
        MUSTER_TRY(store.add("key", 1));
        return {};
      },
      [](Store& store) { return store.append("key", "v"); },
      [](Store& store) -> Result<void> {
        MUSTER_TRY(store.compare_set("key", "", "v"));
        return {};
      }};
  const std::shared_ptr<Store> other = another();
  for (const auto& write : writes) {
    {
      Background waiter([this] { EXPECT_OK(store_->wait({"key"}, soon())); });
      EXPECT_OK(write(*other));
    }
    ASSERT_TRUE(other->remove("key").value());
  }
}

TEST_P(StoreSuite, WaitNeedsAllKeysAtTheSameTime) {
  const std::shared_ptr<Store> other = another();
  std::atomic<bool> done{false};
  Background waiter([&] {
    EXPECT_OK(store_->wait({"a", "b", "a"}, soon()));
    done = true;
  });
  EXPECT_OK(other->set("a", ""));
  EXPECT_TRUE(other->remove("a").value());
  EXPECT_OK(other->set("b", ""));
  EXPECT_THAT(other->wait({"a", "b"}, Deadline::after(kShort)),
              FailsWith(ErrorCode::kTimeout, HasSubstr("a\" in ")));
  EXPECT_OK(other->set("a", ""));
  waiter.join();
  EXPECT_TRUE(done);
}

TEST_P(StoreSuite, WaitTimesOutAndNamesTheMissingKeysAndTheTime) {
  ASSERT_OK(store_->set("present", ""));
  const TimePoint start = real_clock().now();
  const auto waited = store_->wait({"present", "a", "b\n"}, Deadline::after(kShort));
  EXPECT_GE(real_clock().now() - start, kShort);
  EXPECT_THAT(waited, FailsWith(ErrorCode::kTimeout,
                                AllOf(HasSubstr("a\", \""), HasSubstr("b\\x0a\""), HasSubstr(" ms"),
                                      HasSubstr("wait: "), Not(HasSubstr("present")))));
  EXPECT_THAT(store_->get("absent", Deadline::after(kShort)),
              FailsWith(ErrorCode::kTimeout, AllOf(HasSubstr("get: "), HasSubstr("absent\""))));
  // The handle is in step afterwards.
  EXPECT_EQ(store_->add("counter", 1).value(), 1);
}

TEST_P(StoreSuite, ManyMissingKeysAreCountedNotListed) {
  std::vector<std::string> keys;
  for (int i = 0; i < 100; ++i) keys.push_back("k" + std::to_string(i));
  EXPECT_THAT(store_->wait(keys, Deadline::after(kShort)),
              FailsWith(ErrorCode::kTimeout, HasSubstr("and 92 more")));
}

TEST_P(StoreSuite, APassedDeadlineStillFindsWhatExists) {
  ASSERT_OK(store_->set("key", "value"));
  const Deadline passed = Deadline::after(0s);
  EXPECT_OK(store_->wait({"key"}, passed));
  EXPECT_EQ(store_->get("key", passed).value(), "value");
  EXPECT_THAT(store_->get("absent", passed), FailsWith(ErrorCode::kTimeout, HasSubstr("absent")));
}

TEST_P(StoreSuite, AThreadThatWaitsHoldsUpNoOtherOnTheSameHandle) {
  Background waiter([this] { EXPECT_EQ(store_->get("key", soon()).value(), "1"); });
  for (int i = 0; i < 20; ++i) EXPECT_EQ(store_->add("counter", 1).value(), i + 1);
  EXPECT_OK(store_->set("key", "1"));
}

TEST_P(StoreSuite, CancelEndsWaitsAndEveryLaterCall) {
  std::atomic<int> num_aborted{0};
  const auto expect_aborted = [&num_aborted](const auto& result) {
    EXPECT_THAT(result, FailsWith(ErrorCode::kAborted, HasSubstr("cancelled")));
    ++num_aborted;
  };
  std::vector<std::unique_ptr<Background>> waiters;
  for (int i = 0; i < 3; ++i) {
    waiters.push_back(std::make_unique<Background>(
        [&] { expect_aborted(store_->wait({"absent"}, Deadline::never())); }));
  }
  waiters.push_back(std::make_unique<Background>(
      [&] { expect_aborted(store_->get("absent", Deadline::never())); }));
  store_->cancel();
  waiters.clear();
  EXPECT_EQ(num_aborted, 4);
  expect_aborted(store_->set("key", "v"));
  expect_aborted(store_->add("key", 1));
  expect_aborted(store_->try_get("key"));
  store_->cancel();
}

TEST_P(StoreSuite, CancelReachesThisHandleAndWhatSharesItsObject) {
  const std::shared_ptr<Store> other = another();
  store_->cancel();
  EXPECT_EQ(other->set("key", "v").ok(), GetParam().abilities.handles_cancel_alone);
}

// ---- barrier

TEST_P(StoreSuite, BarrierHoldsEveryoneInEveryRound) {
  constexpr int kWorld = 4;
  constexpr int kRounds = 5;
  std::atomic<int> entered{0};
  std::vector<std::unique_ptr<Background>> ranks;
  for (int rank = 0; rank < kWorld; ++rank) {
    ranks.push_back(std::make_unique<Background>([&entered, store = another()] {
      for (int round = 0; round < kRounds; ++round) {
        ++entered;
        ASSERT_OK(barrier(*store, "sync", kWorld, soon()));
        EXPECT_GE(entered, kWorld * (round + 1));
        ASSERT_OK(barrier(*store, "left", kWorld, soon()));
        EXPECT_LE(entered, kWorld * (round + 2));
      }
    }));
  }
  ranks.clear();
  EXPECT_EQ(entered, kWorld * kRounds);
  EXPECT_EQ(store_->num_keys().value(), 4);  // a counter and the last round's key for each
}

TEST_P(StoreSuite, BarrierThatTimesOutSaysHowManyCame) {
  EXPECT_THAT(barrier(*store_, "sync", 3, Deadline::after(kShort)),
              FailsWith(ErrorCode::kTimeout, HasSubstr("3 callers must enter in total; 1 did")));
  EXPECT_THAT(barrier(*store_, "sync", 0, soon()),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("got 0")));
}

// ---- the stores

class HashPlace final : public Place {
 public:
  std::shared_ptr<Store> open() override { return store_; }

 private:
  std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
};

class FilePlace final : public Place {
 public:
  std::shared_ptr<Store> open() override {
    return FileStore::open({.path = directory_.file("store"), .run_id = "suite"}).value();
  }

 private:
  TempDirectory directory_;
};

class TcpPlace final : public Place {
 public:
  explicit TcpPlace(std::string token, bool c10d_key_prefix = false)
      : token_(std::move(token)), c10d_key_prefix_(c10d_key_prefix) {
    TcpStoreServerOptions options;
    options.required_token = token_;
    server_ = TcpStoreServer::open(std::move(options)).value();
  }
  std::shared_ptr<Store> open() override {
    return TcpStore::open(
               {.port = server_->port(), .token = token_, .c10d_key_prefix = c10d_key_prefix_},
               soon())
        .value();
  }

 private:
  const std::string token_;
  const bool c10d_key_prefix_;
  std::unique_ptr<TcpStoreServer> server_;
};

class PrefixPlace final : public Place {
 public:
  explicit PrefixPlace(std::unique_ptr<Place> below) : below_(std::move(below)) {
    // A neighbour that must not be seen.
    EXPECT_OK(below_->open()->set("gen1/key", "stale"));
  }
  std::shared_ptr<Store> open() override {
    return std::make_shared<PrefixStore>(below_->open(), "gen2");
  }

 private:
  std::unique_ptr<Place> below_;
};

std::string case_name(const ::testing::TestParamInfo<StoreCase>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(
    All, StoreSuite,
    ::testing::Values(
        StoreCase{
            "Hash", {.handles_cancel_alone = false}, [] { return std::make_unique<HashPlace>(); }},
        StoreCase{"File", {}, [] { return std::make_unique<FilePlace>(); }},
        StoreCase{"Tcp", {}, [] { return std::make_unique<TcpPlace>(""); }},
        StoreCase{"TcpWithToken", {}, [] { return std::make_unique<TcpPlace>("secret"); }},
        StoreCase{"TcpAsC10d", {}, [] { return std::make_unique<TcpPlace>("", true); }},
        StoreCase{"PrefixOverHash",
                  {.handles_cancel_alone = false},
                  [] { return std::make_unique<PrefixPlace>(std::make_unique<HashPlace>()); }},
        StoreCase{"PrefixOverTcp",
                  {},
                  [] { return std::make_unique<PrefixPlace>(std::make_unique<TcpPlace>("")); }}),
    case_name);
}  // namespace
}  // namespace muster
