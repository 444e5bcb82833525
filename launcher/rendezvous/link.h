#pragma once
/// Connections between agents: messages in and out, nothing else.
///
/// The one implementation is a shared library that is loaded only where a job has several nodes,
/// because gRPC takes longer to load than a whole job on one node takes to start. Its threads only
/// fill a queue; the agent empties it when ready_fd() is readable. Knows no rounds and no tokens.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "launcher/rendezvous/messages.h"

namespace muster {

struct LinkEvent {
  enum class Kind : uint8_t { kOpened, kMessage, kClosed, kRefused };
  Kind kind = Kind::kMessage;
  uint64_t peer = 0;  ///< numbers are never used again; a client's only peer is 1
  Message message;    ///< for kMessage
  std::string text;   ///< kOpened: "address:port" of the peer; kClosed: why; kRefused: who, and why
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
  /// This peer has proved who it is: limits for strangers hold for it no longer.
  virtual void trust(uint64_t /*peer*/) {}
  /// Where a server listens.
  [[nodiscard]] virtual int port() const = 0;
};

/// A server's end without a port of its own: it serves the connections that it is given.
class ServerLink : public Link {
 public:
  /// Serves one that is non-blocking and of which `received` has been read; owns `fd`.
  virtual void adopt(int fd, std::string_view received) = 0;
};

struct LinkOptions {
  bool is_server = false;
  std::string address;  ///< numeric "host:port", with port 0 for any; "[::1]:0" for IPv6
};

/// What the shared library exports; a server is null when it cannot be started.
using OpenClientFn = Link* (*)(const std::string& address);
using OpenServerFn = ServerLink* (*)();
inline constexpr const char* kOpenClientSymbol = "muster_open_client";
inline constexpr const char* kOpenServerSymbol = "muster_open_server";

/// A server's address at which it cannot listen; as a rule another process does.
inline constexpr ErrorCode kAddressTaken = ErrorCode::kFailedPrecondition;

/// Loads the library that lies beside this program and opens a link, a server's behind a Doorman. A
/// client connects in the background and keeps trying.
/// @error kNotFound the library; kAddressTaken; kIo
Result<std::unique_ptr<Link>> open_link(const LinkOptions& options);

}  // namespace muster
