// Orders by their drawings; every size runs, with the makespans that the formulas give.
#include "pipeline/schedule/generate.h"

#include "pipeline/schedule/lower.h"
#include "pipeline/schedule/render.h"
#include "pipeline/schedule/simulate.h"
#include "pipeline/schedule/validate.h"
#include "tests/support/matchers.h"

namespace muster::pipeline {
namespace {
using ::testing::AllOf;
using testing::FailsWith;
using ::testing::HasSubstr;

TEST(OneFOneB, TwoStagesFourMicrobatchesLeaveTwoOfTenSlotsIdle) {
  const Schedule schedule = make_1f1b({.num_stages = 2, .num_microbatches = 4});
  EXPECT_EQ(render(schedule), R"(
stage 0 | F0 F1 .  B0 F2 B1 F3 B2 .  B3
stage 1 | .  F0 B0 F1 B1 F2 B2 F3 B3 .
)");
  EXPECT_OK(validate(schedule));
  EXPECT_DOUBLE_EQ(bubble_fraction(schedule), 0.2);
}

TEST(OneFOneB, FewerMicrobatchesThanStagesRunWithThePredictedMakespan) {
  for (const auto& [microbatches, makespan] :
       std::vector<std::pair<int, double>>{{1, 12}, {2, 15}, {3, 18}}) {
    const Schedule schedule = make_1f1b({.num_stages = 4, .num_microbatches = microbatches});
    EXPECT_OK(validate(schedule));
    EXPECT_DOUBLE_EQ(simulate(schedule)->makespan, makespan);
    EXPECT_DOUBLE_EQ(
        simulate(make_gpipe({.num_stages = 4, .num_microbatches = microbatches}))->makespan,
        makespan);
    EXPECT_DOUBLE_EQ(
        simulate(make_zbv({.num_stages = 8, .num_microbatches = microbatches, .num_ranks = 4}))
                ->makespan /
            2,
        7 + 2 * microbatches);
  }
}

TEST(GPipe, AllForwardsComeFirst) {
  EXPECT_EQ(render(make_gpipe({.num_stages = 2, .num_microbatches = 3})), R"(
stage 0 | F0 F1 F2 .  .  B0 B1 B2
stage 1 | .  F0 F1 F2 B0 B1 B2 .
)");
}

TEST(Interleaved, RanksGoRoundTheirStages) {
  EXPECT_EQ(render(make_interleaved_1f1b({.num_stages = 4, .num_microbatches = 4, .num_ranks = 2})),
            R"(
rank 0 | 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 .   2B2 .   2B3 0B2 0B3
rank 1 | .   1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3 .
)");
}

TEST(Interleaved, WithOneStageARankIs1F1BInTimeAndMemory) {
  const Result<Timeline> timeline =
      simulate(make_interleaved_1f1b({.num_stages = 4, .num_microbatches = 8, .num_ranks = 4}));
  ASSERT_OK(timeline);
  EXPECT_EQ(timeline->peak_live, (std::vector<int>{4, 3, 2, 1}));
  EXPECT_DOUBLE_EQ(timeline->makespan, 33);
}

TEST(LoopedBfs, BackwardsAreReversed) {
  EXPECT_EQ(render(make_looped_bfs({.num_stages = 4, .num_microbatches = 2, .num_ranks = 2})), R"(
rank 0 | 0F0 0F1 2F0 2F1 .   .   2B1 2B0 0B1 0B0
rank 1 | .   1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0 .
)");
}

TEST(ZeroBubble, WeightsFillTheBubbles) {
  EXPECT_EQ(render(make_interleaved_zero_bubble({.num_stages = 2, .num_microbatches = 3})), R"(
stage 0 | F0 F1 .  I0 W0 F2 I1 W1 I2 W2
stage 1 | .  F0 I0 F1 I1 W0 F2 I2 W1 W2
)");
}

TEST(Vee, TheLastRankTurnsMicrobatchesRound) {
  EXPECT_EQ(render(make_zbv({.num_stages = 4, .num_microbatches = 2, .num_ranks = 2})), R"(
rank 0 | 0F0 0F1 .   3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 .   0I1 0W1
rank 1 | .   1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 2I1 2W1 1I1 1W1 .
)");
  EXPECT_EQ(render(make_dual_pipe_v({.num_stages = 2, .num_microbatches = 2, .num_ranks = 1})), R"(
rank 0 | 0F0 1F0 0F1 1B0 1F1 0B0 1B1 0I1 0W1
)");
}

struct Expected {
  const char* name;
  int ranks, per_rank, microbatches;
  double makespan;  // of ranks with whole layers: a virtual stage costs its share
};

// reference/parallel.md 1f: F = I = W = 1, B = 2 a rank.
constexpr Expected kTable[] = {
    {"gpipe", 2, 1, 4, 15},         {"1f1b", 2, 1, 4, 15},           {"interleaved", 2, 2, 4, 13.5},
    {"bfs", 2, 2, 4, 13.5},         {"zero_bubble", 2, 1, 4, 13},    {"zero_bubble", 2, 2, 4, 12.5},
    {"zbv", 2, 2, 4, 12.5},         {"gpipe", 4, 1, 8, 33},          {"1f1b", 4, 1, 8, 33},
    {"interleaved", 4, 2, 8, 28.5}, {"bfs", 4, 2, 8, 28.5},          {"zero_bubble", 4, 1, 8, 27},
    {"zero_bubble", 4, 2, 8, 25.5}, {"zbv", 4, 2, 8, 25.5},          {"gpipe", 4, 1, 16, 57},
    {"1f1b", 4, 1, 16, 57},         {"interleaved", 4, 2, 16, 52.5}, {"bfs", 4, 2, 16, 52.5},
    {"zero_bubble", 4, 1, 16, 51},  {"zero_bubble", 4, 2, 16, 49.5}, {"zbv", 4, 2, 16, 49.5}};

TEST(Generate, MakespansAreThoseOfTheLiterature) {
  for (const Expected& row : kTable) {
    const Schedule schedule =
        make_schedule(row.name, {row.ranks * row.per_rank, row.microbatches, row.ranks}).value();
    EXPECT_DOUBLE_EQ(simulate(schedule)->makespan / row.per_rank, row.makespan) << row.name;
  }
  const Costs unequal{.forward = 1, .backward = 3, .input = 1.5, .weight = 1.5};
  EXPECT_DOUBLE_EQ(simulate(make_schedule("1f1b", {4, 8, 4}).value(), unequal)->makespan, 44);
  EXPECT_DOUBLE_EQ(simulate(make_schedule("zero_bubble", {4, 8, 4}).value(), unequal)->makespan,
                   36.5);
  EXPECT_DOUBLE_EQ(simulate(make_schedule("zbv", {8, 8, 4}).value(), unequal)->makespan / 2, 34.25);
}

TEST(Generate, EverySizeRunsOnEveryTransport) {
  int made = 0;
  for (const Generator& generator : generators()) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (int per_rank = 1; per_rank <= 3; ++per_rank) {
        for (int microbatches = 1; microbatches <= 12; ++microbatches) {
          const Result<Schedule> schedule =
              make_schedule(generator.name, {ranks * per_rank, microbatches, ranks});
          if (!schedule.ok()) continue;
          ++made;
          EXPECT_OK(validate(*schedule));
          const Result<Schedule> lowered = lower(*schedule);
          ASSERT_OK(lowered);
          EXPECT_OK(validate(*lowered, {.match_by_order = true}))
              << generator.name << " " << ranks << " " << per_rank << " " << microbatches;
          EXPECT_DOUBLE_EQ(simulate(*lowered)->makespan, simulate(*schedule)->makespan);
        }
      }
    }
  }
  EXPECT_GT(made, 500);
}

TEST(Generate, UnknownNamesListWhatExists) {
  EXPECT_THAT(make_schedule("1F1C", {2, 2}),
              FailsWith(ErrorCode::kInvalidArgument,
                        AllOf(HasSubstr("zero_bubble"), HasSubstr("did you mean \"1f1b\""))));
  EXPECT_OK(make_schedule("ZBVZeroBubble", {4, 4}));
  EXPECT_OK(make_schedule("dualpipev", {4, 4}));
  EXPECT_FALSE(make_schedule("gpipe", {0, 4}).ok());
  EXPECT_FALSE(make_schedule("gpipe", {4, 0}).ok());
  EXPECT_FALSE(make_schedule("interleaved", {3, 4, 2}).ok());
}

TEST(Render, AMarkedActionStandsInBrackets) {
  const Schedule schedule = make_1f1b({.num_stages = 2, .num_microbatches = 2});
  const std::string expected = R"(
stage 0 | F0   F1   .    B0   .    B1
stage 1 | .    F0   B0   [F1] B1   .
)";
  EXPECT_EQ(render(schedule, Action{ActionKind::kForward, 1, 1}), expected);
  EXPECT_EQ(render(schedule, Action{ActionKind::kRecvF, 1, 1}), expected);
  EXPECT_EQ(render_near(schedule, 0, 1, 1), "0F0 [0F1] 0B0 ...");
  EXPECT_EQ(render_near(schedule, 0, 4, 1), "... 0B1 []");
}

TEST(Simulate, MessagesTakeTimeOnTheWay) {
  const Schedule schedule = make_1f1b({.num_stages = 2, .num_microbatches = 1});
  EXPECT_DOUBLE_EQ(simulate(schedule, {.message = 0.5})->makespan, 7);
  const Result<Timeline> slow_second =
      simulate(schedule, [](const Action& action) { return action.stage == 1 ? 10.0 : 1.0; });
  EXPECT_DOUBLE_EQ(slow_second->makespan, 22);
}

TEST(Simulate, WhatNeverStartsIsNamed) {
  EXPECT_THAT(simulate(parse_csv("0F0,0B0\n1B0,1F0", "x", 2, 1).value()),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("rank 1, position 0, 1B0")));
}
}  // namespace
}  // namespace muster::pipeline
