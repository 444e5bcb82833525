#include "pipeline/schedule/render.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/text.h"
#include "pipeline/schedule/simulate.h"

namespace muster::pipeline {
namespace {
// Whether `marked` means this compute action.
bool is_meant(const Action& marked, const Action& action) {
  if (marked.stage != action.stage || marked.microbatch != action.microbatch) return false;
  if (marked.kind == ActionKind::kSendF || marked.kind == ActionKind::kRecvF) {
    return action.kind == ActionKind::kForward;
  }
  if (is_message(marked.kind)) return gives_input_grad(action.kind);
  return marked.kind == action.kind;
}

bool has_one_stage_a_rank(const Schedule& schedule) {
  const std::vector<int> ranks = ranks_of_stages(schedule);
  for (size_t stage = 0; stage < ranks.size(); ++stage) {
    if (ranks[stage] != static_cast<int>(stage)) return false;
  }
  return schedule.num_ranks() == schedule.num_stages;
}
}  // namespace

std::string render(const Schedule& schedule, std::optional<Action> marked) {
  const Timeline timeline =
      simulate(schedule, Costs{.forward = 1, .backward = 1, .input = 1, .weight = 1}).value();
  const bool by_stage = has_one_stage_a_rank(schedule);
  const auto columns = static_cast<size_t>(timeline.makespan);
  std::vector<std::vector<std::string>> grid(schedule.rows.size(),
                                             std::vector<std::string>(columns, "."));
  size_t width = 1;
  for (size_t rank = 0; rank < grid.size(); ++rank) {
    for (const TimedAction& timed : timeline.rows[rank]) {
      std::string text = to_string(timed.action);
      if (by_stage) text = text.substr(text.find_first_not_of("0123456789"));
      if (marked && is_meant(*marked, timed.action)) text = fmt::format("[{}]", text);
      width = std::max(width, text.size());
      grid[rank][static_cast<size_t>(timed.start)] = std::move(text);
    }
  }
  const size_t digits = std::to_string(grid.size() - 1).size();
  std::string out = "\n";
  for (size_t rank = 0; rank < grid.size(); ++rank) {
    std::string line = fmt::format("{} {:>{}} |", by_stage ? "stage" : "rank", rank, digits);
    for (const std::string& cell : grid[rank]) line += fmt::format(" {:<{}}", cell, width);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string render_near(const Schedule& schedule, int rank, int position, int reach) {
  if (rank < 0 || rank >= schedule.num_ranks()) return "";
  const auto& row = schedule.rows[static_cast<size_t>(rank)];
  const int length = static_cast<int>(row.size());
  std::vector<std::string> parts;
  if (position - reach > 0) parts.emplace_back("...");
  for (int at = std::max(0, position - reach); at <= std::min(length - 1, position + reach); ++at) {
    std::string text = to_string(row[static_cast<size_t>(at)]);
    if (text.empty()) text = ".";
    parts.push_back(at == position ? fmt::format("[{}]", text) : text);
  }
  if (position == length) parts.emplace_back("[]");
  if (position + reach < length - 1) parts.emplace_back("...");
  return join(parts, " ");
}
}  // namespace muster::pipeline
