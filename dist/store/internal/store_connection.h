#pragma once
/// One connection of a tcp store's client: bytes out and in, each with a deadline.
///
/// Used by one thread at a time. After any error it is unusable: replies could be out of step.
/// Reads while it sends, so that a server that waits for its replies to be taken never blocks it.

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/result.h"
#include "core/base/time.h"
#include "dist/net/sockets.h"

namespace muster::internal {

/// @error (all) kTimeout; kPeerLost closed by the server, or not its protocol; kAborted cancelled
class StoreConnection {
 public:
  /// Connects and shakes hands; with a token, both sides prove that they know it.
  /// @error kFailedPrecondition token refused, or no TCPStore behind the port: a retry is in vain
  static Result<StoreConnection> open(const net::SocketAddress& address, std::string_view token,
                                      Deadline deadline, int cancel_fd);

  /// True for the error of open() that says no more than that the server hung up.
  static bool was_closed_in_handshake(const Error& error);

  Result<void> send(std::string_view bytes, Deadline deadline);
  Result<std::string> read(size_t nbytes, Deadline deadline);
  Result<uint8_t> read_u8(Deadline deadline);
  Result<uint32_t> read_u32(Deadline deadline);
  Result<int64_t> read_i64(Deadline deadline);
  /// A length and the bytes.
  Result<std::string> read_bytes(Deadline deadline);

  /// True while nothing has come that nobody asked for, such as the end of the stream.
  [[nodiscard]] bool is_quiet() const;

 private:
  StoreConnection(net::UniqueFd fd, int cancel_fd) : fd_(std::move(fd)), cancel_fd_(cancel_fd) {}

  Result<void> shake_hands(std::string_view token, Deadline deadline);
  Result<void> prove_token(std::string_view token, std::string_view client_nonce,
                           Deadline deadline);
  Result<void> poll(short events, std::string_view what, Deadline deadline) const;
  /// Receives what is there. @error kPeerLost; false: nothing was there
  Result<bool> receive();
  Result<uint64_t> read_integer(size_t nbytes, Deadline deadline);

  net::UniqueFd fd_;
  int cancel_fd_;
  std::string in_;  // received, not yet read; starts at in_at_
  size_t in_at_ = 0;
};

}  // namespace muster::internal
