// The library with gRPC in it, both ends in this process: who a peer is, and how much of it is
// borne.
#include "launcher/rendezvous/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <filesystem>
#include <thread>

#include "dist/net/sockets.h"
#include "tests/launcher/agent/cluster.h"

namespace muster::testing {
namespace {
using ::testing::HasSubstr;

class RealLink : public SeveralAgents {
 protected:
  static std::unique_ptr<Link> server(const std::string& address = "127.0.0.1:0") {
    return open_link({.is_server = true, .address = address}).value();
  }
  static std::unique_ptr<Link> client(const Link& server, const std::string& host = "127.0.0.1") {
    return open_link({.address = host + ":" + std::to_string(server.port())}).value();
  }
  // The next event, among those that have come already or when it comes.
  LinkEvent next(Link& link) {
    std::vector<LinkEvent>& waiting = waiting_[&link];
    while (waiting.empty()) {
      if (net::poll_fd(link.ready_fd(), POLLIN, deadline_, -1).value() !=
          net::PollOutcome::kReady) {
        ADD_FAILURE() << "no event came";
        return {};
      }
      waiting = link.take();
    }
    LinkEvent event = std::move(waiting.front());
    waiting.erase(waiting.begin());
    return event;
  }

  const Deadline deadline_ = Deadline::after(patient(30s));
  std::map<Link*, std::vector<LinkEvent>> waiting_;
};

TEST_F(RealLink, APeerIsNamedByItsPlaceAndIsHeard) {
  const std::unique_ptr<Link> host = server();
  const std::unique_ptr<Link> node = client(*host);
  node->send(1, message::Hello{.nonce = "n"});
  const LinkEvent opened = next(*host);
  ASSERT_EQ(opened.kind, LinkEvent::Kind::kOpened);
  EXPECT_THAT(opened.text, ::testing::MatchesRegex("127\\.0\\.0\\.1:[0-9]+"));
  EXPECT_EQ(std::get<message::Hello>(next(*host).message).nonce, "n");
  host->send(opened.peer, message::Challenge{.nonce = "h"});
  EXPECT_EQ(std::get<message::Challenge>(next(*node).message).nonce, "h");
  host->close(opened.peer);
  EXPECT_EQ(next(*node).kind, LinkEvent::Kind::kClosed);
}

TEST_F(RealLink, ServesIpv6AndBothFamiliesAtOnce) {
  if (!net::listen_on("::1", 0).ok()) GTEST_SKIP() << "this machine has no IPv6";
  const std::unique_ptr<Link> host = server("[::]:0");
  const std::unique_ptr<Link> six = client(*host, "[::1]");
  EXPECT_THAT(next(*host).text, ::testing::MatchesRegex("\\[::1\\]:[0-9]+"));
  const std::unique_ptr<Link> four = client(*host);
  EXPECT_THAT(next(*host).text, ::testing::MatchesRegex("127\\.0\\.0\\.1:[0-9]+"));
}

TEST_F(RealLink, AStrangerMaySayLittleAndATrustedPeerMuch) {
  const std::unique_ptr<Link> host = server();
  const std::unique_ptr<Link> stranger = client(*host);
  for (int i = 0; i < 100; ++i) stranger->send(1, message::Beat{});
  ASSERT_EQ(next(*host).kind, LinkEvent::Kind::kOpened);
  int heard = 0;
  while (next(*host).kind == LinkEvent::Kind::kMessage) ++heard;
  EXPECT_EQ(heard, 8);

  const std::unique_ptr<Link> node = client(*host);
  const LinkEvent opened = next(*host);
  ASSERT_EQ(opened.kind, LinkEvent::Kind::kOpened);
  host->trust(opened.peer);
  for (int i = 0; i < 100; ++i) node->send(1, message::Beat{});
  for (int i = 0; i < 100; ++i) ASSERT_EQ(next(*host).kind, LinkEvent::Kind::kMessage) << i;
}

TEST_F(RealLink, AnAddressThatIsTakenIsSaidToBe) {
  const std::unique_ptr<Link> host = server();
  const Result<std::unique_ptr<Link>> second =
      open_link({.is_server = true, .address = "127.0.0.1:" + std::to_string(host->port())});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), kAddressTaken);
  EXPECT_THAT(second.error().what(), HasSubstr("Address already in use"));
}

size_t open_sockets() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:")) ++count;
  }
  return count;
}

TEST_F(RealLink, AServerThatEndsLeavesNoSocket) {
  const size_t before = open_sockets();
  {
    const std::unique_ptr<Link> host = server();
    std::vector<std::unique_ptr<Link>> nodes;
    for (int i = 0; i < 4; ++i) {
      nodes.push_back(client(*host));
      const LinkEvent opened = next(*host);
      ASSERT_EQ(opened.kind, LinkEvent::Kind::kOpened);
      if (i % 2 == 0) host->trust(opened.peer);
    }
    // Listener; both ends of four connections, and a second descriptor of the two strangers.
    EXPECT_EQ(open_sockets(), before + 1 + 8 + 2);
  }
  // gRPC closes a client's end a moment later, on a thread of its own.
  while (open_sockets() > before && !deadline_.passed()) std::this_thread::yield();
  EXPECT_EQ(open_sockets(), before);
}

}  // namespace
}  // namespace muster::testing
