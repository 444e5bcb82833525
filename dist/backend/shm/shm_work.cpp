#include <fmt/format.h>

#include <algorithm>

#include "dist/backend/shm/group.h"
#include "dist/group/reduce.h"

namespace muster {
namespace {
using shm::Announcement;
using shm::Context;
using shm::ControlBlock;
using shm::WaitOutcome;

std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

void copy_bytes(std::byte* to, const std::byte* from, int64_t nbytes) {
  if (nbytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(nbytes));
}

bool reads_root_only(CollectiveKind kind) {
  return kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kScatter;
}
bool root_reads_all(CollectiveKind kind) {
  return kind == CollectiveKind::kGather || kind == CollectiveKind::kReduce;
}
}  // namespace

ShmWork::ShmWork(std::shared_ptr<ShmBackend::Group> group, CollectiveRequest request)
    : Work(request.descriptor), group_(std::move(group)), request_(std::move(request)) {}

ShmWork::~ShmWork() { release_stage(); }

Result<void> ShmWork::wait(Deadline deadline) {
  if (!done() && !group_->drive(*this, deadline)) {
    std::string late;
    for (const int peer : late_ranks()) {
      const uint32_t ticks = group_->block(peer).clock.ticks.load(std::memory_order_acquire);
      late +=
          fmt::format("\n  {} has not arrived; its last is #{}", group_->name_of(peer), ticks / 2);
    }
    return make_error(ErrorCode::kTimeout, "{}: the deadline passed; it is still pending{}",
                      descriptor().describe(), late);
  }
  if (error_) return *error_;
  return {};
}

std::vector<int> ShmWork::late_ranks() const {
  if (descriptor().kind == CollectiveKind::kSend) return {};
  if (descriptor().kind == CollectiveKind::kRecv) return {descriptor().peer};
  std::vector<int> late;
  for (int peer = 0; peer < group_->size(); ++peer) {
    const uint32_t ticks = group_->block(peer).clock.ticks.load(std::memory_order_acquire);
    if (peer != group_->options.group_rank && ticks + 1 < 2 * descriptor().seq)
      late.push_back(peer);
  }
  return late;
}

void ShmWork::finish(std::optional<Error> error) {
  if (done()) return;
  if (error) {
    group_->fail(*error);
    // Ranks that see nothing wrong between themselves would wait for this one; and who hears of a
    // dead peer only by our end would name us.
    const ErrorCode code = error->code();
    if (code == ErrorCode::kMismatch || code == ErrorCode::kPeerLost) group_->post_notice(*error);
  }
  if (error && stage_ != Stage::kNew) {
    group_->context->keep(std::move(request_.inputs));
    group_->context->keep(std::move(request_.outputs));
    staged_ = nullptr;  // for the same reason it stays allocated
  }
  error_ = std::move(error);
  release_stage();
  request_.inputs.clear();
  request_.outputs.clear();
  done_.store(true, std::memory_order_release);
}

bool ShmWork::execute(Deadline deadline) {
  if (stage_ == Stage::kNew) {
    if (std::optional<Error> failure = group_->failure()) {
      finish(std::move(failure));
      return true;
    }
  }
  try {
    switch (descriptor().kind) {
      case CollectiveKind::kSend:
        return execute_send(deadline);
      case CollectiveKind::kRecv:
        return execute_recv(deadline);
      default:
        return execute_collective(deadline);
    }
  } catch (const Error& error) {
    finish(error);
    return true;
  }
}

bool ShmWork::await_peer(int peer, shm::Clock& clock, uint32_t target, Deadline deadline,
                         bool* finished) {
  ControlBlock& block = group_->block(peer);
  const WaitOutcome outcome = group_->context->wait_for(
      clock, target, group_->peer(peer), {block.aborted, group_->is_aborted}, deadline);
  *finished = true;
  switch (outcome) {
    case WaitOutcome::kReached:
      return true;
    case WaitOutcome::kDeadline:
      *finished = false;
      return false;
    case WaitOutcome::kPeerAborted:
      finish(group_->read_notice(peer, descriptor()));
      return false;
    case WaitOutcome::kAborted:
      finish(group_->failure());
      return false;
    case WaitOutcome::kPeerLost:
      break;
  }
  finish(make_error(ErrorCode::kPeerLost, "{}: {} (pid {}) has ended", descriptor().describe(),
                    group_->name_of(peer), group_->peer(peer).pid));
  return false;
}

std::optional<Error> ShmWork::compare_contract(int peer, const WrittenDescriptor& theirs) const {
  WrittenDescriptor mine;
  mine.write(descriptor());
  return compare_contracts(group_->options.group_name, group_->size(),
                           {mine, group_->name_of(group_->options.group_rank)},
                           {theirs, group_->name_of(peer)});
}

std::byte* ShmWork::stage(int64_t nbytes) {
  staged_ = static_cast<std::byte*>(group_->context->arena().allocate(nbytes));
  staged_nbytes_ = nbytes;
  return staged_;
}

void ShmWork::release_stage() {
  if (staged_ != nullptr) group_->context->arena().deallocate(staged_, staged_nbytes_);
  staged_ = nullptr;
}

int64_t ShmWork::payload_nbytes() const {
  int64_t nbytes = 0;
  for (const Tensor& input : request_.inputs) nbytes += input.nbytes();
  return nbytes;
}

// Makes this rank's contribution readable and says so.
void ShmWork::announce() {
  SharedArena& arena = group_->context->arena();
  ControlBlock& own = group_->own_block();
  Announcement& slot = own.announcements[descriptor().seq % 2];
  slot.descriptor.write(descriptor());
  slot.input_offset = slot.output_offset = -1;
  const CollectiveKind kind = descriptor().kind;
  const bool contributes = !reads_root_only(kind) || request_.root == group_->options.group_rank;
  // Sizes that ranks agree on decide this, so that all take the same path.
  const int64_t agreed = numel_of(descriptor().sizes) * item_nbytes(descriptor().dtype);
  const int64_t pieces = kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kScatter
                             ? group_->size()
                             : 1;
  const bool is_uneven = kind == CollectiveKind::kAllToAll ||
                         (kind == CollectiveKind::kAllGather && request_.outputs.size() > 1);
  is_inline_ = !is_uneven && agreed * pieces <= shm::kInlineNbytes;
  if (kind == CollectiveKind::kAllToAll) {
    const int64_t table = 2 * group_->size() * static_cast<int64_t>(sizeof(int64_t));
    std::byte* at = stage(table + payload_nbytes());
    slot.input_offset = arena.offset_of(at);
    std::byte* to = at + table;
    auto* sends = reinterpret_cast<int64_t*>(at);
    int64_t* expects = sends + group_->size();
    for (size_t i = 0; i < request_.inputs.size(); ++i) {
      sends[i] = request_.inputs[i].nbytes();
      expects[i] = request_.outputs[i].nbytes();
      copy_bytes(to, bytes_of(request_.inputs[i]), request_.inputs[i].nbytes());
      to += request_.inputs[i].nbytes();
    }
  } else if (contributes && !request_.inputs.empty()) {
    const Tensor& first = request_.inputs[0];
    const bool in_place = !is_inline_ && request_.inputs.size() == 1 && first.numel() > 0 &&
                          arena.contains(bytes_of(first));
    std::byte* to = in_place               ? bytes_of(first)
                    : is_inline_           ? slot.payload
                    : payload_nbytes() > 0 ? stage(payload_nbytes())
                                           : nullptr;
    if (!is_inline_ && to != nullptr) slot.input_offset = slot.output_offset = arena.offset_of(to);
    for (const Tensor& input : request_.inputs) {
      copy_bytes(to, bytes_of(input), input.nbytes());
      if (to != nullptr) to += input.nbytes();
    }
  }
  Context::advance(own.clock, static_cast<uint32_t>(2 * descriptor().seq - 1));
}

bool ShmWork::must_leave_after(int peer) const {
  const int own = group_->options.group_rank;
  if (is_inline_) return false;
  if (reads_root_only(descriptor().kind)) return own == request_.root;
  if (root_reads_all(descriptor().kind)) return peer == request_.root;
  return true;
}

bool ShmWork::execute_collective(Deadline deadline) {
  const int own = group_->options.group_rank;
  const auto arrived = static_cast<uint32_t>(2 * descriptor().seq - 1);
  bool finished = false;
  if (stage_ == Stage::kNew) {
    announce();
    stage_ = Stage::kArriving;
  }
  if (stage_ == Stage::kArriving) {
    for (; next_peer_ < group_->size(); ++next_peer_) {
      if (next_peer_ == own) continue;
      ControlBlock& block = group_->block(next_peer_);
      if (!await_peer(next_peer_, block.clock, arrived, deadline, &finished)) return finished;
      std::optional<Error> diverged =
          compare_contract(next_peer_, block.announcements[descriptor().seq % 2].descriptor);
      if (diverged) {
        finish(std::move(diverged));
        return true;
      }
    }
    act();
    Context::advance(group_->own_block().clock, arrived + 1);
    stage_ = Stage::kLeaving;
    next_peer_ = 0;
  }
  for (; next_peer_ < group_->size(); ++next_peer_) {
    if (next_peer_ == own || !must_leave_after(next_peer_)) continue;
    if (!await_peer(next_peer_, group_->block(next_peer_).clock, arrived + 1, deadline, &finished))
      return finished;
  }
  copy_staged_output();
  finish(std::nullopt);
  return true;
}

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
  const int64_t begin = std::min(count, each * group_->options.group_rank);
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
  const int own = group_->options.group_rank;
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
        compare_pieces(group_->options.group_name, size, {mine, group_->name_of(own)},
                       {slot.descriptor, group_->name_of(peer)}, {input.nbytes(), output.nbytes()},
                       {sends[own], expects[own]});
    if (diverged) throw std::move(*diverged);
    int64_t offset = table_nbytes;
    for (int i = 0; i < own; ++i) offset += sends[i];
    copy_bytes(bytes_of(output), input_of(peer, offset + sends[own]) + offset, output.nbytes());
  }
}

void ShmWork::act() {
  const int own = group_->options.group_rank;
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

bool ShmWork::execute_send(Deadline deadline) {
  const int own = group_->options.group_rank;
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
    copy_bytes(static_cast<std::byte*>(copy), bytes_of(tensor), message.nbytes);
    message.offset = arena.offset_of(copy);
    unread.push_back({seq, copy, message.nbytes});
  }
  Context::advance(box.sent, seq);
  finish(std::nullopt);
  return true;
}

bool ShmWork::execute_recv(Deadline deadline) {
  const int own = group_->options.group_rank;
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
    copy_bytes(bytes_of(tensor), group_->peer(peer).arena->at(message.offset, message.nbytes),
               tensor.nbytes());
  }
  Context::advance(shm::taken(group_->own_block(), group_->size(), peer), seq);
  finish(std::nullopt);
  return true;
}
}  // namespace muster
