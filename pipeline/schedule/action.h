#pragma once
/// The vocabulary of pipeline schedules: one action of one stage, and one cell of a rank's row.
///
/// Text form is `<stage><kind>[<microbatch>]`: 2F0, 0SEND_F1, 3UNSHARD. A cell is blank (idle), one
/// action, `(0F3;3B1)OVERLAP_F_B`, or several messages posted together, joined by '+'. The whole
/// text must match: what does not is refused, not skipped.
/// @source action grammar of torch.distributed.pipelining; '+' is of the golden files

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"

namespace muster::pipeline {

enum class ActionKind : uint8_t {
  kForward,         ///< F
  kBackward,        ///< B: gradients of input and weights
  kBackwardInput,   ///< I: gradient of the input alone
  kBackwardWeight,  ///< W: gradients of the weights, after I
  kUnshard,         ///< UNSHARD: make the stage's parameters whole
  kReshard,
  kReduceGrad,  ///< REDUCE_GRAD: after the last backward of the stage
  kSendF,       ///< SEND_F: this stage's output to the next stage
  kRecvF,       ///< RECV_F: this stage's input from the previous stage
  kSendB,       ///< SEND_B: the gradient of this stage's input to the previous stage
  kRecvB,       ///< RECV_B: the gradient of this stage's output from the next stage
};

inline constexpr int kNoMicrobatch = -1;

/// One thing that a rank does for one of its stages.
struct Action {
  ActionKind kind = ActionKind::kForward;
  int stage = 0;
  int microbatch = kNoMicrobatch;  ///< kNoMicrobatch for UNSHARD, RESHARD and REDUCE_GRAD
  auto operator<=>(const Action&) const = default;
};

/// "F", "SEND_B", ...
std::string_view to_string(ActionKind kind) noexcept;
/// "2F0".
std::string to_string(const Action& action);
/// @error kInvalidArgument names the text and what does not fit
Result<Action> parse_action(std::string_view text);

[[nodiscard]] constexpr bool has_microbatch(ActionKind kind) noexcept {
  return kind < ActionKind::kUnshard || kind > ActionKind::kReduceGrad;
}
/// F, B, I or W: what takes time on the rank's own processor.
[[nodiscard]] constexpr bool is_compute(ActionKind kind) noexcept {
  return kind < ActionKind::kUnshard;
}
[[nodiscard]] constexpr bool is_send(ActionKind kind) noexcept {
  return kind == ActionKind::kSendF || kind == ActionKind::kSendB;
}
[[nodiscard]] constexpr bool is_recv(ActionKind kind) noexcept {
  return kind == ActionKind::kRecvF || kind == ActionKind::kRecvB;
}
[[nodiscard]] constexpr bool is_message(ActionKind kind) noexcept {
  return is_send(kind) || is_recv(kind);
}
/// B or I: what makes the gradient of the stage's input.
[[nodiscard]] constexpr bool gives_input_grad(ActionKind kind) noexcept {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput;
}
/// B or W: what ends the life of a microbatch on a stage.
[[nodiscard]] constexpr bool ends_microbatch(ActionKind kind) noexcept {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardWeight;
}

/// The other end of a message: 0SEND_F1 <-> 1RECV_F1, 1SEND_B1 <-> 0RECV_B1.
/// @error kInvalidArgument (throws) not a message
Action other_end(const Action& message);

/// One cell of a rank's row; no actions: idle.
struct Cell {
  std::vector<Action> actions;
  bool is_overlap =
      false;  ///< (F;B)OVERLAP_F_B: a forward and a backward that may run side by side

  Cell() = default;
  Cell(Action action) : actions{action} {}  // NOLINT(google-explicit-constructor)
  static Cell overlap(Action forward, Action backward);

  [[nodiscard]] bool is_idle() const noexcept { return actions.empty(); }
  bool operator==(const Cell&) const = default;
};

/// "", "2F0", "(0F3;3B1)OVERLAP_F_B", "0SEND_F1+0RECV_B0".
std::string to_string(const Cell& cell);
/// @error kInvalidArgument names the text and what does not fit
Result<Cell> parse_cell(std::string_view text);

}  // namespace muster::pipeline
