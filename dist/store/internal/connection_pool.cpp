#include "dist/store/internal/connection_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

namespace muster::internal {
namespace {
constexpr size_t kMaxIdleConnections = 8;
constexpr Duration kFirstPause = 10ms;
constexpr Duration kLongestPause = 1s;
constexpr Duration kAttemptLimit = 10s;   // a host that swallows packets gets another try
constexpr int kMaxClosedInHandshake = 5;  // in a row: it is no accident of a starting server

Duration jittered(Duration pause) {
  thread_local std::minstd_rand random(std::random_device{}());
  std::uniform_real_distribution<double> factor(0.5, 1.5);
  return Duration(static_cast<int64_t>(static_cast<double>(pause.count()) * factor(random)));
}

Deadline sooner(Deadline a, Deadline b) { return a.at() < b.at() ? a : b; }
}  // namespace

Result<std::unique_ptr<ConnectionPool>> ConnectionPool::open(Endpoint endpoint, Deadline deadline) {
  std::unique_ptr<ConnectionPool> pool(
      new ConnectionPool(std::move(endpoint), MUSTER_TRY(net::WakeUp::open())));
  MUSTER_TRY(pool->connect(deadline));
  return pool;
}

Result<void> ConnectionPool::connect(Deadline deadline) {
  const TimePoint start = real_clock().now();
  Duration pause = kFirstPause;
  int num_closed = 0;
  for (int attempt = 1;; ++attempt) {
    Result<StoreConnection> connection =
        connect_to_any(sooner(deadline, Deadline::after(kAttemptLimit)));
    if (connection.ok()) {
      release(std::move(connection).value());
      return {};
    }
    const Error& error = connection.error();
    num_closed = StoreConnection::was_closed_in_handshake(error) ? num_closed + 1 : 0;
    if (error.code() == ErrorCode::kFailedPrecondition || num_closed >= kMaxClosedInHandshake) {
      return make_error(ErrorCode::kFailedPrecondition, "connect: {} must serve this store; {}",
                        describe(), error.message());
    }
    if (deadline.passed()) {
      return make_error(
          ErrorCode::kTimeout,
          "connect: {} must accept before the deadline; {} attempts in {}, the last one: {}",
          describe(), attempt, format_duration(real_clock().now() - start), error.message());
    }
    const Deadline next = sooner(deadline, Deadline::after(jittered(pause)));
    MUSTER_TRY(net::poll_fd(-1, 0, next, cancel_signal_.fd()));
    pause = std::min(pause * 8 / 5, kLongestPause);
  }
}

Result<StoreConnection> ConnectionPool::connect_to_any(Deadline deadline) {
  Result<StoreConnection> connection = make_error(
      ErrorCode::kNotFound, "resolve: host \"{}\" must have an address; got none", endpoint_.host);
  for (const net::SocketAddress& address :
       MUSTER_TRY(net::resolve(endpoint_.host, endpoint_.port, deadline))) {
    connection = StoreConnection::open(address, endpoint_.token, deadline, cancel_signal_.fd());
    if (!connection.ok()) continue;
    address_ = address;
    break;
  }
  return connection;
}

Result<StoreConnection> ConnectionPool::acquire(Deadline deadline) {
  while (true) {
    std::unique_lock lock(mutex_);
    if (idle_.empty()) break;
    StoreConnection connection = std::move(idle_.back());
    idle_.pop_back();
    lock.unlock();
    if (connection.is_quiet()) return connection;
  }
  return StoreConnection::open(address_, endpoint_.token, deadline, cancel_signal_.fd());
}

void ConnectionPool::release(StoreConnection connection) {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kMaxIdleConnections) idle_.push_back(std::move(connection));
}

Error ConnectionPool::explain(std::string_view operation, const Error& error) const {
  if (cancelled_) return cancelled(operation, describe());
  return make_error(error.code(), "{}: {} must answer; {}", operation, describe(), error.message());
}

void ConnectionPool::cancel() {
  cancelled_ = true;
  cancel_signal_.raise();
}

std::string ConnectionPool::describe() const {
  return "tcp " + net::endpoint_text(endpoint_.host, endpoint_.port);
}

}  // namespace muster::internal
