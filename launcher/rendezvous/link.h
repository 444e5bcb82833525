#pragma once
/// Connections between agents: messages in and out, nothing else.
///
/// The one implementation is a shared library that is loaded only where a job has several nodes,
/// because gRPC takes longer to load than a whole job on one node takes to start. Its threads only
/// fill a queue; the agent empties it when ready_fd() is readable. Knows no rounds and no tokens.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "launcher/rendezvous/messages.h"

namespace muster {

struct LinkEvent {
  enum class Kind : uint8_t { kOpened, kMessage, kClosed };
  Kind kind = Kind::kMessage;
  uint64_t peer = 0;  ///< numbers are never used again; a client's only peer is 1
  Message message;    ///< for kMessage
  std::string text;   ///< kOpened: the peer's address; kClosed: why
};

/// @thread all functions: one thread
class Link {
 public:
  Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  /// Closes everything and joins the threads.
  virtual ~Link() = default;

  /// Readable while events wait.
  [[nodiscard]] virtual int ready_fd() const = 0;
  /// The events since the last call, each peer's in order.
  virtual std::vector<LinkEvent> take() = 0;
  /// Sends soon, in order; a message to a peer that is gone is dropped.
  virtual void send(uint64_t peer, const Message& message) = 0;
  /// Closes after what was sent before; kClosed follows.
  virtual void close(uint64_t peer) = 0;
  /// Where a server listens.
  [[nodiscard]] virtual int port() const = 0;
};

struct LinkOptions {
  bool is_server = false;
  std::string address;  ///< numeric "host:port", with port 0 for any; "[::1]:0" for IPv6
};

/// What the shared library exports, under kOpenLinkSymbol: a Link, or null and `error`.
/// `is_taken` tells that another process listens there already.
using OpenLinkFn = Link* (*)(const LinkOptions& options, std::string& error, bool& is_taken);
inline constexpr const char* kOpenLinkSymbol = "muster_open_link";

/// A server's address that another process has already.
inline constexpr ErrorCode kAddressTaken = ErrorCode::kFailedPrecondition;

/// Loads the library that lies beside this program and opens a link. A client connects in the
/// background and keeps trying.
/// @error kNotFound the library; kAddressTaken; kIo the address is not one of this machine
Result<std::unique_ptr<Link>> open_link(const LinkOptions& options);

}  // namespace muster
