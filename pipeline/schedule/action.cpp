#include "pipeline/schedule/action.h"

#include <fmt/format.h>

#include <array>

#include "core/base/text.h"

namespace muster::pipeline {
namespace {
constexpr std::array<std::string_view, 11> kNames = {"F",       "B",       "I",           "W",
                                                     "UNSHARD", "RESHARD", "REDUCE_GRAD", "SEND_F",
                                                     "RECV_F",  "SEND_B",  "RECV_B"};
constexpr std::string_view kOverlap = "OVERLAP_F_B";
constexpr size_t kMaxDigits = 6;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The number at the front of `text`, which it is taken off. Without leading zeros, so that text and
// action are one to one.
Result<int> take_number(std::string_view& text, std::string_view whole, const char* what) {
  size_t length = 0;
  while (length < text.size() && is_digit(text[length])) ++length;
  if (length == 0 || length > kMaxDigits || (length > 1 && text[0] == '0')) {
    return make_error(ErrorCode::kInvalidArgument,
                      "action \"{}\": {} must be a number of 1 to {} digits without leading zeros; "
                      "got \"{}\"",
                      whole, what, kMaxDigits, text);
  }
  int value = 0;
  for (const char c : text.substr(0, length)) value = value * 10 + (c - '0');
  text.remove_prefix(length);
  return value;
}

Result<Cell> parse_overlap(std::string_view text) {
  const size_t close = text.find(')');
  if (close == std::string_view::npos || text.substr(close + 1) != kOverlap) {
    return make_error(ErrorCode::kInvalidArgument,
                      "action \"{}\": parentheses must be followed by {}; got \"{}\"", text,
                      kOverlap, close == std::string_view::npos ? text : text.substr(close + 1));
  }
  const std::vector<std::string> parts = split(text.substr(1, close - 1), ';');
  if (parts.size() != 2) {
    return make_error(ErrorCode::kInvalidArgument,
                      "action \"{}\": an overlap must have two parts; got {}", text,
                      parts.size() == 1 && parts[0].empty() ? 0 : parts.size());
  }
  const Action forward = MUSTER_TRY(parse_action(parts[0]));
  const Action backward = MUSTER_TRY(parse_action(parts[1]));
  if (forward.kind != ActionKind::kForward || !gives_input_grad(backward.kind)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "action \"{}\": an overlap must be a forward and then a backward; got {} "
                      "and {}",
                      text, to_string(forward), to_string(backward));
  }
  return Cell::overlap(forward, backward);
}
}  // namespace

std::string_view to_string(ActionKind kind) noexcept { return kNames[static_cast<size_t>(kind)]; }

std::string to_string(const Action& action) {
  if (!has_microbatch(action.kind))
    return fmt::format("{}{}", action.stage, to_string(action.kind));
  return fmt::format("{}{}{}", action.stage, to_string(action.kind), action.microbatch);
}

Result<Action> parse_action(std::string_view text) {
  std::string_view rest = text;
  Action action;
  action.stage = MUSTER_TRY(take_number(rest, text, "the stage"));
  size_t length = 0;
  while (length < rest.size() && !is_digit(rest[length])) ++length;
  const std::string_view name = rest.substr(0, length);
  size_t kind = 0;
  while (kind < kNames.size() && kNames[kind] != name) ++kind;
  if (kind == kNames.size()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "action \"{}\": the kind must be one of {}; got \"{}\"", text,
                      fmt::join(kNames, " "), name);
  }
  action.kind = static_cast<ActionKind>(kind);
  rest.remove_prefix(length);
  if (has_microbatch(action.kind)) {
    action.microbatch = MUSTER_TRY(take_number(rest, text, "the microbatch"));
  }
  if (!rest.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "action \"{}\": nothing may follow {}; got \"{}\"", text, to_string(action),
                      rest);
  }
  return action;
}

Action other_end(const Action& message) {
  const auto at = [&](ActionKind kind, int step) {
    return Action{kind, message.stage + step, message.microbatch};
  };
  switch (message.kind) {
    case ActionKind::kSendF:
      return at(ActionKind::kRecvF, 1);
    case ActionKind::kRecvF:
      return at(ActionKind::kSendF, -1);
    case ActionKind::kSendB:
      return at(ActionKind::kRecvB, -1);
    case ActionKind::kRecvB:
      return at(ActionKind::kSendB, 1);
    default:
      throw_error(ErrorCode::kInvalidArgument, "other_end: the action must be a message; got {}",
                  to_string(message));
  }
}

Cell Cell::overlap(Action forward, Action backward) {
  Cell cell(forward);
  cell.actions.push_back(backward);
  cell.is_overlap = true;
  return cell;
}

std::string to_string(const Cell& cell) {
  std::vector<std::string> parts;
  for (const Action& action : cell.actions) parts.push_back(to_string(action));
  if (!cell.is_overlap) return join(parts, "+");
  return fmt::format("({}){}", join(parts, ";"), kOverlap);
}

Result<Cell> parse_cell(std::string_view text) {
  text = trim(text);
  Cell cell;
  if (text.empty()) return cell;
  if (text.front() == '(') return parse_overlap(text);
  for (const std::string& part : split(text, '+')) {
    cell.actions.push_back(MUSTER_TRY(parse_action(part)));
  }
  for (const Action& action : cell.actions) {
    if (cell.actions.size() > 1 && !is_message(action.kind)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "cell \"{}\": only messages may be joined by '+'; got {}", text,
                        to_string(action));
    }
  }
  return cell;
}
}  // namespace muster::pipeline
