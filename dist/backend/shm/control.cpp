#include "dist/backend/shm/control.h"

#include <algorithm>

namespace muster::shm {
namespace {
constexpr int64_t kBlockNbytes = (static_cast<int64_t>(sizeof(ControlBlock)) + 63) / 64 * 64;
}

void WrittenDescriptor::write(const WorkDescriptor& from) {
  contract = from.contract;
  seq = from.seq;
  kind = from.kind;
  op = from.op;
  dtype = from.dtype;
  peer = from.peer;
  line = from.line;
  ndim = static_cast<int8_t>(std::min<size_t>(from.sizes.size(), kMaxWrittenDims));
  std::copy_n(from.sizes.begin(), ndim, sizes.begin());
  const std::string_view path = from.file;
  const size_t length = std::min(path.size(), file.size() - 1);
  std::memcpy(file.data(), path.data(), length);
  file[length] = '\0';
}

std::string WrittenDescriptor::describe(const std::string& group) const {
  // The peer's memory: never trust a terminator.
  const std::string path(file.data(), ::strnlen(file.data(), file.size()));
  WorkDescriptor copy;
  copy.kind = kind;
  copy.op = op;
  copy.dtype = dtype;
  copy.peer = peer;
  copy.group = group;
  copy.seq = seq;
  copy.line = line;
  copy.file = path.c_str();
  for (int i = 0; i < std::clamp<int>(ndim, 0, kMaxWrittenDims); ++i)
    copy.sizes.push_back(sizes[static_cast<size_t>(i)]);
  return copy.describe();
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
