#pragma once
/// Several `muster run` on this machine that form one job: each stands for a node.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/launcher/agent/run_muster.h"

namespace muster::testing {

inline constexpr const char* kClusterToken = "a token of a test, long enough";

/// Of all tests that start several agents. The thread sanitizer cannot follow gRPC, which is not
/// built with it, and reports races in every connection; what is ours runs in coordinator_test.cpp.
inline const char* why_no_agents() {
#if defined(__SANITIZE_THREAD__)
  return "gRPC is not built with the thread sanitizer";
#else
  return nullptr;
#endif
}
class SeveralAgents : public ::testing::Test {
 protected:
  void SetUp() override {
    if (why_no_agents() != nullptr) GTEST_SKIP() << why_no_agents();
  }
};

struct NodeSetup {
  std::vector<std::string> options;  ///< besides the endpoint and --nnodes
  std::string token = kClusterToken;
  std::vector<std::string> command = child_worker("node");
};

/// A round as one node has started it.
struct NodeRound {
  bool is_started = false;
  int attempt = -1;
  int64_t generation = 0;
  int group_rank = -1;
  int first_rank = -1;
  int world_size = 0;
  std::vector<pid_t> pids;
};

class Cluster {
 public:
  /// `conf` is added to --rdzv-conf of the host.
  explicit Cluster(std::string nnodes, std::string conf = "");

  /// Starts the agent that hosts, as node 0, and waits until it listens.
  MusterProcess& start_host(NodeSetup setup = {});
  /// Starts one that comes to it.
  MusterProcess& start_node(NodeSetup setup = {});

  [[nodiscard]] MusterProcess& node(size_t index) { return *nodes_[index]; }
  [[nodiscard]] int port() const noexcept { return port_; }

  /// Waits for the next round of a node.
  NodeRound await_round(size_t index, Duration limit = 20s);
  /// The same of several nodes, and that all of them have the same generation and world size.
  std::vector<NodeRound> await_rounds(const std::vector<size_t>& indexes, int world_size);

  /// All processes of a node.
  [[nodiscard]] std::vector<pid_t> processes(size_t index);
  /// SIGKILL for launcher, guardian and agent of a node, workers first: as when a machine goes.
  void kill_node(size_t index);

 private:
  MusterProcess& start(const NodeSetup& setup, const std::string& endpoint,
                       const std::string& conf);

  const std::string nnodes_;
  const std::string conf_;
  int port_ = 0;
  std::vector<std::unique_ptr<MusterProcess>> nodes_;
};

/// Two ports that are free now and follow each other; the first of them.
int free_port_pair();

}  // namespace muster::testing
