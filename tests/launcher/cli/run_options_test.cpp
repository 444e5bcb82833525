#include "launcher/cli/run_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/launcher/agent/run_muster.h"
#include "tests/support/matchers.h"

namespace muster::testing {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<RunArguments> parse(const std::vector<std::string>& words,
                           const Environment& environment = {}) {
  return parse_run_arguments(words, environment);
}

TEST(RunOptions, HoldEveryOptionOfTorchrunWithItsSpellingsAndVariable) {
  std::ifstream file(source_directory() + "/tests/golden/torchrun/options.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  int compared = 0;
  for (const nlohmann::json& option : golden["options"]) {
    if (option["kind"] == "positional") continue;
    std::string dashed;
    std::string letter;
    for (const std::string flag : option["flags"]) {
      if (!flag.starts_with("--")) letter = flag.substr(1);
      if (flag.starts_with("--") && dashed.empty()) dashed = flag.substr(2);
    }
    SCOPED_TRACE(dashed);
    const auto all = run_options();
    const auto found = std::find_if(all.begin(), all.end(),
                                    [&](const RunOption& own) { return own.name == dashed; });
    ASSERT_NE(found, all.end());
    EXPECT_EQ(found->letter == 0 ? "" : std::string(1, found->letter), letter);
    EXPECT_EQ(found->kind == RunOption::Kind::kFlag, option["kind"] == "flag");
    EXPECT_EQ(found->has_variable, !option["env"].is_null());
    if (found->has_variable) {
      EXPECT_EQ(variable_of(*found), option["env"]);
    }
    for (const std::string flag : option["flags"]) {
      if (!flag.starts_with("--") || found->kind == RunOption::Kind::kFlag) continue;
      if (found->support == RunOption::Support::kRefused) continue;
      const Result<RunArguments> parsed = parse({flag, "x", "w.py"});
      ASSERT_OK(parsed);
      EXPECT_EQ(parsed->value(dashed), "x") << flag;
    }
    ++compared;
  }
  EXPECT_EQ(compared, 31);
}

TEST(RunOptions, AreReadUpToTheProgram) {
  const Result<RunArguments> parsed =
      parse({"--nproc_per_node=2", "-r3", "-t", "0:1", "w.py", "--nnodes", "7"});
  ASSERT_OK(parsed);
  EXPECT_EQ(parsed->value("nproc-per-node"), "2");
  EXPECT_EQ(parsed->value("redirects"), "3");
  EXPECT_EQ(parsed->value("tee"), "0:1");
  EXPECT_EQ(parsed->value("nnodes"), std::nullopt);
  EXPECT_THAT(parsed->rest, ElementsAre("w.py", "--nnodes", "7"));
  EXPECT_FALSE(parsed->after_double_dash);
}

TEST(RunOptions, TheLastOneWins) {
  EXPECT_EQ(parse({"--role", "a", "--role=b", "w.py"})->value("role"), "b");
}

TEST(RunOptions, MayBeShortenedWhileTheyMeanOneThing) {
  EXPECT_EQ(parse({"--nnode", "1", "w.py"})->value("nnodes"), "1");
  EXPECT_TRUE(parse({"--stand", "w.py"})->flag("standalone"));
  EXPECT_EQ(parse({"--nproc-", "2", "w.py"})->value("nproc-per-node"), "2");
  EXPECT_EQ(parse({"--nproc", "2", "w.py"})->value("nproc-per-node"), "2");
  EXPECT_THAT(parse({"--master", "x", "w.py"}),
              FailsWith(ErrorCode::kInvalidArgument,
                        HasSubstr("--master: may mean --master-addr, --master-port")));
}

TEST(RunOptions, UnknownOnesAreErrorsWithASuggestion) {
  EXPECT_THAT(parse({"--max-restart-count", "1"}),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("no such option")));
  EXPECT_THAT(parse({"--max-restrats", "1"}),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("did you mean --max-restarts?")));
  EXPECT_THAT(parse({"--nproc-per_node", "2"}),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("no such option")));
  EXPECT_THAT(parse({"-x"}), FailsWith(ErrorCode::kInvalidArgument, HasSubstr("-x: no such")));
}

TEST(RunOptions, AValueMustComeAndAFlagTakesNone) {
  EXPECT_THAT(parse({"--role"}),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("needs a value")));
  EXPECT_THAT(parse({"--role", "--standalone", "w.py"}),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("needs a value")));
  EXPECT_THAT(parse({"--standalone=1", "w.py"}),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("takes no value")));
}

TEST(RunOptions, VariablesFillInWhatTheCommandLineLeavesOut) {
  const Environment environment = {{"PET_NPROC_PER_NODE", "4"},
                                   {"PET_ROLE", "pet"},
                                   {"PET_STANDALONE", "1"},
                                   {"PET_NO_PYTHON", "0"},
                                   {"PET_NO_SUCH", "1"},
                                   {"PET_R", "3"},
                                   {"PET_HELP", "1"}};
  const Result<RunArguments> parsed = parse({"--role", "cli", "w.py"}, environment);
  ASSERT_OK(parsed);
  EXPECT_EQ(parsed->value("nproc-per-node"), "4");
  EXPECT_EQ(parsed->value("role"), "cli");
  EXPECT_TRUE(parsed->flag("standalone"));
  EXPECT_FALSE(parsed->flag("no-python"));
  EXPECT_EQ(parsed->value("redirects"), std::nullopt);
  EXPECT_FALSE(parsed->help);
  EXPECT_THAT(parse({"w.py"}, {{"PET_STANDALONE", "true"}}),
              FailsWith(ErrorCode::kInvalidArgument,
                        HasSubstr("PET_STANDALONE: must be 0 or 1; got \"true\"")));
}

TEST(RunOptions, WhatCannotWorkIsRefusedWithItsReason) {
  EXPECT_THAT(parse({"--run-path", "w.py"}),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("no Python in the launcher")));
  EXPECT_THAT(parse({"--numa-binding", "node", "w.py"}),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("--numa-binding")));
  EXPECT_THAT(parse({"--event-log-handler", "console", "w.py"}),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("use --events FILE")));
  EXPECT_OK(parse({"--event-log-handler", "null", "w.py"}));
}

TEST(RunOptions, TheHelpNamesEveryOption) {
  const std::string help = run_help();
  for (const RunOption& option : run_options()) {
    EXPECT_THAT(help, HasSubstr("--" + std::string(option.name)));
  }
  const Outcome outcome = run_muster({"run", "--help", "w.py"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, help);
  EXPECT_EQ(outcome.err, "");
}

}  // namespace
}  // namespace muster::testing
