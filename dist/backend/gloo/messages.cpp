// Point-to-point messages of a gloo group: small ones come whole, large ones on demand.
#include <cstring>

#include "dist/backend/gloo/group.h"

namespace muster {
namespace {
using wire::FrameKind;

uint64_t slot_of(uint64_t seq) { return uint64_t{0xf1} << 56 | seq; }
}  // namespace

// A send is buffered: the bytes are ours before it returns.
void GlooBackend::Group::launch_send(const WorkRef& work) {
  const WorkDescriptor& what = work->descriptor();
  const int peer = members_.global_rank_of(what.peer);
  {
    const std::lock_guard lock(mutex_);
    const auto gone = gone_.find(what.peer);
    if (gone != gone_.end()) {
      fail_locked(lost_error(what, gone->first, gone->second));
      return finish_locked(work, failure_);
    }
  }
  const Tensor& tensor = work->request_.inputs[0];
  const int64_t nbytes = tensor.nbytes();
  WrittenDescriptor written;
  written.write(what);
  std::string payload = wire::to_bytes(written);
  const bool is_small = nbytes <= wire::kEagerNbytes;
  if (is_small)
    payload.append(static_cast<const char*>(tensor.data_ptr()), static_cast<size_t>(nbytes));
  channel_->send(peer, FrameKind::kMessage, what.seq, std::move(payload), nbytes);
  if (!is_small) {
    auto copy = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(nbytes));
    std::memcpy(copy.get(), tensor.data_ptr(), static_cast<size_t>(nbytes));
    channel_->post_send(slot_of(what.seq),
                        std::make_shared<wire::Transfer>(peer, std::move(copy), nbytes));
  }
  const std::lock_guard lock(mutex_);
  finish_locked(work, std::nullopt);
}

void GlooBackend::Group::launch_receive(const WorkRef& work) {
  const WorkDescriptor& what = work->descriptor();
  const MessagePlace place{what.peer, what.seq};
  std::optional<Message> message;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return finish_locked(work, failure_);
    const auto found = messages_.find(place);
    if (found != messages_.end()) {
      message = std::move(found->second);
      messages_.erase(found);
    } else if (const auto gone = gone_.find(what.peer); gone != gone_.end()) {
      fail_locked(lost_error(what, gone->first, gone->second));
      return finish_locked(work, failure_);
    }
    receivers_.emplace(place, work);
  }
  if (message) match_message(work, *message);
}

void GlooBackend::Group::match_message(const WorkRef& work, const Message& message) {
  const WorkDescriptor& what = work->descriptor();
  const int64_t nbytes = message.nbytes;
  {
    const std::lock_guard lock(mutex_);
    if (work->done()) return;
    Announcement theirs{message.descriptor, {}, {}};
    if (std::optional<Error> diverged = compare_locked(*work, what.peer, theirs))
      return fail_locked(std::move(*diverged));
    if (nbytes <= wire::kEagerNbytes) {
      if (nbytes > 0) {
        std::memcpy(work->request_.outputs[0].data_ptr(), message.inlined.data(),
                    std::min(message.inlined.size(), static_cast<size_t>(nbytes)));
      }
      receivers_.erase({what.peer, what.seq});
      return finish_locked(work, std::nullopt);
    }
  }
  start_large_receive(work);
}

void GlooBackend::Group::start_large_receive(const WorkRef& work) {
  const WorkDescriptor& what = work->descriptor();
  wire::TransferPtr transfer;
  {
    const std::lock_guard lock(mutex_);
    if (work->done()) return;
    // It announced the message, and ended before this rank asked for it.
    if (const auto gone = gone_.find(what.peer); gone != gone_.end())
      return fail_locked(lost_error(what, gone->first, gone->second));
    const Tensor& output = work->request_.outputs[0];
    // It holds the group weakly: the mesh must never be the last to hold it.
    const auto on_done = [weak = weak_from_this(), receiver = std::weak_ptr<GlooWork>(work)] {
      const std::shared_ptr<Group> group = weak.lock();
      const WorkRef received = receiver.lock();
      if (!group || !received) return;
      const std::lock_guard inner(group->mutex_);
      const WorkDescriptor& done = received->descriptor();
      group->receivers_.erase({done.peer, done.seq});
      group->finish_locked(received, std::nullopt);
    };
    transfer = std::make_shared<wire::Transfer>(members_.global_rank_of(what.peer),
                                                output.data_ptr(), output.nbytes(), on_done);
    work->arriving_ = transfer;
  }
  channel_->post_receive(slot_of(what.seq), transfer);
}
}  // namespace muster
