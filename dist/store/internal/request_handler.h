#pragma once
/// The tcp store's server without its sockets: requests in, replies out, waits kept and released.
///
/// A WAIT ends when all its keys exist at the same time. It is registered for one missing key only,
/// so that a long list costs one step a key and not one a pair. Runs on one thread.

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dist/store/internal/key_table.h"
#include "dist/store/internal/server_connection.h"
#include "dist/store/internal/wire.h"

namespace muster::internal {

class RequestHandler {
 public:
  RequestHandler(std::string required_token, int64_t max_nbytes);

  /// Serves the requests at the start of `data`; returns how many bytes that took. Stops before a
  /// request that is incomplete, while too many replies are unsent, and at a rejection.
  size_t consume(ServerConnection& connection, std::string_view data);

  /// Must be called before a connection goes.
  void forget(ServerConnection& connection);

  /// Connections that got replies since the last call.
  std::vector<ServerConnection*> take_touched();

  /// Counts what the connection holds now.
  void charge(ServerConnection& connection);
  /// True when `extra_nbytes` more would exceed the limit.
  [[nodiscard]] bool would_exceed(int64_t extra_nbytes) const;
  [[nodiscard]] int64_t nbytes() const;

  /// True while replies wait that the peer does not take; its requests must wait too.
  [[nodiscard]] static bool is_congested(const ServerConnection& connection);

 private:
  enum class Step { kDone, kShort, kReject };

  Step step(ServerConnection& connection, WireReader& reader);
  Step handshake(ServerConnection& connection, WireReader& reader);
  Step validate(ServerConnection& connection, WireReader& reader);
  Step begin_auth(ServerConnection& connection, WireReader& reader);
  Step prove(ServerConnection& connection, WireReader& reader);
  Step request(ServerConnection& connection, WireReader& reader);
  Step key_request(ServerConnection& connection, Opcode opcode, WireReader& reader);
  Step begin_list(ServerConnection& connection, Opcode opcode, WireReader& reader);
  Step list_element(ServerConnection& connection, WireReader& reader);
  Step finish_list(ServerConnection& connection);

  Step on_set(ServerConnection& connection, WireReader& reader);
  Step on_compare_set(ServerConnection& connection, WireReader& reader);
  Step on_add(ServerConnection& connection, WireReader& reader);
  Step on_append(ServerConnection& connection, WireReader& reader);
  Step on_barrier(ServerConnection& connection, WireReader& reader);
  Step on_queue_push(ServerConnection& connection, WireReader& reader);
  Step on_list_keys(ServerConnection& connection);
  void pop_queue(ServerConnection& connection, const std::string& key);

  [[nodiscard]] static Step reject(ServerConnection& connection, RejectKind kind,
                                   std::string reason);
  [[nodiscard]] static Step unfinished(ServerConnection& connection, const WireReader& reader);
  [[nodiscard]] Step out_of_memory(ServerConnection& connection, int64_t extra_nbytes) const;

  WireWriter& reply();
  void send(ServerConnection& connection);
  void send_value(ServerConnection& connection, const SharedBytes& value);
  void touch(ServerConnection& connection);

  [[nodiscard]] bool exists(const std::string& key) const;
  [[nodiscard]] bool satisfied(const PendingWait& wait, const std::string& key) const;
  Step begin_wait(ServerConnection& connection, PendingWait wait);
  /// Answers the wait if it is satisfied, else registers it for a key that is missing.
  bool release_or_watch(ServerConnection& connection);
  void cancel_wait(ServerConnection& connection);
  void wake(const std::string& key, bool only_one = false);

  const std::string required_token_;
  const int64_t max_nbytes_;
  KeyTable table_;
  std::unordered_map<std::string, std::deque<SharedBytes>> queues_;
  int64_t queue_overhead_nbytes_ = 0;
  int64_t connection_nbytes_ = 0;
  std::unordered_map<std::string, std::vector<ServerConnection*>> watchers_;  // in order of arrival
  std::vector<ServerConnection*> touched_;
  WireWriter reply_;
};

}  // namespace muster::internal
