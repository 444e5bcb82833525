#include "launcher/agent/open_rendezvous.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "launcher/agent/unique_fd.h"

namespace muster {
namespace {
using Role = JobSpec::Rendezvous::Role;

constexpr int kTries = 3;

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  std::string numeric;  ///< "10.0.0.1" or "::1"

  [[nodiscard]] std::string with_port(int port) const {
    return storage.ss_family == AF_INET6 ? fmt::format("[{}]:{}", numeric, port)
                                         : fmt::format("{}:{}", numeric, port);
  }
};

Result<std::vector<Address>> resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    return make_error(ErrorCode::kNotFound, "rendezvous: host \"{}\" must be known; got {}", host,
                      ::gai_strerror(error));
  }
  std::vector<Address> addresses;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    Address& address = addresses.emplace_back();
    std::memcpy(&address.storage, at->ai_addr, at->ai_addrlen);
    address.length = at->ai_addrlen;
    std::array<char, NI_MAXHOST> text{};
    ::getnameinfo(at->ai_addr, at->ai_addrlen, text.data(), text.size(), nullptr, 0,
                  NI_NUMERICHOST);
    address.numeric = text.data();
  }
  ::freeaddrinfo(found);
  return addresses;
}

// Tries to bind: errno, or 0 when this process may listen there.
int bind_error(const Address& address) {
  const UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int one = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  const auto* raw = reinterpret_cast<const sockaddr*>(&address.storage);
  if (::bind(fd.get(), raw, address.length) != 0) return errno;
  // Two sockets may be bound with SO_REUSEADDR, but only one may listen.
  return ::listen(fd.get(), 1) == 0 ? 0 : errno;
}

Result<RendezvousLink> connect_to(const Address& address, int port) {
  RendezvousLink opened;
  opened.address = address.numeric;
  opened.link = MUSTER_TRY(open_link({.is_server = false, .address = address.with_port(port)}));
  return opened;
}

Result<RendezvousLink> listen_at(const Address& address, int port) {
  RendezvousLink opened{.link = nullptr, .is_host = true, .address = address.numeric};
  opened.link = MUSTER_TRY(open_link({.is_server = true, .address = address.with_port(port)}));
  return opened;
}

// The address under which every interface listens, of the same family.
Address any_interface(const Address& like) {
  Address any = like;
  any.numeric = like.storage.ss_family == AF_INET6 ? "::" : "0.0.0.0";
  return any;
}
}  // namespace

Result<RendezvousLink> open_rendezvous(const JobSpec::Rendezvous& options) {
  const std::vector<Address> addresses = MUSTER_TRY(resolve(options.host, options.port));
  if (options.role == Role::kMember) return connect_to(addresses.front(), options.port);
  // gRPC's own attempt decides, since what it has it keeps; why it failed is asked afterwards.
  int error_number = 0;
  for (const Address& address : addresses) {
    for (int tries = 0; tries < kTries; ++tries) {
      Result<RendezvousLink> listening = listen_at(address, options.port);
      if (listening.ok() || listening.error().code() != kAddressTaken) return listening;
      error_number = bind_error(address);
      if (error_number != 0) break;  // else it has become free just now
    }
    if (error_number == EADDRINUSE && options.role == Role::kAuto) {
      return connect_to(address, options.port);
    }
  }
  if (options.role == Role::kAuto) return connect_to(addresses.front(), options.port);
  // Behind an address translation the endpoint is on no interface of the host.
  if (error_number == EADDRNOTAVAIL) {
    return listen_at(any_interface(addresses.front()), options.port);
  }
  return make_error(error_number == EADDRINUSE ? kAddressTaken : ErrorCode::kIo,
                    "rendezvous: this node must host it at {}:{}; got {}", options.host,
                    options.port, errno_text(error_number));
}

}  // namespace muster
