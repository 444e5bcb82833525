#include "dist/backend/shm/group.h"

#include <fmt/format.h>

#include <algorithm>

namespace muster {

ShmBackend::Group::Group(std::shared_ptr<shm::Context> context_in, GroupMembers members_in)
    : context(std::move(context_in)),
      members(std::move(members_in)),
      lanes_(1 + 2 * members.global_ranks.size()) {}

ShmBackend::Group::~Group() {
  for (int peer = 0; peer < static_cast<int>(blocks.size()); ++peer) {
    const shm::Clock& taken = shm::taken(block(peer), size(), members.group_rank);
    const uint32_t read = taken.ticks.load(std::memory_order_acquire);
    for (const SentMessage& message : unread[static_cast<size_t>(peer)]) {
      // What a peer has not read yet stays for it: a send outlives its group.
      if (static_cast<int32_t>(read - message.seq) >= 0)
        context->arena().deallocate(message.data, message.nbytes);
    }
  }
  // The control block stays allocated too: a slow peer may still look at its clock.
}

void ShmBackend::Group::note_timeout(uint64_t seq, const std::string& why) {
  const std::lock_guard lock(mutex_);
  timed_out_seq_ = seq;
  timed_out_why_ = why;
}

std::optional<Error> ShmBackend::Group::timeout_left_behind() {
  const std::lock_guard lock(mutex_);
  for (const auto& work : lanes_[0].pending) {
    if (work->descriptor().seq == timed_out_seq_ && !work->done())
      return Error(ErrorCode::kTimeout, timed_out_why_);
  }
  return std::nullopt;
}

void ShmBackend::Group::close() {
  context->remove_observer(this);
  if (const std::optional<Error> timeout = timeout_left_behind()) post_notice(*timeout);
  fail(make_error(ErrorCode::kAborted, "group {}: it was closed with this operation pending",
                  members.name));
  is_aborted = true;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (ShmLane& lane : lanes_) {
    if (lane.thread.joinable()) lane.thread.join();
  }
  std::deque<std::shared_ptr<ShmWork>> pending;
  {
    const std::lock_guard lock(mutex_);
    for (ShmLane& lane : lanes_) {
      for (auto& work : lane.pending) pending.push_back(std::move(work));
      lane.pending.clear();
      lane.async.clear();
    }
  }
  for (const auto& work : pending) work->finish(failure());
}

ShmLane& ShmBackend::Group::lane_of(const ShmWork& work) {
  const WorkDescriptor& what = work.descriptor();
  if (what.kind != CollectiveKind::kSend && what.kind != CollectiveKind::kRecv) return lanes_[0];
  const int shift = what.kind == CollectiveKind::kSend ? 1 : 1 + size();
  return lanes_[static_cast<size_t>(shift + what.peer)];
}

void ShmBackend::Group::enqueue(const std::shared_ptr<ShmWork>& work) {
  const std::lock_guard lock(mutex_);
  lane_of(*work).pending.push_back(work);
}

void ShmBackend::Group::drive_in_background(const std::shared_ptr<ShmWork>& work) {
  const std::lock_guard lock(mutex_);
  ShmLane& lane = lane_of(*work);
  lane.async.push_back(work);
  if (!lane.thread.joinable()) lane.thread = std::thread([this, &lane] { run_async(lane); });
  changed_.notify_all();
}

bool ShmBackend::Group::drive(ShmWork& work, Deadline deadline) {
  std::unique_lock lock(mutex_);
  ShmLane& lane = lane_of(work);
  while (!work.done()) {
    if (!lane.is_driven) {
      const std::shared_ptr<ShmWork> head = lane.pending.front();
      lane.is_driven = true;
      lock.unlock();
      const bool finished = head->execute(deadline);
      lock.lock();
      lane.is_driven = false;
      if (finished) lane.pending.pop_front();
      changed_.notify_all();
      if (!finished) return false;
    } else if (deadline.is_never()) {
      changed_.wait(lock);
    } else if (changed_.wait_until(lock, deadline.at()) == std::cv_status::timeout &&
               !work.done()) {
      return false;
    }
  }
  return true;
}

void ShmBackend::Group::run_async(ShmLane& lane) {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !lane.async.empty(); });
    if (stopping_) return;
    const std::shared_ptr<ShmWork> work = lane.async.front();
    lane.async.pop_front();
    lock.unlock();
    // Without a deadline of its own: the waiter has one, and an abort or a lost peer ends it.
    drive(*work, Deadline::never());
    lock.lock();
  }
}

void ShmBackend::Group::fail(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = error;
}

std::optional<Error> ShmBackend::Group::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void ShmBackend::Group::abort(const std::string& reason) {
  fail(make_error(ErrorCode::kAborted, "group {}: aborted on {}: {}", members.name,
                  members.own_name(), reason));
  is_aborted = true;
  post_notice(Error(ErrorCode::kAborted, reason));
  changed_.notify_all();
}

void ShmBackend::Group::post_notice(const Error& error) {
  shm::ControlBlock& own = own_block();
  {
    const std::lock_guard lock(mutex_);
    if (own.aborted.load(std::memory_order_relaxed) != 0) return;
    const std::string& reason = error.message();
    const size_t length = std::min(reason.size(), own.abort_reason.size() - 1);
    std::memcpy(own.abort_reason.data(), reason.data(), length);
    own.abort_reason[length] = '\0';
    own.aborted.store(static_cast<uint32_t>(error.code()), std::memory_order_release);
  }
  // Peers wait for our clock, we wait for theirs: wake both sides so that the flags are seen now.
  for (shm::ControlBlock* block : blocks) shm::Context::wake(block->clock);
  for (int peer = 0; peer < size(); ++peer) {
    shm::Context::wake(shm::outbox(block(peer), members.group_rank).sent);
    shm::Context::wake(shm::outbox(own, peer).sent);
    shm::Context::wake(shm::taken(block(peer), size(), members.group_rank));
    shm::Context::wake(shm::taken(own, size(), peer));
  }
}

Error ShmBackend::Group::read_notice(int peer, const WorkDescriptor& what) const {
  const shm::ControlBlock& block = *blocks[static_cast<size_t>(peer)];
  const auto code = static_cast<ErrorCode>(block.aborted.load(std::memory_order_acquire));
  const char* text = block.abort_reason.data();
  const std::string reason(text, ::strnlen(text, block.abort_reason.size()));
  if (code == ErrorCode::kMismatch) {
    return make_error(code, "{}: {} found that ranks diverged: {}", what.describe(),
                      members.name_of(peer), reason);
  }
  if (code == ErrorCode::kPeerLost)
    return make_error(code, "{}: {} lost a peer: {}", what.describe(), members.name_of(peer),
                      reason);
  if (code == ErrorCode::kTimeout)
    return make_error(code, "{}: {} gave up waiting: {}", what.describe(), members.name_of(peer),
                      reason);
  return make_error(ErrorCode::kAborted, "{}: {} aborted the group: {}", what.describe(),
                    members.name_of(peer), reason);
}

std::string ShmBackend::Group::where_it_waits(int global_rank) const {
  const auto& ranks = members.global_ranks;
  const auto at = std::find(ranks.begin(), ranks.end(), global_rank);
  if (at == ranks.end() || global_rank == ranks[static_cast<size_t>(members.group_rank)]) return {};
  shm::ControlBlock& theirs = block(static_cast<int>(at - ranks.begin()));
  const uint32_t ticks = theirs.clock.ticks.load(std::memory_order_acquire);
  const uint32_t own = own_block().clock.ticks.load(std::memory_order_acquire);
  const bool has_arrived = ticks % 2 == 1;
  if (!has_arrived || static_cast<int32_t>(own - ticks) >= 0) return {};
  // It cannot come to its next operation before this rank came to this one.
  return theirs.announcements[(ticks + 1) / 2 % 2].descriptor.describe(members.name);
}
}  // namespace muster
