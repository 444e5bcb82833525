#include "pipeline/runtime/mailbox.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/hash.h"

namespace muster::pipeline {
namespace {
constexpr int64_t kHeaderWords = 12;  // dtype, number of dims, sizes
constexpr int64_t kMaxDims = kHeaderWords - 2;
// How long one peer is waited for before the others' messages are looked after.
constexpr Duration kTurn = 2ms;

Tensor empty_header() {
  return empty_from_spec(TensorSpec::contiguous({kHeaderWords}, DType::kI64));
}

Tensor header_of(const Tensor& value) {
  MUSTER_CHECK(value.ndim() <= kMaxDims, ErrorCode::kInvalidArgument,
               "pipeline: tensors between stages have at most {} dims; got {}", kMaxDims, value);
  Tensor header = empty_header();
  int64_t* words = header.data<int64_t>();
  std::fill(words, words + kHeaderWords, 0);
  words[0] = static_cast<int64_t>(value.dtype());
  words[1] = value.ndim();
  std::copy(value.sizes().begin(), value.sizes().end(), words + 2);
  return header;
}

TensorSpec spec_of_header(const Tensor& header) {
  const int64_t* words = header.data<int64_t>();
  MUSTER_ASSERT(words[1] >= 0 && words[1] <= kMaxDims, "pipeline: a header names {} dims",
                words[1]);
  const DimVector sizes(words + 2, words + 2 + words[1]);
  return TensorSpec::contiguous(sizes, static_cast<DType>(words[0]));
}

[[noreturn]] void rethrow(Error error, const Action& message, int peer) {
  error.add_context(fmt::format(
      "{} {}: {} {} group rank {}", is_send(message.kind) ? "sending" : "waiting for",
      to_string(message), describe_message(message), is_send(message.kind) ? "to" : "from", peer));
  throw std::move(error);
}
}  // namespace

std::string describe_message(const Action& message) {
  const Action receive = is_send(message.kind) ? other_end(message) : message;
  const bool is_forward = receive.kind == ActionKind::kRecvF;
  return fmt::format("{} of microbatch {}, stage {} to stage {},",
                     is_forward ? "activations" : "gradients", receive.microbatch,
                     is_forward ? receive.stage - 1 : receive.stage + 1, receive.stage);
}

Mailbox::Mailbox(std::shared_ptr<ProcessGroup> group, const Schedule& schedule, SpecOf spec_of)
    : group_(std::move(group)),
      rank_of_(ranks_of_stages(schedule)),
      spec_of_(std::move(spec_of)),
      inboxes_(schedule.rows.size()) {
  for (const PlacedAction& placed : placed_actions(schedule)) {
    if (!is_send(placed.action.kind)) continue;
    const Action receive = other_end(placed.action);
    if (rank_of_[static_cast<size_t>(receive.stage)] != group_->group_rank()) continue;
    inboxes_[static_cast<size_t>(placed.rank)].order.push_back(receive);
  }
}

void Mailbox::begin(uint64_t step_tag, bool with_headers) {
  MUSTER_ASSERT(is_empty(), "pipeline: {} tensors of the last step were never used",
                arrived_.size());
  step_tag_ = step_tag;
  with_headers_ = with_headers;
  for (Inbox& inbox : inboxes_) {
    inbox.messages.clear();
    for (const Action& receive : inbox.order) inbox.messages.push_back({.receive = receive});
    inbox.finished = inbox.started = inbox.wanted = 0;
  }
}

int Mailbox::peer_of(const Action& receive) const {
  return rank_of_[static_cast<size_t>(other_end(receive).stage)];
}

uint64_t Mailbox::tag_of(const Action& receive, bool is_header) const {
  const auto stage = static_cast<uint64_t>(receive.stage);
  const auto microbatch = static_cast<uint64_t>(receive.microbatch);
  const uint64_t what = static_cast<uint64_t>(receive.kind) * 2 + (is_header ? 1 : 0);
  return hash_combine(hash_combine(step_tag_, what), stage << 32 | microbatch);
}

// Launches receives in the peer's order, up to the last one that was posted. One whose shape is
// not known waits for its header, and the later ones wait for it.
void Mailbox::start(int peer) {
  Inbox& inbox = inboxes_[static_cast<size_t>(peer)];
  while (inbox.started < inbox.wanted) {
    Message& message = inbox.messages[inbox.started];
    const bool has_header = with_headers_ && message.receive.kind == ActionKind::kRecvF;
    if (has_header) {
      if (!message.header_work) {
        message.header = empty_header();
        message.header_work =
            group_->recv_tagged(message.header, peer, tag_of(message.receive, true));
      }
    } else if (!message.spec) {
      message.spec = spec_of_(message.receive);
    }
    if (!message.spec) return;
    message.value = empty_from_spec(*message.spec);
    message.work = group_->recv_tagged(message.value, peer, tag_of(message.receive, false));
    ++inbox.started;
  }
}

bool Mailbox::advance(int peer, size_t until, Deadline deadline) {
  Inbox& inbox = inboxes_[static_cast<size_t>(peer)];
  const auto is_over = [&](const ProcessGroup::WorkPtr& work, const Action& receive) {
    const Result<void> result = work->wait(deadline);
    if (!result.ok() && result.error().code() != ErrorCode::kTimeout) {
      rethrow(result.error(), receive, peer);
    }
    return result.ok();
  };
  while (inbox.finished < until) {
    start(peer);
    Message& message = inbox.messages[inbox.finished];
    if (inbox.finished == inbox.started) {
      if (!message.header_work || !is_over(message.header_work, message.receive)) return false;
      message.spec = spec_of_header(message.header);
      continue;
    }
    if (!is_over(message.work, message.receive)) return false;
    arrived_.emplace(message.receive, std::move(message.value));
    message = Message{.receive = message.receive};
    ++inbox.finished;
  }
  return true;
}

bool Mailbox::any_posted_but(int peer) const {
  for (size_t other = 0; other < inboxes_.size(); ++other) {
    if (static_cast<int>(other) != peer && inboxes_[other].finished < inboxes_[other].wanted) {
      return true;
    }
  }
  return false;
}

void Mailbox::advance_others(int peer) {
  for (size_t other = 0; other < inboxes_.size(); ++other) {
    if (static_cast<int>(other) != peer) {
      static_cast<void>(
          advance(static_cast<int>(other), inboxes_[other].wanted, Deadline::after(Duration(0))));
    }
  }
}

size_t Mailbox::count_through(const Action& receive) const {
  const std::vector<Action>& order = inboxes_[static_cast<size_t>(peer_of(receive))].order;
  const auto at = std::find(order.begin(), order.end(), receive);
  MUSTER_ASSERT(at != order.end(), "pipeline: {} has no sender", to_string(receive));
  return static_cast<size_t>(at - order.begin()) + 1;
}

void Mailbox::post(const Action& receive) {
  const int peer = peer_of(receive);
  Inbox& inbox = inboxes_[static_cast<size_t>(peer)];
  inbox.wanted = std::max(inbox.wanted, count_through(receive));
  start(peer);
}

void Mailbox::send(const Action& send, const Tensor& value) {
  const Action receive = other_end(send);
  const int peer = rank_of_[static_cast<size_t>(receive.stage)];
  const Deadline deadline = Deadline::after(group_->timeout());
  const auto finish = [&](const ProcessGroup::WorkPtr& work) {
    while (true) {
      const Result<void> result =
          work->wait(Deadline::after(std::min<Duration>(kTurn, deadline.left())));
      if (result.ok()) return;
      if (result.error().code() != ErrorCode::kTimeout || deadline.passed()) {
        rethrow(result.error(), send, peer);
      }
      advance_others(-1);
    }
  };
  if (with_headers_ && send.kind == ActionKind::kSendF) {
    finish(group_->send_tagged(header_of(value), peer, tag_of(receive, true)));
  }
  finish(group_->send_tagged(value, peer, tag_of(receive, false)));
}

void Mailbox::hand_over(const Action& receive, Tensor value) {
  arrived_.emplace(receive, std::move(value));
}

Tensor Mailbox::take(const Action& receive) {
  const Deadline deadline = Deadline::after(group_->timeout());
  const int peer = peer_of(receive);
  auto found = arrived_.find(receive);
  if (found == arrived_.end()) {
    MUSTER_ASSERT(count_through(receive) <= inboxes_[static_cast<size_t>(peer)].wanted,
                  "pipeline: {} was never posted", to_string(receive));
  }
  while (found == arrived_.end()) {
    const bool has_others = any_posted_but(peer);
    const Deadline turn =
        has_others ? Deadline::after(std::min<Duration>(kTurn, deadline.left())) : deadline;
    // Not what was posted beyond it: that may not have been sent for long.
    const bool is_here = advance(peer, count_through(receive), turn);
    found = arrived_.find(receive);
    if (found != arrived_.end()) break;
    MUSTER_ASSERT(!is_here, "pipeline: {} was taken twice", to_string(receive));
    if (deadline.passed()) {
      rethrow(make_error(ErrorCode::kTimeout, "pipeline: nothing came within {}",
                         format_duration(group_->timeout())),
              receive, peer);
    }
    if (has_others) advance_others(peer);
  }
  Tensor value = std::move(found->second);
  arrived_.erase(found);
  return value;
}
}  // namespace muster::pipeline
