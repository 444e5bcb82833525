// `muster-tools schedule`: what people see, and the exit status that scripts see.
#include "train/schedule_command.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/base/file_system.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

CommandOutput run(std::vector<std::string> arguments) { return run_schedule_command(arguments); }

class ScheduleFile {
 public:
  explicit ScheduleFile(const std::string& csv) { std::ofstream(path()) << csv; }
  [[nodiscard]] std::string path() const { return directory_.file("plan.csv"); }
  [[nodiscard]] CommandOutput validate(int stages, int microbatches,
                                       std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {"validate",       path(),
                                    "--stages",       std::to_string(stages),
                                    "--microbatches", std::to_string(microbatches)};
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  }

 private:
  TempDirectory directory_;
};

TEST(ScheduleCommand, ShowDrawsAndMeasures) {
  const CommandOutput output = run({"show", "1f1b", "--stages", "4", "--microbatches", "4"});
  EXPECT_EQ(output.status, 0);
  EXPECT_EQ(output.out,
            "stage 0 | F0 F1 F2 F3 .  .  .  B0 .  B1 .  B2 .  B3\n"
            "stage 1 | .  F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3 .\n"
            "stage 2 | .  .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 .  .\n"
            "stage 3 | .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  .  .\n"
            "makespan 21  bubble 42.9 %  idle 9 6 3 0  peak live 4 3 2 1\n");
}

TEST(ScheduleCommand, WhatShowPrintsAsCsvValidateAccepts) {
  for (const char* form : {"--csv", "--lowered"}) {
    for (const char* name : {"1f1b", "zero_bubble", "zbv"}) {
      const CommandOutput shown =
          run({"show", name, "--stages", "4", "--ranks", std::string(name) == "zbv" ? "2" : "4",
               "--microbatches", "6", form});
      ASSERT_EQ(shown.status, 0) << shown.err;
      const CommandOutput output = ScheduleFile(shown.out).validate(4, 6, {"--json"});
      EXPECT_EQ(output.status, 0) << output.err;
      const json object = json::parse(output.out);
      EXPECT_EQ(object["ok"], true);
      EXPECT_EQ(object["lowered"], std::string(form) == "--lowered");
    }
  }
}

TEST(ScheduleCommand, ValidateExits65AndNamesRankPositionActionAndReason) {
  const ScheduleFile file("0F0,0F0,0B0\n1F0,1B0\n");
  const CommandOutput output = file.validate(2, 1);
  EXPECT_EQ(output.status, 65);
  EXPECT_THAT(output.err, AllOf(HasSubstr("rank 0, position 1, 0F0: it must run once"),
                                HasSubstr("rank 0: 0F0 [0F0] 0B0")));
  const json object = json::parse(file.validate(2, 1, {"--json"}).out);
  EXPECT_EQ(object["ok"], false);
  EXPECT_EQ(object["faults"][0]["rank"], 0);
  EXPECT_EQ(object["faults"][0]["position"], 1);
  EXPECT_EQ(object["faults"][0]["action"], "0F0");
  const CommandOutput unreadable = ScheduleFile("0F0,0B0\n1F0junk,1B0\n").validate(2, 1);
  EXPECT_EQ(unreadable.status, 65);
  EXPECT_THAT(unreadable.err, AllOf(HasSubstr("1F0junk"), HasSubstr("rank 1, position 0")));
}

TEST(ScheduleCommand, ADeadlockIsRefusedWithItsCircleUnlessSendsAreBuffered) {
  const ScheduleFile file(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  const CommandOutput output = file.validate(2, 2);
  EXPECT_EQ(output.status, 65);
  EXPECT_THAT(output.err, AllOf(HasSubstr("0SEND_F1, for 1RECV_F1 of rank 1"),
                                HasSubstr("1SEND_B0, for 0RECV_B0 of rank 0"),
                                HasSubstr("--transport buffered")));
  EXPECT_EQ(file.validate(2, 2, {"--transport", "buffered"}).status, 0);
}

TEST(ScheduleCommand, BoundsAndOrderAreAskedFor) {
  const ScheduleFile file("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n");
  EXPECT_EQ(file.validate(2, 2).status, 65);  // rank 1 wants microbatch 1 first
  const ScheduleFile plain("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(plain.validate(2, 2, {"--max-live", "2,1"}).status, 0);
  EXPECT_EQ(plain.validate(2, 2, {"--max-live", "1"}).status, 65);
  EXPECT_EQ(plain.validate(2, 2, {"--ranks", "3"}).status, 65);
}

TEST(ScheduleCommand, CompareGivesAllSchedulesTheSameWork) {
  const CommandOutput output = run({"compare", "--ranks", "4", "--microbatches", "8", "--json"});
  EXPECT_EQ(output.status, 0);
  std::map<std::string, double> makespans;
  const json object = json::parse(output.out);
  for (const json& row : object["schedules"])
    makespans[row["schedule"].get<std::string>()] = row["makespan"].get<double>();
  const std::map<std::string, double> expected = {{"GPipe", 33},
                                                  {"1F1B", 33},
                                                  {"Interleaved1F1B", 28.5},
                                                  {"LoopedBFS", 28.5},
                                                  {"InterleavedZeroBubble", 25.5},
                                                  {"ZBVZeroBubble", 25.5},
                                                  {"DualPipeV", 25.5}};
  EXPECT_EQ(makespans, expected);
  EXPECT_THAT(run({"compare", "1f1b", "zbv", "--ranks", "4", "--microbatches", "8"}).out,
              AllOf(HasSubstr("1F1B"), HasSubstr("27.3 %"), HasSubstr("25.5")));
}

TEST(ScheduleCommand, NumbersThatMeanNothingAreUsageErrors) {
  const std::vector<std::vector<std::string>> wrong = {
      {"--stages", "0"},
      {"--stages", "-4"},
      {"--stages", "1000000000"},
      {"--ranks", "0"},
      {"--ranks", "-2"},
      {"--microbatches", "0"},
      {"--costs", "1"},
      {"--costs", "1,nan,1"},
      {"--costs", "-1,1,1"},
      {"--costs", "inf,1,1"},
      {"--microbatches", "999999", "--stages", "9999"}};
  for (const auto& arguments : wrong) {
    std::vector<std::string> all = {"show", "1f1b"};
    for (const auto& [name, value] : {std::pair("--stages", "4"), std::pair("--microbatches", "4")})
      if (std::ranges::count(arguments, name) == 0) all.insert(all.end(), {name, value});
    all.insert(all.end(), arguments.begin(), arguments.end());
    const CommandOutput output = run(all);
    EXPECT_EQ(output.status, 64) << arguments[0] << " " << arguments[1] << output.err;
    EXPECT_EQ(output.out, "");
  }
}

TEST(ScheduleCommand, JsonHoldsNamesOfAnyBytes) {
  const CommandOutput output =
      run({"validate", "/nowhere\xff.csv", "--stages", "2", "--microbatches", "2", "--json"});
  EXPECT_EQ(output.status, 66);
  EXPECT_EQ(json::parse(output.out)["ok"], false);
}

TEST(ScheduleCommand, UsageErrorsExit64AndMissingFiles66) {
  EXPECT_EQ(run({}).status, 64);
  EXPECT_EQ(run({"show", "1f1b"}).status, 64);
  EXPECT_EQ(run({"show", "1f1c", "--stages", "2", "--microbatches", "2"}).status, 65);
  EXPECT_EQ(
      run({"validate", "/nonexistent/plan.csv", "--stages", "2", "--microbatches", "2"}).status,
      66);
  EXPECT_THAT(run({"--help"}).out, AllOf(HasSubstr("validate"), HasSubstr("dual_pipe_v")));
}

TEST(ScheduleCommand, PlansThatPyTorchRunsMayNeedSendsThatDoNotWait) {
  const ScheduleFile file(
      "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\n"
      "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD\n");
  const CommandOutput accepted = file.validate(2, 2);
  EXPECT_EQ(accepted.status, 0) << accepted.err;
  EXPECT_THAT(accepted.out, HasSubstr("needs sends that do not wait"));
  const CommandOutput refused = file.validate(2, 2, {"--transport", "rendezvous"});
  EXPECT_EQ(refused.status, 65);
  EXPECT_THAT(refused.err, HasSubstr("0SEND_F1"));
}
}  // namespace
}  // namespace muster
