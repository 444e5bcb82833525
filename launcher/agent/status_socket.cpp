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
constexpr Duration kStayLimit = 10s;
constexpr size_t kMaxClients = 64;
constexpr int kAnswersPerTurn = 64;

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

net::UniqueFd open_socket(int flags) {
  return net::UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
}
}  // namespace

StatusSocket::StatusSocket(EventLoop& loop, std::string path, net::UniqueFd fd, net::Alarm alarm,
                           std::function<std::string()> tell)
    : loop_(loop),
      path_(std::move(path)),
      acceptor_(std::move(fd)),
      alarm_(std::move(alarm)),
      tell_(std::move(tell)),
      clients_(kMaxClients, kStayLimit),
      refusals_("status socket", {}) {
  loop_.add(acceptor_.fd(), EPOLLIN, [this](uint32_t) { answer_some(); });
  loop_.add(alarm_.fd(), EPOLLIN, [this](uint32_t) { expire(); });
}

StatusSocket::~StatusSocket() {
  loop_.remove(acceptor_.fd());
  loop_.remove(alarm_.fd());
  while (const std::optional<Client> client = clients_.take_oldest()) {
    loop_.remove(client->fd.get());
  }
  ::unlink(path_.c_str());
}

Result<std::unique_ptr<StatusSocket>> StatusSocket::open(EventLoop& loop, const std::string& path,
                                                         std::function<std::string()> tell) {
  const sockaddr_un address = MUSTER_TRY(address_of(path));
  net::UniqueFd fd = open_socket(SOCK_NONBLOCK);
  const auto* raw = reinterpret_cast<const sockaddr*>(&address);
  if (!fd || ::fchmod(fd.get(), 0600) != 0 || ::bind(fd.get(), raw, sizeof(address)) != 0 ||
      ::chmod(path.c_str(), 0600) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    return make_error(ErrorCode::kIo, "socket {}: {}", path, errno_text(errno));
  }
  return std::unique_ptr<StatusSocket>(
      new StatusSocket(loop, path, std::move(fd), MUSTER_TRY(net::Alarm::open()), std::move(tell)));
}

void StatusSocket::answer_some() {
  std::string text;
  for (int i = 0; i < kAnswersPerTurn; ++i) {
    net::Incoming incoming;
    const net::Acceptor::Outcome outcome = acceptor_.accept(incoming);
    if (outcome == net::Acceptor::Outcome::kNobody) break;
    if (outcome == net::Acceptor::Outcome::kNoDescriptors) {
      make_room();
      continue;
    }
    if (text.empty()) text = tell_();
    answer(std::move(incoming.fd), text);
  }
  expire();
}

void StatusSocket::answer(net::UniqueFd fd, const std::string& text) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return;
  Client client{.fd = std::move(fd), .name = fmt::format("process {}", peer.pid)};
  if (peer.uid != ::geteuid() && peer.uid != 0) {
    return refuse(std::move(client), Kind::kOtherUser, "it is another user's");
  }
  const int raw = client.fd.get();
  ::setsockopt(raw, SOL_SOCKET, SO_SNDBUF, &kBufferNbytes, sizeof(kBufferNbytes));
  // It fits the buffer, or the client gets half of it and says so.
  const ssize_t sent = ::send(raw, text.data(), text.size(), MSG_NOSIGNAL);
  static_cast<void>(sent);
  ::shutdown(raw, SHUT_WR);
  const uint64_t id = ++last_id_;
  if (!loop_.add(raw, EPOLLIN, [this, id](uint32_t) { on_client(id); })) return;
  std::optional<Client> oldest = clients_.add(id, std::move(client), real_clock().now());
  if (oldest) {
    refuse(std::move(*oldest), Kind::kTooMany,
           fmt::format("{} others have their answer and do not go either", clients_.size()));
  }
}

void StatusSocket::make_room() {
  const std::string reason = "no file descriptor is left for it; raise the limit (ulimit -n)";
  if (std::optional<Client> oldest = clients_.take_oldest()) {
    return refuse(std::move(*oldest), Kind::kTooMany, reason);
  }
  acceptor_.drop_one();
  refuse({.fd = {}, .name = "a process"}, Kind::kTooMany, reason);
}

void StatusSocket::on_client(uint64_t id) {
  Client* const client = clients_.find(id);
  if (client == nullptr) return;
  char byte = 0;
  const ssize_t n = ::recv(client->fd.get(), &byte, 1, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  Client gone = *clients_.take(id);
  if (n > 0) {
    refuse(std::move(gone), Kind::kSaysSomething, "it must read its answer and say nothing");
  } else {
    loop_.remove(gone.fd.get());
  }
  expire();
}

void StatusSocket::refuse(Client client, Kind kind, const std::string& reason) {
  loop_.remove(client.fd.get());
  refusals_.add(client.name, "", static_cast<int>(kind), reason, real_clock().now());
}

void StatusSocket::expire() {
  while (std::optional<Client> late = clients_.take_late(real_clock().now())) {
    refuse(std::move(*late), Kind::kTooSlow,
           fmt::format("it must go within {}", format_duration(kStayLimit)));
  }
  alarm_.set(clients_.next_limit());
}

Result<std::string> read_status(const std::string& path) {
  const sockaddr_un address = MUSTER_TRY(address_of(path));
  const Deadline deadline = Deadline::after(kAnswerLimit);
  const net::UniqueFd fd = open_socket(0);
  // Others may wait in front of it: this bounds connect(2), too.
  const timeval limit{.tv_sec = kAnswerLimit / 1s, .tv_usec = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  const auto* raw = reinterpret_cast<const sockaddr*>(&address);
  if (!fd || ::connect(fd.get(), raw, sizeof(address)) != 0) {
    const ErrorCode code = errno == ECONNREFUSED || errno == ENOENT ? ErrorCode::kNotFound
                           : errno == EAGAIN                        ? ErrorCode::kTimeout
                                                                    : ErrorCode::kIo;
    return make_error(code, "job socket {}: {}", path, errno_text(errno));
  }
  std::string text;
  std::array<char, 65536> buffer;
  while (true) {
    pollfd ready{.fd = fd.get(), .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, deadline.poll_ms()) == 0) {
      return make_error(ErrorCode::kTimeout, "job socket {}: the agent must answer within {}", path,
                        format_duration(kAnswerLimit));
    }
    const ssize_t n = ::recv(fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n == 0) return text;
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
      return make_error(ErrorCode::kIo, "job socket {}: {}", path, errno_text(errno));
    }
    if (n > 0) text.append(buffer.data(), static_cast<size_t>(n));
  }
}

}  // namespace muster
