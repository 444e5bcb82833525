// Which nodes form a round and which ranks they get; decide() with several nodes.
#include "launcher/rendezvous/nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "launcher/rendezvous/decide.h"

namespace muster {
namespace {
using ::testing::HasSubstr;
using Action = Decision::Action;

constexpr TimePoint kNow{1h};

NodeView node(uint64_t id, int64_t local_world_size = 1, Duration joined_ago = 1s) {
  return {.id = id,
          .options = {.name = "n" + std::to_string(id), .local_world_size = local_world_size},
          .joined_at = kNow - joined_ago,
          .heard_at = kNow};
}

NodeView seated(uint64_t id, int64_t group_rank, int64_t first_rank, int64_t local_size = 1) {
  NodeView view = node(id, local_size);
  view.is_in_round = true;
  view.group_rank = group_rank;
  view.first_rank = first_rank;
  return view;
}

NodesPolicy policy_of(int least, int most) { return {.min_nodes = least, .max_nodes = most}; }

std::vector<uint64_t> ids(const std::vector<Seat>& seats) {
  std::vector<uint64_t> result;
  for (const Seat& seat : seats) result.push_back(seat.id);
  return result;
}

TEST(AssignSeats, RanksArePrefixSumsOfUnevenNodes) {
  const std::vector<Seat> seats =
      assign_seats({node(0, 3), node(1, 2, 3s), node(2, 1, 2s)}, policy_of(1, 3), kNow);
  ASSERT_EQ(ids(seats), (std::vector<uint64_t>{0, 1, 2}));
  EXPECT_EQ(seats[1].place.first_rank, 3);
  EXPECT_EQ(seats[2].place.first_rank, 5);
  EXPECT_EQ(seats[2].place.world_size, 6);
  EXPECT_EQ(seats[2].place.group_world_size, 3);
}

TEST(AssignSeats, RolesCountForThemselves) {
  std::vector<NodeView> nodes = {node(0, 2), node(1, 1)};
  nodes[0].options.role = "trainer";
  nodes[1].options.role = "reader";
  const std::vector<Seat> seats = assign_seats(nodes, policy_of(2, 2), kNow);
  EXPECT_EQ(seats[1].place.first_rank, 2);
  EXPECT_EQ(seats[1].place.role_first_rank, 0);
  EXPECT_EQ(seats[1].place.role_world_size, 1);
  EXPECT_EQ(seats[0].place.role_world_size, 2);
}

TEST(AssignSeats, SurvivorsKeepTheirRankAndANewcomerTakesTheFreeOne) {
  const std::vector<NodeView> nodes = {seated(0, 0, 0), seated(2, 2, 2), node(3)};
  EXPECT_EQ(ids(assign_seats(nodes, policy_of(1, 3), kNow)), (std::vector<uint64_t>{0, 3, 2}));
}

TEST(AssignSeats, RanksCloseUpInOrderWhenNobodyComes) {
  const std::vector<NodeView> nodes = {seated(0, 0, 0), seated(5, 3, 3), seated(2, 2, 2)};
  EXPECT_EQ(ids(assign_seats(nodes, policy_of(1, 4), kNow)), (std::vector<uint64_t>{0, 5, 2}))
      << "rank 2 is kept, rank 3 moves to the free 1";
}

TEST(AssignSeats, ANewcomerDisplacesNoSurvivor) {
  std::vector<NodeView> nodes = {seated(0, 0, 0), node(9, 1, 100s), seated(1, 1, 1)};
  EXPECT_EQ(ids(assign_seats(nodes, policy_of(1, 2), kNow)), (std::vector<uint64_t>{0, 1}));
}

TEST(AssignSeats, AWantedRankIsHonoured) {
  std::vector<NodeView> nodes = {node(0), node(1), node(2)};
  nodes[1].options.wanted_rank = 0;
  nodes[2].options.wanted_rank = 1;
  EXPECT_EQ(ids(assign_seats(nodes, policy_of(3, 3), kNow)), (std::vector<uint64_t>{1, 2, 0}));
}

TEST(AssignSeats, SilentAndGoneNodesAreLeftOut) {
  std::vector<NodeView> nodes = {node(0), node(1), node(2), node(3)};
  nodes[1].heard_at = kNow - 5s;  // the whole lease
  nodes[2].gone_because = "its connection was closed";
  nodes[3].is_ready = false;
  EXPECT_EQ(ids(assign_seats(nodes, policy_of(1, 4), kNow)), (std::vector<uint64_t>{0}));
}

TEST(FormRound, WaitsForTheMinimumUpToTheLimit) {
  const NodesPolicy policy = policy_of(2, 2);
  const Forming waiting = form_round({node(0)}, policy, kNow - 1s, true, kNow);
  EXPECT_FALSE(waiting.is_complete);
  EXPECT_FALSE(waiting.is_hopeless);
  EXPECT_EQ(waiting.reason, "wait: 1 of 2 nodes are there");
  EXPECT_EQ(waiting.ask_again, kNow - 1s + 600s);
  const Forming late = form_round({node(0)}, policy, kNow - 600s, true, kNow);
  EXPECT_TRUE(late.is_hopeless);
  EXPECT_TRUE(form_round({node(0), node(1)}, policy, kNow, true, kNow).is_complete);
}

TEST(FormRound, HasALastCallBeforeTheFirstRoundOnly) {
  const NodesPolicy policy{.min_nodes = 2, .max_nodes = 3, .last_call = 10s};
  const std::vector<NodeView> two = {node(0, 1, 50s), node(1, 1, 4s)};
  const Forming call = form_round(two, policy, kNow - 50s, true, kNow);
  EXPECT_FALSE(call.is_complete);
  EXPECT_EQ(call.ask_again, kNow + 6s) << "it runs since the second one came";
  EXPECT_TRUE(form_round(two, policy, kNow, true, kNow + 6s).is_complete == false)
      << "both are silent for longer than a lease by then";
  EXPECT_TRUE(form_round(two, policy, kNow, false, kNow).is_complete);
}

TEST(FormRound, WaitsUntilTheNodesOfTheLastRoundHaveEndedTheirWorkers) {
  std::vector<NodeView> nodes = {seated(0, 0, 0), seated(1, 1, 1)};
  nodes[1].is_ready = false;
  const Forming forming = form_round(nodes, policy_of(1, 2), kNow, false, kNow);
  EXPECT_FALSE(forming.is_complete);
  EXPECT_EQ(forming.reason, "wait: node n1 ends its workers");
  nodes[1].gone_because = "its connection was closed";
  EXPECT_TRUE(form_round(nodes, policy_of(1, 2), kNow, false, kNow).is_complete);
}

JobView running(std::vector<NodeView> nodes) {
  JobView job;
  job.started = true;
  job.world_size = 0;
  for (const NodeView& view : nodes) {
    if (view.is_in_round) job.world_size += static_cast<int>(view.options.local_world_size);
  }
  job.nodes = std::move(nodes);
  return job;
}

RestartPolicy restarts(int count, int least, int most) {
  return {.max_restarts = count, .nodes = policy_of(least, most)};
}

TEST(DecideWithNodes, ALostNodeIsAFreeRestart) {
  JobView job = running({seated(0, 0, 0), seated(1, 1, 1)});
  job.nodes[1].gone_because = "its connection was closed";
  const Decision decision = decide(job, restarts(0, 1, 2), kNow);
  EXPECT_EQ(decision.action, Action::kRestartGroup);
  EXPECT_TRUE(decision.is_free);
  EXPECT_EQ(decision.reason, "restart: node n1 is lost: its connection was closed");
}

TEST(DecideWithNodes, ASilentNodeIsLostWhenItsLeaseEndsAndNotBefore) {
  const JobView job = running({seated(0, 0, 0), seated(1, 1, 1)});
  const Decision before = decide(job, restarts(0, 1, 2), kNow + 4999ms);
  EXPECT_EQ(before.action, Action::kWait);
  EXPECT_EQ(before.ask_again, kNow + 5s);
  const Decision after = decide(job, restarts(0, 1, 2), kNow + 5s);
  EXPECT_EQ(after.action, Action::kRestartGroup);
  EXPECT_THAT(after.reason, HasSubstr("it was silent for 5 s"));
}

TEST(DecideWithNodes, ALostNodeWhoseRanksHaveFinishedIsNoLoss) {
  JobView job = running({seated(0, 0, 0), seated(1, 1, 1)});
  job.nodes[1].gone_because = "its connection was closed";
  job.exits = {{.global_rank = 1, .exit = {}, .at = kNow}};
  EXPECT_EQ(decide(job, restarts(0, 1, 2), kNow).action, Action::kWait);
}

TEST(DecideWithNodes, AVictimsExitIsNotTheCauseWhenANodeIsLost) {
  JobView job = running({seated(0, 0, 0), seated(1, 1, 1)});
  job.nodes[1].gone_because = "its connection was closed";
  job.exits = {{.global_rank = 0, .exit = {.status = 75}, .at = kNow}};
  const Decision decision = decide(job, restarts(0, 1, 2), kNow);
  EXPECT_EQ(decision.action, Action::kRestartGroup);
  EXPECT_TRUE(decision.is_free);
}

TEST(DecideWithNodes, ANewcomerJoinsAFreePlaceAndOtherwiseWaits) {
  const JobView job = running({seated(0, 0, 0), seated(1, 1, 1), node(2)});
  EXPECT_EQ(decide(job, restarts(0, 1, 2), kNow).action, Action::kWait) << "at most 2";
  const Decision joins = decide(job, restarts(0, 1, 3), kNow);
  EXPECT_EQ(joins.action, Action::kRestartGroup);
  EXPECT_TRUE(joins.is_free);
  EXPECT_EQ(joins.reason, "restart: node n2 joins");
  JobView busy = job;
  busy.nodes[2].is_ready = false;
  EXPECT_EQ(decide(busy, restarts(0, 1, 3), kNow).action, Action::kWait);
  JobView finishing = job;
  finishing.exits = {{.global_rank = 0, .exit = {}, .at = kNow}};
  EXPECT_EQ(decide(finishing, restarts(0, 1, 3), kNow).action, Action::kWait);
}

TEST(DecideWithNodes, FreeRestartsLeaveTheBudgetAlone) {
  JobView job = running({seated(0, 0, 0), seated(1, 1, 1)});
  job.attempt = 7;
  job.free_restarts = 6;
  job.exits = {{.global_rank = 1, .exit = {.signal = 9}, .at = kNow}};
  const Decision decision = decide(job, restarts(2, 1, 2), kNow);
  EXPECT_EQ(decision.action, Action::kRestartGroup);
  EXPECT_FALSE(decision.is_free);
  EXPECT_THAT(decision.reason, HasSubstr("restart 2 of 2: global rank 1"));
}

TEST(WhyUnfit, NamesTheOptionAndBothValues) {
  const NodeOptions host{.rdzv_id = "a",
                         .min_nodes = 1,
                         .max_nodes = 2,
                         .max_restarts = 3,
                         .job = "train.py",
                         .name = "h:1",
                         .local_world_size = 2,
                         .role = "default"};
  NodeOptions other = host;
  other.name = "n:2";
  EXPECT_EQ(why_unfit(host, other), "");
  other.local_world_size = 5;
  other.role = "reader";
  EXPECT_EQ(why_unfit(host, other), "") << "nodes may be uneven";
  other.max_nodes = 4;
  EXPECT_EQ(why_unfit(host, other),
            "--nnodes must be the same on all nodes; the host has 1:2, n:2 has 1:4");
  other = host;
  other.name = "n:2";
  other.job = "eval.py";
  EXPECT_EQ(why_unfit(host, other),
            "all nodes must run the same; the host has train.py, n:2 has eval.py");
  other = host;
  other.local_world_size = 0;
  EXPECT_THAT(why_unfit(host, other), HasSubstr("--nproc-per-node must be from 1"));
}

// Nodes come, go, fall silent and end their workers at random: each round that begins is one whole
// world of ready nodes, and nothing ever waits without a time or an event to wait for.
TEST(DecideWithNodes, EveryRandomScheduleFormsWholeWorldsOnly) {
  for (uint32_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const int least = 1 + static_cast<int>(random() % 3);
    const int most = least + static_cast<int>(random() % 3);
    const RestartPolicy policy = restarts(1000, least, most);
    TimePoint now = kNow;
    JobView job;
    job.forming_since = now;
    job.nodes = {node(0, 1 + random() % 3)};
    uint64_t last_id = 0;
    std::set<int64_t> generations;
    for (int step = 0; step < 60; ++step) {
      const uint32_t dice = random() % 8;
      if (dice < 2 && job.nodes.size() < 8) {
        NodeView joined = node(++last_id, 1 + random() % 3);
        joined.joined_at = joined.heard_at = now;
        job.nodes.push_back(joined);
      }
      NodeView& some = job.nodes[random() % job.nodes.size()];
      if (dice == 2 && some.id != 0) some.gone_because = "random";
      if (dice == 3) some.is_ready = true;
      if (dice == 4) now += 2s;
      if (dice != 4) {
        for (NodeView& view : job.nodes) view.heard_at = now;
      }
      if (dice == 5 && job.started) {
        job.exits.push_back({.global_rank = 0, .exit = {.signal = 9}, .at = now});
      }
      const Decision decision = decide(job, policy, now);
      if (decision.action == Action::kWait && decision.ask_again) {
        ASSERT_GT(*decision.ask_again, now) << decision.reason;
      }
      if (decision.action == Action::kStart) {
        const std::vector<Seat> seats = assign_seats(job.nodes, policy.nodes, now);
        ASSERT_GE(seats.size(), static_cast<size_t>(least));
        ASSERT_LE(seats.size(), static_cast<size_t>(most));
        int64_t next = 0;
        for (NodeView& view : job.nodes) view.is_in_round = false;
        for (size_t rank = 0; rank < seats.size(); ++rank) {
          ASSERT_EQ(seats[rank].place.group_rank, static_cast<int64_t>(rank));
          ASSERT_EQ(seats[rank].place.first_rank, next);
          const auto found =
              std::find_if(job.nodes.begin(), job.nodes.end(),
                           [&](const NodeView& view) { return view.id == seats[rank].id; });
          ASSERT_NE(found, job.nodes.end());
          ASSERT_TRUE(found->is_ready);
          ASSERT_EQ(why_lost(*found, policy.nodes, now), "");
          found->is_in_round = true;
          found->group_rank = seats[rank].place.group_rank;
          found->first_rank = next;
          next += found->options.local_world_size;
        }
        ASSERT_EQ(seats.front().place.world_size, next);
        ASSERT_TRUE(generations.insert(job.attempt).second);
        job.world_size = static_cast<int>(next);
        job.started = true;
      } else if (decision.action == Action::kRestartGroup) {
        job.started = false;
        job.exits.clear();
        ++job.attempt;
        job.free_restarts += decision.is_free ? 1 : 0;
        job.forming_since = now;
        for (NodeView& view : job.nodes) {
          if (view.is_in_round) view.is_ready = view.id == 0;
        }
        std::erase_if(job.nodes, [](const NodeView& view) { return !view.gone_because.empty(); });
      } else if (decision.action == Action::kGiveUp) {
        break;
      }
    }
  }
}

}  // namespace
}  // namespace muster
