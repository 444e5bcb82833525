#pragma once
/// The connections of one tcp store's client: one for each exchange in flight, kept for the next.
///
/// So a thread that waits for a key never holds up another. After an error a connection is dropped,
/// because its replies may be out of step; the exchange is not repeated.

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dist/net/sockets.h"
#include "dist/store/internal/messages.h"
#include "dist/store/internal/store_connection.h"

namespace muster::internal {

class ConnectionPool {
 public:
  struct Endpoint {
    std::string host;
    int port = 0;
    std::string token;
  };

  /// Connects once, trying again with growing pauses until `deadline`. Later connections go to the
  /// address found here, and fail at once when nothing listens any more.
  /// @error kTimeout says what failed last; kFailedPrecondition when a retry is in vain
  static Result<std::unique_ptr<ConnectionPool>> open(Endpoint endpoint, Deadline deadline);

  /// Runs `body(connection, deadline)`, which sends a request and reads its whole reply.
  /// @error those of the body, with the operation and the server named; kAborted after cancel()
  template <typename Body>
  auto exchange(std::string_view operation, Deadline deadline, const Body& body)
      -> decltype(body(std::declval<StoreConnection&>(), deadline)) {
    if (cancelled_) return cancelled(operation, describe());
    Result<StoreConnection> connection = acquire(deadline);
    if (!connection.ok()) return explain(operation, connection.error());
    auto outcome = body(connection.value(), deadline);
    if (!outcome.ok()) return explain(operation, outcome.error());
    release(std::move(connection).value());
    return outcome;
  }

  /// Ends all exchanges now and for ever. @thread any
  void cancel();

  /// "tcp 127.0.0.1:29500".
  [[nodiscard]] std::string describe() const;

 private:
  ConnectionPool(Endpoint endpoint, net::WakeUp cancel_signal)
      : endpoint_(std::move(endpoint)), cancel_signal_(std::move(cancel_signal)) {}

  Result<void> connect(Deadline deadline);
  Result<StoreConnection> connect_to_any(Deadline deadline);
  Result<StoreConnection> acquire(Deadline deadline);
  void release(StoreConnection connection);
  [[nodiscard]] Error explain(std::string_view operation, const Error& error) const;

  const Endpoint endpoint_;
  const net::WakeUp cancel_signal_;
  net::SocketAddress address_;  // set by open(): looked up once
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;  // guards idle_
  std::vector<StoreConnection> idle_;
};

}  // namespace muster::internal
