// Connections before they have proved who they are: the set, the listener, the alarm.
#include "dist/net/strangers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "dist/net/acceptor.h"
#include "dist/net/alarm.h"

namespace muster::net {
namespace {
constexpr TimePoint kNow{1h};

TEST(Strangers, TheOldestGoesWhenThereAreTooMany) {
  Strangers<std::string> strangers(2, 10s);
  EXPECT_FALSE(strangers.add(1, "a", kNow).has_value());
  EXPECT_FALSE(strangers.add(2, "b", kNow).has_value());
  EXPECT_EQ(strangers.add(5, "c", kNow), "a");
  EXPECT_EQ(strangers.size(), 2U);
  EXPECT_EQ(strangers.find(1), nullptr);
  ASSERT_NE(strangers.find(5), nullptr);
  EXPECT_EQ(*strangers.find(5), "c");
  EXPECT_EQ(strangers.take_oldest(), "b");
}

TEST(Strangers, EachHasItsTimeAndNoLonger) {
  Strangers<std::string> strangers(8, 10s);
  EXPECT_FALSE(strangers.next_limit().has_value());
  EXPECT_FALSE(strangers.take_late(kNow + 1h).has_value());
  static_cast<void>(strangers.add(1, "a", kNow));
  static_cast<void>(strangers.add(2, "b", kNow + 3s));
  EXPECT_EQ(strangers.next_limit(), kNow + 10s);
  EXPECT_FALSE(strangers.take_late(kNow + 10s - 1ns).has_value());
  EXPECT_EQ(strangers.take_late(kNow + 10s), "a");
  EXPECT_FALSE(strangers.take_late(kNow + 10s).has_value());
  EXPECT_EQ(strangers.next_limit(), kNow + 13s);
}

TEST(Strangers, OneThatHasProvedItselfIsNoStrangerAnyMore) {
  Strangers<UniqueFd> strangers(8, 10s);
  static_cast<void>(strangers.add(1, UniqueFd(::dup(0)), kNow));
  static_cast<void>(strangers.add(2, UniqueFd(::dup(0)), kNow));
  const std::optional<UniqueFd> proved = strangers.take(1);
  ASSERT_TRUE(proved.has_value());
  EXPECT_TRUE(static_cast<bool>(*proved));
  EXPECT_FALSE(strangers.take(1).has_value());
  EXPECT_TRUE(strangers.take_late(kNow + 10s).has_value());
  EXPECT_EQ(strangers.size(), 0U);
}

UniqueFd connected_to(const UniqueFd& listener) {
  const int port = port_of(local_address(listener.get()).value());
  const auto address = resolve("127.0.0.1", port, Deadline::after(30s)).value().front();
  return connect_to(address, Deadline::after(30s), -1).value();
}

TEST(Acceptor, TellsWhoCameAlsoOnASocketOfBothFamilies) {
  for (const char* host : {"127.0.0.1", "::"}) {
    Result<UniqueFd> listener = listen_on(host, 0);
    if (!listener.ok()) continue;  // a machine without IPv6
    const UniqueFd client = connected_to(listener.value());
    const int port = port_of(local_address(client.get()).value());
    Acceptor acceptor(std::move(listener).value());
    Incoming incoming;
    ASSERT_EQ(acceptor.accept(incoming), Acceptor::Outcome::kCame);
    EXPECT_EQ(incoming.address, "127.0.0.1");
    EXPECT_EQ(incoming.peer, "127.0.0.1:" + std::to_string(port));
    EXPECT_EQ(acceptor.accept(incoming), Acceptor::Outcome::kNobody);
  }
}

TEST(Acceptor, WithoutDescriptorsTheOneThatWaitsIsLetGo) {
  UniqueFd listener = listen_on("127.0.0.1", 0).value();
  const UniqueFd first = connected_to(listener);
  const UniqueFd second = connected_to(listener);
  Acceptor acceptor(std::move(listener));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 3;  // those that are open stay
  std::vector<UniqueFd> holes;
  while (true) {
    holes.emplace_back(::dup(0));
    if (!holes.back() || holes.back().get() > acceptor.fd()) break;
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  Incoming incoming;
  EXPECT_EQ(acceptor.accept(incoming), Acceptor::Outcome::kNoDescriptors);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  acceptor.drop_one();
  char byte = 0;
  EXPECT_EQ(poll_fd(first.get(), POLLIN, Deadline::after(30s), -1).value(), PollOutcome::kReady);
  EXPECT_EQ(::recv(first.get(), &byte, 1, 0), 0);
  EXPECT_EQ(acceptor.accept(incoming), Acceptor::Outcome::kCame);
}

bool is_readable(int fd) {
  pollfd polled{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&polled, 1, 0) == 1;
}

TEST(Alarm, IsReadableFromItsTimeOnUntilItIsSetAnew) {
  Alarm alarm = Alarm::open().value();
  EXPECT_FALSE(is_readable(alarm.fd()));
  alarm.set(real_clock().now() + 5ms);
  EXPECT_EQ(poll_fd(alarm.fd(), POLLIN, Deadline::after(30s), -1).value(), PollOutcome::kReady);
  EXPECT_TRUE(is_readable(alarm.fd()));
  alarm.set(real_clock().now() + 1h);
  EXPECT_FALSE(is_readable(alarm.fd()));
  alarm.set(TimePoint(1ns));
  EXPECT_TRUE(is_readable(alarm.fd()));
  alarm.set(std::nullopt);
  EXPECT_FALSE(is_readable(alarm.fd()));
}

}  // namespace
}  // namespace muster::net
