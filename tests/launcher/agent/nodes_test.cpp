// Several agents on loopback: one world, one generation, whatever fails on whichever of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "tests/launcher/agent/cluster.h"

namespace muster::testing {
namespace {
class Nodes : public SeveralAgents {};

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

NodeSetup with(std::vector<std::string> options) { return {.options = std::move(options)}; }

void signal_all(const std::vector<NodeRound>& rounds, int signal) {
  for (const NodeRound& round : rounds) {
    for (const pid_t pid : round.pids) ::kill(pid, signal);
  }
}

// Waits until the workers of a round have said who they are, so that they know their signals.
void await_workers(Cluster& cluster, const std::vector<size_t>& indexes,
                   const std::vector<NodeRound>& rounds) {
  for (size_t i = 0; i < indexes.size(); ++i) {
    const std::string text = " generation " + std::to_string(rounds[i].generation) + " ";
    EXPECT_TRUE(cluster.node(indexes[i])
                    .await_output(text, static_cast<int>(rounds[i].pids.size()), patient(20s)))
        << cluster.node(indexes[i]).err();
  }
}

void expect_end(Cluster& cluster, size_t index, int status) {
  const Outcome outcome = cluster.node(index).wait(patient(30s));
  EXPECT_EQ(outcome.status, status) << "node " << index << ": " << outcome.err;
  EXPECT_THAT(cluster.processes(index), IsEmpty()) << "node " << index;
}

TEST_F(Nodes, TwoAgentsAreOneWorldAndEndTogether) {
  Cluster cluster("2");
  cluster.start_host(with({"--nproc-per-node", "2", "--rdzv-id", "job7"}));
  cluster.start_node(with({"--nproc-per-node", "2", "--rdzv-id", "job7"}));
  const std::vector<NodeRound> rounds = cluster.await_rounds({0, 1}, 4);
  EXPECT_EQ(rounds[0].first_rank, 0);
  EXPECT_EQ(rounds[1].first_rank, 2);
  await_workers(cluster, {0, 1}, rounds);
  EXPECT_THAT(cluster.node(0).out(), HasSubstr("rank 1 of 4 node 0 of 2 at 127.0.0.1:"));
  EXPECT_THAT(cluster.node(1).out(), HasSubstr("rank 3 of 4 node 1 of 2 at 127.0.0.1:"));
  EXPECT_THAT(cluster.node(1).out(), HasSubstr(" run job7\n"));
  const auto endpoint = [](const std::string& out) {
    const size_t at = out.find(" at ");
    return out.substr(at, out.find(" generation ") - at);
  };
  EXPECT_EQ(endpoint(cluster.node(0).out()), endpoint(cluster.node(1).out()));
  signal_all(rounds, SIGUSR1);
  expect_end(cluster, 0, 0);
  expect_end(cluster, 1, 0);
}

TEST_F(Nodes, AKilledWorkerRestartsEveryNodeWhereverItWas) {
  Cluster cluster("2");
  cluster.start_host(with({"--nproc-per-node", "2", "--max-restarts", "2"}));
  cluster.start_node(with({"--nproc-per-node", "2", "--max-restarts", "2"}));
  std::vector<NodeRound> rounds = cluster.await_rounds({0, 1}, 4);
  for (const size_t victim : {1, 0}) {
    const std::vector<NodeRound> before = rounds;
    ::kill(rounds[victim].pids[1], SIGKILL);
    rounds = cluster.await_rounds({0, 1}, 4);
    for (const size_t index : {0, 1}) {
      EXPECT_EQ(rounds[index].generation, before[index].generation + 1);
      EXPECT_EQ(rounds[index].group_rank, static_cast<int>(index));
    }
  }
  await_workers(cluster, {0, 1}, rounds);
  EXPECT_THAT(cluster.node(1).out(), HasSubstr("failures 2"));
  // The budget is the job's, not a node's.
  ::kill(rounds[1].pids[0], SIGKILL);
  expect_end(cluster, 0, 128 + SIGKILL);
  expect_end(cluster, 1, 128 + SIGKILL);
  EXPECT_THAT(cluster.node(0).err(), HasSubstr("all 2 restarts are used"));
  EXPECT_THAT(cluster.node(1).err(), HasSubstr("all 2 restarts are used"));
}

// One file has the whole job in it: the host's, by the host's clock.
TEST_F(Nodes, TheHostRecordsTheExitsOfOtherNodes) {
  Cluster cluster("2");
  cluster.start_host();
  cluster.start_node();
  const std::vector<NodeRound> rounds = cluster.await_rounds({0, 1}, 2);
  await_workers(cluster, {0, 1}, rounds);
  const int64_t before_ns = real_clock().now().time_since_epoch().count();
  ::kill(rounds[1].pids[0], SIGKILL);
  expect_end(cluster, 0, 128 + SIGKILL);
  expect_end(cluster, 1, 128 + SIGKILL);
  const std::vector<nlohmann::json>& events = cluster.node(0).events();
  const auto told = std::find_if(events.begin(), events.end(), [](const nlohmann::json& event) {
    return event["event"] == "worker_exit" && event["rank"] == 1;
  });
  ASSERT_NE(told, events.end());
  EXPECT_EQ((*told)["signal"], "SIGKILL");
  EXPECT_FALSE((*told)["node"].get<std::string>().empty());
  EXPECT_GT((*told)["t_ns"], before_ns);
  EXPECT_LT((*told)["t_ns"], events.back()["t_ns"]);
}

// A frozen host is found out by its silence, a dead one by its connection.
TEST_F(Nodes, AFrozenHostIsGivenUpAfterTwiceTheLease) {
  Cluster cluster("3", "lease=1");
  cluster.start_host();
  const pid_t agent = cluster.node(0).events().front()["agent"];  // of job_start
  cluster.start_node();
  cluster.start_node();
  cluster.await_rounds({0, 1, 2}, 3);
  ::kill(agent, SIGSTOP);
  for (const size_t index : {1, 2}) {
    expect_end(cluster, index, 75);
    EXPECT_THAT(cluster.node(index).err(),
                HasSubstr("the host of the rendezvous was silent for 2 s"));
  }
  ::kill(agent, SIGKILL);
  expect_end(cluster, 0, 128 + SIGKILL);
}

// Whatever the others are doing: in a round, spare, or waiting for a round to begin.
TEST_F(Nodes, AKilledHostEndsThoseThatWaitToo) {
  Cluster cluster("2");
  cluster.start_host();
  cluster.start_node();
  cluster.await_rounds({0, 1}, 2);
  cluster.start_node();  // a spare
  ASSERT_TRUE(cluster.node(0).await_output("has joined: 3", 1, patient(20s)));
  cluster.kill_node(0);
  for (const size_t index : {1, 2}) {
    expect_end(cluster, index, 75);
    EXPECT_THAT(cluster.node(index).err(), HasSubstr("the host of the rendezvous is lost"));
  }
  Cluster forming("3");
  forming.start_host();
  forming.start_node();
  ASSERT_TRUE(forming.node(0).await_output("has joined: 2", 1, patient(20s)));
  forming.kill_node(0);
  expect_end(forming, 1, 75);
  EXPECT_THAT(forming.node(1).err(), HasSubstr("the host of the rendezvous is lost"));
}

TEST_F(Nodes, AFailureThatNoRestartCanHelpEndsAllWithItsStatus) {
  Cluster cluster("2");
  cluster.start_host(with({"--max-restarts", "5"}));
  cluster.start_node(with({"--max-restarts", "5"}));
  const std::vector<NodeRound> rounds = cluster.await_rounds({0, 1}, 2);
  await_workers(cluster, {0, 1}, rounds);
  ::kill(rounds[1].pids[0], SIGHUP);  // exits 64
  expect_end(cluster, 0, 64);
  expect_end(cluster, 1, 64);
  EXPECT_THAT(cluster.node(1).err(), HasSubstr("cause"));
  EXPECT_THAT(cluster.node(0).err(), HasSubstr("collateral"));
}

TEST_F(Nodes, AKilledNodeIsReplacedByFewerAndALateOneIsTakenIn) {
  Cluster cluster("1:2", "last_call_timeout=20");
  cluster.start_host(with({"--nproc-per-node", "2"}));
  cluster.start_node(with({"--nproc-per-node", "2"}));
  const std::vector<NodeRound> both = cluster.await_rounds({0, 1}, 4);
  cluster.kill_node(1);
  const NodeRound alone = cluster.await_round(0);
  EXPECT_EQ(alone.world_size, 2);
  EXPECT_EQ(alone.generation, both[0].generation + 1);
  cluster.start_node(with({"--nproc-per-node", "2"}));
  const std::vector<NodeRound> again = cluster.await_rounds({0, 2}, 4);
  EXPECT_EQ(again[0].generation, alone.generation + 1);
  EXPECT_EQ(again[1].group_rank, 1);
  await_workers(cluster, {0, 2}, again);
  // Nodes that come and go count for nothing: --max-restarts is 0.
  EXPECT_THAT(cluster.node(0).out(), Not(HasSubstr("failures 1")));
  signal_all(again, SIGUSR1);
  expect_end(cluster, 0, 0);
  expect_end(cluster, 2, 0);
  EXPECT_THAT(cluster.processes(1), IsEmpty());
}

TEST_F(Nodes, AKilledAgentTakesItsOwnNodeOnly) {
  Cluster cluster("1:2", "last_call_timeout=20");
  cluster.start_host();
  MusterProcess& lost = cluster.start_node();
  const pid_t agent = lost.await_event("job_start")["agent"];
  cluster.await_rounds({0, 1}, 2);
  ::kill(agent, SIGKILL);
  const NodeRound alone = cluster.await_round(0);
  EXPECT_EQ(alone.world_size, 1);
  expect_end(cluster, 1, 128 + SIGKILL);
  await_workers(cluster, {0}, {alone});
  signal_all({alone}, SIGUSR1);
  expect_end(cluster, 0, 0);
}

TEST_F(Nodes, BelowTheMinimumANewAgentIsAwaited) {
  Cluster cluster("2");
  cluster.start_host();
  cluster.start_node();
  const std::vector<NodeRound> before = cluster.await_rounds({0, 1}, 2);
  cluster.kill_node(1);
  ASSERT_TRUE(cluster.node(0).await_output("is lost", 1, patient(20s))) << cluster.node(0).err();
  cluster.start_node();
  const std::vector<NodeRound> after = cluster.await_rounds({0, 2}, 2);
  EXPECT_GT(after[0].generation, before[0].generation);
  await_workers(cluster, {0, 2}, after);
  signal_all(after, SIGUSR1);
  expect_end(cluster, 0, 0);
  expect_end(cluster, 2, 0);
}

TEST_F(Nodes, ASpareTakesTheFreePlaceAtOnceAndEndsWithTheJob) {
  Cluster cluster("2");
  cluster.start_host();
  cluster.start_node();
  cluster.await_rounds({0, 1}, 2);
  for (const int joined : {3, 4}) {
    cluster.start_node();
    ASSERT_TRUE(
        cluster.node(0).await_output("has joined: " + std::to_string(joined), 1, patient(20s)));
  }
  cluster.kill_node(1);
  const std::vector<NodeRound> rounds = cluster.await_rounds({0, 2}, 2);
  await_workers(cluster, {0, 2}, rounds);
  signal_all(rounds, SIGUSR1);
  for (const size_t index : {0, 2, 3}) expect_end(cluster, index, 0);
}

TEST_F(Nodes, WithoutANewAgentTheJobEndsAtTheDeadline) {
  Cluster cluster("2", "join_timeout=1,lease=0.5");
  cluster.start_host();
  expect_end(cluster, 0, 75);
  EXPECT_THAT(cluster.node(0).err(), HasSubstr("1 of 2 nodes were there after 1 s"));
}

TEST_F(Nodes, AnAgentThatNobodyAnswersEndsAtTheDeadline) {
  const std::string nowhere = "127.0.0.1:" + std::to_string(free_port_pair());
  const Outcome outcome =
      run_muster(std::vector<std::string>{"run", "--nnodes", "2", "--rdzv-endpoint", nowhere,
                                          "--rdzv-conf", "is_host=0,join_timeout=1,lease=0.5"} +
                     child_worker("node"),
                 {{"MUSTER_JOB_TOKEN", kClusterToken}});
  EXPECT_EQ(outcome.status, 75);
  EXPECT_THAT(outcome.err, HasSubstr("an agent must answer; none did within 1 s"));
}

TEST_F(Nodes, WithoutTheHostEveryOtherNodeEndsAndSaysWhy) {
  Cluster cluster("2");
  cluster.start_host(with({"--nproc-per-node", "2"}));
  cluster.start_node(with({"--nproc-per-node", "2"}));
  cluster.await_rounds({0, 1}, 4);
  cluster.kill_node(0);
  expect_end(cluster, 1, 75);
  EXPECT_THAT(cluster.node(1).err(), HasSubstr("the host of the rendezvous is lost"));
}

TEST_F(Nodes, ASilentNodeIsLostAfterItsLeaseAndFencedWhenItWakes) {
  Cluster cluster("1:2", "lease=1,last_call_timeout=20");
  cluster.start_host();
  MusterProcess& frozen = cluster.start_node();
  const pid_t agent = frozen.await_event("job_start")["agent"];
  const std::vector<NodeRound> both = cluster.await_rounds({0, 1}, 2);
  ::kill(agent, SIGSTOP);
  const NodeRound alone = cluster.await_round(0);
  EXPECT_EQ(alone.world_size, 1);
  EXPECT_GT(alone.generation, both[0].generation);
  EXPECT_TRUE(cluster.node(0).await_output("it was silent for 1 s", 1, patient(20s)));
  ::kill(agent, SIGCONT);
  expect_end(cluster, 1, 75);
  await_workers(cluster, {0}, {alone});
  signal_all({alone}, SIGUSR1);
  expect_end(cluster, 0, 0);
}

TEST_F(Nodes, OneThatIsToldToStopLeavesAndTheOthersGoOn) {
  Cluster cluster("1:2", "last_call_timeout=20");
  cluster.start_host();
  cluster.start_node();
  cluster.await_rounds({0, 1}, 2);
  cluster.node(1).signal(SIGTERM);
  const NodeRound alone = cluster.await_round(0);
  EXPECT_EQ(alone.world_size, 1);
  EXPECT_TRUE(cluster.node(0).await_output("it left, stopped by SIGTERM", 1, patient(20s)));
  expect_end(cluster, 1, 128 + SIGTERM);
  await_workers(cluster, {0}, {alone});
  signal_all({alone}, SIGUSR1);
  expect_end(cluster, 0, 0);
}

TEST_F(Nodes, TheHostsSignalStopsAll) {
  Cluster cluster("2");
  cluster.start_host();
  cluster.start_node();
  cluster.await_rounds({0, 1}, 2);
  cluster.node(0).signal(SIGTERM);
  expect_end(cluster, 0, 128 + SIGTERM);
  expect_end(cluster, 1, 128 + SIGTERM);
}

TEST_F(Nodes, UnevenNodesHaveContiguousRanks) {
  Cluster cluster("3");
  cluster.start_host(with({"--nproc-per-node", "3"}));
  cluster.start_node(with({"--nproc-per-node", "2", "--node-rank", "2"}));
  cluster.start_node(with({"--nproc-per-node", "1", "--node-rank", "1"}));
  const std::vector<NodeRound> rounds = cluster.await_rounds({0, 1, 2}, 6);
  EXPECT_EQ(rounds[0].first_rank, 0);
  EXPECT_EQ(rounds[2].first_rank, 3);
  EXPECT_EQ(rounds[1].first_rank, 4);
  EXPECT_EQ(rounds[1].group_rank, 2);
  cluster.node(0).signal(SIGTERM);
  for (const size_t index : {0, 1, 2}) expect_end(cluster, index, 128 + SIGTERM);
}

TEST_F(Nodes, OneThatCannotStartItsProgramEndsTheJobByName) {
  Cluster cluster("2");
  const TempDirectory directory;
  const std::string program = directory.file("env");
  ASSERT_EQ(::symlink("/usr/bin/env", program.c_str()), 0);
  cluster.start_host(
      {.options = {"--nproc-per-node", "1"}, .command = {"--", "/usr/bin/env", "sleep", "1000"}});
  cluster.start_node({.options = {}, .command = {"--", program, "sleep", "1000"}});
  ASSERT_EQ(::unlink(program.c_str()), 0);
  // Whether the node noticed before it joined or when it had to start, the host does not hang.
  const Outcome node = cluster.node(1).wait(patient(30s));
  EXPECT_EQ(node.status, 66) << node.err;
  if (node.err.find("spawn") != std::string::npos) {
    expect_end(cluster, 0, 66);
    EXPECT_THAT(cluster.node(0).err(), HasSubstr("No such file"));
  }
}

}  // namespace
}  // namespace muster::testing
