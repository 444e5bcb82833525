// Who may take part: token, id and options; and what everybody else on the port can do, nothing.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <random>

#include "launcher/agent/unique_fd.h"
#include "tests/launcher/agent/cluster.h"

namespace muster::testing {
namespace {
class Strangers : public SeveralAgents {};

using ::testing::HasSubstr;
using ::testing::Not;

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// The job is alive and well: a killed worker restarts all nodes.
void expect_alive(Cluster& cluster, const std::vector<NodeRound>& rounds) {
  ::kill(rounds[1].pids[0], SIGKILL);
  const std::vector<NodeRound> next = cluster.await_rounds({0, 1}, 2);
  EXPECT_EQ(next[0].generation, rounds[0].generation + 1);
  cluster.node(0).signal(SIGTERM);
  EXPECT_EQ(cluster.node(0).wait(patient(30s)).status, 128 + SIGTERM);
}

std::vector<NodeRound> start_two(Cluster& cluster) {
  cluster.start_host({.options = {"--rdzv-id", "good", "--max-restarts", "3"}});
  cluster.start_node({.options = {"--rdzv-id", "good", "--max-restarts", "3"}});
  return cluster.await_rounds({0, 1}, 2);
}

TEST_F(Strangers, OneWithoutTheTokenIsRefusedAndLoggedOnce) {
  Cluster cluster("2");
  const std::vector<NodeRound> rounds = start_two(cluster);
  const std::string wrong = "another token, long enough too";
  for (int i = 0; i < 2; ++i) {
    MusterProcess& stranger = cluster.start_node(
        {.options = {"--rdzv-id", "good", "--max-restarts", "3"}, .token = wrong});
    const Outcome outcome = stranger.wait(patient(20s));
    EXPECT_EQ(outcome.status, 65) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("the job token must be that of the job"));
    EXPECT_THAT(outcome.err, Not(HasSubstr(wrong)));
  }
  expect_alive(cluster, rounds);
  EXPECT_EQ(count_of(cluster.node(0).err(), "refused an agent at"), 1U) << cluster.node(0).err();
  EXPECT_THAT(cluster.node(0).err(), Not(HasSubstr(kClusterToken)));
  EXPECT_THAT(cluster.node(0).err(), Not(HasSubstr(wrong)));
}

TEST_F(Strangers, OptionsThatDifferAreRefusedWithBothValues) {
  Cluster cluster("2");
  const std::vector<NodeRound> rounds = start_two(cluster);
  MusterProcess& other_id =
      cluster.start_node({.options = {"--rdzv-id", "bad", "--max-restarts", "3"}});
  Outcome outcome = other_id.wait(patient(20s));
  EXPECT_EQ(outcome.status, 64) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("--rdzv-id must be that of the job"));
  EXPECT_THAT(outcome.err, HasSubstr("the host has \"good\""));
  EXPECT_THAT(outcome.err, HasSubstr("has \"bad\""));
  MusterProcess& other_limit =
      cluster.start_node({.options = {"--rdzv-id", "good", "--max-restarts", "7"}});
  outcome = other_limit.wait(patient(20s));
  EXPECT_EQ(outcome.status, 64) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("--max-restarts must be the same"));
  EXPECT_THAT(outcome.err, HasSubstr("the host has 3"));
  EXPECT_THAT(outcome.err, HasSubstr("has 7"));
  expect_alive(cluster, rounds);
}

TEST_F(Strangers, ASecondNodeRankIsRefusedWithBothNodes) {
  Cluster cluster("3");
  cluster.start_host();
  MusterProcess& first = cluster.start_node({.options = {"--node-rank", "1"}});
  ASSERT_TRUE(cluster.node(0).await_output("has joined", 1, patient(20s)));
  MusterProcess& second = cluster.start_node({.options = {"--node-rank", "1"}});
  const Outcome outcome = second.wait(patient(20s));
  EXPECT_EQ(outcome.status, 64) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("--node-rank must differ between nodes"));
  cluster.node(0).signal(SIGTERM);
  EXPECT_EQ(first.wait(patient(20s)).status, 128 + SIGTERM);
}

UniqueFd connect_to(int port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

void send_text(const UniqueFd& fd, const std::string& text) {
  const ssize_t sent = ::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
  static_cast<void>(sent);  // the server may have closed already
}

TEST_F(Strangers, BytesThatAreNoMessagesDisturbNobody) {
  Cluster cluster("2");
  const std::vector<NodeRound> rounds = start_two(cluster);
  std::mt19937 random(20240611);
  std::vector<UniqueFd> connections;
  for (int i = 0; i < 30; ++i) {
    connections.push_back(connect_to(cluster.port()));
    std::string bytes(1 + random() % 5000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (i % 3 == 0) bytes.insert(0, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");  // HTTP/2's own preface
    send_text(connections.back(), bytes);
  }
  for (const char* request :
       {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "SSH-2.0-x\r\n", "\x16\x03\x01"}) {
    connections.push_back(connect_to(cluster.port()));
    send_text(connections.back(), request);
  }
  for (int i = 0; i < 20; ++i) connections.push_back(connect_to(cluster.port()));  // idle
  expect_alive(cluster, rounds);
}

TEST_F(Strangers, ATooShortTokenAndNoneAtAllAreWrongOptions) {
  const Outcome none = run_muster({"run", "--nnodes", "2", "--rdzv-backend", "c10d",
                                   "--rdzv-endpoint", "example.invalid:1", "--", "true"},
                                  {});
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.err, HasSubstr("MUSTER_JOB_TOKEN"));
  const Outcome brief = run_muster({"run", "--nnodes", "2", "--rdzv-backend", "c10d",
                                    "--rdzv-endpoint", "example.invalid:1", "--", "true"},
                                   {{"MUSTER_JOB_TOKEN", "short"}});
  EXPECT_EQ(brief.status, 2);
  EXPECT_THAT(brief.err, HasSubstr("at least 16 characters; got 5"));
  EXPECT_THAT(brief.err, Not(HasSubstr("short")));
}

}  // namespace
}  // namespace muster::testing
