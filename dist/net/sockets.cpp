#include "dist/net/sockets.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace muster::net {
namespace {
constexpr int kListenBacklog = 4096;

struct Lookup {
  int status = 0;
  std::vector<SocketAddress> addresses;
};

Lookup look_up(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  Lookup lookup;
  const char* node = host.empty() ? nullptr : host.c_str();
  lookup.status = getaddrinfo(node, std::to_string(port).c_str(), &hints, &list);
  if (lookup.status != 0) return lookup;
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, at->ai_addr, at->ai_addrlen);
    address.nbytes = at->ai_addrlen;
    lookup.addresses.push_back(address);
  }
  freeaddrinfo(list);
  return lookup;
}

Error not_found(const std::string& host, int status) {
  return make_error(ErrorCode::kNotFound, "resolve: host \"{}\" must have an address; got {}", host,
                    gai_strerror(status));
}
}  // namespace

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int UniqueFd::release() noexcept { return std::exchange(fd_, -1); }

void UniqueFd::reset() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

std::string address_text(const SocketAddress& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (address.storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address.storage);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
  } else if (address.storage.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  }
  return text;
}

int port_of(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address.storage).sin_port);
  }
  if (address.storage.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_port);
  }
  return 0;
}

std::string endpoint_text(const std::string& host, int port) {
  const bool bracket = host.find(':') != std::string::npos;
  return bracket ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

Result<WakeUp> WakeUp::open() {
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) return make_error(ErrorCode::kIo, "eventfd: {}", errno_text(errno));
  return WakeUp(std::move(fd));
}

void WakeUp::raise() const noexcept {
  // It fails only when the counter is at its end, and then it is readable already.
  [[maybe_unused]] const int ignored = ::eventfd_write(fd_.get(), 1);
}

void WakeUp::clear() const noexcept {
  eventfd_t count = 0;
  [[maybe_unused]] const int ignored = ::eventfd_read(fd_.get(), &count);
}

Result<UniqueFd> listen_on(const std::string& host, int port) {
  const Lookup lookup = look_up(host, port, AI_PASSIVE);
  if (lookup.status != 0) return not_found(host, lookup.status);
  std::string reason;
  for (const SocketAddress& address : lookup.addresses) {
    UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    const int off = 0;
    if (fd) {
      ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
      if (address.storage.ss_family == AF_INET6) {
        ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
      }
      const auto* raw = reinterpret_cast<const sockaddr*>(&address.storage);
      if (::bind(fd.get(), raw, address.nbytes) == 0 && ::listen(fd.get(), kListenBacklog) == 0) {
        return fd;
      }
    }
    reason = errno_text(errno);
  }
  return make_error(ErrorCode::kIo, "listen: address {} must be free and local; got {}",
                    endpoint_text(host, port), reason);
}

Result<SocketAddress> local_address(int fd) {
  SocketAddress address;
  address.nbytes = sizeof(address.storage);
  auto* raw = reinterpret_cast<sockaddr*>(&address.storage);
  if (::getsockname(fd, raw, &address.nbytes) != 0) {
    return make_error(ErrorCode::kIo, "getsockname: fd {}: {}", fd, errno_text(errno));
  }
  return address;
}

Result<std::vector<SocketAddress>> resolve(const std::string& host, int port, Deadline deadline) {
  Lookup numeric = look_up(host, port, AI_NUMERICHOST);
  if (numeric.status == 0) return std::move(numeric.addresses);

  // getaddrinfo cannot be interrupted, so it runs aside; a resolver that hangs keeps only that
  // thread and the state that it shares.
  struct Answer {
    std::mutex mutex;
    std::condition_variable arrived;
    std::optional<Lookup> lookup;
  };
  const auto answer = std::make_shared<Answer>();
  std::thread([answer, host, port] {
    Lookup lookup = look_up(host, port, 0);
    const std::lock_guard lock(answer->mutex);
    answer->lookup = std::move(lookup);
    answer->arrived.notify_all();
  }).detach();

  std::unique_lock lock(answer->mutex);
  while (!answer->lookup) {
    if (deadline.passed()) {
      return make_error(ErrorCode::kTimeout,
                        "resolve: the resolver must answer before the deadline; host \"{}\"", host);
    }
    if (deadline.is_never()) {
      answer->arrived.wait(lock);
    } else {
      answer->arrived.wait_for(lock, deadline.left());
    }
  }
  if (answer->lookup->status != 0) return not_found(host, answer->lookup->status);
  return std::move(answer->lookup->addresses);
}

Result<PollOutcome> poll_fd(int fd, short events, Deadline deadline, int cancel_fd) {
  pollfd polled[2] = {{fd, events, 0}, {cancel_fd, POLLIN, 0}};
  while (true) {
    const int ready = ::poll(polled, 2, deadline.poll_ms());
    if (ready < 0 && errno != EINTR) {
      return make_error(ErrorCode::kIo, "poll: fd {}: {}", fd, errno_text(errno));
    }
    if (ready > 0 && polled[1].revents != 0) return PollOutcome::kCancelled;
    if (ready > 0 && polled[0].revents != 0) return PollOutcome::kReady;
    if (deadline.passed()) return PollOutcome::kTimeout;
  }
}

Result<UniqueFd> connect_to(const SocketAddress& address, Deadline deadline, int cancel_fd) {
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return make_error(ErrorCode::kIo, "socket: {}", errno_text(errno));
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const auto lost = [](int error) {
    return make_error(ErrorCode::kPeerLost, "connect: {}", errno_text(error));
  };
  const auto* raw = reinterpret_cast<const sockaddr*>(&address.storage);
  if (::connect(fd.get(), raw, address.nbytes) != 0 && errno != EINPROGRESS) return lost(errno);
  switch (MUSTER_TRY(poll_fd(fd.get(), POLLOUT, deadline, cancel_fd))) {
    case PollOutcome::kTimeout:
      return make_error(ErrorCode::kTimeout, "connect: timed out");
    case PollOutcome::kCancelled:
      return make_error(ErrorCode::kAborted, "connect: cancelled");
    case PollOutcome::kReady:
      break;
  }
  int error = 0;
  socklen_t nbytes = sizeof(error);
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &nbytes);
  if (error != 0) return lost(error);
  // Without a listener on an ephemeral port, a socket may be given that very port and meet itself.
  const SocketAddress own = MUSTER_TRY(local_address(fd.get()));
  if (port_of(own) == port_of(address) && address_text(own) == address_text(address)) {
    return lost(ECONNREFUSED);
  }
  return fd;
}

}  // namespace muster::net
