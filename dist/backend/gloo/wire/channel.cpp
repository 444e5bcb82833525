#include "dist/backend/gloo/wire/channel.h"

#include <fmt/format.h>

#include <algorithm>

#include "dist/backend/gloo/wire/mesh.h"

namespace muster::wire {
namespace {
template <typename Map>
auto take_front(Map& map, const typename Map::key_type& key)
    -> std::optional<typename Map::mapped_type::value_type> {
  const auto found = map.find(key);
  if (found == map.end()) return std::nullopt;
  auto value = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) map.erase(found);
  return value;
}

void copy_into(const TransferPtr& transfer, const std::string& bytes) {
  transfer->with_memory([&](std::byte* memory) {
    if (memory != nullptr && !bytes.empty()) std::memcpy(memory, bytes.data(), bytes.size());
  });
}
}  // namespace

Result<void> Channel::open(const std::vector<int>& members, int own_rank, Deadline deadline) {
  for (const int member : members) {
    if (member != own_rank) send(member, FrameKind::kOpen, 0, {});
  }
  std::unique_lock lock(mutex_);
  while (true) {
    std::string missing;
    for (const int member : members) {
      if (member == own_rank || opened_.contains(member)) continue;
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", member);
      for (const auto& [peer, end] : gone_) {
        if (peer == member) {
          return make_error(ErrorCode::kPeerLost, "gloo: global rank {} {}", peer, end.reason);
        }
      }
    }
    if (missing.empty()) return {};
    if (deadline.passed()) {
      return make_error(ErrorCode::kTimeout,
                        "gloo: all members must open the group before the deadline; global ranks "
                        "{} have not",
                        missing);
    }
    if (deadline.is_never()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, deadline.at());
    }
  }
}

void Channel::attach(ChannelListener* listener) {
  const std::lock_guard delivery(delivery_mutex_);
  listener_ = listener;
  for (const Kept& kept : kept_) listener->on_frame(kept.peer, kept.header, kept.payload);
  kept_.clear();
  for (const auto& [peer, end] : gone()) listener->on_peer_gone(peer, end);
}

void Channel::detach() {
  const std::lock_guard delivery(delivery_mutex_);
  listener_ = nullptr;
  is_detached_ = true;
}

void Channel::send(int peer, FrameKind kind, uint64_t slot, std::string payload, int64_t aux) {
  FrameHeader header{.kind = kind, .channel = id_, .slot = slot, .aux = aux};
  mesh_.send(peer, header, std::move(payload));
}

void Channel::send_data(uint64_t slot, const TransferPtr& transfer) {
  mesh_.send(transfer->peer(), {.kind = FrameKind::kData, .channel = id_, .slot = slot}, transfer);
}

void Channel::post_send(uint64_t slot, const TransferPtr& transfer) {
  if (transfer->nbytes() > kEagerNbytes) {
    const std::lock_guard lock(mutex_);
    const auto ready = ready_.find({transfer->peer(), slot});
    if (ready == ready_.end()) {
      sends_[{transfer->peer(), slot}].push_back(transfer);
      return;
    }
    if (--ready->second == 0) ready_.erase(ready);
  }
  send_data(slot, transfer);
}

void Channel::post_receive(uint64_t slot, const TransferPtr& transfer) {
  const Place place{transfer->peer(), slot};
  {
    const std::lock_guard lock(mutex_);
    if (const std::optional<std::string> early = take_front(early_, place)) {
      copy_into(transfer, *early);
      transfer->finish();
      changed_.notify_all();
    } else {
      receives_[place].push_back(transfer);
    }
  }
  if (transfer->done()) return transfer->notify();
  if (transfer->nbytes() > kEagerNbytes) send(place.first, FrameKind::kReady, slot, {});
}

bool Channel::wait(const std::vector<TransferPtr>& transfers,
                   const std::function<bool()>& reached) {
  std::unique_lock lock(mutex_);
  while (!reached()) {
    if (is_failed_) return false;
    for (const auto& [peer, end] : gone_) {
      const bool is_lost = std::any_of(transfers.begin(), transfers.end(), [&](const auto& t) {
        return !t->done() && t->peer() == peer;
      });
      if (is_lost) return false;
    }
    changed_.wait(lock);
  }
  return true;
}

void Channel::fail() {
  const std::lock_guard lock(mutex_);
  is_failed_ = true;
  changed_.notify_all();
}

std::vector<std::pair<int, PeerEnd>> Channel::gone() {
  const std::lock_guard lock(mutex_);
  return gone_;
}

bool Channel::has_unfetched() {
  const std::lock_guard lock(mutex_);
  for (const auto& [place, transfers] : sends_) {
    const int peer = place.first;
    const bool is_gone = std::any_of(gone_.begin(), gone_.end(),
                                     [&](const auto& gone) { return gone.first == peer; });
    if (!is_gone && std::any_of(transfers.begin(), transfers.end(),
                                [](const auto& transfer) { return transfer->owns_memory(); }))
      return true;
  }
  return false;
}

TransferPtr Channel::find_receive(int peer, uint64_t slot) {
  const std::lock_guard lock(mutex_);
  return take_front(receives_, {peer, slot}).value_or(nullptr);
}

void Channel::finish(const TransferPtr& transfer) {
  {
    const std::lock_guard lock(mutex_);
    transfer->finish();
    changed_.notify_all();
  }
  transfer->notify();
}

void Channel::handle(int peer, const FrameHeader& header, std::string payload) {
  switch (header.kind) {
    case FrameKind::kOpen: {
      const std::lock_guard lock(mutex_);
      opened_.insert(peer);
      return changed_.notify_all();
    }
    case FrameKind::kReady:
      return handle_ready(peer, header.slot);
    case FrameKind::kData:
      return handle_early_data(peer, header.slot, std::move(payload));
    default:
      break;
  }
  const std::lock_guard delivery(delivery_mutex_);
  if (listener_ != nullptr) return listener_->on_frame(peer, header, payload);
  if (!is_detached_) kept_.push_back({peer, header, std::move(payload)});
}

void Channel::handle_ready(int peer, uint64_t slot) {
  std::optional<TransferPtr> waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting = take_front(sends_, {peer, slot});
    if (!waiting) ++ready_[{peer, slot}];
  }
  if (waiting) send_data(slot, *waiting);
}

// It was not posted when the first byte came; it may be by now.
void Channel::handle_early_data(int peer, uint64_t slot, std::string payload) {
  TransferPtr posted;
  {
    const std::lock_guard lock(mutex_);
    posted = take_front(receives_, {peer, slot}).value_or(nullptr);
    if (!posted) early_[{peer, slot}].push_back(std::move(payload));
  }
  if (!posted) return;
  copy_into(posted, payload);
  finish(posted);
}

std::string Channel::where_it_waits(int peer) {
  const std::lock_guard delivery(delivery_mutex_);
  return listener_ != nullptr ? listener_->where_it_waits(peer) : std::string();
}

void Channel::peer_gone(int peer, const PeerEnd& end) {
  {
    const std::lock_guard lock(mutex_);
    gone_.emplace_back(peer, end);
    changed_.notify_all();
  }
  const std::lock_guard delivery(delivery_mutex_);
  if (listener_ != nullptr) listener_->on_peer_gone(peer, end);
}

}  // namespace muster::wire
