#include "dist/store/tcp_store_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <deque>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/log.h"
#include "dist/net/acceptor.h"
#include "dist/net/reject_log.h"
#include "dist/store/internal/request_handler.h"

namespace muster {

using internal::RejectKind;
using internal::RequestHandler;
using internal::ServerConnection;
using internal::Stage;

namespace {
constexpr uint64_t kWakeUpId = 0;
constexpr uint64_t kListenerId = 1;
constexpr uint64_t kFirstConnectionId = 2;
constexpr size_t kReadNbytes = 64 << 10;
constexpr int kReadsPerTurn = 4;  // then the others have theirs
constexpr int kAcceptsPerTurn = 64;
constexpr size_t kKeptInNbytes = 4096;  // an input buffer above this is given back when empty

void set_connection_options(int fd) {
  const int on = 1;
  const int idle_s = 60;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  // A host that vanished without a word would otherwise stay connected for ever.
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
}

}  // namespace

class TcpStoreServer::Loop {
 public:
  Loop(TcpStoreServerOptions options, net::UniqueFd listener, net::UniqueFd epoll,
       net::WakeUp wake_up, int port)
      : options_(std::move(options)),
        acceptor_(std::move(listener)),
        epoll_(std::move(epoll)),
        wake_up_(std::move(wake_up)),
        port_(port),
        handler_(options_.required_token, options_.max_memory.count),
        reject_log_("tcp store", options_.on_reject) {}
  ~Loop() { stop(); }

  Result<void> start();
  void stop();

  [[nodiscard]] int port() const noexcept { return port_; }
  [[nodiscard]] int64_t num_connections() const noexcept { return num_connections_.load(); }
  [[nodiscard]] int64_t memory_nbytes() const noexcept { return memory_nbytes_.load(); }

 private:
  Result<void> watch(int fd, uint64_t id, uint32_t events) const;
  void run();
  [[nodiscard]] int wait_ms() const;
  void dispatch(uint64_t id, uint32_t events);

  void accept_some();
  bool accept_one();
  void drop_one_without_descriptors();

  void read_some(ServerConnection& connection);
  void feed(ServerConnection& connection, std::string_view received);
  void settle();
  bool flush(ServerConnection& connection);
  void update_interest(ServerConnection& connection);
  void reject(ServerConnection& connection, RejectKind kind, std::string reason);
  void close(ServerConnection& connection);
  void drop_slow_handshakes();

  const TcpStoreServerOptions options_;
  std::optional<net::Acceptor> acceptor_;
  net::UniqueFd epoll_;
  net::WakeUp wake_up_;
  const int port_;

  RequestHandler handler_;
  net::RejectLog reject_log_;
  std::unordered_map<uint64_t, std::unique_ptr<ServerConnection>> connections_;
  std::deque<std::pair<TimePoint, uint64_t>> handshakes_;  // in order of arrival
  uint64_t next_id_ = kFirstConnectionId;
  std::array<char, kReadNbytes> scratch_;

  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> num_connections_{0};
  std::atomic<int64_t> memory_nbytes_{0};
  std::thread thread_;
};

Result<void> TcpStoreServer::Loop::watch(int fd, uint64_t id, uint32_t events) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return make_error(ErrorCode::kIo, "tcp store server: epoll_ctl: {}", errno_text(errno));
  }
  return {};
}

Result<void> TcpStoreServer::Loop::start() {
  MUSTER_TRY(watch(wake_up_.fd(), kWakeUpId, EPOLLIN));
  MUSTER_TRY(watch(acceptor_->fd(), kListenerId, EPOLLIN));
  // Signals are for the threads of the program, which may wait for them.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_setname_np(thread_.native_handle(), "muster-store");
  return {};
}

void TcpStoreServer::Loop::stop() {
  stopping_ = true;
  wake_up_.raise();
  if (thread_.joinable()) thread_.join();
}

void TcpStoreServer::Loop::run() {
  std::array<epoll_event, 256> events{};
  while (!stopping_) {
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait_ms());
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      dispatch(event.data.u64, event.events);
      settle();
    }
    drop_slow_handshakes();
    memory_nbytes_ = handler_.nbytes();
  }
  while (!connections_.empty()) close(*connections_.begin()->second);
  acceptor_.reset();
}

int TcpStoreServer::Loop::wait_ms() const {
  if (handshakes_.empty()) return -1;
  const Duration left = handshakes_.front().first + options_.handshake_limit - real_clock().now();
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 60'000));
}

void TcpStoreServer::Loop::dispatch(uint64_t id, uint32_t events) {
  if (id == kWakeUpId) return;
  if (id == kListenerId) return accept_some();
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;  // closed earlier in this batch
  ServerConnection& connection = *found->second;
  if ((events & EPOLLOUT) != 0 && !flush(connection)) return;
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read_some(connection);
}

// ---- accept

void TcpStoreServer::Loop::accept_some() {
  for (int i = 0; i < kAcceptsPerTurn && accept_one(); ++i) {
  }
}

bool TcpStoreServer::Loop::accept_one() {
  net::Incoming incoming;
  switch (acceptor_->accept(incoming)) {
    case net::Acceptor::Outcome::kNobody:
      return false;
    case net::Acceptor::Outcome::kNoDescriptors:
      drop_one_without_descriptors();
      return true;
    case net::Acceptor::Outcome::kCame:
      break;
  }
  net::UniqueFd fd = std::move(incoming.fd);
  auto connection = std::make_unique<ServerConnection>();
  connection->peer_address = std::move(incoming.address);
  connection->peer = std::move(incoming.peer);
  connection->accepted_at = real_clock().now();
  if (std::ssize(connections_) >= options_.max_connections) {
    reject_log_.add(connection->peer, connection->peer_address,
                    static_cast<int>(RejectKind::kTooMany),
                    fmt::format("{} connections are open already", connections_.size()),
                    connection->accepted_at);
    return true;
  }
  set_connection_options(fd.get());
  connection->id = next_id_++;
  connection->epoll_events = EPOLLIN;
  if (!watch(fd.get(), connection->id, EPOLLIN).ok()) return true;
  connection->fd = std::move(fd);
  handshakes_.emplace_back(connection->accepted_at, connection->id);
  connections_.emplace(connection->id, std::move(connection));
  num_connections_ = std::ssize(connections_);
  return true;
}

void TcpStoreServer::Loop::drop_one_without_descriptors() {
  acceptor_->drop_one();
  const internal::Rejection rejection{
      RejectKind::kTooMany, "no file descriptor is left for it; raise the limit (ulimit -n)"};
  reject_log_.add("a peer", "", static_cast<int>(rejection.kind), rejection.reason,
                  real_clock().now());
}

void TcpStoreServer::Loop::drop_slow_handshakes() {
  const TimePoint now = real_clock().now();
  while (!handshakes_.empty()) {
    const auto [accepted_at, id] = handshakes_.front();
    const auto found = connections_.find(id);
    const bool pending = found != connections_.end() && found->second->stage != Stage::kReady;
    if (pending && now < accepted_at + options_.handshake_limit) return;
    handshakes_.pop_front();
    if (!pending) continue;
    reject(
        *found->second, RejectKind::kTooSlow,
        fmt::format("no complete handshake within {}", format_duration(options_.handshake_limit)));
  }
}

// ---- one connection

void TcpStoreServer::Loop::read_some(ServerConnection& connection) {
  const uint64_t id = connection.id;
  for (int i = 0; i < kReadsPerTurn && !RequestHandler::is_congested(connection); ++i) {
    const ssize_t count = ::recv(connection.fd.get(), scratch_.data(), scratch_.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (count <= 0) {
      // A peer may end its side first and still read the replies to what it sent.
      [[maybe_unused]] const Result<void> ignored = connection.out.flush(connection.fd.get());
      return close(connection);
    }
    feed(connection, {scratch_.data(), static_cast<size_t>(count)});
    if (!connections_.contains(id)) return;
    if (static_cast<size_t>(count) < scratch_.size()) break;
  }
  // Also when nothing was sent: a congested connection must not be read.
  update_interest(connection);
}

void TcpStoreServer::Loop::feed(ServerConnection& connection, std::string_view received) {
  std::string_view data = received;
  if (!connection.in.empty()) {
    connection.in.append(received);
    data = connection.in;
  }
  const size_t taken = handler_.consume(connection, data);
  if (connection.in.empty()) {
    connection.in.assign(data.substr(taken));
  } else {
    connection.in.erase(0, taken);
  }
  if (connection.in.empty() && connection.in.capacity() > kKeptInNbytes) {
    std::string().swap(connection.in);
  }
  handler_.charge(connection);
  if (connection.rejection) {
    reject(connection, connection.rejection->kind, std::move(connection.rejection->reason));
  } else if (!connection.in.empty() && handler_.would_exceed(0)) {
    reject(connection, RejectKind::kMemory, "the store's memory is full");
  }
}

// Sends what requests have produced, also on connections that they have woken, and goes on with
// requests that waited for room.
void TcpStoreServer::Loop::settle() {
  for (auto touched = handler_.take_touched(); !touched.empty();
       touched = handler_.take_touched()) {
    std::vector<uint64_t> ids;
    for (const ServerConnection* connection : touched) ids.push_back(connection->id);
    for (const uint64_t id : ids) {
      const auto found = connections_.find(id);
      if (found != connections_.end()) flush(*found->second);
    }
  }
}

bool TcpStoreServer::Loop::flush(ServerConnection& connection) {
  const uint64_t id = connection.id;
  while (true) {
    const bool was_congested = RequestHandler::is_congested(connection);
    if (!connection.out.flush(connection.fd.get()).ok()) {
      close(connection);
      return false;
    }
    handler_.charge(connection);
    if (!was_congested || RequestHandler::is_congested(connection)) break;
    feed(connection, {});
    if (!connections_.contains(id)) return false;
  }
  update_interest(connection);
  return true;
}

void TcpStoreServer::Loop::update_interest(ServerConnection& connection) {
  const uint32_t wanted = (RequestHandler::is_congested(connection) ? 0U : EPOLLIN) |
                          (connection.out.empty() ? 0U : EPOLLOUT);
  if (wanted == connection.epoll_events) return;
  epoll_event event{};
  event.events = wanted;
  event.data.u64 = connection.id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.fd.get(), &event) == 0) {
    connection.epoll_events = wanted;
  }
}

void TcpStoreServer::Loop::reject(ServerConnection& connection, RejectKind kind,
                                  std::string reason) {
  // Replies to the good requests before still count.
  [[maybe_unused]] const Result<void> ignored = connection.out.flush(connection.fd.get());
  reject_log_.add(connection.peer, connection.peer_address, static_cast<int>(kind), reason,
                  real_clock().now());
  close(connection);
}

void TcpStoreServer::Loop::close(ServerConnection& connection) {
  handler_.forget(connection);
  connections_.erase(connection.id);
  num_connections_ = std::ssize(connections_);
}

// ---- the handle

Result<std::unique_ptr<TcpStoreServer>> TcpStoreServer::open(TcpStoreServerOptions options) {
  net::UniqueFd listener(options.listen_fd);
  if (listener) {
    const int flags = ::fcntl(listener.get(), F_GETFL);
    if (flags < 0 || ::fcntl(listener.get(), F_SETFL, flags | O_NONBLOCK) != 0 ||
        ::fcntl(listener.get(), F_SETFD, FD_CLOEXEC) != 0) {
      return make_error(ErrorCode::kInvalidArgument,
                        "tcp store server: listen_fd must be an open socket; got {}: {}",
                        options.listen_fd, errno_text(errno));
    }
  } else {
    listener = MUSTER_TRY(net::listen_on(options.host, options.port));
  }
  const int port = net::port_of(MUSTER_TRY(net::local_address(listener.get())));
  net::UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) {
    return make_error(ErrorCode::kIo, "tcp store server: epoll_create1: {}", errno_text(errno));
  }
  net::WakeUp wake_up = MUSTER_TRY(net::WakeUp::open());
  auto loop = std::make_unique<Loop>(std::move(options), std::move(listener), std::move(epoll),
                                     std::move(wake_up), port);
  MUSTER_TRY(loop->start());
  return std::unique_ptr<TcpStoreServer>(new TcpStoreServer(std::move(loop)));
}

TcpStoreServer::TcpStoreServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
TcpStoreServer::~TcpStoreServer() = default;
int TcpStoreServer::port() const noexcept { return loop_->port(); }
void TcpStoreServer::stop() { loop_->stop(); }
int64_t TcpStoreServer::num_connections() const noexcept { return loop_->num_connections(); }
Bytes TcpStoreServer::memory() const noexcept { return {loop_->memory_nbytes()}; }

}  // namespace muster
