// Agreement through a store: who walks in step, who diverges, who is late, who gives up.
#include "dist/group/agreed/store_agreement.h"

#include <fmt/format.h>

#include <thread>

#include "dist/store/hash_store.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FailsWith;
using ::testing::HasSubstr;

WorkDescriptor operation(uint64_t contract, const char* file = "here.cpp") {
  WorkDescriptor what;
  what.kind = CollectiveKind::kAllReduce;
  what.group = "dp";
  what.seq = 7;
  what.sizes = {4};
  what.file = file;
  what.line = 10;
  what.contract = contract;
  return what;
}

// A member a thread, over one store; global ranks are 10, 11, ...
class StoreAgreementTest : public ::testing::Test {
 protected:
  StoreAgreement::Options options(int member, int size) const {
    StoreAgreement::Options options{
        .store = store, .group_name = "dp", .group_size = size, .members = {}, .own = member};
    for (int rank = 0; rank < size; ++rank) options.members.push_back({rank, 10 + rank});
    return options;
  }

  void run(int size, const std::function<void(int, StoreAgreement&)>& body) {
    std::vector<std::unique_ptr<StoreAgreement>> all;
    for (int member = 0; member < size; ++member)
      all.push_back(std::make_unique<StoreAgreement>(options(member, size)));
    std::vector<std::thread> threads;
    for (int member = 0; member < size; ++member)
      threads.emplace_back([&, member] { body(member, *all[static_cast<size_t>(member)]); });
    for (std::thread& thread : threads) thread.join();
  }

  std::shared_ptr<HashStore> store = std::make_shared<HashStore>();
  const Deadline deadline = Deadline::after(30s);
};

TEST_F(StoreAgreementTest, MembersWalkInStepAndTheStoreDoesNotGrow) {
  run(3, [&](int, StoreAgreement& agreement) {
    for (uint64_t round = 0; round < 200; ++round)
      ASSERT_OK(agreement.agree(operation(round), {}, deadline));
    EXPECT_LE(store->num_keys().value(), 6);
    agreement.close();
  });
  EXPECT_EQ(store->num_keys().value(), 0);
}

TEST_F(StoreAgreementTest, DivergenceIsSeenByAllWithBothCallSites) {
  run(3, [&](int member, StoreAgreement& agreement) {
    ASSERT_OK(agreement.agree(operation(1), {}, deadline));
    const Result<void> outcome =
        agreement.agree(member == 1 ? operation(3, "there.cpp") : operation(2), {}, deadline);
    EXPECT_THAT(outcome, FailsWith(ErrorCode::kMismatch,
                                   AllOf(HasSubstr("ranks diverged"), HasSubstr("at here.cpp:10"),
                                         HasSubstr("group rank 1 (global 11): "),
                                         HasSubstr("at there.cpp:10"))));
    // The agreement is over, and says so at once.
    EXPECT_THAT(agreement.agree(operation(4), {}, deadline),
                FailsWith(ErrorCode::kMismatch, HasSubstr("ranks diverged")));
  });
}

TEST_F(StoreAgreementTest, DivergenceIsNamedWhileAThirdIsLateAndToldToIt) {
  run(3, [&](int member, StoreAgreement& agreement) {
    if (member == 2) store->wait({"seen/0", "seen/1"}, deadline).value();
    const Result<void> outcome =
        agreement.agree(member == 1 ? operation(3, "there.cpp") : operation(2), {}, deadline);
    EXPECT_THAT(outcome, FailsWith(ErrorCode::kMismatch, AllOf(HasSubstr("at here.cpp:10"),
                                                               HasSubstr("at there.cpp:10"))));
    if (member != 2) store->set(fmt::format("seen/{}", member), "").value();
  });
}

TEST_F(StoreAgreementTest, PiecesThatDoNotFitAreSeenByTheThirdToo) {
  run(3, [&](int member, StoreAgreement& agreement) {
    std::vector<PieceSizes> pieces(3, PieceSizes{16, 16});
    if (member == 0) pieces[1].expects_nbytes = 20;
    EXPECT_THAT(agreement.agree(operation(1), pieces, deadline),
                FailsWith(ErrorCode::kMismatch,
                          HasSubstr("group rank 1 (global 11) sends 16 bytes to group rank 0 "
                                    "(global 10), which expects 20")));
  });
}

TEST_F(StoreAgreementTest, ADeadlineNamesTheLateAndLeavesTheOperationPending) {
  run(3, [&](int member, StoreAgreement& agreement) {
    ASSERT_OK(agreement.agree(operation(1), {}, deadline));
    if (member != 2) {
      Result<void> outcome = agreement.agree(operation(2), {}, Deadline::after(20ms));
      // The other of the two may be late as well at first.
      while (agreement.late_ranks() != std::vector<int>{2})
        outcome = agreement.agree(operation(2), {}, Deadline::after(20ms));
      outcome = agreement.agree(operation(2), {}, Deadline::after(20ms));
      EXPECT_THAT(
          outcome,
          FailsWith(ErrorCode::kTimeout,
                    HasSubstr("\n  group rank 2 (global 12) has not arrived; its last is #1")));
      store->set(fmt::format("seen/{}", member), "").value();
    } else {
      store->wait({"seen/0", "seen/1"}, deadline).value();
    }
    EXPECT_OK(agreement.agree(operation(2), {}, deadline));
    EXPECT_THAT(agreement.late_ranks(), ElementsAre());
  });
}

TEST_F(StoreAgreementTest, WhoGivesUpIsHeardByWhoWaitsAndByWhoComesLater) {
  run(3, [&](int member, StoreAgreement& agreement) {
    ASSERT_OK(agreement.agree(operation(1), {}, deadline));
    if (member == 0) {  // beside one that waits for all, and one that has not come yet
      store->wait({"2/1"}, deadline).value();
      agreement.fail(Error(ErrorCode::kAborted, "the loss is not finite"));
      store->set("told", "").value();
    }
    if (member == 2) store->wait({"told"}, deadline).value();
    EXPECT_THAT(agreement.agree(operation(2), {}, deadline),
                FailsWith(ErrorCode::kAborted, HasSubstr("the loss is not finite")));
  });
}

TEST_F(StoreAgreementTest, WhoGivesUpAfterAnAgreementIsHeardByWhoWaitsElsewhere) {
  run(2, [&](int member, StoreAgreement& agreement) {
    ASSERT_OK(agreement.agree(operation(1), {}, deadline));
    if (member == 0) {
      agreement.fail(Error(ErrorCode::kPeerLost, "the wire is cut"));
      store->set("told", "").value();
      return;
    }
    store->wait({"told"}, deadline).value();
    const std::optional<Error> notice = agreement.notice();
    ASSERT_TRUE(notice.has_value());
    EXPECT_EQ(notice->code(), ErrorCode::kPeerLost);
    EXPECT_EQ(notice->message(), "the wire is cut");
  });
}

TEST_F(StoreAgreementTest, OnesOwnWaitEndsWhenAnotherThreadGivesUp) {
  StoreAgreement agreement(options(0, 2));
  std::thread waiter([&] {
    EXPECT_THAT(agreement.agree(operation(1), {}, Deadline::never()),
                FailsWith(ErrorCode::kAborted, HasSubstr("enough")));
  });
  store->wait({"1/0"}, deadline).value();
  agreement.fail(Error(ErrorCode::kAborted, "enough"));
  waiter.join();
}

TEST_F(StoreAgreementTest, WhoLeavesIsNamedToWhoWouldWait) {
  run(2, [&](int member, StoreAgreement& agreement) {
    ASSERT_OK(agreement.agree(operation(1), {}, deadline));
    if (member == 0) return agreement.close();
    EXPECT_THAT(
        agreement.agree(operation(2), {}, deadline),
        FailsWith(ErrorCode::kPeerLost, HasSubstr("group rank 0 (global 10) has left the group")));
    agreement.close();
  });
  EXPECT_EQ(store->num_keys().value(), 0);
}

TEST_F(StoreAgreementTest, BytesThatAreNoOperationAreRefused) {
  for (const std::string bytes : {"", "junk", "o", "oo"}) {
    store = std::make_shared<HashStore>();
    StoreAgreement agreement(options(0, 2));
    store->set("1/1", bytes).value();
    EXPECT_THAT(
        agreement.agree(operation(1), {}, deadline),
        FailsWith(ErrorCode::kInternal,
                  HasSubstr(fmt::format("group rank 1 (global 11) wrote {} bytes", bytes.size()))));
  }
}
}  // namespace
}  // namespace muster
