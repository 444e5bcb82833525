// The listening side of a mesh: connections that have not proved to be ranks of this job.
#include <fmt/format.h>
#include <sys/epoll.h>

#include "dist/backend/gloo/wire/mesh.h"

namespace muster::wire {
namespace {
constexpr int kAcceptsPerTurn = 64;
constexpr uint64_t kStranger = uint64_t{1} << 32;
}  // namespace

void Mesh::accept_strangers() {
  for (int i = 0; i < kAcceptsPerTurn && door_; ++i) {
    if (!accept_one()) return;
  }
}

bool Mesh::accept_one() {
  net::Incoming incoming;
  const net::Acceptor::Outcome outcome = door_->accept(incoming);
  if (outcome == net::Acceptor::Outcome::kNobody) return false;
  std::unique_ptr<Greeting> oldest;
  std::string reason = "this process has no descriptor left";
  if (outcome == net::Acceptor::Outcome::kNoDescriptors) {
    oldest = strangers_.take_oldest().value_or(nullptr);
    if (oldest == nullptr) {
      door_->drop_one();
      oldest = std::make_unique<Greeting>(net::Incoming{.fd = {}, .address = "", .peer = "a peer"});
    }
  } else {
    const uint64_t id = ++last_stranger_;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = kStranger | id;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, incoming.fd.get(), &event);
    auto greeting = std::make_unique<Greeting>(std::move(incoming));
    oldest = strangers_.add(id, std::move(greeting), real_clock().now()).value_or(nullptr);
    reason = fmt::format("{} connections wait to introduce themselves", strangers_.size());
  }
  if (oldest != nullptr) refuse(*oldest, {RefusalKind::kTooMany, reason});
  return true;
}

void Mesh::on_stranger(uint64_t id) {
  std::unique_ptr<Greeting>* const stranger = strangers_.find(id);
  if (stranger == nullptr) return;
  Greeting& greeting = **stranger;
  std::optional<Refusal> refusal = greeting.on_readable(secret_);
  const std::optional<int> rank = greeting.rank();
  if (!refusal && !rank) return;
  if (!refusal && (*rank <= options_.global_rank || *rank >= options_.world_size ||
                   peers_[static_cast<size_t>(*rank)] != nullptr)) {
    refusal = {RefusalKind::kProtocol, fmt::format("rank {} is not expected to connect", *rank)};
  }
  const std::unique_ptr<Greeting> proved = *strangers_.take(id);
  if (refusal) return refuse(*proved, *refusal);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, proved->fd(), nullptr);
  install(*rank, proved->welcome());
}

// The connection is closed with the greeting, which takes it out of epoll.
void Mesh::refuse(const Greeting& greeting, const Refusal& refusal) {
  refusals_.add(greeting.peer(), greeting.peer_address(), static_cast<int>(refusal.kind),
                refusal.reason, real_clock().now());
}

void Mesh::drop_late_strangers() {
  while (const auto late = strangers_.take_late(real_clock().now())) {
    refuse(**late, {RefusalKind::kTooSlow, "it did not introduce itself in time"});
  }
}

void Mesh::close_listener() {
  door_.reset();
  while (const auto stranger = strangers_.take_oldest()) {
    refuse(**stranger,
           {RefusalKind::kTooSlow, "all ranks are connected, and it had not introduced itself"});
  }
}

}  // namespace muster::wire
