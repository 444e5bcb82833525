// What only the tcp store can get wrong: connecting, the token, and a server that goes or freezes.
#include "dist/store/tcp_store.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "dist/net/sockets.h"
#include "dist/net/token.h"
#include "dist/store/prefix_store.h"
#include "dist/store/tcp_store_server.h"
#include "tests/dist/store/child_of_test.h"
#include "tests/dist/store/raw_client.h"
#include "tests/support/child_process.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::AllOf;
using testing::ChildOfTest;
using ::testing::ElementsAre;
using testing::FailsWith;
using testing::from_hex;
using ::testing::HasSubstr;
using testing::RawClient;

constexpr Duration kLong = 20s;

Deadline soon() { return Deadline::after(kLong); }

/// Keeps what a server reports.
class Reports {
 public:
  std::function<void(const std::string&)> sink() {
    return [this](const std::string& text) {
      const std::lock_guard lock(mutex_);
      texts_.push_back(text);
    };
  }
  std::vector<std::string> texts() {
    const std::lock_guard lock(mutex_);
    return texts_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

std::unique_ptr<TcpStoreServer> serve(std::string token = "", Reports* reports = nullptr) {
  TcpStoreServerOptions options;
  options.required_token = std::move(token);
  if (reports != nullptr) options.on_reject = reports->sink();
  return TcpStoreServer::open(std::move(options)).value();
}

/// A server of another kind: answers each connection by `body` and closes it.
class FakeServer {
 public:
  explicit FakeServer(std::function<void(int fd)> body)
      : listener_(net::listen_on("127.0.0.1", 0).value()),
        stop_(net::WakeUp::open().value()),
        thread_([this, body = std::move(body)] {
          while (net::poll_fd(listener_.get(), POLLIN, Deadline::never(), stop_.fd()).value() ==
                 net::PollOutcome::kReady) {
            const net::UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
            ++num_accepted_;
            if (fd) body(fd.get());
          }
        }) {}
  ~FakeServer() {
    stop_.raise();
    thread_.join();
  }
  [[nodiscard]] int port() const {
    return net::port_of(net::local_address(listener_.get()).value());
  }
  [[nodiscard]] int num_accepted() const { return num_accepted_; }
  [[nodiscard]] int stop_fd() const { return stop_.fd(); }

 private:
  net::UniqueFd listener_;
  net::WakeUp stop_;
  std::atomic<int> num_accepted_{0};
  std::thread thread_;
};

std::string read_exactly(int fd, size_t nbytes) {
  std::string bytes(nbytes, '\0');
  const ssize_t count = ::recv(fd, bytes.data(), nbytes, MSG_WAITALL);
  bytes.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  return bytes;
}

void send_all(int fd, std::string_view bytes) {
  EXPECT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
}

// ---- connecting

TEST(TcpStore, OpenOnAClosedPortFailsAtTheDeadlineAndSaysRefused) {
  // Bound but not listening: nobody else can take the port meanwhile.
  const net::UniqueFd bound(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(bound.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const int port = net::port_of(net::local_address(bound.get()).value());
  const TimePoint start = real_clock().now();
  EXPECT_THAT(TcpStore::open({.port = port}, Deadline::after(200ms)),
              FailsWith(ErrorCode::kTimeout,
                        AllOf(HasSubstr("Connection refused"), HasSubstr(std::to_string(port)),
                              HasSubstr("attempts"))));
  EXPECT_GE(real_clock().now() - start, 200ms);
  EXPECT_LT(real_clock().now() - start, kLong);
}

TEST(TcpStore, OpenWaitsForAServerThatStartsLateOnAnAdoptedSocket) {
  net::UniqueFd bound(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(bound.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const int port = net::port_of(net::local_address(bound.get()).value());
  std::thread client([port] {
    const auto store = TcpStore::open({.host = "localhost", .port = port}, soon());
    ASSERT_OK(store);
    EXPECT_OK(store.value()->set("key", "v"));
  });
  EXPECT_THAT(TcpStore::open({.port = port}, Deadline::after(50ms)),
              FailsWith(ErrorCode::kTimeout, HasSubstr("refused")));
  ASSERT_EQ(::listen(bound.get(), 16), 0);
  TcpStoreServerOptions options;
  options.listen_fd = bound.release();
  const auto server = TcpStoreServer::open(std::move(options)).value();
  EXPECT_EQ(server->port(), port);
  client.join();
}

TEST(TcpStore, OpenOnAnotherProtocolFailsAtOnceAndSaysSo) {
  FakeServer http([](int fd) {
    read_exactly(fd, 10);
    send_all(fd, "HTTP/1.1 400 Bad Request\r\n\r\n");
  });
  EXPECT_THAT(TcpStore::open({.port = http.port()}, soon()),
              FailsWith(ErrorCode::kFailedPrecondition,
                        AllOf(HasSubstr("no TCPStore server"), HasSubstr("0x50545448"))));
  EXPECT_EQ(http.num_accepted(), 1);
}

TEST(TcpStore, OpenOnAServerThatAlwaysHangsUpGivesUpSoon) {
  FakeServer closing([](int fd) { read_exactly(fd, 10); });
  EXPECT_THAT(TcpStore::open({.port = closing.port()}, soon()),
              FailsWith(ErrorCode::kFailedPrecondition, HasSubstr("may require a token")));
  EXPECT_EQ(closing.num_accepted(), 5);
}

TEST(TcpStore, OpenOnASilentServerFailsAtTheDeadline) {
  FakeServer silent([&silent](int fd) {
    // Holds the connection until the peer gives up or the test ends.
    EXPECT_OK(net::poll_fd(fd, POLLRDHUP, Deadline::never(), silent.stop_fd()));
  });
  EXPECT_THAT(TcpStore::open({.port = silent.port()}, Deadline::after(100ms)),
              FailsWith(ErrorCode::kTimeout, HasSubstr("did not answer")));
}

TEST(TcpStore, OpenNamesAnUnknownHostAndABadPort) {
  EXPECT_THAT(TcpStore::open({.host = "no-such-host.invalid", .port = 1}, Deadline::after(50ms)),
              FailsWith(ErrorCode::kTimeout, HasSubstr("no-such-host.invalid")));
  EXPECT_THAT(TcpStore::open({.port = 0}, soon()),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("got 0")));
}

TEST(TcpStoreServer, TheSamePortTwiceIsAnErrorThatNamesIt) {
  const auto server = serve();
  EXPECT_THAT(TcpStoreServer::open({.port = server->port()}),
              FailsWith(ErrorCode::kIo, HasSubstr(std::to_string(server->port()))));
}

TEST(TcpStore, AnIpv6ServerIsReached) {
  const auto server = TcpStoreServer::open({.host = "::1"});
  if (!server.ok()) GTEST_SKIP() << "no IPv6 here: " << server.error().what();
  const auto store = TcpStore::open({.host = "::1", .port = server.value()->port()}, soon());
  ASSERT_OK(store);
  EXPECT_EQ(store.value()->add("n", 1).value(), 1);
  EXPECT_THAT(store.value()->describe(), HasSubstr("[::1]:"));
}

// ---- PyTorch's conventions

TEST(TcpStore, WithTheC10dPrefixItSharesKeysWithPyTorchAndJoins) {
  const auto server = serve();
  RawClient torch(server->port());
  ASSERT_TRUE(torch.shake_hands());
  const auto store =
      TcpStore::open({.port = server->port(), .c10d_key_prefix = true, .c10d_join = true}, soon())
          .value();
  ASSERT_OK(store->set("k", "v"));
  ASSERT_TRUE(torch.send(from_hex("0302000000000000002f6b")));  // GET "/k"
  EXPECT_EQ(testing::to_hex(torch.read(9)), "010000000000000076");
  ASSERT_TRUE(torch.send(from_hex("0305000000000000") + std::string("\0init/", 6)));
  EXPECT_EQ(testing::to_hex(torch.read(9)), "010000000000000031");
  EXPECT_THAT(store->list_keys().value(), ElementsAre("k"));
  EXPECT_THAT(store->get("absent", Deadline::after(10ms)),
              FailsWith(ErrorCode::kTimeout, HasSubstr("\"absent\"")));
}

// ---- token

TEST(TcpStoreToken, TheRightTokenIsServedAndTheWrongOneIsRefused) {
  Reports reports;
  const auto server = serve("the job's secret", &reports);
  const int port = server->port();
  const auto store = TcpStore::open({.port = port, .token = "the job's secret"}, soon());
  ASSERT_OK(store);
  EXPECT_OK(store.value()->set("key", "v"));
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(TcpStore::open({.port = port, .token = "guess"}, soon()),
                FailsWith(ErrorCode::kFailedPrecondition, HasSubstr("refused it")));
  }
  EXPECT_THAT(reports.texts(), ElementsAre(AllOf(HasSubstr("127.0.0.1"), HasSubstr("wrong"))));
  EXPECT_EQ(store.value()->num_keys().value(), 1);
}

TEST(TcpStoreToken, AClientWithoutATokenIsRefusedBeforeAnyRequest) {
  Reports reports;
  const auto server = serve("secret", &reports);
  EXPECT_THAT(TcpStore::open({.port = server->port()}, soon()),
              FailsWith(ErrorCode::kFailedPrecondition, HasSubstr("may require a token")));
  for (int i = 0; i < 20; ++i) {
    RawClient torch(server->port());
    torch.send(
        from_hex("00cef7853c"
                 "0d39300000"
                 "0102000000000000002f6b010000000000000076"));
    EXPECT_TRUE(torch.ends());
  }
  EXPECT_THAT(reports.texts(), ElementsAre(HasSubstr("must prove the job token")));
  const auto store = TcpStore::open({.port = server->port(), .token = "secret"}, soon()).value();
  EXPECT_EQ(store->num_keys().value(), 0);
}

TEST(TcpStoreToken, AProofThatWasOverheardOpensNothing) {
  const auto server = serve("secret");
  const std::string client_nonce(net::kNonceNbytes, 'c');
  const std::string hello = from_hex("00cef7853c80") + client_nonce;
  RawClient first(server->port());
  ASSERT_TRUE(first.send(hello));
  const std::string first_nonce = first.read(net::kNonceNbytes);
  const std::string proof = net::client_proof("secret", client_nonce, first_nonce);
  ASSERT_TRUE(first.send(from_hex("81") + proof));
  EXPECT_EQ(first.read(net::kProofNbytes), net::server_proof("secret", client_nonce, first_nonce));
  EXPECT_TRUE(first.ping());

  RawClient replay(server->port());
  ASSERT_TRUE(replay.send(hello));
  EXPECT_NE(replay.read(net::kNonceNbytes), first_nonce);
  ASSERT_TRUE(replay.send(from_hex("81") + proof));
  EXPECT_TRUE(replay.ends());
}

TEST(TcpStoreToken, AServerThatDoesNotKnowTheTokenIsNotTrusted) {
  FakeServer impostor([](int fd) {
    read_exactly(fd, 5 + 1 + net::kNonceNbytes);
    send_all(fd, std::string(net::kNonceNbytes, 's'));
    read_exactly(fd, 1 + net::kProofNbytes);
    send_all(fd, std::string(net::kProofNbytes, 'p') + from_hex("00000000"));
  });
  EXPECT_THAT(TcpStore::open({.port = impostor.port(), .token = "secret"}, soon()),
              FailsWith(ErrorCode::kFailedPrecondition, HasSubstr("its proof is wrong")));
  const auto plain = serve();
  EXPECT_THAT(TcpStore::open({.port = plain->port(), .token = "secret"}, soon()),
              FailsWith(ErrorCode::kFailedPrecondition, HasSubstr("may not know about tokens")));
}

// ---- a server that goes or freezes

/// A server in a process of its own.
class ServerProcess {
 public:
  ServerProcess() : child_("store_server"), port_(std::stoi(child_.read_line())) {}
  ChildOfTest* operator->() { return &child_; }
  [[nodiscard]] int port() const { return port_; }

 private:
  ChildOfTest child_;
  int port_;
};

int run_server_child() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto server = serve();
  std::printf("%d\n", server->port());
  std::fflush(stdout);
  while (true) ::pause();
}
[[maybe_unused]] const bool registered = testing::register_child("store_server", run_server_child);

TEST(TcpStore, AKilledServerEndsWaitsWithPeerLostAtOnce) {
  ServerProcess server;
  const auto store = TcpStore::open({.port = server.port()}, soon()).value();
  std::vector<std::thread> waiters;
  for (int i = 0; i < 3; ++i) {
    waiters.emplace_back([&store] {
      const TimePoint start = real_clock().now();
      EXPECT_THAT(store->wait({"absent"}, Deadline::never()),
                  FailsWith(ErrorCode::kPeerLost, HasSubstr("wait: tcp 127.0.0.1:")));
      EXPECT_LT(real_clock().now() - start, 10s);
    });
  }
  EXPECT_EQ(store->add("n", 1).value(), 1);
  server->kill();
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_THAT(store->add("n", 1), FailsWith(ErrorCode::kPeerLost, HasSubstr("add: ")));
}

TEST(TcpStore, AFrozenServerIsNamedSoonAfterTheDeadlineOfTheCall) {
  ServerProcess server;
  const auto store =
      TcpStore::open({.port = server.port(), .request_limit = 100ms}, soon()).value();
  ASSERT_OK(store->set("key", "v"));
  server->freeze();
  const TimePoint start = real_clock().now();
  EXPECT_THAT(store->set("key", "w"),
              FailsWith(ErrorCode::kTimeout, HasSubstr("did not answer in time")));
  EXPECT_THAT(store->get("key", Deadline::after(50ms)),
              FailsWith(ErrorCode::kTimeout, HasSubstr("did not answer in time")));
  EXPECT_LT(real_clock().now() - start, 5s);
  server->thaw();
  EXPECT_OK(store->wait({"key"}, soon()));
}

TEST(TcpStore, AStoppedServerRefusesLaterCallsWithPeerLost) {
  auto server = serve();
  const auto store = TcpStore::open({.port = server->port()}, soon()).value();
  std::thread waiter([&store] {
    EXPECT_THAT(store->get("absent", soon()), FailsWith(ErrorCode::kPeerLost, HasSubstr("get: ")));
  });
  ASSERT_OK(store->set("key", "v"));
  server->stop();
  waiter.join();
  EXPECT_THAT(store->set("key", "v"), FailsWith(ErrorCode::kPeerLost, HasSubstr("set: ")));
  server.reset();
}

TEST(TcpStore, AReplyThatIsNotTheProtocolIsPeerLost) {
  FakeServer liar([](int fd) {
    read_exactly(fd, 5);
    send_all(fd, read_exactly(fd, 5).substr(1));  // the PING
    read_exactly(fd, 1);
    send_all(fd, std::string("\0", 1) + std::string(8, '\xff'));
    read_exactly(fd, 1000);
  });
  const auto store = TcpStore::open({.port = liar.port()}, soon()).value();
  EXPECT_THAT(store->try_get("key"), FailsWith(ErrorCode::kPeerLost, HasSubstr("announced")));
}

TEST(TcpStore, DroppedConnectionsAreReplaced) {
  const auto server = serve();
  const auto store = TcpStore::open({.port = server->port()}, soon()).value();
  ASSERT_OK(store->set("key", "text"));
  for (int i = 0; i < 20; ++i) {
    EXPECT_THAT(store->add("key", 1), FailsWith(ErrorCode::kFailedPrecondition, HasSubstr("text")));
    EXPECT_EQ(store->get("key", soon()).value(), "text");
  }
  EXPECT_LE(server->num_connections(), 2);
}

}  // namespace
}  // namespace muster
