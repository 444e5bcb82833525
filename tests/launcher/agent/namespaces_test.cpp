// Two agents in network namespaces of their own, as on two machines: nothing is shared but a cable.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <memory>

#include "tests/launcher/agent/cluster.h"

namespace muster::testing {
namespace {
class NetworkNamespaces : public SeveralAgents {};

using ::testing::HasSubstr;

bool shell(const std::string& command) {
  const int status = std::system((command + " >/dev/null 2>&1").c_str());
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Two namespaces with a cable between 10.97.0.1 and 10.97.0.2.
class TwoHosts {
 public:
  TwoHosts() : a_("muster" + std::to_string(::getpid()) + "a"), b_(a_) {
    b_.back() = 'b';
    works_ = ::geteuid() == 0 && shell("ip netns add " + a_) && shell("ip netns add " + b_) &&
             shell("ip -n " + a_ + " link add eth0 type veth peer name eth0 netns " + b_) &&
             set_up(a_, "10.97.0.1") && set_up(b_, "10.97.0.2");
  }
  ~TwoHosts() {
    shell("ip netns del " + a_);
    shell("ip netns del " + b_);
  }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  [[nodiscard]] bool works() const noexcept { return works_; }

  [[nodiscard]] std::unique_ptr<MusterProcess> run(bool on_a, std::vector<std::string> args) const {
    const std::vector<std::string> prefix = {"netns", "exec", on_a ? a_ : b_,
                                             binary_directory() + "/muster"};
    return std::make_unique<MusterProcess>(
        MusterProcess::Options{.args = prefix + args,
                               .environment = {{"MUSTER_JOB_TOKEN", kClusterToken}},
                               .directory = "",
                               .binary = ip_program()});
  }

  [[nodiscard]] bool cut() const { return shell("ip -n " + b_ + " link set eth0 down"); }

 private:
  static std::string ip_program() {
    for (const char* path : {"/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip", "/bin/ip"}) {
      if (::access(path, X_OK) == 0) return path;
    }
    return "ip";
  }
  static bool set_up(const std::string& name, const std::string& address) {
    return shell("ip -n " + name + " addr add " + address + "/24 dev eth0") &&
           shell("ip -n " + name + " link set eth0 up") &&
           shell("ip -n " + name + " link set lo up");
  }

  std::string a_;
  std::string b_;
  bool works_ = false;
};

std::vector<std::string> command(const std::string& nnodes) {
  return std::vector<std::string>{"run",
                                  "--nnodes",
                                  nnodes,
                                  "--rdzv-endpoint",
                                  "10.97.0.1:29400",
                                  "--rdzv-conf",
                                  "lease=1,last_call_timeout=20",
                                  "--max-restarts",
                                  "3"} +
         child_worker("node");
}

pid_t first_worker(MusterProcess& node, int world_size) {
  const nlohmann::json event = node.await_event("attempt_start", patient(30s));
  EXPECT_FALSE(event.is_null()) << node.err();
  if (event.is_null()) return -1;
  EXPECT_EQ(event["world_size"], world_size) << node.err();
  return event["pids"][0];
}

TEST_F(NetworkNamespaces, TheSameCommandMakesTwoHostsOneJobAndACutCableIsALostNode) {
  const TwoHosts hosts;
  if (!hosts.works()) GTEST_SKIP() << "no network namespaces here (root and `ip netns` needed)";
  const auto node = hosts.run(false, command("1:2"));  // comes first, and waits for its host
  const auto host = hosts.run(true, command("1:2"));
  ASSERT_GT(first_worker(*host, 2), 0);
  pid_t worker = first_worker(*node, 2);
  ASSERT_GT(worker, 0);
  EXPECT_TRUE(node->await_output(" at 10.97.0.1:", 1, patient(20s)));
  ::kill(worker, SIGKILL);
  ASSERT_GT(first_worker(*host, 2), 0);
  ASSERT_GT(first_worker(*node, 2), 0);
  // No packet says that the node is gone: both sides find out by their leases.
  ASSERT_TRUE(hosts.cut());
  worker = first_worker(*host, 1);
  ASSERT_GT(worker, 0);
  const Outcome lost = node->wait(patient(30s));
  EXPECT_EQ(lost.status, 75) << lost.err;
  EXPECT_THAT(lost.err, HasSubstr("the host of the rendezvous was silent for 2 s"));
  EXPECT_TRUE(host->await_output("generation 3", 1, patient(20s)));
  ::kill(worker, SIGUSR1);
  EXPECT_EQ(host->wait(patient(30s)).status, 0);
}

}  // namespace
}  // namespace muster::testing
