#include "dist/store/internal/request_handler.h"

#include <fmt/format.h>

#include <utility>

#include "core/base/units.h"
#include "dist/net/token.h"

namespace muster::internal {
namespace {
// Replies beyond this make a connection's further requests wait until the peer reads.
constexpr int64_t kCongestedNbytes = 1 << 20;
}  // namespace

RequestHandler::RequestHandler(std::string required_token, int64_t max_nbytes)
    : required_token_(std::move(required_token)), max_nbytes_(max_nbytes) {}

size_t RequestHandler::consume(ServerConnection& connection, std::string_view data) {
  size_t at = 0;
  while (at < data.size() && !is_congested(connection)) {
    WireReader reader(data.substr(at));
    if (step(connection, reader) != Step::kDone) break;
    at += reader.consumed();
  }
  return at;
}

RequestHandler::Step RequestHandler::step(ServerConnection& connection, WireReader& reader) {
  if (connection.list) return list_element(connection, reader);
  if (connection.stage != Stage::kReady) return handshake(connection, reader);
  return request(connection, reader);
}

// ---- handshake

RequestHandler::Step RequestHandler::handshake(ServerConnection& connection, WireReader& reader) {
  switch (connection.stage) {
    case Stage::kNew:
      return validate(connection, reader);
    case Stage::kChallenge:
      return begin_auth(connection, reader);
    default:
      return prove(connection, reader);
  }
}

RequestHandler::Step RequestHandler::validate(ServerConnection& connection, WireReader& reader) {
  const uint8_t opcode = reader.u8();
  if (opcode != static_cast<uint8_t>(Opcode::kValidate)) {
    return reject(connection, RejectKind::kProtocol,
                  fmt::format("the first byte must be VALIDATE (0), not {}: no TCPStore client, or "
                              "one of PyTorch before 2.1",
                              opcode));
  }
  const uint32_t magic = reader.u32();
  if (!reader.ok()) return unfinished(connection, reader);
  if (magic != kValidateMagic) {
    return reject(connection, RejectKind::kProtocol,
                  fmt::format("wrong magic {:#010x}; a TCPStore client sends {:#010x}", magic,
                              kValidateMagic));
  }
  connection.stage = required_token_.empty() ? Stage::kReady : Stage::kChallenge;
  return Step::kDone;
}

RequestHandler::Step RequestHandler::begin_auth(ServerConnection& connection, WireReader& reader) {
  if (reader.u8() != static_cast<uint8_t>(Opcode::kAuthBegin)) {
    return reject(connection, RejectKind::kToken,
                  "the peer must prove the job token; it sent none");
  }
  const std::string_view client_nonce = reader.raw(net::kNonceNbytes);
  if (!reader.ok()) return unfinished(connection, reader);
  connection.challenge = std::make_unique<Challenge>(
      Challenge{.client_nonce = std::string(client_nonce), .server_nonce = net::make_nonce()});
  connection.stage = Stage::kProof;
  reply().raw(connection.challenge->server_nonce);
  send(connection);
  return Step::kDone;
}

RequestHandler::Step RequestHandler::prove(ServerConnection& connection, WireReader& reader) {
  if (reader.u8() != static_cast<uint8_t>(Opcode::kAuthProof)) {
    return reject(connection, RejectKind::kToken, "AUTH_PROOF must follow AUTH_BEGIN");
  }
  const std::string_view proof = reader.raw(net::kProofNbytes);
  if (!reader.ok()) return unfinished(connection, reader);
  const auto& [client_nonce, server_nonce] = *connection.challenge;
  if (!net::equal_in_constant_time(
          proof, net::client_proof(required_token_, client_nonce, server_nonce))) {
    return reject(connection, RejectKind::kToken, "wrong job token");
  }
  reply().raw(net::server_proof(required_token_, client_nonce, server_nonce));
  send(connection);
  connection.challenge.reset();
  connection.stage = Stage::kReady;
  return Step::kDone;
}

// ---- requests

RequestHandler::Step RequestHandler::request(ServerConnection& connection, WireReader& reader) {
  const uint8_t code = reader.u8();
  const auto opcode = static_cast<Opcode>(code);
  if (opcode != Opcode::kQueuePop) connection.owed_queue.clear();
  switch (opcode) {
    case Opcode::kSet:
      return on_set(connection, reader);
    case Opcode::kCompareSet:
      return on_compare_set(connection, reader);
    case Opcode::kAdd:
      return on_add(connection, reader);
    case Opcode::kAppend:
      return on_append(connection, reader);
    case Opcode::kBarrier:
      return on_barrier(connection, reader);
    case Opcode::kQueuePush:
      return on_queue_push(connection, reader);
    case Opcode::kGet:
    case Opcode::kDeleteKey:
    case Opcode::kQueuePop:
    case Opcode::kQueueLen:
      return key_request(connection, opcode, reader);
    case Opcode::kCheck:
    case Opcode::kWait:
    case Opcode::kMultiGet:
    case Opcode::kMultiSet:
      return begin_list(connection, opcode, reader);
    case Opcode::kListKeys:
      return on_list_keys(connection);
    case Opcode::kNumKeys:
      reply().i64(table_.num_keys());
      break;
    case Opcode::kCancelWait:
      cancel_wait(connection);
      reply().u8(kWaitCanceled);
      break;
    case Opcode::kPing: {
      const uint32_t nonce = reader.u32();
      if (!reader.ok()) return unfinished(connection, reader);
      reply().u32(nonce);
      break;
    }
    default:
      return reject(connection, RejectKind::kProtocol,
                    fmt::format("{} is not a request here", opcode_name(code)));
  }
  send(connection);
  return Step::kDone;
}

// ---- waits

bool RequestHandler::exists(const std::string& key) const {
  return table_.contains(key) || queues_.contains(key);
}

bool RequestHandler::satisfied(const PendingWait& wait, const std::string& key) const {
  if (!wait.barrier_world) return exists(key);
  const SharedBytes value = table_.find(key);
  const std::optional<int64_t> count = value ? parse_counter(value->bytes()) : std::nullopt;
  return count && *count >= *wait.barrier_world;
}

RequestHandler::Step RequestHandler::begin_wait(ServerConnection& connection, PendingWait wait) {
  if (connection.wait) {
    return reject(connection, RejectKind::kProtocol, "WAIT while another wait is pending");
  }
  connection.wait = std::make_unique<PendingWait>(std::move(wait));
  release_or_watch(connection);
  return Step::kDone;
}

bool RequestHandler::release_or_watch(ServerConnection& connection) {
  PendingWait& wait = *connection.wait;
  const size_t count = wait.keys.size();
  for (size_t i = 0; i < count; ++i) {
    const size_t at = (wait.watched + i) % count;
    if (satisfied(wait, wait.keys[at])) continue;
    wait.watched = at;
    watchers_[wait.keys[at]].push_back(&connection);
    return false;
  }
  connection.wait.reset();
  charge(connection);
  reply().u8(kStopWaiting);
  send(connection);
  return true;
}

void RequestHandler::cancel_wait(ServerConnection& connection) {
  if (!connection.wait) return;
  const auto found = watchers_.find(connection.wait->keys[connection.wait->watched]);
  if (found != watchers_.end()) {
    std::erase(found->second, &connection);
    if (found->second.empty()) watchers_.erase(found);
  }
  connection.wait.reset();
}

void RequestHandler::wake(const std::string& key, bool only_one) {
  const auto found = watchers_.find(key);
  if (found == watchers_.end()) return;
  const std::vector<ServerConnection*> waiting = std::move(found->second);
  watchers_.erase(found);
  bool released = false;
  for (ServerConnection* connection : waiting) {
    if (only_one && released) {
      watchers_[key].push_back(connection);
      continue;
    }
    const bool now = release_or_watch(*connection);
    if (now && only_one) connection->owed_queue = key;
    released = released || now;
  }
}

void RequestHandler::forget(ServerConnection& connection) {
  cancel_wait(connection);
  connection_nbytes_ -= std::exchange(connection.charged_nbytes, 0);
  if (connection.touched) std::erase(touched_, &connection);
  // It was woken for an item that it will not pop now; the next in line may have it.
  if (queues_.contains(connection.owed_queue)) wake(connection.owed_queue, /*only_one=*/true);
}

// ---- replies and limits

WireWriter& RequestHandler::reply() {
  reply_.text().clear();
  return reply_;
}

void RequestHandler::send(ServerConnection& connection) {
  connection.out.add(reply_.text());
  if (reply_.text().capacity() > kCongestedNbytes) std::string().swap(reply_.text());
  touch(connection);
}

void RequestHandler::send_value(ServerConnection& connection, const SharedBytes& value) {
  if (value) {
    connection.out.add_value(value);
    touch(connection);
  } else {
    reply().bytes("");
    send(connection);
  }
}

void RequestHandler::touch(ServerConnection& connection) {
  if (std::exchange(connection.touched, true)) return;
  touched_.push_back(&connection);
}

std::vector<ServerConnection*> RequestHandler::take_touched() {
  for (ServerConnection* connection : touched_) connection->touched = false;
  return std::exchange(touched_, {});
}

RequestHandler::Step RequestHandler::reject(ServerConnection& connection, RejectKind kind,
                                            std::string reason) {
  connection.rejection = Rejection{kind, std::move(reason)};
  return Step::kReject;
}

RequestHandler::Step RequestHandler::unfinished(ServerConnection& connection,
                                                const WireReader& reader) {
  if (reader.state() == WireReader::State::kShort) return Step::kShort;
  return reject(connection, RejectKind::kLimit,
                fmt::format("a length of {} bytes; a key has at most {}, a value {}",
                            reader.refused_nbytes(), Store::kMaxKeyNbytes, Store::kMaxValueNbytes));
}

RequestHandler::Step RequestHandler::out_of_memory(ServerConnection& connection,
                                                   int64_t extra_nbytes) const {
  return reject(connection, RejectKind::kMemory,
                fmt::format("the store may hold {}; it holds {} and the request needs {} more",
                            format_bytes({max_nbytes_}), format_bytes({nbytes()}),
                            format_bytes({extra_nbytes})));
}

void RequestHandler::charge(ServerConnection& connection) {
  int64_t held = static_cast<int64_t>(connection.in.capacity()) + connection.out.own_nbytes();
  if (connection.list) held += connection.list->nbytes;
  if (connection.wait) held += connection.wait->nbytes;
  connection_nbytes_ += held - std::exchange(connection.charged_nbytes, held);
}

bool RequestHandler::would_exceed(int64_t extra_nbytes) const {
  return nbytes() + extra_nbytes > max_nbytes_;
}

int64_t RequestHandler::nbytes() const {
  return table_.nbytes() + queue_overhead_nbytes_ + connection_nbytes_;
}

bool RequestHandler::is_congested(const ServerConnection& connection) {
  return connection.out.pending_nbytes() > kCongestedNbytes;
}

}  // namespace muster::internal
