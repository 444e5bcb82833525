// Drills with several agents: the keys, the pool that stands for a scheduler, the judgement.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/base/file_system.h"
#include "launcher/drill/agent_pool.h"
#include "launcher/drill/compare.h"
#include "launcher/drill/drill.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::ElementsAre;
using testing::FailsWith;
using ::testing::HasSubstr;

std::string drill_of(const std::string& launch, const std::string& fault) {
  return "recipe: r.yaml\nlaunch: " + launch + "\nfaults:\n  - " + fault + "\n";
}

TEST(DrillAgents, AgentsAndTheirDeathAreRead) {
  const Result<Drill> drill = parse_drill(
      drill_of("{agents: 2, nproc: 2}",
               "{global_rank: 3, step: 5, point: train.step_end, do: kill_agent, attempt: 2}"),
      "d.yaml");
  ASSERT_OK(drill);
  EXPECT_EQ(drill->launch.agents, 2);
  EXPECT_EQ(drill->launch.min_agents, 2);
  EXPECT_EQ(drill->launch.world_size(), 4);
  EXPECT_EQ(drill->faults[0].action, Fault::Action::kKillAgent);
  const Result<std::vector<Fault>> decoded = decode_faults(encode_faults(drill->faults));
  ASSERT_OK(decoded);
  EXPECT_EQ(decoded->front().action, Fault::Action::kKillAgent);
  const Result<Drill> shrinks =
      parse_drill(drill_of("{agents: 2, min_agents: 1, nproc: 2}",
                           "{global_rank: 3, point: train.step_end, do: kill_agent}"),
                  "d.yaml");
  ASSERT_OK(shrinks);
  EXPECT_EQ(shrinks->launch.min_agents, 1);
}

TEST(DrillAgents, RanksCountOverAllAgents) {
  EXPECT_THAT(parse_drill(drill_of("{agents: 2, nproc: 2}",
                                   "{global_rank: 4, point: train.step_end, do: kill}"),
                          "d.yaml"),
              FailsWith(ErrorCode::kBadRecipe,
                        HasSubstr("must be below launch.agents times launch.nproc; got 4 of 4")));
  EXPECT_THAT(parse_drill(drill_of("{agents: 2, min_agents: 3}",
                                   "{global_rank: 0, point: train.step_end, do: kill}"),
                          "d.yaml"),
              FailsWith(ErrorCode::kBadRecipe, HasSubstr("must be at most launch.agents")));
}

class AgentPoolTest : public ::testing::Test {
 protected:
  AgentPoolOptions options(const std::string& script, bool replaces) {
    return {.command = {"/bin/sh", "-c", script, directory_.path()},
            .environment = {"PATH=/usr/bin:/bin"},
            .events_path = directory_.file("events"),
            .output_base = directory_.file("run"),
            .count = 1,
            .replaces = replaces};
  }
  void tell_port() {
    std::ofstream(directory_.file("events"), std::ios::app)
        << "{\"event\":\"job_start\"}\n{\"event\":\"rendezvous\",\"role\":\"host\",\"port\":4711}"
           "\n";
  }
  std::string text(const std::string& name) {
    return read_text(real_file_system(), directory_.file(name)).value_or("");
  }

  TempDirectory directory_;
  EventLoop loop_;
};

TEST_F(AgentPoolTest, StartsWhenTheFirstListensAndReplacesWhatIsKilled) {
  AgentPool pool(
      options("echo {port} >> $0/ports; test -e $0/flag && exit 0; "
              "touch $0/flag; kill -9 $$",
              true));
  ASSERT_OK(pool.attach(loop_));
  tell_port();
  const Deadline deadline = Deadline::after(20s);
  while (text("ports") != "4711\n4711\n" && !deadline.passed()) loop_.run_once(deadline.at());
  const AgentPoolFacts facts = pool.finish();
  EXPECT_EQ(facts.started, 2);
  EXPECT_EQ(facts.killed, 1);
  EXPECT_TRUE(facts.other_failures.empty());
}

TEST_F(AgentPoolTest, WithoutReplacementACorpseIsOnlyCountedAndFailuresAreTold) {
  AgentPool pool(options("test -e $0/flag && exit 7; touch $0/flag; kill -9 $$", false));
  ASSERT_OK(pool.attach(loop_));
  tell_port();
  const Deadline deadline = Deadline::after(20s);
  loop_.run_once(deadline.at());  // the event file
  AgentPoolFacts facts = pool.finish();
  EXPECT_EQ(facts.started, 1);
  EXPECT_EQ(facts.killed, 1);
  AgentPool failing(options("exit 7", true));
  ASSERT_OK(failing.attach(loop_));
  tell_port();
  loop_.run_once(deadline.at());
  facts = failing.finish();
  EXPECT_EQ(facts.killed, 0);
  EXPECT_THAT(facts.other_failures, ElementsAre(7));
}

TEST(DrillAgents, TheJudgementCountsKillsAndOtherEnds) {
  AgentPoolFacts agents{.started = 3, .killed = 1, .other_failures = {}};
  EXPECT_TRUE(check_agents("agents", agents, 1, 0).ok);
  EXPECT_FALSE(check_agents("agents", agents, 0, 0).ok);
  agents.other_failures = {75};
  const Check check = check_agents("agents", agents, 1, 0);
  EXPECT_FALSE(check.ok);
  EXPECT_THAT(check.detail, HasSubstr("others exited 75"));
  EXPECT_FALSE(check_agents("agents", agents, 1, 75).ok) << "one of the two exited 0";
  agents.other_failures = {75, 75};
  EXPECT_TRUE(check_agents("agents", agents, 1, 75).ok);
  agents.other_failures = {75, 137};
  EXPECT_FALSE(check_agents("agents", agents, 1, 75).ok);
}

// Its launcher exits 137 too when the job ends because of a killed worker.
TEST_F(AgentPoolTest, AnAgentThatTellsOfTheEndWasNotKilled) {
  AgentPool pool(options("echo {\\\"event\\\":\\\"job_end\\\"} > $MUSTER_EVENTS; exit 137", true));
  ASSERT_OK(pool.attach(loop_));
  tell_port();
  loop_.run_once(Deadline::after(20s).at());
  const AgentPoolFacts facts = pool.finish();
  EXPECT_EQ(facts.started, 1);
  EXPECT_EQ(facts.killed, 0);
  EXPECT_THAT(facts.other_failures, ElementsAre(137));
}

TEST_F(AgentPoolTest, ThePortOfAnEarlierJobInTheFileIsNobodys) {
  tell_port();
  AgentPool pool(options("echo {port} > $0/port", true));
  ASSERT_OK(pool.attach(loop_));
  std::ofstream(directory_.file("events"), std::ios::app)
      << "{\"event\":\"job_start\"}\n{\"event\":\"rendezvous\",\"role\":\"host\",\"port\":4712}\n";
  const Deadline deadline = Deadline::after(20s);
  loop_.run_once(deadline.at());
  EXPECT_EQ(pool.finish().started, 1);
  EXPECT_EQ(text("port"), "4712\n");
}

}  // namespace
}  // namespace muster
