// Point-to-point messages: buffered in the sender's arena, read by the receiver in place.
#include "dist/backend/shm/copy_bytes.h"
#include "dist/backend/shm/group.h"

namespace muster {
bool ShmWork::execute_send(Deadline deadline) {
  const int own = group_->members.group_rank;
  const int peer = request_.root;
  const auto seq = static_cast<uint32_t>(descriptor().seq);
  shm::Clock& taken = shm::taken(group_->block(peer), group_->size(), own);
  bool finished = false;
  if (seq > shm::kMessagesInFlight &&
      !await_peer(peer, taken, seq - shm::kMessagesInFlight, deadline, &finished)) {
    return finished;
  }
  SharedArena& arena = group_->context->arena();
  auto& unread = group_->unread[static_cast<size_t>(peer)];
  const uint32_t read = taken.ticks.load(std::memory_order_acquire);
  while (!unread.empty() && static_cast<int32_t>(read - unread.front().seq) >= 0) {
    arena.deallocate(unread.front().data, unread.front().nbytes);
    unread.pop_front();
  }
  const Tensor& tensor = request_.inputs[0];
  shm::Outbox& box = shm::outbox(group_->own_block(), peer);
  shm::Message& message = box.ring[(seq - 1) % shm::kMessagesInFlight];
  message.descriptor.write(descriptor());
  message.nbytes = tensor.nbytes();
  if (message.nbytes > 0) {
    void* copy = arena.allocate(message.nbytes);
    shm::copy_bytes(static_cast<std::byte*>(copy), shm::bytes_of(tensor), message.nbytes);
    message.offset = arena.offset_of(copy);
    unread.push_back({seq, copy, message.nbytes});
  }
  shm::Context::advance(box.sent, seq);
  finish(std::nullopt);
  return true;
}

bool ShmWork::execute_recv(Deadline deadline) {
  const int own = group_->members.group_rank;
  const int peer = request_.root;
  const auto seq = static_cast<uint32_t>(descriptor().seq);
  shm::Outbox& box = shm::outbox(group_->block(peer), own);
  bool finished = false;
  if (!await_peer(peer, box.sent, seq, deadline, &finished)) return finished;
  const shm::Message& message = box.ring[(seq - 1) % shm::kMessagesInFlight];
  if (std::optional<Error> diverged = compare_contract(peer, message.descriptor)) {
    finish(std::move(diverged));
    return true;
  }
  const Tensor& tensor = request_.outputs[0];
  if (message.nbytes > 0) {
    shm::copy_bytes(shm::bytes_of(tensor),
                    group_->peer(peer).arena->at(message.offset, message.nbytes), tensor.nbytes());
  }
  shm::Context::advance(shm::taken(group_->own_block(), group_->size(), peer), seq);
  finish(std::nullopt);
  return true;
}
}  // namespace muster
