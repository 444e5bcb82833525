#include "launcher/agent/status_socket.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/base/time.h"

namespace muster {
namespace {
constexpr int kBufferNbytes = 1 << 20;
constexpr Duration kAnswerLimit = 2s;

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return make_error(ErrorCode::kIo, "socket {}: must have a path of at most {} bytes", path,
                      sizeof(address.sun_path) - 1);
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

UniqueFd open_socket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}
}  // namespace

StatusSocket::StatusSocket(EventLoop& loop, std::string path, UniqueFd fd,
                           std::function<std::string()> tell)
    : loop_(loop), path_(std::move(path)), fd_(std::move(fd)), tell_(std::move(tell)) {
  loop_.add(fd_.get(), EPOLLIN, [this](uint32_t) { answer(); });
}

StatusSocket::~StatusSocket() {
  loop_.remove(fd_.get());
  ::unlink(path_.c_str());
}

Result<std::unique_ptr<StatusSocket>> StatusSocket::open(EventLoop& loop, const std::string& path,
                                                         std::function<std::string()> tell) {
  const sockaddr_un address = MUSTER_TRY(address_of(path));
  UniqueFd fd = open_socket();
  const auto* raw = reinterpret_cast<const sockaddr*>(&address);
  if (!fd.is_open() || ::fchmod(fd.get(), 0600) != 0 ||
      ::bind(fd.get(), raw, sizeof(address)) != 0 || ::chmod(path.c_str(), 0600) != 0 ||
      ::listen(fd.get(), 16) != 0) {
    return make_error(ErrorCode::kIo, "socket {}: {}", path, errno_text(errno));
  }
  return std::unique_ptr<StatusSocket>(
      new StatusSocket(loop, path, std::move(fd), std::move(tell)));
}

void StatusSocket::answer() {
  const UniqueFd client(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!client.is_open()) return;
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(client.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
      (peer.uid != ::geteuid() && peer.uid != 0)) {
    return;
  }
  ::setsockopt(client.get(), SOL_SOCKET, SO_SNDBUF, &kBufferNbytes, sizeof(kBufferNbytes));
  const std::string text = tell_();
  // It fits the buffer, or the client gets half of it and says so.
  const ssize_t sent = ::send(client.get(), text.data(), text.size(), MSG_NOSIGNAL);
  static_cast<void>(sent);
}

Result<std::string> read_status(const std::string& path) {
  const sockaddr_un address = MUSTER_TRY(address_of(path));
  const UniqueFd fd = open_socket();
  const auto* raw = reinterpret_cast<const sockaddr*>(&address);
  if (!fd.is_open() || ::connect(fd.get(), raw, sizeof(address)) != 0) {
    const bool is_gone = errno == ECONNREFUSED || errno == ENOENT;
    return make_error(is_gone ? ErrorCode::kNotFound : ErrorCode::kIo, "job socket {}: {}", path,
                      errno_text(errno));
  }
  const Deadline deadline = Deadline::after(kAnswerLimit);
  std::string text;
  std::array<char, 65536> buffer;
  while (true) {
    pollfd ready{.fd = fd.get(), .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, deadline.poll_ms()) == 0) {
      return make_error(ErrorCode::kTimeout, "job socket {}: the agent must answer within {}", path,
                        format_duration(kAnswerLimit));
    }
    const ssize_t n = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
    if (n == 0) return text;
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
      return make_error(ErrorCode::kIo, "job socket {}: {}", path, errno_text(errno));
    }
    if (n > 0) text.append(buffer.data(), static_cast<size_t>(n));
  }
}

}  // namespace muster
