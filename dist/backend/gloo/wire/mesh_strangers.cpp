// The listening side of a mesh: connections that have not proved to be ranks of this job.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>

#include "dist/backend/gloo/wire/mesh.h"

namespace muster::wire {
namespace {
constexpr int kAcceptsPerTurn = 64;
constexpr uint64_t kStranger = uint64_t{1} << 32;
}  // namespace

void Mesh::accept_strangers() {
  for (int i = 0; i < kAcceptsPerTurn && listener_; ++i) {
    if (!accept_one()) return;
  }
}

bool Mesh::accept_one() {
  net::SocketAddress address;
  address.nbytes = sizeof(address.storage);
  net::UniqueFd fd(::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&address.storage),
                             &address.nbytes, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd && (errno == EMFILE || errno == ENFILE)) {
    // Give a descriptor up, take the connection with it, and let that one go.
    spare_.reset();
    fd = net::UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const bool was_there = static_cast<bool>(fd);
    fd.reset();
    spare_ = net::UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    refusals_.add("a peer", "", static_cast<int>(RefusalKind::kTooMany),
                  "this process has no descriptor left", real_clock().now());
    return was_there;
  }
  if (!fd) return errno == EINTR || errno == ECONNABORTED;
  // The oldest stranger has had the longest time to introduce itself.
  if (static_cast<int64_t>(strangers_.size()) >= options_.max_strangers) {
    while (!arrivals_.empty()) {
      const auto [accepted_at, oldest] = arrivals_.front();
      arrivals_.pop_front();
      const auto found = strangers_.find(oldest);
      if (found == strangers_.end() || found->second->accepted_at() != accepted_at) continue;
      refuse(oldest,
             {RefusalKind::kTooMany,
              fmt::format("{} connections wait to introduce themselves", strangers_.size())});
      break;
    }
  }
  const int raw = fd.get();
  const TimePoint now = real_clock().now();
  const std::string host = net::address_text(address);
  strangers_[raw] = std::make_unique<Greeting>(
      std::move(fd), host, net::endpoint_text(host, net::port_of(address)), now);
  arrivals_.emplace_back(now, raw);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kStranger | static_cast<uint64_t>(raw);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, raw, &event);
  return true;
}

void Mesh::on_stranger(int fd) {
  const auto found = strangers_.find(fd);
  if (found == strangers_.end()) return;
  Greeting& greeting = *found->second;
  if (const std::optional<Refusal> refusal = greeting.on_readable(secret_))
    return refuse(fd, *refusal);
  const std::optional<int> rank = greeting.rank();
  if (!rank) return;
  if (*rank <= options_.global_rank || *rank >= options_.world_size ||
      peers_[static_cast<size_t>(*rank)] != nullptr) {
    return refuse(
        fd, {RefusalKind::kProtocol, fmt::format("rank {} is not expected to connect", *rank)});
  }
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  net::UniqueFd owned = greeting.welcome();
  strangers_.erase(found);
  install(*rank, std::move(owned));
}

void Mesh::refuse(int fd, const Refusal& refusal) {
  const auto found = strangers_.find(fd);
  refusals_.add(found->second->peer(), found->second->peer_address(),
                static_cast<int>(refusal.kind), refusal.reason, real_clock().now());
  strangers_.erase(found);  // closes it, which takes it out of epoll
}

void Mesh::drop_late_strangers() {
  const TimePoint now = real_clock().now();
  while (!arrivals_.empty() && now - arrivals_.front().first >= options_.handshake_limit) {
    const auto [accepted_at, fd] = arrivals_.front();
    arrivals_.pop_front();
    const auto found = strangers_.find(fd);
    // A descriptor's number may belong to a later connection by now.
    if (found == strangers_.end() || found->second->accepted_at() != accepted_at) continue;
    refuse(fd, {RefusalKind::kTooSlow, "it did not introduce itself in time"});
  }
}

void Mesh::close_listener() {
  listener_.reset();
  arrivals_.clear();
  while (!strangers_.empty()) {
    refuse(strangers_.begin()->first,
           {RefusalKind::kTooSlow, "all ranks are connected, and it had not introduced itself"});
  }
}

}  // namespace muster::wire
