// Host and node over a link without a network: handshake, fencing, what is believed and what not.
#include "launcher/rendezvous/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "launcher/rendezvous/member.h"
#include "launcher/rendezvous/proof.h"

namespace muster {
namespace {
using ::testing::HasSubstr;

constexpr TimePoint kNow{1h};
constexpr const char* kToken = "the token of this test";

// Both ends of links that live in this process: what one side sends the other takes.
class FakeHostLink final : public Link {
 public:
  [[nodiscard]] int ready_fd() const override { return -1; }
  [[nodiscard]] int port() const override { return 0; }
  std::vector<LinkEvent> take() override { return std::exchange(events, {}); }
  void send(uint64_t peer, const Message& message) override {
    sent.emplace_back(peer, message);
    const auto found = nodes.find(peer);
    if (found != nodes.end()) {
      found->second->push_back(
          {.kind = LinkEvent::Kind::kMessage, .peer = 1, .message = message, .text = ""});
    }
  }
  void close(uint64_t peer) override { closed.push_back(peer); }
  void trust(uint64_t peer) override { trusted.push_back(peer); }

  std::vector<LinkEvent> events;
  std::vector<std::pair<uint64_t, Message>> sent;
  std::vector<uint64_t> closed;
  std::vector<uint64_t> trusted;
  std::map<uint64_t, std::vector<LinkEvent>*> nodes;
};

class FakeNodeLink final : public Link {
 public:
  FakeNodeLink(FakeHostLink& host, uint64_t peer) : host_(host), peer_(peer) {
    host_.events.push_back({.kind = LinkEvent::Kind::kOpened,
                            .peer = peer,
                            .message = message::Beat{},
                            .text = "10.0.0.9:" + std::to_string(1000 + peer)});
    host_.nodes[peer] = &events;
  }
  ~FakeNodeLink() override { host_.nodes.erase(peer_); }
  [[nodiscard]] int ready_fd() const override { return -1; }
  [[nodiscard]] int port() const override { return 0; }
  std::vector<LinkEvent> take() override { return std::exchange(events, {}); }
  void send(uint64_t /*peer*/, const Message& message) override {
    host_.events.push_back(
        {.kind = LinkEvent::Kind::kMessage, .peer = peer_, .message = message, .text = ""});
  }
  void close(uint64_t /*peer*/) override {}

  std::vector<LinkEvent> events;

 private:
  FakeHostLink& host_;
  uint64_t peer_;
};

NodeOptions options_of(const std::string& name) {
  return {.rdzv_id = "",
          .min_nodes = 1,
          .max_nodes = 3,
          .job = "x",
          .name = name,
          .local_world_size = 2,
          .role = "default"};
}

class CoordinatorTest : public ::testing::Test {
 protected:
  struct Node {
    std::unique_ptr<FakeNodeLink> link;
    std::unique_ptr<Member> member;
  };

  Node join(uint64_t peer, const std::string& token = kToken) {
    Node node;
    node.link = std::make_unique<FakeNodeLink>(link_, peer);
    node.member =
        std::make_unique<Member>(*node.link, token, options_of("n" + std::to_string(peer)), kNow);
    exchange({&node});
    return node;
  }

  void exchange(const std::vector<Node*>& nodes, TimePoint now = kNow) {
    for (int i = 0; i < 4; ++i) {
      coordinator_.take_events(now);
      for (Node* node : nodes) node->member->take_events(now);
    }
  }

  void start(int64_t generation) {
    coordinator_.start(assign_seats(view_.nodes, policy_, kNow),
                       {.generation = generation, .place = {}, .master_addr = "h"});
    view_.started = true;
  }

  NodesPolicy policy_{.min_nodes = 1, .max_nodes = 3};
  FakeHostLink link_;
  JobView view_;
  Coordinator coordinator_{
      link_,
      {.token = kToken, .run_id = "run", .own = options_of("host"), .policy = policy_},
      view_,
      kNow};
};

TEST_F(CoordinatorTest, ANodeWithTheTokenJoinsAndLearnsTheRun) {
  const Node node = join(1);
  EXPECT_TRUE(node.member->has_joined());
  EXPECT_EQ(node.member->run_id(), "run");
  EXPECT_EQ(node.member->lease(), policy_.lease);
  ASSERT_EQ(view_.nodes.size(), 2U);
  EXPECT_EQ(view_.nodes[1].options.name, "n1");
  EXPECT_THAT(link_.trusted, ::testing::ElementsAre(1));
}

TEST_F(CoordinatorTest, OneWithAnotherTokenIsRefusedAndLearnsNothing) {
  const Node node = join(1, "quite another token");
  EXPECT_FALSE(node.member->has_joined());
  ASSERT_TRUE(node.member->failure().has_value());
  EXPECT_EQ(node.member->failure()->code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(view_.nodes.size(), 1U);
  EXPECT_THAT(link_.closed, ::testing::ElementsAre(1));
  EXPECT_THAT(link_.trusted, ::testing::IsEmpty());
}

TEST_F(CoordinatorTest, AProofOfAnotherConnectionIsWorthNothing) {
  // Joins as node 1, then replays that proof on a connection of its own.
  const Node node = join(1);
  const std::string old_proof = node_proof(kToken, "nonce", "an older challenge");
  link_.events.push_back({.kind = LinkEvent::Kind::kOpened,
                          .peer = 7,
                          .message = message::Beat{},
                          .text = "10.0.0.9:1"});
  link_.events.push_back({.kind = LinkEvent::Kind::kMessage,
                          .peer = 7,
                          .message = message::Hello{.nonce = "nonce"},
                          .text = ""});
  link_.events.push_back({.kind = LinkEvent::Kind::kMessage,
                          .peer = 7,
                          .message = message::Join{.proof = old_proof, .node = options_of("x")},
                          .text = ""});
  coordinator_.take_events(kNow);
  EXPECT_EQ(view_.nodes.size(), 2U);
  EXPECT_THAT(link_.closed, ::testing::Contains(7));
}

TEST_F(CoordinatorTest, AHostWithoutTheTokenIsNotObeyed) {
  FakeHostLink host;
  FakeNodeLink node_link(host, 1);
  Member member(node_link, kToken, options_of("n"), kNow);
  host.send(1, message::Challenge{.nonce = "guess"});
  host.send(1, message::Start{.generation = 1, .place = {}, .master_addr = "evil"});
  host.send(1, message::Welcome{.proof = "guess", .run_id = "run", .lease_ns = 1});
  host.send(1, message::Start{.generation = 1, .place = {}, .master_addr = "evil"});
  member.take_events(kNow);
  EXPECT_FALSE(member.has_joined());
  EXPECT_FALSE(member.next_order().has_value());
  ASSERT_TRUE(member.failure().has_value());
  EXPECT_THAT(member.failure()->what(), HasSubstr("must know the job token"));
}

TEST_F(CoordinatorTest, WhatAPeerSaysBeforeItHasJoinedIsIgnored) {
  link_.events.push_back({.kind = LinkEvent::Kind::kOpened,
                          .peer = 7,
                          .message = message::Beat{},
                          .text = "10.0.0.9:1"});
  for (const Message& message : {Message(message::Leave{"x"}), Message(message::Stopped{9}),
                                 Message(message::WorkerEnded{.generation = 1}),
                                 Message(message::Join{.proof = "", .node = options_of("x")})}) {
    link_.events.push_back(
        {.kind = LinkEvent::Kind::kMessage, .peer = 7, .message = message, .text = ""});
  }
  coordinator_.take_events(kNow);
  EXPECT_EQ(view_.nodes.size(), 1U);
  EXPECT_TRUE(view_.exits.empty());
}

TEST_F(CoordinatorTest, ExitsOfOtherGenerationsAndOfOthersRanksAreDropped) {
  Node node = join(1);
  start(5);
  exchange({&node});
  ASSERT_TRUE(node.member->next_order().has_value());
  const auto tell = [&](int64_t generation, int64_t global_rank) {
    node.member->send(message::WorkerEnded{
        .generation = generation, .global_rank = global_rank, .status = 3, .age_ns = 1'000'000});
    exchange({&node}, kNow + 10ms);
  };
  tell(4, 2);  // of a round before
  tell(5, 1);  // a rank of the host's
  tell(5, 4);  // nobody's
  EXPECT_TRUE(view_.exits.empty());
  tell(5, 3);
  tell(5, 3);  // said twice
  ASSERT_EQ(view_.exits.size(), 1U);
  EXPECT_EQ(view_.exits[0].global_rank, 3);
  EXPECT_EQ(view_.exits[0].at, kNow + 9ms);
}

TEST_F(CoordinatorTest, ARoundIsOverForANodeWhenItSaysSoOfThatRound) {
  Node node = join(1);
  start(5);
  coordinator_.stop({.reason = "x"});
  EXPECT_FALSE(view_.nodes[1].is_ready);
  node.member->send(message::Stopped{4});
  exchange({&node});
  EXPECT_FALSE(view_.nodes[1].is_ready);
  node.member->send(message::Stopped{5});
  exchange({&node});
  EXPECT_TRUE(view_.nodes[1].is_ready);
}

TEST_F(CoordinatorTest, ASilentNodeIsLetGoAndItsLaterWordsAreIgnored) {
  Node node = join(1);
  start(5);
  coordinator_.expire(kNow + policy_.lease - 1ms);
  EXPECT_EQ(view_.nodes[1].gone_because, "");
  coordinator_.expire(kNow + policy_.lease);
  EXPECT_EQ(view_.nodes[1].gone_because, "it was silent for 5 s");
  node.member->send(message::WorkerEnded{.generation = 5, .global_rank = 2, .status = 1});
  exchange({&node}, kNow + policy_.lease);
  EXPECT_TRUE(view_.exits.empty());
  ASSERT_TRUE(node.member->failure().has_value());
  EXPECT_EQ(node.member->failure()->code(), ErrorCode::kPeerLost);
}

TEST_F(CoordinatorTest, WhoDoesNotSayWhoItIsIsClosedAfterTenSeconds) {
  link_.events.push_back({.kind = LinkEvent::Kind::kOpened,
                          .peer = 7,
                          .message = message::Beat{},
                          .text = "10.0.0.9:1"});
  coordinator_.take_events(kNow);
  coordinator_.beat(kNow + 9s);
  EXPECT_TRUE(link_.closed.empty());
  coordinator_.beat(kNow + 10s);
  EXPECT_THAT(link_.closed, ::testing::ElementsAre(7));
}

TEST_F(CoordinatorTest, AThousandStrangersMayWaitAndThenTheOldestGoes) {
  const Node node = join(1);
  for (uint64_t peer = 2; peer <= 1025; ++peer) {
    link_.events.push_back({.kind = LinkEvent::Kind::kOpened,
                            .peer = peer,
                            .message = message::Beat{},
                            .text = "10.0.0.9:1"});
  }
  coordinator_.take_events(kNow);
  EXPECT_THAT(link_.closed, ::testing::IsEmpty());
  const Node late = join(2000);
  EXPECT_THAT(link_.closed, ::testing::ElementsAre(2));
  EXPECT_TRUE(late.member->has_joined());
  EXPECT_TRUE(node.member->has_joined());
}

TEST_F(CoordinatorTest, TheEndIsKnownToAllWhenEachHasSaidSoOrIsGone) {
  Node first = join(1);
  const Node second = join(2);
  coordinator_.end({.exit_status = 1, .reason = "x"});
  EXPECT_FALSE(coordinator_.is_end_acknowledged());
  first.member->send(message::Ended{});
  exchange({&first});
  EXPECT_FALSE(coordinator_.is_end_acknowledged());
  link_.events.push_back(
      {.kind = LinkEvent::Kind::kClosed, .peer = 2, .message = message::Beat{}, .text = "gone"});
  coordinator_.take_events(kNow);
  EXPECT_TRUE(coordinator_.is_end_acknowledged());
}

TEST(Proof, DiffersByTokenNonceAndDirection) {
  const std::string proof = node_proof(kToken, "a", "b");
  EXPECT_EQ(proof.size(), 32U);
  EXPECT_TRUE(is_same_proof(proof, node_proof(kToken, "a", "b")));
  EXPECT_FALSE(is_same_proof(proof, node_proof("other", "a", "b")));
  EXPECT_FALSE(is_same_proof(proof, node_proof(kToken, "a", "c")));
  EXPECT_FALSE(is_same_proof(proof, host_proof(kToken, "a", "b")));
  EXPECT_FALSE(is_same_proof(proof, ""));
  EXPECT_EQ(worker_token(kToken, "run").find(kToken), std::string::npos);
  EXPECT_NE(worker_token(kToken, "run"), worker_token(kToken, "run2"));
}

}  // namespace
}  // namespace muster
