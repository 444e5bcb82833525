// What must be refused, with rank, position, action and reason.
#include "pipeline/schedule/validate.h"

#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "tests/support/matchers.h"

namespace muster::pipeline {
namespace {
using ::testing::AllOf;
using testing::FailsWith;
using ::testing::HasSubstr;

Schedule read(const std::string& csv, int stages, int microbatches) {
  return parse_csv(csv, "test", stages, microbatches).value();
}

std::vector<std::string> faults_of(const std::string& csv, int stages, int microbatches,
                                   const ValidateOptions& options = {}) {
  std::vector<std::string> out;
  for (const Fault& fault : find_faults(read(csv, stages, microbatches), options)) {
    out.push_back(to_string(fault));
  }
  return out;
}
using Lines = std::vector<std::string>;

TEST(Validate, DuplicatesAreRefused) {
  EXPECT_EQ(faults_of("0F0,0F0,0B0", 1, 1),
            Lines{"rank 0, position 1, 0F0: it must run once; it stands at position 0 already"});
  EXPECT_EQ(faults_of("0F0,0SEND_F0+0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", 2, 1).size(),
            2U);
}

TEST(Validate, OneMicrobatchGoingBackwardTwiceDoesNotStandInForAnother) {
  EXPECT_EQ(
      faults_of("0F0,0F1,0B0,0I0,0W0", 1, 2),
      (Lines{"rank 0, position 2, 0B0: backward must be B, or I and W; 0I0 stands at position 3",
             "rank 0, position 5, 0B1: it is missing: each microbatch goes backward once on each "
             "stage"}));
}

TEST(Validate, NumbersOutOfRangeAreRefused) {
  EXPECT_EQ(faults_of("0F0,0F5,0B0", 1, 1),
            Lines{"rank 0, position 1, 0F5: the microbatch must be in [0, 1); got 5"});
  EXPECT_EQ(faults_of("0F0,7F0,0B0", 1, 1),
            Lines{"rank 0, position 1, 7F0: the stage must be in [0, 1); got 7"});
}

TEST(Validate, OrderInARankNamesWhereTheNeedStands) {
  EXPECT_EQ(faults_of("0B0,0F0", 1, 1),
            Lines{"rank 0, position 0, 0B0: it needs 0F0 before it, which stands at position 1"});
  EXPECT_EQ(faults_of("0F0,0W0,0I0", 1, 1),
            Lines{"rank 0, position 1, 0W0: it needs 0I0 before it, which stands at position 2"});
  EXPECT_EQ(faults_of("0F0,1F0,0B0,1B0", 2, 1),
            Lines{"rank 0, position 2, 0B0: it needs 1B0 before it, which stands at position 3"});
}

TEST(Validate, MissingWorkIsNamedAtTheEndOfItsRow) {
  EXPECT_EQ(faults_of("0F0,0B0\n1F0", 2, 1),
            Lines{"rank 1, position 1, 1B0: it is missing: each microbatch goes backward once on "
                  "each stage"});
  EXPECT_EQ(faults_of("0F0,0I0\n1F0,1B0", 2, 1),
            Lines{"rank 0, position 2, 0W0: it is missing: I must be followed by W"});
  EXPECT_EQ(faults_of("0F0,0B0", 2, 1), Lines{"test: no rank runs stage 1"});
}

TEST(Validate, RowsStagesAndOwnersMustFit) {
  EXPECT_EQ(faults_of("0F0,0B0", 1, 1, {.num_ranks = 2}).size(), 1U);
  EXPECT_THAT(
      faults_of("0F0,0B0,1F0\n1F0,1B0", 2, 1),
      ::testing::Contains(
          "rank 1, position 0, 1F0: a stage must be on one rank; stage 1 is also on rank 0"));
  EXPECT_FALSE(faults_of("0F0,0B0", 0, 1).empty());
  EXPECT_FALSE(faults_of("0F0,0B0", 1, 0).empty());
}

TEST(Validate, EveryMessageHasBothEnds) {
  EXPECT_EQ(
      faults_of("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0", 2, 1),
      Lines{"rank 0, position 2, 0RECV_B0: a message must have both ends; 1SEND_B0 is missing on "
            "rank 1"});
  EXPECT_EQ(faults_of("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", 2, 1).front(),
            "rank 0, position 2, 0B0: it needs 0RECV_B0 before it, which never runs");
  EXPECT_EQ(faults_of("0F0,1F0,0SEND_F0,1B0,0B0", 2, 1).front(),
            "rank 0, position 2, 0SEND_F0: stages 0 and 1 are on one rank, which passes tensors on "
            "without messages");
  EXPECT_EQ(faults_of("0F0,0B0,0SEND_B0", 1, 1),
            Lines{"rank 0, position 2, 0SEND_B0: there is no stage -1 at its other end"});
}

TEST(Validate, SendsAndReceivesStandOnTheRightSideOfTheirWork) {
  EXPECT_THAT(
      faults_of("0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", 2, 1),
      ::testing::Contains("rank 0, position 0, 0SEND_F0: it needs 0F0 before it, which stands "
                          "at position 1"));
  EXPECT_THAT(
      faults_of("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0", 2, 1),
      ::testing::Contains("rank 1, position 0, 1F0: it needs 1RECV_F0 before it, which stands "
                          "at position 1"));
}

// Both sides send first: the deadlock that eager receives were meant to cure.
constexpr const char* kBothSendFirst =
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
    "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1";

TEST(Validate, ACircleOfSendsIsPrinted) {
  EXPECT_EQ(
      faults_of(kBothSendFirst, 2, 2),
      Lines{"rank 0, position 3, 0SEND_F1: ranks wait in a circle: rank 0 waits at position 3, "
            "0SEND_F1, for 1RECV_F1 of rank 1; rank 1 waits at position 3, 1SEND_B0, for 0RECV_B0 "
            "of rank 0; it would run where sends are buffered"});
  EXPECT_EQ(faults_of(kBothSendFirst, 2, 2, {.transport = Transport::kBuffered}), Lines{});
}

TEST(Validate, ACircleOfReceivesIsOneOnAnyTransport) {
  const std::string csv =
      "0F1,0SEND_F1,0F0,0RECV_B1,0SEND_F0,0B1,0RECV_B0,0B0\n"
      "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1";
  for (const Transport transport : {Transport::kRendezvous, Transport::kBuffered}) {
    const Lines faults = faults_of(csv, 2, 2, {.transport = transport});
    ASSERT_EQ(faults.size(), 1U);
    EXPECT_THAT(faults[0], HasSubstr("circle"));
    EXPECT_THAT(faults[0], ::testing::Not(HasSubstr("buffered")));
  }
}

TEST(Validate, AComputeOrderThatNeverBecomesReadyIsRefused) {
  EXPECT_EQ(faults_of("0F0,3F0,3B0,0B0\n2F0,1F0,2B0,1B0", 4, 1).size(), 1U);
  // Rank 1 wants microbatch 1 back first, rank 0 microbatch 0.
  EXPECT_THAT(faults_of("0F0,1F1,0F1,1F0,1B0,0B0,1B1,0B1", 2, 2).front(), HasSubstr("1F1"));
}

TEST(Validate, OrderMattersOnlyWithoutTags) {
  const std::string csv =
      "0F0,0F1,0SEND_F0+0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F1+1RECV_F0,1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1";
  EXPECT_EQ(faults_of(csv, 2, 2), Lines{});
  EXPECT_EQ(
      faults_of(csv, 2, 2, {.match_by_order = true}),
      Lines{"rank 1, position 0, 1RECV_F1: rank 0 sends 0SEND_F0 first; receives must be posted in "
            "the order of the sends where messages have no tag"});
}

TEST(Validate, TheMemoryBoundNamesTheForwardThatBreaksIt) {
  EXPECT_EQ(faults_of("0F0,0F1,0B0,0B1", 1, 2, {.max_live = {1}}),
            Lines{"rank 0, position 1, 0F1: at most 1 live microbatches; it makes 2"});
  EXPECT_EQ(faults_of("0F0,0I0,0F1,0W0,0B1", 1, 2, {.max_live = {1}}).size(), 1U);
  EXPECT_EQ(faults_of("0F0,0B0,0F1,0B1", 1, 2, {.max_live = {1}}), Lines{});
}

TEST(Validate, ShardedStagesAreWholeWhileTheyWorkAndReduceAtTheEnd) {
  EXPECT_EQ(faults_of("0UNSHARD,0F0,0RESHARD,0B0,0REDUCE_GRAD", 1, 1),
            Lines{"rank 0, position 3, 0B0: it needs 0UNSHARD before it"});
  EXPECT_EQ(
      faults_of("0F0,0F1,0B0,0REDUCE_GRAD,0B1", 1, 2),
      Lines{
          "rank 0, position 3, 0REDUCE_GRAD: it must follow the last backward of its stage, 0B1 at "
          "position 4"});
  EXPECT_EQ(faults_of("0UNSHARD,0UNSHARD,0F0,0B0", 1, 1),
            Lines{"rank 0, position 1, 0UNSHARD: stage 0 is whole already"});
  EXPECT_EQ(faults_of("0F0,0B0,0RESHARD", 1, 1),
            Lines{"rank 0, position 2, 0RESHARD: stage 0 is not whole"});
  EXPECT_EQ(faults_of("0F0,1F0,1B0,1REDUCE_GRAD,0B0", 2, 1).front(),
            "rank 0, position 5, 0REDUCE_GRAD: it is missing: other stages reduce theirs");
}

TEST(Validate, ForwardPartsAreSoundForEvaluation) {
  for (const Generator& generator : generators()) {
    const int per_rank = generator.stages_per_rank == 0 ? 2 : generator.stages_per_rank;
    const Schedule whole = lower(generator.make({3 * per_rank, 6, 3})).value();
    const Schedule part = forward_part(whole);
    EXPECT_OK(validate(part, {.forward_only = true})) << generator.name;
    EXPECT_FALSE(validate(part).ok());
    EXPECT_FALSE(validate(whole, {.forward_only = true}).ok());
  }
}

TEST(Validate, AnErrorCountsTheFaultsBehindTheFirst) {
  EXPECT_THAT(validate(read("0F0,0F0,0F0,0B0", 1, 1)),
              FailsWith(ErrorCode::kInvalidArgument,
                        AllOf(HasSubstr("schedule test: rank 0, position 1, 0F0"),
                              HasSubstr("and 1 faults more"))));
}
}  // namespace
}  // namespace muster::pipeline
