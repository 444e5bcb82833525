#include <fmt/format.h>

#include <algorithm>

#include "dist/backend/shm/copy_bytes.h"
#include "dist/backend/shm/group.h"

namespace muster {
namespace {
using shm::Announcement;
using shm::bytes_of;
using shm::Context;
using shm::ControlBlock;
using shm::copy_bytes;
using shm::WaitOutcome;

bool reads_root_only(CollectiveKind kind) {
  return kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kScatter;
}
bool root_reads_all(CollectiveKind kind) {
  return kind == CollectiveKind::kGather || kind == CollectiveKind::kReduce;
}

bool reduces_pieces(const CollectiveRequest& request) {
  return request.descriptor.kind == CollectiveKind::kReduceScatter && request.inputs.size() > 1;
}

// Sizes that ranks agree on decide this, so that all take the same path.
bool is_inline(const CollectiveRequest& request, int group_size) {
  const WorkDescriptor& what = request.descriptor;
  if (what.kind == CollectiveKind::kAllGather && request.inputs.empty()) return true;
  const int64_t agreed = numel_of(what.sizes) * item_nbytes(what.dtype);
  const bool has_pieces =
      what.kind == CollectiveKind::kReduceScatter || what.kind == CollectiveKind::kScatter;
  const bool is_uneven = what.kind == CollectiveKind::kAllToAll || reduces_pieces(request) ||
                         (what.kind == CollectiveKind::kAllGather && request.outputs.size() > 1);
  return !is_uneven && agreed * (has_pieces ? group_size : 1) <= shm::kInlineNbytes;
}
}  // namespace

ShmWork::ShmWork(std::shared_ptr<ShmBackend::Group> group, CollectiveRequest request)
    : Work(request.descriptor),
      group_(std::move(group)),
      request_(std::move(request)),
      is_inline_(is_inline(request_, group_->size())) {}

ShmWork::~ShmWork() { release_stage(); }

Result<void> ShmWork::wait(Deadline deadline) {
  if (!done() && !group_->drive(*this, deadline)) {
    const bool is_message = descriptor().kind == CollectiveKind::kRecv;
    std::string late;
    for (const int peer : late_ranks()) {
      const uint32_t ticks = group_->block(peer).clock.ticks.load(std::memory_order_acquire);
      const std::string place =
          group_->context->where_it_waits(group_->members.global_rank_of(peer));
      late += fmt::format("\n  {} {}{}{}", group_->members.name_of(peer),
                          is_message ? "has not sent it"
                                     : fmt::format("has not arrived; its last is #{}", ticks / 2),
                          place.empty() ? "" : "; it waits for this rank in ", place);
    }
    Error error = make_error(ErrorCode::kTimeout, "{}: the deadline passed; it is still pending{}",
                             descriptor().describe(), late);
    // Where its contribution is out already, the others can go on without this rank.
    if (!is_pair(descriptor().kind) && !is_inline_)
      group_->note_timeout(descriptor().seq, error.message());
    return error;
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
    if (peer != group_->members.group_rank && ticks + 1 < 2 * descriptor().seq)
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
  *finished = true;
  while (true) {
    const WaitOutcome outcome = group_->context->wait_for(
        clock, target, group_->peer(peer), {block.aborted, group_->is_aborted}, deadline);
    std::optional<Error> error;
    switch (outcome) {
      case WaitOutcome::kReached:
        return true;
      case WaitOutcome::kPeerAborted:
        error = group_->read_notice(peer, descriptor());
        break;
      case WaitOutcome::kAborted:
        error = group_->failure();
        break;
      case WaitOutcome::kPeerLost:
        error = fault_of_others(peer).value_or(lost_error(peer));
        break;
      case WaitOutcome::kTurn:
      case WaitOutcome::kDeadline:
        error = fault_of_others(peer);
        break;
    }
    if (error) {
      finish(std::move(error));
      return false;
    }
    if (outcome == WaitOutcome::kDeadline) {
      *finished = false;
      return false;
    }
  }
}

// The one that is waited for may be late for long: what is wrong among the others is said before.
std::optional<Error> ShmWork::fault_of_others(int awaited) const {
  std::vector<int> others, ended;
  for (int peer = 0; peer < group_->size(); ++peer) {
    if (peer == awaited || peer == group_->members.group_rank) continue;
    others.push_back(peer);
    if (Context::has_ended(group_->peer(peer))) ended.push_back(peer);
  }
  // Last words first: who left because of them is not the cause.
  for (const int peer : others) {
    if (group_->block(peer).aborted.load(std::memory_order_acquire) != 0)
      return group_->read_notice(peer, descriptor());
  }
  if (is_pair(descriptor().kind)) return std::nullopt;
  const auto arrived = static_cast<uint32_t>(2 * descriptor().seq - 1);
  const auto has_come_to = [&](int peer, uint32_t target) {
    const uint32_t ticks = group_->block(peer).clock.ticks.load(std::memory_order_acquire);
    return static_cast<int32_t>(ticks - target) >= 0;
  };
  for (const int peer : others) {
    if (stage_ != Stage::kArriving || !has_come_to(peer, arrived)) continue;
    const Announcement& slot = group_->block(peer).announcements[descriptor().seq % 2];
    if (std::optional<Error> diverged = compare_contract(peer, slot.descriptor)) return diverged;
  }
  for (const int peer : ended) {
    if (!has_come_to(peer, must_leave_after(peer) ? arrived + 1 : arrived)) return lost_error(peer);
  }
  return std::nullopt;
}

Error ShmWork::lost_error(int peer) const {
  return make_error(ErrorCode::kPeerLost, "{}: {} (pid {}) has ended", descriptor().describe(),
                    group_->members.name_of(peer), group_->peer(peer).pid);
}

std::optional<Error> ShmWork::compare_contract(int peer, const WrittenDescriptor& theirs) const {
  WrittenDescriptor mine;
  mine.write(descriptor());
  return compare_contracts(group_->members.name, group_->size(), {mine, group_->members.own_name()},
                           {theirs, group_->members.name_of(peer)});
}

// Rank by rank; its own pieces a rank reads where they lie.
std::byte* ShmWork::stage_pieces_for_others() {
  const auto own = static_cast<size_t>(group_->members.group_rank);
  const size_t per_rank = request_.outputs.size();
  const auto is_own = [&](size_t i) { return i / per_rank == own; };
  int64_t nbytes = 0;
  for (size_t i = 0; i < request_.inputs.size(); ++i)
    nbytes += is_own(i) ? 0 : request_.inputs[i].nbytes();
  if (nbytes == 0) return nullptr;
  std::byte* to = stage(nbytes);
  for (size_t i = 0; i < request_.inputs.size(); ++i) {
    if (is_own(i)) continue;
    copy_bytes(to, bytes_of(request_.inputs[i]), request_.inputs[i].nbytes());
    to += request_.inputs[i].nbytes();
  }
  return staged_;
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
  const bool contributes = !reads_root_only(kind) || request_.root == group_->members.group_rank;
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
  } else if (reduces_pieces(request_)) {
    if (std::byte* const at = stage_pieces_for_others()) slot.input_offset = arena.offset_of(at);
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
  const int own = group_->members.group_rank;
  if (is_inline_) return false;
  if (reads_root_only(descriptor().kind)) return own == request_.root;
  if (root_reads_all(descriptor().kind)) return peer == request_.root;
  return true;
}

bool ShmWork::execute_collective(Deadline deadline) {
  const int own = group_->members.group_rank;
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
}  // namespace muster
