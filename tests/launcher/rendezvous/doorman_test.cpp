// Who gets past the host's port: real sockets, and a server that only notes what it is given.
#include "launcher/rendezvous/doorman.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <filesystem>

#include "launcher/rendezvous/messages.h"

namespace muster {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

class NotingServer final : public ServerLink {
 public:
  [[nodiscard]] int ready_fd() const override { return wake_up_.fd(); }
  [[nodiscard]] int port() const override { return 0; }
  std::vector<LinkEvent> take() override {
    wake_up_.clear();
    return std::exchange(events_, {});
  }
  void send(uint64_t /*peer*/, const Message& /*message*/) override {}
  void close(uint64_t /*peer*/) override {}
  void trust(uint64_t peer) override { trusted.push_back(peer); }
  void adopt(int fd, std::string_view received) override {
    connections.emplace_back(fd);
    first_bytes.emplace_back(received);
  }

  void push(LinkEvent::Kind kind, uint64_t peer, const std::string& text) {
    events_.push_back({.kind = kind, .peer = peer, .message = message::Beat{}, .text = text});
    wake_up_.raise();
  }

  std::vector<net::UniqueFd> connections;
  std::vector<std::string> first_bytes;
  std::vector<uint64_t> trusted;

 private:
  net::WakeUp wake_up_ = net::WakeUp::open().value();
  std::vector<LinkEvent> events_;
};

class DoormanTest : public ::testing::Test {
 protected:
  void open(DoormanLimits limits = {}) {
    auto server = std::make_unique<NotingServer>();
    server_ = server.get();
    doorman_ =
        Doorman::open(net::listen_on("127.0.0.1", 0).value(), std::move(server), limits).value();
  }

  net::UniqueFd come(std::string_view bytes = "") {
    const auto at = net::resolve("127.0.0.1", doorman_->port(), deadline_).value().front();
    net::UniqueFd fd = net::connect_to(at, deadline_, -1).value();
    say(fd, bytes);
    return fd;
  }
  static void say(const net::UniqueFd& fd, std::string_view bytes) {
    ASSERT_EQ(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  }
  static std::string place_of(const net::UniqueFd& fd) {
    return "127.0.0.1:" + std::to_string(net::port_of(net::local_address(fd.get()).value()));
  }

  // Lets the doorman work until `done`.
  template <typename Done>
  void work_until(Done done) {
    while (!done()) {
      ASSERT_EQ(net::poll_fd(doorman_->ready_fd(), POLLIN, deadline_, -1).value(),
                net::PollOutcome::kReady);
      work_once();
    }
  }
  void work_once() {
    for (const LinkEvent& event : doorman_->take()) {
      if (event.kind == LinkEvent::Kind::kRefused) refused_.push_back(event.text);
    }
  }
  // Works until this connection is closed.
  void work_until_closed(const net::UniqueFd& fd) {
    work_until([&] { return is_closed(fd); });
  }
  static bool is_closed(const net::UniqueFd& fd) {
    char byte = 0;
    const ssize_t n = ::recv(fd.get(), &byte, 1, MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN);
  }
  void work_until_inside(size_t count) {
    work_until([&] { return server_->connections.size() == count; });
  }

  const Deadline deadline_ = Deadline::after(60s);
  NotingServer* server_ = nullptr;
  std::unique_ptr<Doorman> doorman_;
  std::vector<std::string> refused_;
};

TEST_F(DoormanTest, WhoBeginsAsAgentsDoIsLetInWithAllItsBytes) {
  open();
  const net::UniqueFd agent = come("PRI * HT");
  work_once();  // takes it
  work_once();  // reads
  say(agent, std::string(kPreface.substr(8)) + "and the rest");
  work_until_inside(1);
  EXPECT_EQ(server_->first_bytes[0], kPreface);
  char rest[64];
  const ssize_t n = ::recv(server_->connections[0].get(), rest, sizeof(rest), 0);
  EXPECT_EQ(std::string(rest, static_cast<size_t>(std::max<ssize_t>(0, n))), "and the rest");
  EXPECT_THAT(refused_, IsEmpty());
}

TEST_F(DoormanTest, EverybodyElseIsRefusedAtTheFirstWrongByteAndToldOfOnce) {
  open();
  std::vector<net::UniqueFd> strangers;
  strangers.push_back(come("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
  work_until_closed(strangers[0]);
  ASSERT_EQ(refused_.size(), 1U);
  EXPECT_THAT(refused_[0], HasSubstr("rendezvous: refused " + place_of(strangers[0])));
  EXPECT_THAT(refused_[0], HasSubstr("got \"GET / HTTP/1.1\\x0d\\x0aHost: x\\x0d\""));
  strangers.push_back(come("PRI * HTTP/2.1"));
  strangers.push_back(come(std::string("\x16\x03\x01\0\0", 5)));
  strangers.push_back(come("Q"));
  for (const net::UniqueFd& stranger : strangers) work_until_closed(stranger);
  EXPECT_EQ(refused_.size(), 1U);
  EXPECT_THAT(server_->connections, IsEmpty());
}

TEST_F(DoormanTest, HalfABeginningIsLetGoWhenItEndsAndWhenItsTimeIsOver) {
  open({.preface = 20ms});
  net::UniqueFd ended = come("PRI * ");
  ended.reset();
  work_until([&] { return !refused_.empty(); });
  const net::UniqueFd half = come("PRI * HTTP/2.0\r\n");
  const net::UniqueFd idle = come();
  work_until_closed(half);
  work_until_closed(idle);
  EXPECT_THAT(refused_, ElementsAre(HasSubstr("ended within the first bytes"),
                                    HasSubstr("it must begin to speak within 20 ms")));
}

TEST_F(DoormanTest, TheOldestGoesWhenTooManySayNothing) {
  open({.max_strangers = 4});
  std::vector<net::UniqueFd> idle;
  for (int i = 0; i < 50; ++i) idle.push_back(come());
  const net::UniqueFd agent = come(kPreface);
  work_until_inside(1);
  work_until_closed(idle[45]);
  EXPECT_FALSE(is_closed(idle[49]));
  EXPECT_THAT(refused_, ElementsAre(HasSubstr("4 others wait at the door")));
}

TEST_F(DoormanTest, InsideTooOnlySoManyStayStrangers) {
  open({.max_strangers = 2});
  std::vector<net::UniqueFd> guests;
  for (size_t i = 0; i < 3; ++i) {
    guests.push_back(come(kPreface));
    work_until_inside(i + 1);
  }
  EXPECT_TRUE(is_closed(guests[0]));
  EXPECT_TRUE(is_closed(server_->connections[0]));
  EXPECT_FALSE(is_closed(guests[1]));
  // The server has not closed its end yet, and keeps nobody awake with it.
  EXPECT_EQ(net::poll_fd(doorman_->ready_fd(), POLLIN, Deadline::after(0s), -1).value(),
            net::PollOutcome::kTimeout);
  EXPECT_THAT(refused_, ElementsAre(HasSubstr("2 others have not proved who they are")));
}

TEST_F(DoormanTest, WhoIsTrustedStaysAndWhoIsNotIsShownOut) {
  open({.trust = 100ms});
  const net::UniqueFd agent = come(kPreface);
  server_->push(LinkEvent::Kind::kOpened, 7, place_of(agent));
  work_until_inside(1);
  doorman_->trust(7);
  EXPECT_THAT(server_->trusted, ElementsAre(7));
  const net::UniqueFd guest = come(kPreface);
  work_until_inside(2);
  work_until_closed(guest);  // it came later, and its time is over
  EXPECT_TRUE(is_closed(server_->connections[1]));
  EXPECT_FALSE(is_closed(agent));
  EXPECT_FALSE(is_closed(server_->connections[0]));
  EXPECT_THAT(refused_, ElementsAre(HasSubstr("must prove who it is within 100 ms")));
}

TEST_F(DoormanTest, WhomTheServerClosesIsToldOfUnlessTheAgentKnowsIt) {
  open();
  const net::UniqueFd known = come(kPreface);
  work_until_inside(1);
  server_->push(LinkEvent::Kind::kOpened, 1, place_of(known));
  ::shutdown(server_->connections[0].get(), SHUT_RDWR);  // as gRPC ends a connection
  server_->connections[0].reset();
  work_until_closed(known);
  const net::UniqueFd noise = come(std::string(kPreface) + "noise");
  work_until_inside(2);
  ::shutdown(server_->connections[1].get(), SHUT_RDWR);
  server_->connections[1].reset();
  work_until([&] { return !refused_.empty(); });
  EXPECT_THAT(refused_, ElementsAre(HasSubstr(place_of(noise))));
}

size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

TEST_F(DoormanTest, NoDescriptorIsLeftBehind) {
  const size_t before = open_descriptors();
  open({.preface = 1ms, .trust = 1ms, .max_strangers = 8});
  {
    std::vector<net::UniqueFd> all;
    for (size_t i = 0; i < 40; ++i) all.push_back(come(i % 2 == 0 ? kPreface : "half"));
    for (const net::UniqueFd& one : all) work_until_closed(one);
    server_->connections.clear();
    EXPECT_EQ(open_descriptors(),
              before + all.size() + 5);  // epoll, listener, spare, alarm, wake-up
  }
  doorman_.reset();
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace muster
