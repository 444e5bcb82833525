// Replays what PyTorch's client and server said to each other, byte for byte, against our server.
// Where we differ on purpose the case is listed with the reason (as in docs/deviations.md), and a
// case below it says what our server does instead.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "dist/store/tcp_store_server.h"
#include "tests/dist/store/raw_client.h"
#include "tests/support/golden.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using nlohmann::json;
using testing::from_hex;
using testing::RawClient;
using testing::to_hex;

std::vector<json> read_lines(const std::string& file) {
  std::ifstream in(testing::golden_path("tcpstore/" + file));
  std::vector<json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

std::string bytes_of(const json& field) {
  if (field.is_string()) return from_hex(field.get<std::string>());
  std::string bytes;
  for (const json& part : field) {
    if (part.contains("hex")) {
      bytes += from_hex(part["hex"].get<std::string>());
      continue;
    }
    const std::string run = from_hex(part["run_hex"].get<std::string>());
    const size_t nbytes = part["len"].get<size_t>();
    std::string repeated;
    while (repeated.size() < nbytes) repeated += run;
    bytes += repeated.substr(0, nbytes);
  }
  return bytes;
}

// LIST_KEYS has no order of its own.
std::vector<std::string> sorted_keys(const std::string& reply) {
  std::vector<std::string> keys;
  for (size_t at = 8; at + 8 <= reply.size();) {
    const size_t nbytes = static_cast<unsigned char>(reply[at]);
    keys.push_back(reply.substr(at + 8, nbytes));
    at += 8 + nbytes;
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

std::string shortened(const std::string& bytes) { return to_hex(bytes.substr(0, 200)); }

std::unique_ptr<TcpStoreServer> serve() {
  TcpStoreServerOptions options;
  options.on_reject = [](const std::string&) {};
  return TcpStoreServer::open(std::move(options)).value();
}

// What was sent to the server on any connection has been served by the time this returns.
void settle(const TcpStoreServer& server) {
  RawClient probe(server.port());
  ASSERT_TRUE(probe.shake_hands());
}

class Conversation {
 public:
  Conversation() : server_(serve()) {}

  void run(const std::vector<json>& steps) {
    for (const json& step : steps) {
      const std::string name = step["conn"];
      if (!clients_.contains(name)) clients_[name] = std::make_unique<RawClient>(server_->port());
      RawClient& client = *clients_[name];
      SCOPED_TRACE(step["call"].get<std::string>());
      ASSERT_TRUE(client.send(bytes_of(step["request"])));
      if (step.contains("deferred_until")) {
        settle(*server_);
        EXPECT_TRUE(client.is_quiet()) << "answered too early";
        deferred_.emplace(step["deferred_until"].get<int>(), &step);
        continue;
      }
      expect_reply(step, client);
      finish_deferred(step["step"].get<int>());
    }
    for (auto& [name, client] : clients_) {
      EXPECT_TRUE(client->ping()) << "connection " << name << " is out of step";
    }
  }

 private:
  void expect_reply(const json& step, RawClient& client) {
    const std::string expected = bytes_of(step["response"]);
    const std::string reply = client.read(expected.size());
    if (step["request"] == "11") {
      EXPECT_EQ(sorted_keys(reply), sorted_keys(expected));
    } else {
      EXPECT_EQ(shortened(reply), shortened(expected));
      EXPECT_TRUE(reply == expected);
    }
  }

  void finish_deferred(int step_number) {
    const auto [first, last] = deferred_.equal_range(step_number);
    for (auto at = first; at != last; ++at) {
      const json& step = *at->second;
      SCOPED_TRACE("deferred: " + step["call"].get<std::string>());
      RawClient& client = *clients_[step["conn"].get<std::string>()];
      const std::string expected = bytes_of(step["response"]);
      EXPECT_EQ(to_hex(client.read(1)), to_hex(expected.substr(0, 1)));
      ASSERT_TRUE(client.send(bytes_of(step["later_request"])));
      EXPECT_EQ(to_hex(client.read(expected.size() - 1)), to_hex(expected.substr(1)));
    }
  }

  std::unique_ptr<TcpStoreServer> server_;
  std::map<std::string, std::unique_ptr<RawClient>> clients_;
  std::multimap<int, const json*> deferred_;
};

TEST(TcpGolden, EveryConversationOfPyTorchGetsTheSameBytes) {
  const std::set<std::string> differ = {
      "compare_set_fails_wakes",    // stores nothing, so it wakes nobody
      "wait_two_keys_one_deleted",  // a wait ends when all keys exist at once
      "queue_stale_waiter",         // a wait that has ended is forgotten
      "wait_key_and_queue",         // a wait for a full queue and a key ends
  };
  std::map<std::string, std::vector<json>> cases;
  for (json& line : read_lines("transcript.jsonl")) {
    cases[line["case"].get<std::string>()].push_back(std::move(line));
  }
  ASSERT_GE(cases.size(), 35U);
  for (const auto& [name, steps] : cases) {
    if (differ.contains(name)) continue;
    SCOPED_TRACE(name);
    Conversation().run(steps);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(TcpGolden, BytesSentByHandGetTheSameReplies) {
  const std::set<std::string> differ = {
      // The first byte must be VALIDATE with its magic, else the connection closes at once.
      "ping_without_validate", "ping_without_validate_then_more", "set_get_without_validate",
      "wrong_magic", "wrong_magic_then_ping", "magic_big_endian", "http_get",
      // VALIDATE may arrive in pieces.
      "validate_split_1_4", "validate_split_3_2",
      "two_waits_pipelined",   // closes
      "append_beyond_8_mib",   // closes
      "barrier_woken_by_set",  // a barrier ends when its count is reached
  };
  const std::vector<json> probes = read_lines("raw.jsonl");
  ASSERT_GE(probes.size(), 55U);
  for (const json& probe : probes) {
    const std::string name = probe["probe"];
    if (differ.contains(name)) continue;
    SCOPED_TRACE(name);
    const std::unique_ptr<TcpStoreServer> server = serve();
    RawClient client(server->port());
    bool closed = false;
    for (const json& segment : probe["segments"]) {
      if (closed) break;
      client.send(bytes_of(segment["send"]));
      if (name.starts_with("half_close")) client.end_sending();
      const std::string expected = bytes_of(segment["reply"]);
      const std::string reply = client.read(expected.size());
      EXPECT_EQ(shortened(reply), shortened(expected));
      EXPECT_TRUE(reply == expected);
      closed = segment["closed"];
      if (closed) {
        EXPECT_TRUE(client.ends());
      } else {
        settle(*server);
        EXPECT_TRUE(client.is_quiet());
      }
    }
    settle(*server);  // others are still served
  }
}

// ---- what we do instead

std::string key_request(char opcode, const std::string& key) {
  return std::string(1, opcode) + static_cast<char>(key.size()) + std::string(7, '\0') + key;
}
std::string wait_request(const std::vector<std::string>& keys) {
  std::string request = std::string(1, 6) + static_cast<char>(keys.size()) + std::string(7, '\0');
  for (const std::string& key : keys) request += key_request(0, key).substr(1);
  return request;
}
std::string set_request(const std::string& key, const std::string& value) {
  return key_request(1, key) + key_request(0, value).substr(1);
}
std::string push_request(const std::string& key, const std::string& value) {
  return key_request(14, key) + key_request(0, value).substr(1);
}

TEST(TcpGolden, AFirstByteThatIsNotValidateClosesAtOnce) {
  for (const std::string hex : {"0d39300000", "0102000000000000002f6b010000000000000076",
                                "00efbeadde", "003c85f7ce", "474554202f20"}) {
    const std::unique_ptr<TcpStoreServer> server = serve();
    RawClient client(server->port());
    client.send(from_hex(hex));
    EXPECT_TRUE(client.ends()) << hex;
    RawClient other(server->port());
    ASSERT_TRUE(other.shake_hands());
    ASSERT_TRUE(other.send(std::string(1, 7)));
    EXPECT_EQ(to_hex(other.read(8)), "0000000000000000") << "nothing of it was executed";
  }
}

TEST(TcpGolden, ValidateMayArriveByteByByte) {
  const std::unique_ptr<TcpStoreServer> server = serve();
  RawClient client(server->port());
  for (const char byte : from_hex("00cef7853c")) {
    ASSERT_TRUE(client.send(std::string(1, byte)));
    settle(*server);
  }
  EXPECT_TRUE(client.ping());
}

TEST(TcpGolden, ASecondWaitBesideAPendingOneCloses) {
  const std::unique_ptr<TcpStoreServer> server = serve();
  RawClient client(server->port());
  ASSERT_TRUE(client.shake_hands());
  ASSERT_TRUE(client.send(wait_request({"a"}) + wait_request({"b"})));
  EXPECT_TRUE(client.ends());
}

TEST(TcpGolden, ABarrierEndsByItsCountAlone) {
  const std::unique_ptr<TcpStoreServer> server = serve();
  RawClient client(server->port());
  ASSERT_TRUE(client.shake_hands());
  ASSERT_TRUE(client.send(key_request(18, "b") + std::string("\2\0\0\0\0\0\0\0", 8)));
  ASSERT_TRUE(client.send(set_request("b", "x")));
  EXPECT_TRUE(client.ping());
  ASSERT_TRUE(client.send(set_request("b", "2")));
  EXPECT_EQ(to_hex(client.read(1)), "00");
}

TEST(TcpGolden, ACompareSetThatStoresNothingWakesNobody) {
  const std::unique_ptr<TcpStoreServer> server = serve();
  RawClient client(server->port());
  ASSERT_TRUE(client.shake_hands());
  ASSERT_TRUE(client.send(wait_request({"k"})));
  const std::string one(1, 'x');
  ASSERT_TRUE(client.send(key_request(2, "k") + key_request(0, one).substr(1) +
                          key_request(0, "y").substr(1)));
  EXPECT_EQ(to_hex(client.read(9)), "010000000000000078") << "the expectation comes back";
  EXPECT_TRUE(client.ping());
  ASSERT_TRUE(client.send(set_request("k", "v")));
  EXPECT_EQ(to_hex(client.read(1)), "00");
}

TEST(TcpGolden, AWaitEndsWhenAllKeysExistAtOnceQueuesIncluded) {
  const std::unique_ptr<TcpStoreServer> server = serve();
  RawClient waiter(server->port());
  RawClient other(server->port());
  ASSERT_TRUE(waiter.shake_hands() && other.shake_hands());
  ASSERT_TRUE(other.send(push_request("q", "one")));
  ASSERT_TRUE(other.ping());
  ASSERT_TRUE(waiter.send(wait_request({"k1", "q", "k2"})));
  ASSERT_TRUE(waiter.ping());
  ASSERT_TRUE(other.send(set_request("k1", "") + key_request(8, "k1") + set_request("k2", "")));
  EXPECT_EQ(other.read(8).size(), 8U);
  EXPECT_TRUE(waiter.ping()) << "k1 is gone again";
  ASSERT_TRUE(other.send(set_request("k1", "")));
  EXPECT_EQ(to_hex(waiter.read(1)), "00");
}

TEST(TcpGolden, AnEndedWaitForAQueueLeavesNothingBehind) {
  const std::unique_ptr<TcpStoreServer> server = serve();
  RawClient waiter(server->port());
  RawClient other(server->port());
  ASSERT_TRUE(waiter.shake_hands() && other.shake_hands());
  ASSERT_TRUE(waiter.send(wait_request({"q"})));
  ASSERT_TRUE(waiter.ping());
  ASSERT_TRUE(other.send(push_request("q", "one")));
  EXPECT_EQ(to_hex(waiter.read(1)), "00");
  ASSERT_TRUE(waiter.send(wait_request({"other"})));
  ASSERT_TRUE(waiter.ping());
  ASSERT_TRUE(other.send(push_request("q", "two")));
  ASSERT_TRUE(other.ping());
  EXPECT_TRUE(waiter.ping());
}

TEST(TcpGolden, AnItemOfAWaiterThatDiedGoesToTheNextInLine) {
  const std::unique_ptr<TcpStoreServer> server = serve();
  RawClient first(server->port());
  RawClient second(server->port());
  RawClient other(server->port());
  ASSERT_TRUE(first.shake_hands() && second.shake_hands() && other.shake_hands());
  ASSERT_TRUE(first.send(wait_request({"q"})));
  ASSERT_TRUE(first.ping());
  ASSERT_TRUE(second.send(wait_request({"q"})));
  ASSERT_TRUE(second.ping());
  ASSERT_TRUE(other.send(push_request("q", "item")));
  EXPECT_EQ(to_hex(first.read(1)), "00");
  EXPECT_TRUE(second.ping()) << "one item wakes one";
  first.reset();
  EXPECT_EQ(to_hex(second.read(1)), "00");
}

}  // namespace
}  // namespace muster
