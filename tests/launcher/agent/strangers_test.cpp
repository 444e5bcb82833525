// Who may take part: token, id and options; and what everybody else on the port can do, nothing.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <random>

#include "launcher/agent/unique_fd.h"
#include "tests/launcher/agent/cluster.h"

namespace muster::testing {
namespace {
class Strangers : public SeveralAgents {};

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";  // HTTP/2's own

// What the host says of strangers.
constexpr const char* kWrongBytes = "no agent begins like that";
constexpr const char* kWrongFrames = "its connection ended before it said who it is";
constexpr const char* kTooManyAtTheDoor = "others wait at the door";
constexpr const char* kTooManyInside = "others have not proved who they are";

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
    if (i % 3 == 0) bytes.insert(0, kPreface);
    send_text(connections.back(), bytes);
  }
  for (const char* request :
       {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "SSH-2.0-x\r\n", "\x16\x03\x01"}) {
    connections.push_back(connect_to(cluster.port()));
    send_text(connections.back(), request);
  }
  for (int i = 0; i < 20; ++i) connections.push_back(connect_to(cluster.port()));  // idle
  MusterProcess& host = cluster.node(0);
  EXPECT_TRUE(host.await_output(kWrongBytes, 1, patient(20s))) << host.err();
  EXPECT_TRUE(host.await_output(kWrongFrames, 1, patient(20s))) << host.err();
  expect_alive(cluster, rounds);
  EXPECT_EQ(count_of(host.err(), kWrongBytes), 1U) << host.err();
  EXPECT_EQ(count_of(host.err(), kWrongFrames), 1U) << host.err();
}

rlim_t as_many_as_fit(rlim_t count) {
  rlimit limit{};
  EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  return std::min(count, limit.rlim_cur - 500);
}

size_t descriptors_of(pid_t pid) {
  const std::filesystem::directory_iterator all("/proc/" + std::to_string(pid) + "/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

pid_t agent_of(const MusterProcess& muster) {
  for (const nlohmann::json& event : muster.events()) {
    if (event["event"] == "job_start") return event["agent"];
  }
  return 0;
}

TEST_F(Strangers, TenThousandIdleConnectionsKeepNobodyOut) {
  const rlim_t count = as_many_as_fit(10000);
  std::printf("%llu idle connections\n", static_cast<unsigned long long>(count));
  Cluster cluster("2");
  MusterProcess& host = cluster.start_host({.options = {"--max-restarts", "3"}});
  std::vector<UniqueFd> idle;
  for (rlim_t i = 0; i < count; ++i) idle.push_back(connect_to(cluster.port()));
  ASSERT_TRUE(host.await_output(kTooManyAtTheDoor, 1, patient(30s))) << host.err();
  cluster.start_node({.options = {"--max-restarts", "3"}});
  cluster.await_rounds({0, 1}, 2);
  EXPECT_LT(descriptors_of(agent_of(host)), 1024U + 100);
  // As many come again while the job runs, and another node takes the place of one that dies.
  for (UniqueFd& fd : idle) fd = connect_to(cluster.port());
  cluster.kill_node(1);
  cluster.start_node({.options = {"--max-restarts", "3"}});
  const std::vector<NodeRound> rounds = cluster.await_rounds({0, 2}, 2);
  ::kill(rounds[1].pids[0], SIGKILL);
  EXPECT_EQ(cluster.await_rounds({0, 2}, 2)[0].generation, rounds[0].generation + 1);
  EXPECT_LT(descriptors_of(agent_of(host)), 1024U + 100);
  host.signal(SIGTERM);
  EXPECT_EQ(host.wait(patient(30s)).status, 128 + SIGTERM);
  EXPECT_EQ(count_of(host.err(), kTooManyAtTheDoor), 1U) << host.err();
}

TEST_F(Strangers, OnesThatSpeakHttp2AndProveNothingKeepNobodyOut) {
  const rlim_t count = as_many_as_fit(2000);
  const std::string settings("\0\0\0\4\0\0\0\0\0", 9);
  Cluster cluster("2");
  MusterProcess& host = cluster.start_host({.options = {"--max-restarts", "3"}});
  std::vector<UniqueFd> quiet;
  for (rlim_t i = 0; i < count; ++i) {
    quiet.push_back(connect_to(cluster.port()));
    send_text(quiet.back(), kPreface + settings);
  }
  ASSERT_TRUE(host.await_output(kTooManyInside, 1, patient(30s))) << host.err();
  cluster.start_node({.options = {"--max-restarts", "3"}});
  expect_alive(cluster, cluster.await_rounds({0, 1}, 2));
  EXPECT_EQ(count_of(host.err(), kTooManyInside), 1U) << host.err();
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
