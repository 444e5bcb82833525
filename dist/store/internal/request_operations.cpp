// What each request does, one function an opcode; request_handler.cpp decides which one runs.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/units.h"
#include "dist/store/internal/request_handler.h"

namespace muster::internal {
namespace {
// All keys of one WAIT or CHECK together: 131072 keys of 8 KiB each would be 1 GiB.
constexpr int64_t kMaxKeyListNbytes = int64_t{64} << 20;
constexpr int64_t kItemOverheadNbytes = 96;  // a string or queue item beside its bytes

}  // namespace

RequestHandler::Step RequestHandler::key_request(ServerConnection& connection, Opcode opcode,
                                                 WireReader& reader) {
  const std::string key(reader.key());
  if (!reader.ok()) return unfinished(connection, reader);
  switch (opcode) {
    case Opcode::kGet:
      send_value(connection, table_.find(key));
      return Step::kDone;
    case Opcode::kQueuePop:
      pop_queue(connection, key);
      return Step::kDone;
    case Opcode::kDeleteKey:
      reply().i64(table_.remove(key) ? 1 : 0);
      break;
    default: {
      const auto queue = queues_.find(key);
      reply().i64(queue == queues_.end() ? 0 : std::ssize(queue->second));
    }
  }
  send(connection);
  return Step::kDone;
}

RequestHandler::Step RequestHandler::on_set(ServerConnection& connection, WireReader& reader) {
  const std::string key(reader.key());
  const std::string_view value = reader.value();
  if (!reader.ok()) return unfinished(connection, reader);
  if (would_exceed(std::ssize(value))) return out_of_memory(connection, std::ssize(value));
  table_.set(key, value);
  wake(key);
  return Step::kDone;
}

RequestHandler::Step RequestHandler::on_compare_set(ServerConnection& connection,
                                                    WireReader& reader) {
  const std::string key(reader.key());
  const std::string_view expected = reader.value();
  const std::string_view desired = reader.value();
  if (!reader.ok()) return unfinished(connection, reader);
  if (would_exceed(std::ssize(desired))) return out_of_memory(connection, std::ssize(desired));
  const auto outcome = table_.compare_set(key, expected, desired);
  if (outcome.stored) {
    send_value(connection, outcome.stored);
  } else {
    // PyTorch's clients expect their own expectation back when the key is missing.
    reply().bytes(expected);
    send(connection);
  }
  if (outcome.written) wake(key);
  return Step::kDone;
}

RequestHandler::Step RequestHandler::on_add(ServerConnection& connection, WireReader& reader) {
  const std::string key(reader.key());
  const int64_t delta = reader.i64();
  if (!reader.ok()) return unfinished(connection, reader);
  if (would_exceed(0)) return out_of_memory(connection, 0);
  const Result<int64_t> sum = table_.add(key, delta);
  if (!sum.ok()) return reject(connection, RejectKind::kLimit, sum.error().message());
  reply().i64(sum.value());
  send(connection);
  wake(key);
  return Step::kDone;
}

RequestHandler::Step RequestHandler::on_append(ServerConnection& connection, WireReader& reader) {
  const std::string key(reader.key());
  const std::string_view value = reader.value();
  if (!reader.ok()) return unfinished(connection, reader);
  if (would_exceed(std::ssize(value))) return out_of_memory(connection, std::ssize(value));
  const Result<void> done = table_.append(key, value);
  if (!done.ok()) return reject(connection, RejectKind::kLimit, done.error().message());
  wake(key);
  return Step::kDone;
}

RequestHandler::Step RequestHandler::on_barrier(ServerConnection& connection, WireReader& reader) {
  std::string key(reader.key());
  const int64_t world = reader.i64();
  if (!reader.ok()) return unfinished(connection, reader);
  if (connection.wait) {
    return reject(connection, RejectKind::kProtocol, "BARRIER while another wait is pending");
  }
  if (would_exceed(0)) return out_of_memory(connection, 0);
  const Result<int64_t> count = table_.add(key, 1);
  if (!count.ok()) return reject(connection, RejectKind::kLimit, count.error().message());
  wake(key);
  const int64_t nbytes = std::ssize(key) + kItemOverheadNbytes;
  return begin_wait(
      connection,
      {.keys = {std::move(key)}, .watched = 0, .barrier_world = world, .nbytes = nbytes});
}

RequestHandler::Step RequestHandler::on_list_keys(ServerConnection& connection) {
  int64_t nbytes = 8;
  for (const auto& [key, value] : table_.entries()) nbytes += 8 + std::ssize(key);
  if (would_exceed(nbytes)) return out_of_memory(connection, nbytes);
  reply().i64(table_.num_keys());
  for (const auto& [key, value] : table_.entries()) reply_.bytes(key);
  send(connection);
  return Step::kDone;
}

// ---- requests with a list of keys; they may be long, so each key is taken as it arrives

RequestHandler::Step RequestHandler::begin_list(ServerConnection& connection, Opcode opcode,
                                                WireReader& reader) {
  const uint64_t count = reader.u64();
  if (!reader.ok()) return unfinished(connection, reader);
  if (count > static_cast<uint64_t>(Store::kMaxKeysPerRequest)) {
    return reject(
        connection, RejectKind::kLimit,
        fmt::format("{} with {} keys; at most {}", opcode_name(static_cast<uint8_t>(opcode)), count,
                    Store::kMaxKeysPerRequest));
  }
  connection.list = std::make_unique<KeyListRequest>();
  connection.list->opcode = opcode;
  connection.list->num_remaining = count;
  return count == 0 ? finish_list(connection) : Step::kDone;
}

RequestHandler::Step RequestHandler::list_element(ServerConnection& connection,
                                                  WireReader& reader) {
  KeyListRequest& list = *connection.list;
  if (list.opcode == Opcode::kMultiSet) {
    const Step done = on_set(connection, reader);
    if (done != Step::kDone) return done;
  } else {
    std::string key(reader.key());
    if (!reader.ok()) return unfinished(connection, reader);
    if (list.opcode == Opcode::kMultiGet) {
      send_value(connection, table_.find(key));
    } else {
      list.nbytes += std::ssize(key) + kItemOverheadNbytes;
      if (list.nbytes > kMaxKeyListNbytes) {
        return reject(
            connection, RejectKind::kLimit,
            fmt::format("the keys of one request exceed {}", format_bytes({kMaxKeyListNbytes})));
      }
      list.keys.push_back(std::move(key));
    }
  }
  return --list.num_remaining == 0 ? finish_list(connection) : Step::kDone;
}

RequestHandler::Step RequestHandler::finish_list(ServerConnection& connection) {
  const std::unique_ptr<KeyListRequest> list = std::move(connection.list);
  if (list->opcode == Opcode::kWait) {
    PendingWait wait;
    wait.keys = std::move(list->keys);
    wait.nbytes = list->nbytes;
    return begin_wait(connection, std::move(wait));
  }
  if (list->opcode == Opcode::kCheck) {
    const bool ready = std::all_of(list->keys.begin(), list->keys.end(),
                                   [&](const std::string& key) { return exists(key); });
    reply().u8(ready ? kCheckReady : kCheckNotReady);
    send(connection);
  }
  return Step::kDone;
}

// ---- queues

RequestHandler::Step RequestHandler::on_queue_push(ServerConnection& connection,
                                                   WireReader& reader) {
  const std::string key(reader.key());
  const std::string_view value = reader.value();
  if (!reader.ok()) return unfinished(connection, reader);
  if (would_exceed(std::ssize(value))) return out_of_memory(connection, std::ssize(value));
  queues_[key].push_back(table_.hold(value));
  queue_overhead_nbytes_ += std::ssize(key) + kItemOverheadNbytes;
  wake(key, /*only_one=*/true);
  return Step::kDone;
}

void RequestHandler::pop_queue(ServerConnection& connection, const std::string& key) {
  connection.owed_queue.clear();
  const auto found = queues_.find(key);
  reply().i64(found == queues_.end() ? 0 : std::ssize(found->second));
  send(connection);
  if (found == queues_.end()) return;
  send_value(connection, found->second.front());
  found->second.pop_front();
  queue_overhead_nbytes_ -= std::ssize(key) + kItemOverheadNbytes;
  if (found->second.empty()) {
    queues_.erase(found);
  } else {
    wake(key, /*only_one=*/true);
  }
}

}  // namespace muster::internal
