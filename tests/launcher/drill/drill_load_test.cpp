#include <gmock/gmock.h>

#include <string>

#include "core/base/file_system.h"
#include "core/base/text.h"
#include "launcher/drill/drill.h"
#include "launcher/recipe/recipe.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::ElementsAre;
using testing::FailsWith;
using ::testing::HasSubstr;

constexpr ErrorCode kBad = ErrorCode::kBadRecipe;

Result<Drill> with(const std::string& lines) {
  return parse_drill("recipe: r.yaml\nlaunch: {nproc: 4, max_restarts: 2}\n" + lines, "d/a.yaml");
}

// A drill with one fault, whose fields follow `global_rank` and `point`.
Result<Drill> with_fault(const std::string& fields) {
  return with("faults:\n  - {global_rank: 1, point: train.step_end, " + fields + "}\n");
}

TEST(LoadDrill, ReadsAllOfAFile) {
  const Result<Drill> drill = parse_drill(R"(
recipe: ../recipes/a.yaml
launch: {nproc: 4, max_restarts: 2, limit: 5 min}
faults:
  - {global_rank: 3, step: 25, point: optimizer.before_step, do: kill}
  - {global_rank: 0, point: checkpoint.after_data, do: torn_write, attempt: 1}
expect: {restarts: 1, resumed_from_step: 20, checkpoint_skipped: [30, 40], loss_curve: bit_identical,
         recovery: under 10 s, loss_below: 2.4}
)",
                                          "configs/drills/d.yaml");
  ASSERT_OK(drill);
  EXPECT_EQ(drill->recipe, "configs/drills/../recipes/a.yaml");
  EXPECT_EQ(drill->launch.nproc, 4);
  EXPECT_EQ(drill->launch.max_restarts, 2);
  EXPECT_EQ(drill->launch.limit, 5min);
  ASSERT_EQ(drill->faults.size(), 2u);
  EXPECT_EQ(drill->faults[0].global_rank, 3);
  EXPECT_EQ(drill->faults[0].step, 25);
  EXPECT_EQ(drill->faults[0].point, "optimizer.before_step");
  EXPECT_EQ(drill->faults[0].action, Fault::Action::kKill);
  EXPECT_EQ(drill->faults[0].attempt, 0);
  EXPECT_EQ(drill->faults[1].action, Fault::Action::kTornWrite);
  EXPECT_EQ(drill->faults[1].step, std::nullopt);
  EXPECT_EQ(drill->faults[1].attempt, 1);
  EXPECT_EQ(drill->expect.restarts, 1);
  EXPECT_THAT(drill->expect.resumed_from_steps, ElementsAre(20));
  EXPECT_THAT(drill->expect.skipped_checkpoints, ElementsAre(30, 40));
  EXPECT_TRUE(drill->expect.is_bit_identical);
  EXPECT_EQ(drill->expect.recovery_limit, Duration(10s));
  EXPECT_EQ(drill->expect.loss_limit, 2.4);
}

TEST(LoadDrill, AnAbsoluteRecipePathStaysAsItIs) {
  EXPECT_EQ(parse_drill("recipe: /r/a.yaml\n", "d/a.yaml")->recipe, "/r/a.yaml");
}

TEST(LoadDrill, WhatIsNotExpectedIsNotChecked) {
  const Result<Drill> drill = with("");
  ASSERT_OK(drill);
  EXPECT_EQ(drill->expect.restarts, std::nullopt);
  EXPECT_TRUE(drill->expect.resumed_from_steps.empty());
  EXPECT_FALSE(drill->expect.is_bit_identical);
  EXPECT_EQ(drill->expect.recovery_limit, std::nullopt);
}

TEST(LoadDrill, ReadsEveryAction) {
  EXPECT_EQ(with_fault("do: kill")->faults[0].action, Fault::Action::kKill);
  EXPECT_EQ(with_fault("do: stop")->faults[0].action, Fault::Action::kStop);
  const Drill exiting = with_fault("do: exit 75").value();
  EXPECT_EQ(exiting.faults[0].action, Fault::Action::kExit);
  EXPECT_EQ(exiting.faults[0].exit_status, 75);
  const Drill delayed = with_fault("do: delay 2 s").value();
  EXPECT_EQ(delayed.faults[0].action, Fault::Action::kDelay);
  EXPECT_EQ(delayed.faults[0].delay, Duration(2s));
}

TEST(LoadDrill, RefusesActionsThatMakeNoSense) {
  EXPECT_THAT(with_fault("do: kil"), FailsWith(kBad, HasSubstr("did you mean \"kill\"?")));
  EXPECT_THAT(with_fault("do: exit"), FailsWith(kBad, HasSubstr("exit must have a status")));
  EXPECT_THAT(with_fault("do: exit 256"), FailsWith(kBad, HasSubstr("from 0 to 255")));
  EXPECT_THAT(with_fault("do: delay 2"), FailsWith(kBad, HasSubstr("delay must have a time")));
  EXPECT_THAT(with_fault("do: torn_write"),
              FailsWith(kBad, HasSubstr("for torn_write; got \"train.step_end\"")));
  EXPECT_THAT(with_fault("do: kill 9"),
              FailsWith(kBad, HasSubstr("must be one of kill, kill_agent")));
}

TEST(LoadDrill, AllFaultsOfAFileAreToldAtOnce) {
  const Result<Drill> drill = with(R"(faults:
  - {global_rank: 4, step: -1, point: train.step_ent, do: kill}
  - {point: train.step_end, attempt: 3}
expect: {restart: 1, loss_curve: identical, recovery: 10 s, loss_below: low}
launcher: {}
)");
  ASSERT_FALSE(drill.ok());
  const std::vector<std::string> lines = split(drill.error().what(), '\n');
  ASSERT_EQ(lines.size(), 11u) << drill.error().what();
  EXPECT_THAT(lines[0], HasSubstr("d/a.yaml:4:19: faults[0].global_rank: must be below "
                                  "launch.nproc; got 4 of 4 ranks"));
  EXPECT_THAT(lines[1], HasSubstr("faults[0].step: must be at least 0; got -1"));
  EXPECT_THAT(lines[2], HasSubstr("did you mean \"train.step_end\"?"));
  EXPECT_THAT(lines[3], HasSubstr("faults[1].global_rank: must be given"));
  EXPECT_THAT(lines[4], HasSubstr("faults[1].do: must be given"));
  EXPECT_THAT(lines[5], HasSubstr("faults[1].attempt: must be at most launch.max_restarts"));
  EXPECT_THAT(lines[6], HasSubstr("unknown key \"expect.restart\"; did you mean \"restarts\"?"));
  EXPECT_THAT(lines[7], HasSubstr("expect.loss_curve: must be bit_identical; got \"identical\""));
  EXPECT_THAT(lines[8], HasSubstr("expect.recovery: must be a limit, as \"under 10 s\""));
  EXPECT_THAT(lines[9], HasSubstr("expect.loss_below: must be a number; got \"low\""));
  EXPECT_THAT(lines[10], HasSubstr("unknown key \"launcher\"; did you mean \"launch\"?"));
  for (const std::string& line : lines) EXPECT_THAT(line, ::testing::EndsWith("[BadRecipe]"));
}

TEST(LoadDrill, FaultsAreJudgedByTheLaunchSectionEvenIfItComesLater) {
  EXPECT_OK(
      parse_drill("faults:\n  - {global_rank: 1, point: train.step_end, do: kill}\n"
                  "recipe: r.yaml\nlaunch: {nproc: 2}\n",
                  "a.yaml"));
}

TEST(LoadDrill, TheRecipeIsRequired) {
  EXPECT_THAT(parse_drill("launch: {nproc: 2}\n", "a.yaml"),
              FailsWith(kBad, HasSubstr("a.yaml:1:1: recipe: must be given; got nothing")));
  EXPECT_THAT(parse_drill("[]", "a.yaml"), FailsWith(kBad, HasSubstr("must be a map")));
  EXPECT_THAT(load_drill("/nonexistent.yaml"),
              FailsWith(ErrorCode::kNotFound, HasSubstr("/nonexistent.yaml")));
}

TEST(LoadDrill, WhatItReadsSurvivesTheEnvironmentVariable) {
  const Drill drill = with_fault("step: 3, do: delay 1500 ms, attempt: 2").value();
  const auto decoded = decode_faults(encode_faults(drill.faults));
  ASSERT_OK(decoded);
  ASSERT_EQ(decoded->size(), 1u);
  EXPECT_EQ(decoded->front().delay, Duration(1500ms));
  EXPECT_EQ(decoded->front().step, 3);
  EXPECT_EQ(decoded->front().attempt, 2);
}

TEST(LoadDrill, ReadsChangesOfTheRecipeAndASecondLaunch) {
  const Result<Drill> drill = parse_drill(
      "recipe: r.yaml\nset: {train.steps: 60, dist.timeout: 3 s}\n"
      "launch: {nproc: 4, then_nproc: 2}\n",
      "d/a.yaml");
  ASSERT_OK(drill);
  EXPECT_THAT(drill->overrides, ElementsAre("train.steps=60", "dist.timeout=3 s"));
  EXPECT_EQ(drill->launch.then_nproc, 2);
  EXPECT_THAT(with("set: [a]\n"), FailsWith(kBad, HasSubstr("set: must be a map of recipe keys")));
}

TEST(LoadDrill, ReadsWhoMustBeNamed) {
  const Result<Drill> drill =
      with("expect: {exit: 70, named: {global_rank: 1, within: under 2 s}, slow_rank: 3}\n");
  ASSERT_OK(drill);
  EXPECT_EQ(drill->expect.exit_status, 70);
  ASSERT_TRUE(drill->expect.named.has_value());
  EXPECT_EQ(drill->expect.named->global_rank, 1);
  EXPECT_EQ(drill->expect.named->limit, Duration(2s));
  EXPECT_EQ(drill->expect.slow_rank, 3);
  EXPECT_THAT(with("expect: {named: {within: under 2 s}}\n"),
              FailsWith(kBad, HasSubstr("expect.named.global_rank: must be given")));
}

TEST(LoadDrill, ARankCanDivergeInItsAllReduceOnly) {
  EXPECT_OK(with("faults:\n  - {global_rank: 1, point: train.all_reduce, do: diverge}\n"));
  EXPECT_THAT(with_fault("do: diverge"),
              FailsWith(kBad, HasSubstr("point: must be train.all_reduce for diverge")));
}

TEST(Configs, EveryDrillInTheTreeFitsItsRecipe) {
  std::string root = __FILE__;
  for (int level = 0; level < 4; ++level) root = path_parent(root);
  const std::string folder = path_join(root, "configs/drills");
  const auto names = real_file_system().list(folder);
  ASSERT_OK(names);
  EXPECT_GE(names->size(), 2u);
  for (const std::string& name : *names) {
    const Result<Drill> drill = load_drill(path_join(folder, name));
    ASSERT_OK(drill);
    const Result<Recipe> recipe = load_recipe(drill->recipe, drill->overrides);
    ASSERT_OK(recipe);
    EXPECT_OK(check_recipe(*recipe, static_cast<int>(drill->launch.nproc)));
    for (const Fault& fault : drill->faults) {
      EXPECT_LE(fault.step.value_or(0), recipe->train.steps) << name;
    }
  }
}
}  // namespace
}  // namespace muster
