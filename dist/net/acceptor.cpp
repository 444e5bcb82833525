#include "dist/net/acceptor.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace muster::net {
namespace {
constexpr rlim_t kMinStrangers = 16;
constexpr rlim_t kMaxStrangers = 1024;

UniqueFd open_spare() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

// An IPv4 peer of a socket for both families has an address of its own form there.
SocketAddress plain(const SocketAddress& address) {
  if (address.storage.ss_family != AF_INET6) return address;
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
  if (!IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) return address;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = v6.sin6_port;
  std::memcpy(&v4.sin_addr, &v6.sin6_addr.s6_addr[12], sizeof(v4.sin_addr));
  SocketAddress result;
  std::memcpy(&result.storage, &v4, sizeof(v4));
  result.nbytes = sizeof(v4);
  return result;
}
}  // namespace

Acceptor::Acceptor(UniqueFd listener) : listener_(std::move(listener)), spare_(open_spare()) {}

Acceptor::Outcome Acceptor::accept(Incoming& incoming) {
  while (true) {
    SocketAddress address;
    address.nbytes = sizeof(address.storage);
    UniqueFd fd(::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&address.storage),
                          &address.nbytes, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      const bool is_full = errno == EMFILE || errno == ENFILE;
      return is_full ? Outcome::kNoDescriptors : Outcome::kNobody;
    }
    const SocketAddress from = plain(address);
    incoming.fd = std::move(fd);
    incoming.address = address_text(from);
    incoming.peer = endpoint_text(incoming.address, port_of(from));
    return Outcome::kCame;
  }
}

void Acceptor::drop_one() {
  spare_.reset();
  UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)).reset();
  spare_ = open_spare();
}

size_t strangers_that_fit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMinStrangers;
  return static_cast<size_t>(std::clamp(limit.rlim_cur / 8, kMinStrangers, kMaxStrangers));
}

}  // namespace muster::net
