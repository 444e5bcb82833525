// What a rank does once all have arrived: it reads the others' memory in place.
#include <algorithm>
#include <span>

#include "dist/backend/shm/copy_bytes.h"
#include "dist/backend/shm/group.h"
#include "dist/group/reduce.h"

namespace muster {
using shm::Announcement;
using shm::bytes_of;
using shm::copy_bytes;

const std::byte* ShmWork::input_of(int peer, int64_t nbytes) const {
  const Announcement& slot = group_->block(peer).announcements[descriptor().seq % 2];
  if (is_inline_) return slot.payload;
  if (nbytes == 0) return nullptr;
  return group_->peer(peer).arena->at(slot.input_offset, nbytes);
}

void ShmWork::act_all_reduce() {
  const Tensor& tensor = request_.outputs[0];
  const int64_t count = tensor.numel();
  const int64_t item = item_nbytes(tensor.dtype());
  const auto size = static_cast<size_t>(group_->size());
  std::vector<const std::byte*> sources(size);
  for (size_t r = 0; r < size; ++r) sources[r] = input_of(static_cast<int>(r), tensor.nbytes());
  if (is_inline_)
    return reduce_buffers(descriptor().op, tensor.dtype(), bytes_of(tensor), sources, count);
  std::vector<std::byte*> targets(size);
  for (size_t r = 0; r < size; ++r) {
    const Announcement& slot =
        group_->block(static_cast<int>(r)).announcements[descriptor().seq % 2];
    targets[r] = group_->peer(static_cast<int>(r)).arena->at(slot.output_offset, tensor.nbytes());
  }
  // Each rank owns one stretch, reduces it from all and writes it to all; nobody else touches it.
  const int64_t each = (count + group_->size() - 1) / group_->size();
  const int64_t begin = std::min(count, each * group_->members.group_rank);
  const int64_t end = std::min(count, begin + each);
  constexpr int64_t kTile = 4096;
  alignas(64) std::byte tile[kTile * 8];
  for (int64_t from = begin; from < end; from += kTile) {
    const int64_t n = std::min(kTile, end - from);
    std::vector<const std::byte*> at(size);
    for (size_t r = 0; r < size; ++r) at[r] = sources[r] + from * item;
    reduce_buffers(descriptor().op, tensor.dtype(), tile, at, n);
    for (std::byte* target : targets) copy_bytes(target + from * item, tile, n * item);
  }
}

// Each rank's input goes to its outputs in order: one tensor for all, or P tensors a rank.
void ShmWork::act_gather() {
  if (request_.inputs.empty()) return;  // it lies where all see it
  const auto& outputs = request_.outputs;
  const int64_t own = request_.inputs[0].nbytes();
  if (outputs.size() == 1) {
    for (int r = 0; r < group_->size(); ++r)
      copy_bytes(bytes_of(outputs[0]) + r * own, input_of(r, own), own);
    return;
  }
  const size_t per_rank = outputs.size() / static_cast<size_t>(group_->size());
  for (int r = 0; r < group_->size(); ++r) {
    const std::span<const Tensor> mine(outputs.data() + static_cast<size_t>(r) * per_rank,
                                       per_rank);
    int64_t nbytes = 0;
    for (const Tensor& output : mine) nbytes += output.nbytes();
    const std::byte* from = input_of(r, nbytes);
    for (const Tensor& output : mine) {
      copy_bytes(bytes_of(output), from, output.nbytes());
      from += output.nbytes();
    }
  }
}

void ShmWork::act_all_to_all() {
  const int size = group_->size();
  const int own = group_->members.group_rank;
  for (int peer = 0; peer < size; ++peer) {
    const Tensor& output = request_.outputs[static_cast<size_t>(peer)];
    const Tensor& input = request_.inputs[static_cast<size_t>(peer)];
    // What a rank sends to each, then what it expects of each: both sides of a pair see a mismatch.
    const int64_t table_nbytes = 2 * size * static_cast<int64_t>(sizeof(int64_t));
    const auto* sends = reinterpret_cast<const int64_t*>(input_of(peer, table_nbytes));
    const int64_t* expects = sends + size;
    WrittenDescriptor mine;
    mine.write(descriptor());
    const Announcement& slot = group_->block(peer).announcements[descriptor().seq % 2];
    std::optional<Error> diverged =
        compare_pieces(group_->members.name, size, {mine, group_->members.name_of(own)},
                       {slot.descriptor, group_->members.name_of(peer)},
                       {input.nbytes(), output.nbytes()}, {sends[own], expects[own]});
    if (diverged) throw std::move(*diverged);
    int64_t offset = table_nbytes;
    for (int i = 0; i < own; ++i) offset += sends[i];
    copy_bytes(bytes_of(output), input_of(peer, offset + sends[own]) + offset, output.nbytes());
  }
}

// What stage_pieces_for_others() of every rank and this rank's own pieces add up to.
void ShmWork::act_reduce_pieces() {
  const auto size = static_cast<size_t>(group_->size());
  const auto own = static_cast<size_t>(group_->members.group_rank);
  const auto& outputs = request_.outputs;
  std::vector<int64_t> nbytes(size);
  for (size_t i = 0; i < request_.inputs.size(); ++i)
    nbytes[i / outputs.size()] += request_.inputs[i].nbytes();
  std::vector<const std::byte*> staged(size, nullptr);
  for (size_t peer = 0; peer < size; ++peer) {
    int64_t before = 0;
    for (size_t rank = 0; rank < own; ++rank) before += rank == peer ? 0 : nbytes[rank];
    if (peer != own && nbytes[own] > 0)
      staged[peer] = input_of(static_cast<int>(peer), before + nbytes[own]) + before;
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].numel() == 0) continue;
    std::vector<const std::byte*> sources = staged;
    sources[own] = bytes_of(request_.inputs[own * outputs.size() + i]);
    reduce_buffers(descriptor().op, outputs[i].dtype(), bytes_of(outputs[i]), sources,
                   outputs[i].numel());
    for (const std::byte*& at : staged) {
      if (at != nullptr) at += outputs[i].nbytes();
    }
  }
}

void ShmWork::act() {
  const int own = group_->members.group_rank;
  const bool is_root = own == request_.root;
  const auto size = static_cast<size_t>(group_->size());
  switch (descriptor().kind) {
    case CollectiveKind::kAllReduce:
      return act_all_reduce();
    case CollectiveKind::kAllToAll:
      return act_all_to_all();
    case CollectiveKind::kAllGather:
    case CollectiveKind::kGather:
      if (descriptor().kind == CollectiveKind::kAllGather || is_root) act_gather();
      return;
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kReduce: {
      if (descriptor().kind == CollectiveKind::kReduce && !is_root) return;
      if (request_.inputs.size() > 1) return act_reduce_pieces();
      const Tensor& output = request_.outputs[0];
      const int64_t from =
          descriptor().kind == CollectiveKind::kReduceScatter ? own * output.nbytes() : 0;
      if (output.numel() == 0) return;
      std::vector<const std::byte*> sources(size);
      for (size_t r = 0; r < size; ++r) {
        sources[r] = input_of(static_cast<int>(r), from + output.nbytes()) + from;
      }
      return reduce_buffers(descriptor().op, output.dtype(), bytes_of(output), sources,
                            output.numel());
    }
    case CollectiveKind::kBroadcast:
      return copy_bytes(bytes_of(request_.outputs[0]),
                        input_of(request_.root, request_.outputs[0].nbytes()),
                        request_.outputs[0].nbytes());
    case CollectiveKind::kScatter: {
      const Tensor& output = request_.outputs[0];
      const int64_t from = own * output.nbytes();
      const std::byte* source = input_of(request_.root, from + output.nbytes());
      return copy_bytes(bytes_of(output), source == nullptr ? nullptr : source + from,
                        output.nbytes());
    }
    case CollectiveKind::kBarrier:
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
      return;
  }
}

// all_reduce of a tensor outside the arena left its result in the staging block.
void ShmWork::copy_staged_output() {
  if (descriptor().kind == CollectiveKind::kAllReduce && staged_ != nullptr) {
    copy_bytes(bytes_of(request_.outputs[0]), staged_, request_.outputs[0].nbytes());
  }
}
}  // namespace muster
