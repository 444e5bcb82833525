#pragma once
/// TCP sockets with deadlines: listen, resolve, connect. Never asks for the name of an address.

#include <sys/socket.h>

#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/time.h"

namespace muster::net {

/// Owns one file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd() { reset(); }
  [[nodiscard]] int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept;
  void reset() noexcept;

 private:
  int fd_ = -1;
};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t nbytes = 0;
};

/// "127.0.0.1" or "::1": the address alone, always numeric.
std::string address_text(const SocketAddress& address);
/// The port; 0 for a family without ports.
int port_of(const SocketAddress& address);
/// "127.0.0.1:80" or "[::1]:80".
std::string endpoint_text(const std::string& host, int port);

/// An eventfd that is readable from the first raise() on.
class WakeUp {
 public:
  static Result<WakeUp> open();
  void raise() const noexcept;
  /// Makes it unreadable again.
  void clear() const noexcept;
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

 private:
  explicit WakeUp(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

/// A listening, non-blocking socket. @error kIo with address and errno text
Result<UniqueFd> listen_on(const std::string& host, int port);

/// The address that a socket is bound to. @error kIo
Result<SocketAddress> local_address(int fd);

/// Forward look-up; numeric hosts ask no name server. @blocks until `deadline` @error kTimeout
/// the resolver did not answer; kNotFound it knows no such host
Result<std::vector<SocketAddress>> resolve(const std::string& host, int port, Deadline deadline);

/// One connection attempt, non-blocking socket with TCP_NODELAY. @error kTimeout, kAborted when
/// `cancel_fd` becomes readable, else kPeerLost with errno text
Result<UniqueFd> connect_to(const SocketAddress& address, Deadline deadline, int cancel_fd);

enum class PollOutcome { kReady, kTimeout, kCancelled };
/// Waits for `events` on `fd` (-1: none). @error kIo
Result<PollOutcome> poll_fd(int fd, short events, Deadline deadline, int cancel_fd);

}  // namespace muster::net
