#include "tests/launcher/agent/cluster.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>

#include "launcher/agent/unique_fd.h"
#include "tests/support/child_process.h"

namespace muster::testing {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// A worker: says who it is and waits. SIGUSR1 makes it exit 0, SIGUSR2 exit 3, SIGHUP exit 64.
int node_worker() {
  std::signal(SIGUSR1, [](int) { ::_exit(0); });
  std::signal(SIGUSR2, [](int) { ::_exit(3); });
  std::signal(SIGHUP, [](int) { ::_exit(64); });
  std::string line = "rank " + variable("RANK") + " of " + variable("WORLD_SIZE") + " node " +
                     variable("GROUP_RANK") + " of " + variable("GROUP_WORLD_SIZE") + " at " +
                     variable("MASTER_ADDR") + ":" + variable("MASTER_PORT") + " generation " +
                     variable("MUSTER_GENERATION") + " failures " +
                     variable("TORCHELASTIC_RESTART_COUNT") + " run " +
                     variable("TORCHELASTIC_RUN_ID") + "\n";
  const ssize_t written = ::write(STDOUT_FILENO, line.data(), line.size());
  static_cast<void>(written);
  while (true) ::pause();
}
const bool kRegistered = register_child("node", node_worker);

int bound_port(const UniqueFd& fd, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  socklen_t size = sizeof(address);
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) return -1;
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}
}  // namespace

int free_port_pair() {
  while (true) {
    const UniqueFd first(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const UniqueFd second(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int port = bound_port(first, 0);
    if (port > 0 && port < 65535 && bound_port(second, port + 1) > 0) return port;
  }
}

Cluster::Cluster(std::string nnodes, std::string conf)
    : nnodes_(std::move(nnodes)), conf_(std::move(conf)) {}

MusterProcess& Cluster::start(const NodeSetup& setup, const std::string& endpoint,
                              const std::string& conf) {
  std::vector<std::string> args = {"run",  "--nnodes",        nnodes_, "--rdzv-backend",
                                   "c10d", "--rdzv-endpoint", endpoint};
  if (!conf.empty()) args = std::move(args) + std::vector<std::string>{"--rdzv-conf", conf};
  args = std::move(args) + setup.options;
  args = std::move(args) + setup.command;
  nodes_.push_back(std::make_unique<MusterProcess>(MusterProcess::Options{
      .args = args, .environment = {{"MUSTER_JOB_TOKEN", setup.token}}, .directory = ""}));
  return *nodes_.back();
}

MusterProcess& Cluster::start_host(NodeSetup setup) {
  MusterProcess& host =
      start(setup, "127.0.0.1:0", conf_.empty() ? "is_host=1" : "is_host=1," + conf_);
  const nlohmann::json event = host.await_event("rendezvous");
  EXPECT_FALSE(event.is_null()) << host.err();
  port_ = event.is_null() ? 1 : event["port"].get<int>();
  return host;
}

MusterProcess& Cluster::start_node(NodeSetup setup) {
  return start(setup, "127.0.0.1:" + std::to_string(port_), conf_);
}

NodeRound Cluster::await_round(size_t index, Duration limit) {
  const nlohmann::json event = nodes_[index]->await_event("attempt_start", patient(limit));
  NodeRound round;
  EXPECT_FALSE(event.is_null()) << "node " << index << ": " << nodes_[index]->err();
  if (event.is_null()) return round;
  round.is_started = true;
  round.attempt = event["attempt"];
  round.generation = event["generation"];
  round.group_rank = event["group_rank"];
  round.first_rank = event["first_rank"];
  round.world_size = event["world_size"];
  round.pids = event["pids"].get<std::vector<pid_t>>();
  return round;
}

std::vector<NodeRound> Cluster::await_rounds(const std::vector<size_t>& indexes, int world_size) {
  std::vector<NodeRound> rounds;
  for (const size_t index : indexes) {
    rounds.push_back(await_round(index));
    EXPECT_EQ(rounds.back().world_size, world_size) << "node " << index;
    EXPECT_EQ(rounds.back().generation, rounds.front().generation) << "node " << index;
    EXPECT_EQ(rounds.back().attempt, rounds.front().attempt) << "node " << index;
  }
  return rounds;
}

std::vector<pid_t> Cluster::processes(size_t index) {
  return marked_processes(nodes_[index]->mark());
}

void Cluster::kill_node(size_t index) {
  for (const pid_t pid : processes(index)) ::kill(pid, SIGKILL);
}

}  // namespace muster::testing
