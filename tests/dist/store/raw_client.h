#pragma once
/// A plain TCP connection for tests: it sends any bytes and knows no protocol.

#include <string>
#include <string_view>

#include "core/base/time.h"

namespace muster::testing {

class RawClient {
 public:
  /// Connects to 127.0.0.1. @error throws kPeerLost
  explicit RawClient(int port);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  /// Sends all bytes; false when the server has closed the connection.
  bool send(std::string_view bytes);
  /// Sends what the socket takes without waiting; returns how many bytes.
  size_t send_some(std::string_view bytes);
  /// Reads exactly this many bytes; fewer when the stream ends or 20 s pass.
  std::string read(size_t nbytes);
  /// True when the stream ends, without a byte before, within 20 s.
  bool ends();
  /// True when there is nothing to read now and the stream has not ended.
  bool is_quiet();
  /// Ends the sending side only.
  void end_sending();
  /// Closes with a reset instead of an orderly end.
  void reset();

  /// VALIDATE, and a PING whose echo is checked. False when the server refuses.
  bool shake_hands();
  /// A PING is answered: all that was sent before is served.
  bool ping();

 private:
  int fd_;
};

/// The bytes of "00cef7853c".
std::string from_hex(std::string_view hex);
std::string to_hex(std::string_view bytes);

}  // namespace muster::testing
