#pragma once
/// Mailbox: the tensors that go between stages, matched by (stage, microbatch, direction).
///
/// Both sides know the whole schedule, so the order in which a peer sends is known: receives are
/// posted in that order, whatever the own row says, and every message carries a tag of what it is,
/// which the group's contract check compares. Tensors between stages of one rank are handed over
/// without a copy. A rank that waits goes on receiving what it has posted, so that peers whose
/// messages have no room left are not held up.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/tensor/tensor.h"
#include "dist/group/process_group.h"
#include "pipeline/schedule/schedule.h"

namespace muster::pipeline {

class Mailbox {
 public:
  /// What a message will look like, if that is known yet. Asked on the receiving side, by the
  /// receive action; without an answer the sender's header is awaited.
  using SpecOf = std::function<std::optional<TensorSpec>(const Action& receive)>;

  /// `schedule` is lowered; this rank runs the row of its group rank.
  Mailbox(std::shared_ptr<ProcessGroup> group, const Schedule& schedule, SpecOf spec_of);

  /// Begins a step. `step_tag` differs from step to step; `with_headers`: forward messages are
  /// preceded by their shape.
  void begin(uint64_t step_tag, bool with_headers);
  /// Sends to the rank of the other end. @blocks while the peer has no room
  /// @error kTimeout, kPeerLost, kMismatch, kAborted (throws), naming stage and microbatch
  void send(const Action& send, const Tensor& value);
  /// Lets a receive begin; take() waits for it.
  void post(const Action& receive);
  /// Hands a tensor to a stage of the same rank, for take().
  void hand_over(const Action& receive, Tensor value);
  /// The tensor of a receive that was posted or handed over, which the mailbox lets go of.
  /// @blocks until it is there @error as send
  Tensor take(const Action& receive);
  /// True when every tensor was taken.
  [[nodiscard]] bool is_empty() const noexcept { return arrived_.empty(); }

 private:
  struct Message {
    Action receive;
    std::optional<TensorSpec> spec = {};
    Tensor header = {};
    Tensor value = {};
    ProcessGroup::WorkPtr header_work = {};
    ProcessGroup::WorkPtr work = {};
  };
  // What one peer sends in a step, in its order.
  struct Inbox {
    std::vector<Action> order;
    std::vector<Message> messages;
    size_t finished = 0;
    size_t started = 0;
    size_t wanted = 0;
  };

  [[nodiscard]] int peer_of(const Action& receive) const;
  [[nodiscard]] uint64_t tag_of(const Action& receive, bool is_header) const;
  void start(int peer);
  // Which of its peer's messages it is, counted from 1.
  [[nodiscard]] size_t count_through(const Action& receive) const;
  // Works on the first `until` messages of a peer; false when the deadline passed before all of
  // them were there.
  bool advance(int peer, size_t until, Deadline deadline);
  void advance_others(int peer);
  [[nodiscard]] bool any_posted_but(int peer) const;

  std::shared_ptr<ProcessGroup> group_;
  std::vector<int> rank_of_;
  SpecOf spec_of_;
  std::vector<Inbox> inboxes_;  // by group rank
  std::map<Action, Tensor> arrived_;
  uint64_t step_tag_ = 0;
  bool with_headers_ = false;
};

/// "forward activations of microbatch 3 from stage 0 to stage 1": what a message is, for errors.
std::string describe_message(const Action& message);

}  // namespace muster::pipeline
