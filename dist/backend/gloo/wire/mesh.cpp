#include "dist/backend/gloo/wire/mesh.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "core/base/hash.h"
#include "dist/net/token.h"

namespace muster::wire {
namespace {
constexpr uint64_t kWakeUp = 0;
constexpr uint64_t kListener = 1;
constexpr uint64_t kPeer = uint64_t{2} << 32;
constexpr Duration kGoodbyeLimit = 1s;

std::string rank_key(const MeshOptions& options, int rank) {
  return fmt::format("{}/rank/{}", options.key_prefix, rank);
}
std::string secret_key(const MeshOptions& options) { return options.key_prefix + "/secret"; }

bool add_to(int epoll_fd, int fd, uint64_t token) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = token;
  return ::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

void set_connection_options(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  // A host that vanished without a word would otherwise stay connected for ever.
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  const int idle_s = 10, interval_s = 5, count = 3;
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}
}  // namespace

Mesh::Mesh(MeshOptions options, net::UniqueFd epoll, net::WakeUp wake_up)
    : options_(std::move(options)),
      epoll_(std::move(epoll)),
      wake_up_(std::move(wake_up)),
      connections_(static_cast<size_t>(options_.world_size)),
      peers_(static_cast<size_t>(options_.world_size)),
      strangers_(static_cast<size_t>(options_.max_strangers), options_.handshake_limit),
      refusals_("gloo", options_.on_refuse) {}

Result<std::shared_ptr<Mesh>> Mesh::open(MeshOptions options, Deadline deadline) {
  net::UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return make_error(ErrorCode::kIo, "gloo: epoll: {}", errno_text(errno));
  net::UniqueFd listener = MUSTER_TRY(net::listen_on(options.address, 0));
  std::shared_ptr<Mesh> mesh(
      new Mesh(std::move(options), std::move(epoll), MUSTER_TRY(net::WakeUp::open())));
  MUSTER_TRY(mesh->meet(std::move(listener), deadline));
  return mesh;
}

Result<void> Mesh::meet(net::UniqueFd listener, Deadline deadline) {
  Store& store = *options_.store;
  const std::string key = secret_key(options_);
  if (options_.global_rank == 0) MUSTER_TRY(store.set(key, net::make_nonce()));
  secret_ = MUSTER_TRY(store.get(key, deadline), "while gloo waited for rank 0");
  const int port = net::port_of(MUSTER_TRY(net::local_address(listener.get())));
  door_.emplace(std::move(listener));
  add_to(epoll_.get(), wake_up_.fd(), kWakeUp);
  add_to(epoll_.get(), door_->fd(), kListener);
  thread_ = std::thread([this] { run(); });
  MUSTER_TRY(store.set(rank_key(options_, options_.global_rank),
                       fmt::format("{} {}", port, options_.address)));
  for (int peer = 0; peer < options_.global_rank; ++peer) {
    MUSTER_TRY(connect_peer(peer, deadline), fmt::format("while connecting to rank {}", peer));
  }
  MUSTER_TRY(await_higher_ranks(deadline));
  is_met_ = true;
  wake_up_.raise();
  return {};
}

Result<void> Mesh::connect_peer(int peer, Deadline deadline) {
  const std::string text = MUSTER_TRY(options_.store->get(rank_key(options_, peer), deadline));
  const size_t space = text.find(' ');
  if (space == std::string::npos || space == 0 || space > 5) {
    return make_error(ErrorCode::kMismatch, "gloo: rank {} must publish port and address; got {}",
                      peer, text);
  }
  const std::vector<net::SocketAddress> addresses =
      MUSTER_TRY(net::resolve(text.substr(space + 1), std::stoi(text.substr(0, space)), deadline));
  Duration pause = 5ms;
  while (true) {
    Result<net::UniqueFd> fd = net::connect_to(addresses.front(), deadline, -1);
    Result<void> greeted;
    if (fd.ok()) {
      greeted = greet(fd.value().get(), secret_, options_.global_rank, deadline);
      if (greeted.ok()) {
        install(peer, std::move(fd).value());
        return {};
      }
    }
    Error error = fd.ok() ? greeted.error() : fd.error();
    // A flood of strangers may have pushed this connection out: try again.
    if (error.code() != ErrorCode::kPeerLost) return error;
    if (deadline.passed()) return make_error(ErrorCode::kTimeout, "gloo: {}", error.message());
    MUSTER_TRY(net::poll_fd(-1, 0, Deadline::after(std::min(pause, deadline.left())), -1));
    pause = std::min<Duration>(2 * pause, 200ms);
  }
}

Result<void> Mesh::await_higher_ranks(Deadline deadline) {
  std::unique_lock lock(mutex_);
  while (num_connected_ < options_.world_size - 1) {
    if (deadline.passed()) {
      std::string missing;
      for (int rank = 0; rank < options_.world_size; ++rank) {
        if (rank == options_.global_rank || peers_[static_cast<size_t>(rank)] != nullptr) continue;
        missing += fmt::format("{}{}", missing.empty() ? "" : ", ", rank);
      }
      return make_error(ErrorCode::kTimeout,
                        "gloo: all {} ranks must connect before the deadline; ranks {} have not",
                        options_.world_size, missing);
    }
    if (deadline.is_never()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, deadline.at());
    }
  }
  return {};
}

void Mesh::install(int peer, net::UniqueFd fd) {
  set_connection_options(fd.get());
  const auto at = static_cast<size_t>(peer);
  const EpollPlace place{epoll_.get(), kPeer | static_cast<uint64_t>(peer)};
  connections_[at] = std::make_unique<Connection>(peer, std::move(fd), place, *this);
  peers_[at] = connections_[at].get();
  connections_[at]->start().value();
  const std::lock_guard lock(mutex_);
  ++num_connected_;
  changed_.notify_all();
}

Mesh::~Mesh() {
  if (thread_.joinable()) {
    if (is_met_) {
      const Deadline deadline = Deadline::after(kGoodbyeLimit);
      {
        std::unique_lock lock(mutex_);
        is_leaving_ = true;
        const auto all_fetched = [&] {
          return std::none_of(channels_.begin(), channels_.end(),
                              [](const auto& entry) { return entry.second->has_unfetched(); });
        };
        changed_.wait_until(lock, deadline.at(), all_fetched);
      }
      for (int peer = 0; peer < options_.world_size; ++peer)
        send(peer, {.kind = FrameKind::kGoodbye}, std::string());
      std::unique_lock lock(mutex_);
      const auto all_know = [&] {
        for (int peer = 0; peer < options_.world_size; ++peer) {
          const bool knows =
              peer == options_.global_rank || acknowledged_.contains(peer) || gone_.contains(peer);
          if (!knows) return false;
        }
        return true;
      };
      changed_.wait_until(lock, deadline.at(), all_know);
    }
    is_stopping_ = true;
    wake_up_.raise();
    thread_.join();
  }
}

std::shared_ptr<Channel> Mesh::find_or_make(uint64_t id) {
  std::shared_ptr<Channel> made;
  std::map<int, PeerEnd> gone;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Channel>& slot = channels_[id];
    if (slot) return slot;
    slot = made = std::make_shared<Channel>(*this, id);
    gone = gone_;
  }
  for (const auto& [peer, end] : gone) made->peer_gone(peer, end);
  return made;
}

std::shared_ptr<Channel> Mesh::channel_of(const std::string& identity) {
  return find_or_make(hash_text(identity, 1));
}

std::string Mesh::where_it_waits(int peer) {
  std::vector<std::shared_ptr<Channel>> channels;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, channel] : channels_) channels.push_back(channel);
  }
  std::vector<std::string> places;
  for (const auto& channel : channels) {
    if (std::string place = channel->where_it_waits(peer); !place.empty()) places.push_back(place);
  }
  return fmt::format("{}", fmt::join(places, " and in "));
}

void Mesh::close_channel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  // Messages that were sent and not yet fetched outlive their group.
  const auto found = channels_.find(id);
  if (found == channels_.end() || found->second->has_unfetched()) return;
  channels_.erase(found);
  closed_channels_.insert(id);
}

void Mesh::send(int peer, const FrameHeader& header, std::string payload) {
  if (Connection* connection = peers_[static_cast<size_t>(peer)])
    connection->send(header, std::move(payload));
}

void Mesh::send(int peer, const FrameHeader& header, const TransferPtr& transfer) {
  if (Connection* connection = peers_[static_cast<size_t>(peer)])
    connection->send(header, transfer);
}

TransferPtr Mesh::find_receive(int peer, const FrameHeader& header) {
  std::shared_ptr<Channel> channel;
  {
    const std::lock_guard lock(mutex_);
    const auto found = channels_.find(header.channel);
    if (found != channels_.end()) channel = found->second;
    // Data for a closed group: read over it.
    if (!channel && closed_channels_.contains(header.channel))
      return std::make_shared<Transfer>(peer, nullptr, header.nbytes);
  }
  return channel ? channel->find_receive(peer, header.slot) : nullptr;
}

void Mesh::on_received(const FrameHeader& header, const TransferPtr& transfer) {
  on_sent(header, transfer);
}

void Mesh::on_sent(const FrameHeader& header, const TransferPtr& transfer) {
  std::shared_ptr<Channel> channel;
  {
    const std::lock_guard lock(mutex_);
    const auto found = channels_.find(header.channel);
    if (found != channels_.end()) channel = found->second;
  }
  if (!channel) return;
  channel->finish(transfer);
  const std::lock_guard lock(mutex_);
  if (is_leaving_) changed_.notify_all();
}

void Mesh::on_frame(int peer, const FrameHeader& header, std::string payload) {
  switch (header.kind) {
    case FrameKind::kGoodbye:
      send(peer, {.kind = FrameKind::kGoodbyeAck}, std::string());
      return peer_gone(peer, {.politely = true, .reason = "has left the job"});
    case FrameKind::kGoodbyeAck: {
      const std::lock_guard lock(mutex_);
      acknowledged_.insert(peer);
      return changed_.notify_all();
    }
    default:
      break;
  }
  {
    const std::lock_guard lock(mutex_);
    if (closed_channels_.contains(header.channel)) return;
  }
  find_or_make(header.channel)->handle(peer, header, std::move(payload));
}

void Mesh::peer_gone(int peer, PeerEnd end) {
  std::vector<std::shared_ptr<Channel>> channels;
  {
    const std::lock_guard lock(mutex_);
    if (!gone_.emplace(peer, end).second) return;
    for (const auto& [id, channel] : channels_) channels.push_back(channel);
    changed_.notify_all();
  }
  for (const auto& channel : channels) channel->peer_gone(peer, end);
}

void Mesh::on_connection(int peer, uint32_t events) {
  Connection& connection = *peers_[static_cast<size_t>(peer)].load();
  if ((events & EPOLLOUT) != 0) connection.on_writable();
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
  const Result<void> read = connection.on_readable();
  if (read.ok()) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.fd(), nullptr);
  connection.close();
  peer_gone(peer, {.politely = false, .reason = "has ended: " + read.error().message()});
}

int Mesh::poll_ms() const {
  const std::optional<TimePoint> first = strangers_.next_limit();
  if (!first) return -1;
  const Duration left = *first - real_clock().now();
  return static_cast<int>(std::max<int64_t>(0, left / 1ms + 1));
}

void Mesh::run() {
  std::vector<epoll_event> events(64);
  while (!is_stopping_) {
    const int n =
        ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), poll_ms());
    for (int i = 0; i < n; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      const uint64_t token = event.data.u64;
      if (token == kWakeUp) {
        wake_up_.clear();
      } else if (token == kListener) {
        accept_strangers();
      } else if ((token & kPeer) != 0) {
        on_connection(static_cast<int>(token & 0xffffffff), event.events);
      } else {
        on_stranger(token & 0xffffffff);
      }
    }
    drop_late_strangers();
    if (is_met_ && door_) close_listener();
  }
}

}  // namespace muster::wire
