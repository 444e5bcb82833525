#pragma once
/// Takes connections from a listening socket, also when no descriptor is left.
///
/// Such a connection would stay in the backlog and keep an event loop awake for ever, so one
/// descriptor is kept in reserve to take it and let it go.

#include <string>

#include "dist/net/sockets.h"

namespace muster::net {

/// A connection as it came, non-blocking.
struct Incoming {
  UniqueFd fd;
  std::string address;  ///< numeric, IPv4 also on a socket of both families; "?" of a unix socket
  std::string peer;     ///< "address:port"
};

class Acceptor {
 public:
  enum class Outcome {
    kCame,
    kNobody,         ///< nobody waits
    kNoDescriptors,  ///< somebody waits, and this process has no descriptor for it
  };

  /// Owns the listener.
  explicit Acceptor(UniqueFd listener);
  [[nodiscard]] int fd() const noexcept { return listener_.get(); }

  Outcome accept(Incoming& incoming);
  /// After kNoDescriptors: lets go of the one that waits longest.
  void drop_one();

 private:
  UniqueFd listener_;
  UniqueFd spare_;
};

/// How many connections one kind of stranger may hold here: an eighth of the descriptors that this
/// process may have, 1024 at most.
size_t strangers_that_fit();

}  // namespace muster::net
