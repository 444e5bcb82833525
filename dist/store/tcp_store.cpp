#include "dist/store/tcp_store.h"

#include <algorithm>
#include <utility>

#include "dist/store/internal/connection_pool.h"
#include "dist/store/internal/key_table.h"
#include "dist/store/internal/messages.h"
#include "dist/store/internal/store_connection.h"
#include "dist/store/internal/wire.h"

namespace muster {

using internal::Opcode;
using internal::StoreConnection;
using internal::WireWriter;

namespace {
constexpr std::string_view kJoinKey = "init/";
constexpr Duration kLeastRequestLimit = 1s;  // a wait with no time left still asks once
constexpr int64_t kMaxListedKeys = int64_t{1} << 26;

std::string keys_request(Opcode opcode, const std::vector<std::string>& keys) {
  WireWriter request;
  request.opcode(opcode).u64(keys.size());
  for (const std::string& key : keys) request.bytes(key);
  return std::move(request.text());
}
}  // namespace

Result<std::unique_ptr<TcpStore>> TcpStore::open(TcpStoreOptions options, Deadline deadline) {
  if (options.port < 1 || options.port > 65535) {
    return make_error(ErrorCode::kInvalidArgument,
                      "tcp store: the server's port must be 1 to 65535; got {}", options.port);
  }
  auto connections = MUSTER_TRY(internal::ConnectionPool::open(
      {.host = options.host, .port = options.port, .token = options.token}, deadline));
  std::unique_ptr<TcpStore> store(new TcpStore(std::move(options), std::move(connections)));
  if (store->options_.c10d_join) MUSTER_TRY(store->join());
  return store;
}

TcpStore::TcpStore(TcpStoreOptions options, std::unique_ptr<internal::ConnectionPool> connections)
    : options_(std::move(options)), connections_(std::move(connections)) {}
TcpStore::~TcpStore() = default;

Result<void> TcpStore::join() {
  WireWriter request;
  request.opcode(Opcode::kAdd).bytes(kJoinKey).i64(1);
  MUSTER_TRY(ask_i64("join", request.text()));
  return {};
}

// ---- keys and deadlines

std::string TcpStore::full(std::string_view key) const {
  return std::string(options_.c10d_key_prefix ? "/" : "").append(key);
}

std::vector<std::string> TcpStore::full(const std::vector<std::string>& keys) const {
  std::vector<std::string> all;
  all.reserve(keys.size());
  for (const std::string& key : keys) all.push_back(full(key));
  return all;
}

Deadline TcpStore::request_deadline() const { return Deadline::after(options_.request_limit); }

// An exchange on behalf of a wait: the server must not outlast the wait by much.
Deadline TcpStore::request_deadline(Deadline wait_deadline) const {
  const Duration left = std::max(wait_deadline.left(), kLeastRequestLimit);
  return Deadline::after(std::min(options_.request_limit, left));
}

// ---- exchanges

// Sends one request and reads its reply by `read(connection, deadline)`.
template <typename Read>
auto TcpStore::ask(std::string_view operation, Deadline deadline, std::string_view request,
                   const Read& read) {
  using Reply = decltype(read(std::declval<StoreConnection&>(), deadline));
  return connections_->exchange(operation, deadline,
                                [&](StoreConnection& connection, Deadline limit) -> Reply {
                                  MUSTER_TRY(connection.send(request, limit));
                                  return read(connection, limit);
                                });
}

Result<int64_t> TcpStore::ask_i64(std::string_view operation, const std::string& request) {
  return ask(
      operation, request_deadline(), request,
      [](StoreConnection& connection, Deadline limit) { return connection.read_i64(limit); });
}

Result<std::optional<std::string>> TcpStore::try_get_raw(std::string_view operation,
                                                         const std::string& key,
                                                         Deadline deadline) {
  // GET alone answers a missing key with an empty value.
  WireWriter request;
  request.opcode(Opcode::kCheck).u64(1).bytes(key).opcode(Opcode::kGet).bytes(key);
  using Value = std::optional<std::string>;
  return ask(operation, deadline, request.text(),
             [](StoreConnection& connection, Deadline limit) -> Result<Value> {
               const uint8_t state = MUSTER_TRY(connection.read_u8(limit));
               std::string value = MUSTER_TRY(connection.read_bytes(limit));
               if (state != internal::kCheckReady && value.empty()) return Value();
               return Value(std::move(value));
             });
}

// True: all keys exist. False: the deadline passed first.
Result<bool> TcpStore::wait_raw(std::string_view operation, const std::vector<std::string>& keys,
                                Deadline deadline) {
  const auto read = [&](StoreConnection& connection, Deadline) -> Result<bool> {
    const Result<uint8_t> ready = connection.read_u8(deadline);
    if (ready.ok()) return true;
    if (ready.error().code() != ErrorCode::kTimeout) return ready.error();
    // The reply to the wait may cross the cancellation; both are read to stay in step.
    const Deadline grace = Deadline::after(kLeastRequestLimit);
    WireWriter cancel;
    MUSTER_TRY(connection.send(cancel.opcode(Opcode::kCancelWait).text(), grace));
    const uint8_t first = MUSTER_TRY(connection.read_u8(grace));
    if (first == internal::kWaitCanceled) return false;
    MUSTER_TRY(connection.read_u8(grace));
    return true;
  };
  return ask(operation, request_deadline(deadline), keys_request(Opcode::kWait, keys), read);
}

Result<std::vector<std::string>> TcpStore::missing_raw(std::string_view operation,
                                                       const std::vector<std::string>& keys,
                                                       Deadline deadline) {
  WireWriter request;
  for (const std::string& key : keys) request.opcode(Opcode::kCheck).u64(1).bytes(key);
  const auto read = [&](StoreConnection& connection,
                        Deadline limit) -> Result<std::vector<std::string>> {
    const std::string states = MUSTER_TRY(connection.read(keys.size(), limit));
    std::vector<std::string> missing;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (static_cast<uint8_t>(states[i]) != internal::kCheckReady) missing.push_back(keys[i]);
    }
    return missing;
  };
  return ask(operation, deadline, request.text(), read);
}

Result<void> TcpStore::wait_for_all(std::string_view operation,
                                    const std::vector<std::string>& keys, Deadline deadline) {
  const TimePoint start = real_clock().now();
  if (!deadline.passed() && MUSTER_TRY(wait_raw(operation, full(keys), deadline))) return {};
  std::vector<std::string> missing =
      MUSTER_TRY(missing_raw(operation, full(keys), request_deadline(deadline)));
  if (missing.empty()) return {};
  if (options_.c10d_key_prefix) {
    for (std::string& key : missing) key.erase(0, 1);
  }
  return internal::missing_keys(operation, describe(), missing, real_clock().now() - start);
}

// SET and APPEND have no reply of their own, so a PING behind them says that they were served.
Result<void> TcpStore::write_and_confirm(std::string_view operation, std::string request) {
  const uint32_t nonce = next_nonce_++;
  WireWriter ping;
  request += ping.opcode(Opcode::kPing).u32(nonce).text();
  return ask(operation, request_deadline(), request,
             [nonce](StoreConnection& connection, Deadline limit) -> Result<void> {
               const uint32_t echo = MUSTER_TRY(connection.read_u32(limit));
               if (echo == nonce) return {};
               return make_error(ErrorCode::kPeerLost, "PING {} came back as {}", nonce, echo);
             });
}

// ---- the store

Result<void> TcpStore::set(std::string_view key, std::string_view value) {
  const std::string wire_key = full(key);
  MUSTER_TRY(internal::check_entry("set", wire_key, value));
  WireWriter request;
  request.opcode(Opcode::kSet).bytes(wire_key).bytes(value);
  return write_and_confirm("set", std::move(request.text()));
}

Result<std::string> TcpStore::get(std::string_view key, Deadline deadline) {
  const std::string wire_key = full(key);
  MUSTER_TRY(internal::check_key("get", wire_key));
  const TimePoint start = real_clock().now();
  while (true) {
    auto value = MUSTER_TRY(try_get_raw("get", wire_key, request_deadline(deadline)));
    if (value) return *std::move(value);
    if (deadline.passed()) break;
    MUSTER_TRY(wait_raw("get", {wire_key}, deadline));
  }
  const std::string missing(key);
  return internal::missing_keys("get", describe(), {&missing, 1}, real_clock().now() - start);
}

Result<std::optional<std::string>> TcpStore::try_get(std::string_view key) {
  const std::string wire_key = full(key);
  MUSTER_TRY(internal::check_key("try_get", wire_key));
  return try_get_raw("try_get", wire_key, request_deadline());
}

Result<std::vector<std::string>> TcpStore::get_many(const std::vector<std::string>& keys,
                                                    Deadline deadline) {
  const std::vector<std::string> wire_keys = full(keys);
  MUSTER_TRY(internal::check_keys("get_many", wire_keys));
  using Values = std::optional<std::vector<std::string>>;
  const std::string request =
      keys_request(Opcode::kCheck, wire_keys) + keys_request(Opcode::kMultiGet, wire_keys);
  const auto read = [&](StoreConnection& connection, Deadline limit) -> Result<Values> {
    const uint8_t state = MUSTER_TRY(connection.read_u8(limit));
    std::vector<std::string> values;
    values.reserve(keys.size());
    while (values.size() < keys.size()) values.push_back(MUSTER_TRY(connection.read_bytes(limit)));
    if (state != internal::kCheckReady) return Values();
    return Values(std::move(values));
  };
  while (true) {
    MUSTER_TRY(wait_for_all("get_many", keys, deadline));
    Values values = MUSTER_TRY(ask("get_many", request_deadline(), request, read));
    if (values) return *std::move(values);  // else one was removed in between: wait again
  }
}

Result<int64_t> TcpStore::add(std::string_view key, int64_t delta) {
  const std::string wire_key = full(key);
  MUSTER_TRY(internal::check_key("add", wire_key));
  WireWriter request;
  request.opcode(Opcode::kAdd).bytes(wire_key).i64(delta);
  Result<int64_t> sum = ask_i64("add", request.text());
  if (sum.ok() || sum.error().code() != ErrorCode::kPeerLost) return sum;
  // The protocol answers a value that is no number by hanging up; a look at it tells.
  const auto value = try_get_raw("add", wire_key, Deadline::after(kLeastRequestLimit));
  if (value.ok() && *value && !internal::parse_counter(**value)) {
    return internal::not_a_counter(key, **value);
  }
  return sum;
}

Result<std::string> TcpStore::compare_set(std::string_view key, std::string_view expected,
                                          std::string_view desired) {
  const std::string wire_key = full(key);
  MUSTER_TRY(internal::check_entry("compare_set", wire_key, expected));
  MUSTER_TRY(internal::check_entry("compare_set", wire_key, desired));
  // Nothing could change, and the reply could not tell a missing key from an equal value: GET can.
  const bool only_look = expected == desired && !expected.empty();
  WireWriter request;
  if (only_look) {
    request.opcode(Opcode::kGet).bytes(wire_key);
  } else {
    request.opcode(Opcode::kCompareSet).bytes(wire_key).bytes(expected).bytes(desired);
  }
  std::string stored = MUSTER_TRY(ask(
      "compare_set", request_deadline(), request.text(),
      [](StoreConnection& connection, Deadline limit) { return connection.read_bytes(limit); }));
  // An equal value would have been replaced: the echo of `expected` means that the key is missing.
  if (expected != desired && stored == expected) return std::string();
  return stored;
}

Result<void> TcpStore::wait(const std::vector<std::string>& keys, Deadline deadline) {
  MUSTER_TRY(internal::check_keys("wait", full(keys)));
  return wait_for_all("wait", keys, deadline);
}

Result<bool> TcpStore::check(const std::vector<std::string>& keys) {
  const std::vector<std::string> wire_keys = full(keys);
  MUSTER_TRY(internal::check_keys("check", wire_keys));
  const uint8_t state = MUSTER_TRY(
      ask("check", request_deadline(), keys_request(Opcode::kCheck, wire_keys),
          [](StoreConnection& connection, Deadline limit) { return connection.read_u8(limit); }));
  return state == internal::kCheckReady;
}

Result<bool> TcpStore::remove(std::string_view key) {
  const std::string wire_key = full(key);
  MUSTER_TRY(internal::check_key("remove", wire_key));
  WireWriter request;
  request.opcode(Opcode::kDeleteKey).bytes(wire_key);
  return MUSTER_TRY(ask_i64("remove", request.text())) != 0;
}

Result<void> TcpStore::append(std::string_view key, std::string_view value) {
  const std::string wire_key = full(key);
  MUSTER_TRY(internal::check_entry("append", wire_key, value));
  WireWriter request;
  request.opcode(Opcode::kAppend).bytes(wire_key).bytes(value);
  Result<void> done = write_and_confirm("append", std::move(request.text()));
  if (done.ok() || done.error().code() != ErrorCode::kPeerLost) return done;
  // Our server hangs up when the value would grow too large; a look at it tells.
  const auto before = try_get_raw("append", wire_key, Deadline::after(kLeastRequestLimit));
  if (before.ok() && *before) {
    MUSTER_TRY(internal::check_grown_value(key, std::ssize(**before) + std::ssize(value)));
  }
  return done;
}

Result<int64_t> TcpStore::num_keys() {
  WireWriter request;
  return ask_i64("num_keys", request.opcode(Opcode::kNumKeys).text());
}

Result<std::vector<std::string>> TcpStore::list_keys() {
  using Keys = std::vector<std::string>;
  WireWriter request;
  const auto read = [](StoreConnection& connection, Deadline limit) -> Result<Keys> {
    const int64_t count = MUSTER_TRY(connection.read_i64(limit));
    if (count < 0 || count > kMaxListedKeys) {
      return make_error(ErrorCode::kPeerLost, "it announced {} keys", count);
    }
    Keys listed;
    while (std::ssize(listed) < count) listed.push_back(MUSTER_TRY(connection.read_bytes(limit)));
    return listed;
  };
  Keys keys = MUSTER_TRY(
      ask("list_keys", request_deadline(), request.opcode(Opcode::kListKeys).text(), read));
  if (options_.c10d_key_prefix) {
    std::erase_if(keys, [](const std::string& key) { return !key.starts_with('/'); });
    for (std::string& key : keys) key.erase(0, 1);
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

void TcpStore::cancel() { connections_->cancel(); }

std::string TcpStore::describe() const { return connections_->describe(); }

}  // namespace muster
