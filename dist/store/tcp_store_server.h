#pragma once
/// Serves a store over TCP to our clients and to unmodified PyTorch scripts (c10d TCPStore).
///
/// One thread, any number of connections: a peer that is silent, half-way through a request or does
/// not read its replies delays nobody else. What is not the protocol closes that connection at once
/// and is reported. Not durable: the keys go with the server.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/base/result.h"
#include "core/base/time.h"
#include "core/base/units.h"

namespace muster {

struct TcpStoreServerOptions {
  std::string host = "127.0.0.1";  ///< address to bind; "0.0.0.0" or "::" for all
  int port = 0;                    ///< 0: the system chooses
  int listen_fd = -1;              ///< >= 0: adopt this listening socket (and own it) instead
  /// When set, a connection must prove that it knows it before anything else; PyTorch's clients
  /// cannot. @unit any bytes
  std::string required_token = {};
  Bytes max_memory = 1_GiB;         ///< keys, values, and what connections hold
  int64_t max_connections = 65536;  ///< further ones are closed at once
  Duration handshake_limit = 10s;   ///< for VALIDATE and the token to arrive
  /// Told of each refused connection, once a minute for each peer address and kind of reason.
  /// Default: a warning in the log. @thread the server's own; must not block
  std::function<void(const std::string&)> on_reject = {};
};

class TcpStoreServer {
 public:
  /// Binds, listens and starts the thread.
  /// @error kIo the address is taken or not local; kNotFound no such host
  static Result<std::unique_ptr<TcpStoreServer>> open(TcpStoreServerOptions options);

  /// Stops.
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  /// The port that it listens on.
  [[nodiscard]] int port() const noexcept;

  /// Closes every connection and joins the thread; waiting clients see kPeerLost. Idempotent.
  void stop();

  /// Connections that are open now. @thread any
  [[nodiscard]] int64_t num_connections() const noexcept;
  /// Memory that counts against max_memory, as of the last request. @thread any
  [[nodiscard]] Bytes memory() const noexcept;

 private:
  class Loop;
  explicit TcpStoreServer(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace muster
