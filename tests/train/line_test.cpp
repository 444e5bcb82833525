// What must hold of a training job wherever it runs: over each backend, under one agent and two.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>
#include <ostream>

#include "dist/backends/backends.h"
#include "tests/launcher/agent/cluster.h"
#include "tests/train/job.h"

namespace muster {
namespace {
using ::testing::HasSubstr;
using json = nlohmann::json;

struct Place {
  std::string backend;
  int agents = 1;
};

std::string name_of(const Place& place) {
  return fmt::format("{}_{}", place.backend, place.agents == 1 ? "OneAgent" : "TwoAgents");
}

std::ostream& operator<<(std::ostream& out, const Place& place) { return out << name_of(place); }

// Why this build cannot run there, or "".
std::string why_not(const Place& place) {
  if (place.agents > 1 && testing::why_no_agents() != nullptr) return testing::why_no_agents();
  return std::string(why_left_out(place.backend));
}

// Three ranks under one agent, two and two under two. Global rank 2 is never the host's.
class Line : public EndToEnd, public ::testing::WithParamInterface<Place> {
 protected:
  void SetUp() override {
    const std::string reason = why_not(GetParam());
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  [[nodiscard]] static bool has_two_agents() { return GetParam().agents == 2; }
  [[nodiscard]] static int others() { return has_two_agents() ? 3 : 2; }

  // `launch` and `set` are added to what the place says.
  Ended drill_here(const std::string& faults, const std::string& expect,
                   const std::string& launch = "", const std::string& set = "") {
    const std::string sections =
        fmt::format("set: {{dist.backend: {}{}}}\nlaunch: {{agents: {}, nproc: {}{}}}",
                    GetParam().backend, set.empty() ? "" : ", " + set, GetParam().agents,
                    has_two_agents() ? 2 : 3, launch.empty() ? "" : ", " + launch);
    Ended ended = drill(faults, expect, sections);
    EXPECT_EQ(ended.status, 0) << ended.output;
    report_ = json::parse(std::ifstream(dir("drill.json")), nullptr, /*allow_exceptions=*/false);
    return ended;
  }

  json report_;
};

TEST_P(Line, KilledWorkerResumesBitIdentically) {
  drill_here(
      "  - {global_rank: 2, step: 13, point: optimizer.before_step, do: kill}\n",
      "{restarts: 1, resumed_from_step: 10, loss_curve: bit_identical, recovery: under 20 s}",
      "max_restarts: 1");
  ASSERT_TRUE(report_.is_object());
  EXPECT_EQ(report_.at("ok"), true);
  EXPECT_EQ(report_.at("restarts"), 1);
  EXPECT_EQ(report_.at("resumed_from_step"), 10);
  EXPECT_EQ(report_.at("leftovers"), 0);
}

TEST_P(Line, TornCheckpointFallsBackToTheOneBefore) {
  drill_here(
      "  - {global_rank: 1, step: 10, point: checkpoint.after_commit, do: torn_write}\n"
      "  - {global_rank: 2, step: 12, point: train.step_begin, do: kill}\n",
      "{restarts: 1, resumed_from_step: 5, loss_curve: bit_identical, checkpoint_skipped: 10}",
      "max_restarts: 1");
}

TEST_P(Line, AnExitCodeOfTheUserClassEndsTheJobWithIt) {
  drill_here("  - {global_rank: 2, step: 3, point: train.step_begin, do: exit 64}\n",
             "{exit: 64, agents_exit: 64, restarts: 0}", "max_restarts: 2");
}

TEST_P(Line, AStoppedWorkerIsNamedByItsPeersAndReplaced) {
  drill_here("  - {global_rank: 2, step: 12, point: train.step_begin, do: stop}\n",
             fmt::format("{{restarts: 1, named: {{global_rank: 2, by: {}}}, resumed_from_step: 10, "
                         "loss_curve: bit_identical}}",
                         others()),
             "max_restarts: 1", "dist.timeout: 3 s");
}

TEST_P(Line, ADivergedRankIsNamedOnAllRanksAndNotRestarted) {
  drill_here("  - {global_rank: 1, step: 7, point: train.all_reduce, do: diverge}\n",
             fmt::format("{{exit: 70, agents_exit: 70, restarts: 0, named: {{global_rank: 1, by: "
                         "{}}}}}",
                         others()),
             "max_restarts: 2");
}

TEST_P(Line, ASlowRankIsNamedAndNotEnded) {
  drill_here("  - {global_rank: 2, step: 7, point: optimizer.before_step, do: delay 3 s}\n",
             "{restarts: 0, slow_rank: 2, loss_curve: bit_identical}", "", "dist.slow_after: 2 s");
}

// Each agent is launched again, with one worker less.
TEST_P(Line, FewerRanksGoOnFromWhatMoreHadSaved) {
  const Ended ended =
      drill_here("  - {global_rank: 2, step: 13, point: train.step_begin, do: kill}\n",
                 "{exit: 0, agents_exit: 137, resumed_from_step: 10}",
                 fmt::format("then_nproc: {}", has_two_agents() ? 1 : 2));
  EXPECT_THAT(ended.output, HasSubstr("was saved with digest"));
}

TEST_P(Line, AKilledAgentIsReplacedAndTheNumbersAreTheSame) {
  if (!has_two_agents()) GTEST_SKIP() << "a job ends with its only agent";
  drill_here(
      "  - {global_rank: 2, step: 13, point: optimizer.before_step, do: kill_agent}\n",
      "{restarts: 1, resumed_from_step: 10, loss_curve: bit_identical, recovery: under 20 s}");
}

TEST_P(Line, AKilledAgentIsDoneWithoutWhereFewerMaySuffice) {
  if (!has_two_agents()) GTEST_SKIP() << "a job ends with its only agent";
  drill_here("  - {global_rank: 3, step: 13, point: optimizer.before_step, do: kill_agent}\n",
             "{restarts: 1, resumed_from_step: 10, recovery: under 20 s}", "min_agents: 1");
}

TEST_P(Line, WithoutItsHostTheJobEndsEverywhere) {
  if (!has_two_agents()) GTEST_SKIP() << "a job ends with its only agent";
  drill_here("  - {global_rank: 1, step: 13, point: train.step_begin, do: kill_agent}\n",
             "{exit: 137, agents_exit: 75, restarts: 0}");
}

INSTANTIATE_TEST_SUITE_P(Everywhere, Line,
                         ::testing::Values(Place{"shm", 1}, Place{"shm", 2}, Place{"gloo", 1},
                                           Place{"gloo", 2}),
                         [](const auto& place) { return name_of(place.param); });
}  // namespace
}  // namespace muster
