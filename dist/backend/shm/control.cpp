#include "dist/backend/shm/control.h"

namespace muster::shm {
namespace {
constexpr int64_t kBlockNbytes = (static_cast<int64_t>(sizeof(ControlBlock)) + 63) / 64 * 64;
}

int64_t control_nbytes(int group_size) noexcept {
  return kBlockNbytes + group_size * static_cast<int64_t>(sizeof(Outbox) + sizeof(Clock));
}

Outbox& outbox(ControlBlock& block, int peer) noexcept {
  auto* first = reinterpret_cast<Outbox*>(reinterpret_cast<std::byte*>(&block) + kBlockNbytes);
  return first[peer];
}

Clock& taken(ControlBlock& block, int group_size, int peer) noexcept {
  auto* first = reinterpret_cast<Clock*>(&outbox(block, group_size));
  return first[peer];
}
}  // namespace muster::shm
