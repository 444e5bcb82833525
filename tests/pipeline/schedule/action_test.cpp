// The grammar: what parses, what is refused, and that text and action are one to one.
#include "pipeline/schedule/action.h"

#include <nlohmann/json.hpp>

#include "pipeline/schedule/schedule.h"
#include "tests/support/golden_case.h"
#include "tests/support/matchers.h"

namespace muster::pipeline {
namespace {
using ::testing::AllOf;
using testing::FailsWith;
using ::testing::HasSubstr;

TEST(Action, TextsGoThereAndBack) {
  for (const char* text :
       {"2F0", "0B12", "10I3", "3W1", "1UNSHARD", "0RESHARD", "0REDUCE_GRAD", "3SEND_F1",
        "4RECV_B7", "0RECV_F0", "1SEND_B999999", "(0F3;3B1)OVERLAP_F_B", "(0F3;3I1)OVERLAP_F_B",
        "0SEND_F1+0RECV_B0", ""}) {
    const Result<Cell> cell = parse_cell(text);
    ASSERT_OK(cell);
    EXPECT_EQ(to_string(*cell), text);
  }
  EXPECT_EQ(to_string(*parse_cell("  0F1 ")), "0F1");
}

TEST(Action, WhatDoesNotFitWhollyIsRefusedAndQuoted) {
  for (const char* text : {"F0",
                           "0f0",
                           "0X1",
                           "-1F0",
                           "0",
                           "0F",
                           "0BX3",
                           "0F0junk",
                           "1F0 trailing",
                           "00F1",
                           "0F01",
                           "0UNSHARD1",
                           "1234567F0",
                           "0F1234567",
                           "0 F1",
                           "0F0+",
                           "0F0+1F0",
                           "()OVERLAP_F_B",
                           "(0F3;3B1)JUNK",
                           "(0F3;3B1)",
                           "(0F3;3B1",
                           "(0F3)OVERLAP_F_B",
                           "(3B1;0F3)OVERLAP_F_B",
                           "(0F3;3W1)OVERLAP_F_B",
                           "(0F3;3B1;0F4)OVERLAP_F_B",
                           "((0F3;3B1)OVERLAP_F_B;1B0)OVERLAP_F_B"}) {
    EXPECT_THAT(parse_cell(text), FailsWith(ErrorCode::kInvalidArgument, HasSubstr("\""))) << text;
  }
  EXPECT_THAT(parse_cell("0F0junk"),
              FailsWith(ErrorCode::kInvalidArgument,
                        AllOf(HasSubstr("\"0F0junk\""), HasSubstr("got \"junk\""))));
}

// What PyTorch's parser takes for an action although it is none.
bool is_known_hole(const std::string& text) {
  return text == "0F" || text == "1F0 trailing" || text == "()OVERLAP_F_B";
}

TEST(Action, GoldenTextsParseAsInPyTorchButForItsHoles) {
  int checked = 0;
  for (const auto& golden : muster::testing::GoldenFile::load("parallel/schedules").cases()) {
    if (golden.value("kind", "") != "parse") continue;
    ++checked;
    const auto text = golden["text"].get<std::string>();
    const Result<Cell> cell = parse_cell(text);
    if (!golden["ok"].get<bool>() || is_known_hole(text)) {
      EXPECT_FALSE(cell.ok()) << text;
      continue;
    }
    ASSERT_OK(cell);
    const auto& value = golden["value"];
    if (value.is_null()) {
      EXPECT_TRUE(cell->is_idle());
      continue;
    }
    EXPECT_EQ(to_string(*cell), value["text"].get<std::string>());
    if (!value["parts"].is_null()) {
      ASSERT_TRUE(cell->is_overlap);
      EXPECT_EQ(to_string(cell->actions[0]), value["parts"][0].get<std::string>());
      EXPECT_EQ(to_string(cell->actions[1]), value["parts"][1].get<std::string>());
      continue;
    }
    EXPECT_EQ(cell->actions[0].stage, value["stage"].get<int>());
    EXPECT_EQ(std::string(to_string(cell->actions[0].kind)), value["type"].get<std::string>());
    EXPECT_EQ(cell->actions[0].microbatch,
              value["mb"].is_null() ? kNoMicrobatch : value["mb"].get<int>());
  }
  EXPECT_EQ(checked, 21);
}

TEST(Action, TheOtherEndOfAMessageIsOnTheNeighbourStage) {
  for (const auto& [one, other] : std::vector<std::pair<const char*, const char*>>{
           {"0SEND_F3", "1RECV_F3"}, {"2SEND_B1", "1RECV_B1"}}) {
    EXPECT_EQ(to_string(other_end(*parse_action(one))), other);
    EXPECT_EQ(to_string(other_end(*parse_action(other))), one);
  }
  EXPECT_ERROR(other_end(*parse_action("0F1")), ErrorCode::kInvalidArgument, HasSubstr("0F1"));
}

TEST(Schedule, CsvNamesRankAndPositionOfABadCell) {
  EXPECT_THAT(
      parse_csv("0F0,0B0\n1F0,,1B0x\n", "my.csv", 2, 1),
      FailsWith(ErrorCode::kInvalidArgument,
                AllOf(HasSubstr("1B0x"), HasSubstr("rank 1, position 2 of schedule my.csv"))));
  EXPECT_THAT(parse_csv("", "my.csv", 2, 1),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("no row")));
}

TEST(Schedule, StagesGoToRanksRoundOrBackAndForth) {
  int checked = 0;
  for (const auto& golden : muster::testing::GoldenFile::load("parallel/schedules").cases()) {
    if (golden.value("kind", "") != "stage_to_rank" || golden["style"] == "zig") continue;
    ++checked;
    const auto style = golden["style"] == "v" ? StageStyle::kVee : StageStyle::kLoop;
    const Result<std::vector<int>> ranks =
        map_stages(golden["ranks"].get<int>(), golden["stages"].get<int>(), style);
    ASSERT_EQ(ranks.ok(), golden["ok"].get<bool>()) << golden["id"];
    if (ranks.ok()) {
      EXPECT_EQ(*ranks, golden["value"].get<std::vector<int>>());
    }
  }
  EXPECT_EQ(checked, 9);
}

TEST(Schedule, MicrobatchesAreCutAsTensorSplitCuts) {
  int checked = 0;
  for (const auto& golden : muster::testing::GoldenFile::load("parallel/schedules").cases()) {
    if (golden.value("kind", "") != "split") continue;
    ++checked;
    EXPECT_EQ(microbatch_sizes(golden["n"].get<int64_t>(), golden["parts"].get<int>()),
              golden["tensor_split"].get<std::vector<int64_t>>());
  }
  EXPECT_EQ(checked, 10);
}
}  // namespace
}  // namespace muster::pipeline
