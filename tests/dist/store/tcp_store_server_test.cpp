// The server against peers that are hostile, slow, silent or many.
#include "dist/store/tcp_store_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "dist/store/tcp_store.h"
#include "tests/dist/store/raw_client.h"
#include "tests/support/golden.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::ElementsAre;
using testing::FailsWith;
using testing::from_hex;
using ::testing::HasSubstr;
using testing::RawClient;

Deadline soon() { return Deadline::after(20s); }

std::unique_ptr<TcpStoreServer> serve(TcpStoreServerOptions options = {}) {
  if (!options.on_reject) options.on_reject = [](const std::string&) {};
  return TcpStoreServer::open(std::move(options)).value();
}

std::shared_ptr<Store> connect(const TcpStoreServer& server) {
  return TcpStore::open({.port = server.port()}, soon()).value();
}

std::string u64(uint64_t value) { return {reinterpret_cast<const char*>(&value), sizeof(value)}; }
std::string get_request(const std::string& key) { return "\3" + u64(key.size()) + key; }

/// Waits, without a clock, until the server has seen what happened on its sockets.
void await_connections(const TcpStoreServer& server, int64_t count) {
  const Deadline deadline = soon();
  while (server.num_connections() != count && !deadline.passed()) std::this_thread::yield();
  EXPECT_EQ(server.num_connections(), count);
}

// ---- hostile

/// Makes requests that are nearly right: recorded ones with bytes changed, cut and joined.
class RequestFuzzer {
 public:
  explicit RequestFuzzer(uint32_t seed) : random_(seed) {
    std::ifstream in(testing::golden_path("tcpstore/transcript.jsonl"));
    for (std::string line; std::getline(in, line);) {
      const auto request = nlohmann::json::parse(line)["request"];
      if (request.is_string()) recorded_.push_back(from_hex(request.get<std::string>()));
    }
  }

  std::string next() {
    std::string bytes;
    if (below(8) > 0) bytes = from_hex("00cef7853c");
    for (size_t i = below(4) + 1; i > 0; --i) bytes += piece();
    return bytes.substr(0, bytes.size() - below(below(3) == 0 ? bytes.size() : 1));
  }

  size_t below(size_t bound) {
    return bound == 0 ? 0 : std::uniform_int_distribution<size_t>(0, bound - 1)(random_);
  }
  [[nodiscard]] size_t num_recorded() const { return recorded_.size(); }

 private:
  std::string piece() {
    std::string bytes;
    switch (below(4)) {
      case 0:  // noise
        for (size_t i = below(64); i > 0; --i) bytes.push_back(static_cast<char>(below(256)));
        return bytes;
      case 1: {  // a real opcode with extreme lengths
        constexpr uint64_t kLengths[] = {
            0,      1,          8192,      8193,       8388608,        8388609,   131072,
            131073, UINT32_MAX, INT64_MAX, 1ULL << 63, UINT64_MAX - 7, UINT64_MAX};
        bytes.push_back(static_cast<char>(below(20)));
        return bytes + u64(kLengths[below(std::size(kLengths))]) + u64(below(10)) + "key";
      }
      default:  // a recorded request, some of its bytes changed
        bytes = recorded_[below(recorded_.size())];
        for (size_t i = below(3); i > 0 && !bytes.empty(); --i) {
          bytes[below(bytes.size())] = static_cast<char>(below(256));
        }
        return bytes;
    }
  }

  std::mt19937 random_;
  std::vector<std::string> recorded_;
};

TEST(TcpStoreServer, SurvivesBytesOfAllKindsAndServesOthersMeanwhile) {
  const uint32_t seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  SCOPED_TRACE(seed);
  RequestFuzzer fuzzer(seed);
  ASSERT_GT(fuzzer.num_recorded(), 100U);
  TcpStoreServerOptions options;
  options.max_memory = 64_MiB;
  const auto server = serve(std::move(options));
  const auto store = connect(*server);
  std::vector<std::unique_ptr<RawClient>> half_open;
  for (int i = 0; i < 1500; ++i) {
    auto client = std::make_unique<RawClient>(server->port());
    client->send(fuzzer.next());
    switch (fuzzer.below(3)) {
      case 0:
        client->reset();
        break;
      case 1:
        half_open.push_back(std::move(client));
        break;
      default:
        break;
    }
    if (half_open.size() > 200) half_open.erase(half_open.begin());
    if (i % 50 == 0) {
      ASSERT_EQ(store->add("muster/served", 1).value(), i / 50 + 1);
    }
  }
  EXPECT_LE(server->memory(), 64_MiB);
  half_open.clear();
  await_connections(*server, 1);
}

TEST(TcpStoreServer, AClaimedLengthTakesNoMemory) {
  const auto server = serve();
  const auto store = connect(*server);
  ASSERT_OK(store->set("key", "v"));
  std::vector<std::unique_ptr<RawClient>> liars;
  for (int i = 0; i < 50; ++i) {
    liars.push_back(std::make_unique<RawClient>(server->port()));
    ASSERT_TRUE(liars.back()->shake_hands());
    // SET "k" with 8 MiB to come, CHECK with 131072 keys to come: the largest that are allowed.
    ASSERT_TRUE(
        liars.back()->send(i % 2 == 0 ? "\1" + u64(1) + "k" + u64(8 << 20) : "\5" + u64(131072)));
  }
  EXPECT_EQ(store->get("key", soon()).value(), "v");
  EXPECT_LT(server->memory(), 1_MiB);
}

TEST(TcpStoreServer, AFullStoreRefusesWritesAndGoesOnServingReads) {
  std::mutex mutex;
  std::vector<std::string> reports;
  TcpStoreServerOptions options;
  options.max_memory = 8_MiB;
  options.on_reject = [&](const std::string& text) {
    const std::lock_guard lock(mutex);
    reports.push_back(text);
  };
  const auto server = serve(std::move(options));
  const auto store = connect(*server);
  const std::string value(1 << 20, 'v');
  int num_stored = 0;
  while (num_stored < 20 && store->set("key" + std::to_string(num_stored), value).ok()) {
    ++num_stored;
  }
  EXPECT_GE(num_stored, 6);
  EXPECT_LE(num_stored, 8);
  EXPECT_LE(server->memory(), 8_MiB);
  EXPECT_TRUE(store->get("key0", soon()).value() == value);
  EXPECT_TRUE(store->remove("key0").value());
  EXPECT_TRUE(store->remove("key1").value());
  EXPECT_OK(store->set("small", value));
  const std::lock_guard lock(mutex);
  EXPECT_THAT(reports, ElementsAre(HasSubstr("may hold 8 MiB")));
}

TEST(TcpStoreServer, APeerThatDoesNotReadHoldsUpNobodyAndGetsAllInTheEnd) {
  const auto server = serve();
  const auto store = connect(*server);
  const std::string value(1 << 20, 'v');
  ASSERT_OK(store->set("large", value));
  constexpr size_t kRequests = 200;
  std::string requests;
  for (size_t i = 0; i < kRequests; ++i) requests += get_request("large");
  RawClient lazy(server->port());
  ASSERT_TRUE(lazy.shake_hands());
  ASSERT_TRUE(lazy.send(requests));
  for (int i = 0; i < 100; ++i) ASSERT_EQ(store->add("n", 1).value(), i + 1);
  EXPECT_LT(server->memory(), 4_MiB) << "200 MiB of replies are not kept";
  for (size_t i = 0; i < kRequests; ++i) {
    const std::string reply = lazy.read(8 + value.size());
    ASSERT_EQ(reply.size(), 8 + value.size()) << "reply " << i;
    ASSERT_TRUE(reply.compare(8, std::string::npos, value) == 0);
  }
  EXPECT_TRUE(lazy.ping());
}

TEST(TcpStoreServer, APeerThatNeverShakesHandsIsDropped) {
  TcpStoreServerOptions options;
  options.handshake_limit = 50ms;
  const auto server = serve(std::move(options));
  RawClient silent(server->port());
  RawClient half(server->port());
  RawClient good(server->port());
  ASSERT_TRUE(good.shake_hands());
  ASSERT_TRUE(half.send(from_hex("00cef7")));
  EXPECT_TRUE(silent.ends());
  EXPECT_TRUE(half.ends());
  EXPECT_TRUE(good.ping());
}

TEST(TcpStoreServer, ConnectionsAboveTheLimitAreClosedAtOnce) {
  TcpStoreServerOptions options;
  options.max_connections = 2;
  const auto server = serve(std::move(options));
  RawClient first(server->port());
  auto second = std::make_unique<RawClient>(server->port());
  ASSERT_TRUE(first.shake_hands() && second->shake_hands());
  RawClient third(server->port());
  EXPECT_TRUE(third.ends());
  second.reset();
  await_connections(*server, 1);
  RawClient fourth(server->port());
  EXPECT_TRUE(fourth.shake_hands());
}

// ---- many

/// Room for `count` more descriptors, or a reason why not.
bool raise_descriptor_limit(rlim_t count) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  if (limit.rlim_cur >= count) return true;
  limit.rlim_cur = std::min<rlim_t>(count, limit.rlim_max);
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= count;
}

TEST(TcpStoreServer, AThousandIdleConnectionsCostLittle) {
  ASSERT_TRUE(raise_descriptor_limit(4096));
  const auto server = serve();
  const auto store = connect(*server);
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 1000; ++i) {
    idle.push_back(std::make_unique<RawClient>(server->port()));
    ASSERT_TRUE(idle.back()->shake_hands());
  }
  EXPECT_EQ(server->num_connections(), 1001);
  const Bytes before = server->memory();
  EXPECT_LT(before, 256_KiB);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(store->add("n", 1).value(), i + 1);
  for (auto& client : idle) EXPECT_TRUE(client->is_quiet());
  idle.clear();
  await_connections(*server, 1);
}

// A quarter each never says a word, asks for a page, makes noise and stops inside its first bytes.
TEST(TcpStoreServer, TenThousandStrangersOrAllThatFitLeaveTheStoreAtWork) {
  std::mutex mutex;
  std::vector<std::string> reports;
  TcpStoreServerOptions options;
  options.required_token = "secret";
  options.on_reject = [&](const std::string& text) {
    const std::lock_guard lock(mutex);
    reports.push_back(text);
  };
  static_cast<void>(raise_descriptor_limit(24000));
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  // Both ends are in this process.
  const auto count = static_cast<int>(std::min<rlim_t>(10000, (limit.rlim_cur - 500) / 2));
  std::printf("%d strangers\n", count);
  std::mt19937 random(20240611);
  const auto server = serve(std::move(options));
  TcpStoreOptions client_options;
  client_options.port = server->port();
  client_options.token = "secret";
  const auto store = TcpStore::open(client_options, Deadline::after(30s)).value();
  std::vector<std::unique_ptr<RawClient>> strangers;
  for (int i = 0; i < count; ++i) {
    strangers.push_back(std::make_unique<RawClient>(server->port()));
    if (i % 4 == 1) strangers.back()->send("GET / HTTP/1.1\r\nHost: here\r\n\r\n");
    if (i % 4 == 2) {
      std::string noise(1 + random() % 200, '\0');
      for (char& byte : noise) byte = static_cast<char>(random());
      strangers.back()->send(noise);
    }
    if (i % 4 == 3) strangers.back()->send(std::string(1, '\0'));
    if (i % 500 == 0) {
      ASSERT_EQ(store->add("n", 1).value(), i / 500 + 1);
    }
  }
  ASSERT_OK(store->set("key", "value"));
  EXPECT_EQ(store->get("key", Deadline::after(30s)).value(), "value");
  EXPECT_LT(server->memory(), 64_MiB);
  strangers.clear();
  await_connections(*server, 1);
  const std::lock_guard lock(mutex);
  EXPECT_GE(reports.size(), 1U);
  EXPECT_LE(reports.size(), 3U) << "one for each kind of reason, not one for each stranger";
}

TEST(TcpStoreServer, OneSetWakesAThousandWaiters) {
  ASSERT_TRUE(raise_descriptor_limit(4096));
  const auto server = serve();
  const auto store = connect(*server);
  std::vector<std::unique_ptr<RawClient>> waiters;
  for (int i = 0; i < 1000; ++i) {
    waiters.push_back(std::make_unique<RawClient>(server->port()));
    ASSERT_TRUE(waiters.back()->shake_hands());
    ASSERT_TRUE(waiters.back()->send("\6" + u64(1) + u64(3) + "key"));
    ASSERT_TRUE(waiters.back()->ping());  // it waits now
  }
  // Some die first; the rest must not care.
  for (size_t i = 0; i < waiters.size(); i += 10) waiters[i]->reset();
  ASSERT_OK(store->set("key", ""));
  for (size_t i = 0; i < waiters.size(); ++i) {
    if (i % 10 == 0) continue;
    ASSERT_EQ(waiters[i]->read(1), std::string(1, '\0')) << i;
  }
}

TEST(TcpStoreServer, AWaitForAHundredThousandKeysEndsInLinearTime) {
  const auto server = serve();
  constexpr size_t kKeys = 100'000;
  std::string wait = "\6" + u64(kKeys);
  std::string sets;
  for (size_t i = 0; i < kKeys; ++i) {
    const std::string key = "key" + std::to_string(i);
    wait += u64(key.size()) + key;
    const std::string other = "key" + std::to_string(kKeys - 1 - i);
    sets += "\1" + u64(other.size()) + other + u64(0);
  }
  RawClient waiter(server->port());
  RawClient setter(server->port());
  ASSERT_TRUE(waiter.shake_hands() && setter.shake_hands());
  ASSERT_TRUE(waiter.send(wait));
  ASSERT_TRUE(waiter.ping());
  ASSERT_TRUE(setter.send(sets));
  EXPECT_EQ(waiter.read(1), std::string(1, '\0'));
  EXPECT_EQ(connect(*server)->num_keys().value(), static_cast<int64_t>(kKeys));
}

TEST(TcpStoreServer, StopIsIdempotentAndClosesEveryConnection) {
  const auto server = serve();
  RawClient client(server->port());
  ASSERT_TRUE(client.shake_hands());
  server->stop();
  server->stop();
  EXPECT_TRUE(client.ends());
  EXPECT_EQ(server->num_connections(), 0);
}

}  // namespace
}  // namespace muster
