#include "dist/backend/gloo/group.h"

#include <fmt/format.h>
#include <gloo/common/error.h>

#include <algorithm>

#include "dist/backend/gloo/gloo_context.h"
#include "dist/backend/gloo/inline_collectives.h"

namespace muster {
namespace {
using wire::FrameHeader;
using wire::FrameKind;

// The fixed part of an announcement; the contribution follows.
struct AnnouncementHead {
  WrittenDescriptor descriptor;
  PieceSizes pieces;
};
}  // namespace

Result<void> GlooWork::wait(Deadline deadline) {
  if (!group_->wait(*this, deadline)) {
    Error error = make_error(ErrorCode::kTimeout, "{}: the deadline passed; it is still pending{}",
                             descriptor().describe(), group_->describe_late(*this));
    group_->note_timeout(*this, error.message());
    return error;
  }
  if (error_) return *error_;
  return {};
}

std::vector<int> GlooWork::late_ranks() const { return group_->late_ranks(*this); }

GlooBackend::Group::Group(std::shared_ptr<wire::Channel> channel, GroupMembers members)
    : channel_(std::move(channel)),
      members_(std::move(members)),
      last_announced_(members_.global_ranks.size()) {}

GlooBackend::Group::~Group() = default;

GlooBackend::Group::Round& GlooBackend::Group::round_locked(uint64_t seq) {
  Round& round = rounds_[seq];
  round.announced.resize(static_cast<size_t>(size()));
  return round;
}

std::shared_ptr<Work> GlooBackend::Group::launch(CollectiveRequest request) {
  auto work = std::make_shared<GlooWork>(shared_from_this(), std::move(request));
  const WorkDescriptor& what = work->descriptor();
  // Made before the peers' announcements can end the operation, which overwrites its tensors.
  const std::vector<std::string> said =
      is_pair(what.kind) ? std::vector<std::string>() : announcements(*work);
  {
    const std::lock_guard lock(mutex_);
    if (failure_) {
      finish_locked(work, failure_);
      return work;
    }
    if (!is_pair(what.kind)) round_locked(what.seq).work = work;
  }
  if (what.kind == CollectiveKind::kSend) {
    launch_send(work);
  } else if (what.kind == CollectiveKind::kRecv) {
    launch_receive(work);
  } else {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == members_.group_rank) continue;
      const auto at = static_cast<size_t>(peer);
      channel_->send(members_.global_ranks[at], FrameKind::kContract, what.seq, said[at]);
    }
    const std::lock_guard lock(mutex_);
    const auto found = rounds_.find(what.seq);
    if (found != rounds_.end() && !work->done()) advance_locked(found->second);
  }
  return work;
}

// What each peer is told, by group rank.
std::vector<std::string> GlooBackend::Group::announcements(const GlooWork& work) const {
  const WorkDescriptor& what = work.descriptor();
  const CollectiveRequest& request = work.request_;
  AnnouncementHead head{};
  head.descriptor.write(what);
  const bool is_inline = wire::is_inline(request, size());
  std::vector<std::string> said(static_cast<size_t>(size()));
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == members_.group_rank) continue;
    if (what.kind == CollectiveKind::kAllToAll) {
      head.pieces = {request.inputs[static_cast<size_t>(peer)].nbytes(),
                     request.outputs[static_cast<size_t>(peer)].nbytes()};
    }
    std::string payload = wire::to_bytes(head);
    if (is_inline) payload += wire::inline_contribution(request, members_.group_rank, peer);
    said[static_cast<size_t>(peer)] = std::move(payload);
  }
  return said;
}

std::optional<Error> GlooBackend::Group::compare_locked(const GlooWork& work, int peer,
                                                        const Announcement& theirs) const {
  WrittenDescriptor written;
  written.write(work.descriptor());
  const ContractSide mine{written, members_.own_name()};
  const ContractSide other{theirs.descriptor, members_.name_of(peer)};
  std::optional<Error> diverged = compare_contracts(members_.name, size(), mine, other);
  if (diverged || work.descriptor().kind != CollectiveKind::kAllToAll) return diverged;
  const auto at = static_cast<size_t>(peer);
  return compare_pieces(members_.name, size(), mine, other,
                        {work.request_.inputs[at].nbytes(), work.request_.outputs[at].nbytes()},
                        theirs.pieces);
}

std::optional<Error> GlooBackend::Group::lost_locked(const Round& round) const {
  const bool is_inline = wire::is_inline(round.work->request_, size());
  for (const auto& [rank, end] : gone_) {
    const bool has_announced = round.announced[static_cast<size_t>(rank)].has_value();
    // Who left with a goodbye has done its part of what it announced; who died may not have.
    if (!has_announced || (!is_inline && !end.politely))
      return lost_error(round.work->descriptor(), rank, end);
  }
  return std::nullopt;
}

// Compares what is there, and begins the operation once everything is.
void GlooBackend::Group::advance_locked(Round& round) {
  if (round.is_agreed) return;
  const WorkRef work = round.work;
  for (int peer = 0; peer < size(); ++peer) {
    const std::optional<Announcement>& theirs = round.announced[static_cast<size_t>(peer)];
    if (!theirs) continue;
    if (std::optional<Error> diverged = compare_locked(*work, peer, *theirs))
      return fail_locked(std::move(*diverged));
  }
  if (std::optional<Error> lost = lost_locked(round)) return fail_locked(std::move(*lost));
  if (round.num_announced < size() - 1) return;
  if (wire::is_inline(work->request_, size())) {
    std::vector<std::string_view> contributions;
    for (int peer = 0; peer < size(); ++peer) {
      const auto& announced = round.announced[static_cast<size_t>(peer)];
      contributions.push_back(announced ? std::string_view(announced->inlined) : "");
      const auto nbytes = static_cast<int64_t>(contributions.back().size());
      const int64_t expected =
          wire::expected_contribution_nbytes(work->request_, members_.group_rank, peer);
      if (announced && nbytes != expected) {
        return fail_locked(make_error(ErrorCode::kInternal, "{}: {} must give {} bytes; got {}",
                                      work->descriptor().describe(), members_.name_of(peer),
                                      expected, nbytes));
      }
    }
    wire::run_inline(work->request_, members_.group_rank, contributions);
    return finish_locked(work, std::nullopt);
  }
  round.is_agreed = true;
  runnable_.push_back(work);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
}

void GlooBackend::Group::finish_locked(const WorkRef& work, std::optional<Error> error) {
  if (work->done()) return;
  if (work->arriving_) work->arriving_->cancel();
  work->error_ = std::move(error);
  work->request_.inputs.clear();
  work->request_.outputs.clear();
  work->done_.store(true, std::memory_order_release);
  if (!is_pair(work->descriptor().kind)) rounds_.erase(work->descriptor().seq);
  changed_.notify_all();
}

void GlooBackend::Group::fail_locked(Error error) {
  if (failure_) return;
  failure_ = std::move(error);
  channel_->fail();
  runnable_.clear();
  std::vector<WorkRef> pending;
  for (const auto& [seq, round] : rounds_) {
    // Its thread still uses the tensors of the running one; it ends that itself, at once.
    if (round.work && round.work != running_) pending.push_back(round.work);
  }
  for (const auto& [place, work] : receivers_) pending.push_back(work);
  receivers_.clear();
  for (const WorkRef& work : pending) finish_locked(work, failure_);
  // Ranks that see nothing wrong between themselves would wait for this one; and who hears of a
  // dead peer only by our leaving would name us.
  const ErrorCode code = failure_->code();
  if (code == ErrorCode::kMismatch || code == ErrorCode::kPeerLost) post_notice(*failure_);
}

void GlooBackend::Group::post_notice(const Error& error) {
  if (std::exchange(is_noticed_, true)) return;
  const std::string payload =
      wire::to_bytes(static_cast<uint32_t>(error.code())) + error.message().substr(0, 4096);
  for (const int rank : members_.global_ranks) {
    if (rank != members_.own_global_rank()) channel_->send(rank, FrameKind::kNotice, 0, payload);
  }
}

void GlooBackend::Group::on_frame(int peer, const FrameHeader& header, const std::string& payload) {
  const int rank = group_rank_of(peer);
  const size_t head_nbytes = header.kind == FrameKind::kContract  ? sizeof(AnnouncementHead)
                             : header.kind == FrameKind::kMessage ? sizeof(WrittenDescriptor)
                                                                  : sizeof(uint32_t);
  if (rank < 0 || payload.size() < head_nbytes) return;
  WorkRef receiver;
  Message message;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    if (header.kind == FrameKind::kNotice) {
      const auto code = static_cast<ErrorCode>(wire::from_bytes<uint32_t>(payload.data()));
      const std::string text = payload.substr(sizeof(uint32_t));
      const char* what = code == ErrorCode::kMismatch   ? "found that ranks diverged"
                         : code == ErrorCode::kPeerLost ? "lost a peer"
                         : code == ErrorCode::kTimeout  ? "gave up waiting"
                                                        : "aborted it";
      return fail_locked(make_error(code, "group {}: {} {}: {}", members_.name,
                                    members_.name_of(rank), what, text));
    }
    if (header.kind == FrameKind::kContract) {
      const auto head = wire::from_bytes<AnnouncementHead>(payload.data());
      Round& round = round_locked(header.slot);
      std::optional<Announcement>& place = round.announced[static_cast<size_t>(rank)];
      if (!place) ++round.num_announced;
      place = Announcement{head.descriptor, head.pieces, payload.substr(sizeof(head))};
      last_announced_[static_cast<size_t>(rank)] = header.slot;
      if (round.work) advance_locked(round);
      return;
    }
    message = {wire::from_bytes<WrittenDescriptor>(payload.data()), header.aux,
               payload.substr(sizeof(WrittenDescriptor))};
    const MessagePlace place{rank, header.slot};
    const auto found = receivers_.find(place);
    if (found == receivers_.end()) {
      messages_.emplace(place, std::move(message));
      return;
    }
    receiver = found->second;
  }
  match_message(receiver, message);
}

void GlooBackend::Group::on_peer_gone(int peer, const wire::PeerEnd& end) {
  const int rank = group_rank_of(peer);
  if (rank < 0) return;
  const std::lock_guard lock(mutex_);
  gone_.emplace(rank, end);
  if (failure_) return;
  for (const auto& [seq, round] : rounds_) {
    if (!round.work) continue;
    std::optional<Error> lost;
    if (!round.is_agreed) {
      lost = lost_locked(round);
    } else if (!end.politely) {
      lost = lost_error(round.work->descriptor(), rank, end);
    }
    if (lost) return fail_locked(std::move(*lost));
  }
  for (const auto& [place, work] : receivers_) {
    if (place.first == rank) return fail_locked(lost_error(work->descriptor(), rank, end));
  }
}

bool GlooBackend::Group::wait(const GlooWork& work, Deadline deadline) {
  if (work.done()) return true;
  std::unique_lock lock(mutex_);
  const auto done = [&] { return work.done(); };
  if (!deadline.is_never()) return changed_.wait_until(lock, deadline.at(), done);
  changed_.wait(lock, done);
  return true;
}

void GlooBackend::Group::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!failure_) post_notice(Error(ErrorCode::kAborted, reason));
  fail_locked(make_error(ErrorCode::kAborted, "group {}: aborted on {}: {}", members_.name,
                         members_.own_name(), reason));
}

void GlooBackend::Group::close() {
  channel_->detach();
  {
    const std::lock_guard lock(mutex_);
    const bool left_a_timeout = timed_out_seq_ != 0 && rounds_.contains(timed_out_seq_);
    if (left_a_timeout && !failure_) post_notice(Error(ErrorCode::kTimeout, timed_out_why_));
    fail_locked(make_error(ErrorCode::kAborted,
                           "group {}: it was closed with this operation pending", members_.name));
    is_stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(mutex_);
  rounds_.clear();
  messages_.clear();
}

void GlooBackend::Group::run() {
  wire::Lane lane{
      .channel = *channel_,
      .gloo = wire::make_gloo_context(*channel_, members_.group_rank, members_.global_ranks),
      .group_rank = members_.group_rank,
      .global_ranks = members_.global_ranks,
      .scratch = {}};
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return is_stopping_ || !runnable_.empty(); });
    if (is_stopping_) return;
    running_ = runnable_.front();
    runnable_.pop_front();
    lock.unlock();
    std::optional<Error> error;
    try {
      wire::run_collective(lane, running_->request_);
    } catch (const ::gloo::Exception& caught) {
      error = Error(ErrorCode::kInternal, caught.what());
    } catch (const Error& caught) {
      error = caught;
    } catch (const std::exception& caught) {  // Gloo's own checks
      error = make_error(ErrorCode::kInternal, "{}: {}", running_->descriptor().describe(),
                         caught.what());
    }
    lock.lock();
    if (error && !failure_) {
      for (const auto& [peer, end] : channel_->gone()) {
        const int rank = group_rank_of(peer);
        if (rank < 0) continue;
        error = lost_error(running_->descriptor(), rank, end);
        break;
      }
      fail_locked(*error);
    }
    finish_locked(running_, error ? failure_ : std::nullopt);
    running_.reset();
  }
}

int GlooBackend::Group::group_rank_of(int global_rank) const {
  const auto& ranks = members_.global_ranks;
  const auto at = std::find(ranks.begin(), ranks.end(), global_rank);
  return at == ranks.end() ? -1 : static_cast<int>(at - ranks.begin());
}

Error GlooBackend::Group::lost_error(const WorkDescriptor& what, int group_rank,
                                     const wire::PeerEnd& end) const {
  return make_error(ErrorCode::kPeerLost, "{}: {} {}", what.describe(),
                    members_.name_of(group_rank), end.reason);
}
}  // namespace muster
