#include "pipeline/schedule/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/base/text.h"

namespace muster::pipeline {
namespace {
// The next `count` different stages that a row works on, from `from` on, nearest first.
std::vector<int> next_stages(const std::vector<Cell>& row, size_t from, int count) {
  std::vector<int> stages;
  for (size_t at = from; at < row.size(); ++at) {
    for (const Action& action : row[at].actions) {
      if (static_cast<int>(stages.size()) == count) return stages;
      if (std::find(stages.begin(), stages.end(), action.stage) == stages.end()) {
        stages.push_back(action.stage);
      }
    }
  }
  return stages;
}

bool contains(const std::vector<int>& values, int value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// Walks all rows side by side, a cell a rank and round, and writes the same rows with messages.
class MessageWalk {
 public:
  explicit MessageWalk(const Schedule& schedule)
      : from_(schedule),
        rank_of_(ranks_of_stages(schedule)),
        at_(schedule.rows.size()),
        has_(schedule.rows.size()) {
    to_ = schedule;
    for (auto& row : to_.rows) row.clear();
  }

  Result<Schedule> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < from_.rows.size(); ++rank) {
        const auto& row = from_.rows[rank];
        if (at_[rank] == row.size() || !is_ready(rank, row[at_[rank]])) continue;
        put(rank, row[at_[rank]++]);
        moved = true;
      }
    }
    std::vector<std::string> stuck;
    for (size_t rank = 0; rank < from_.rows.size(); ++rank) {
      const auto& row = from_.rows[rank];
      if (at_[rank] < row.size()) {
        stuck.push_back(
            fmt::format("rank {}, position {}, {}", rank, at_[rank], to_string(row[at_[rank]])));
      }
    }
    if (stuck.empty()) return std::move(to_);
    return make_error(ErrorCode::kInvalidArgument,
                      "lower {}: every action must get its input; these never do: {}", from_.name,
                      join(stuck, "; "));
  }

 private:
  [[nodiscard]] bool has(size_t rank, ActionKind kind, int stage, int microbatch) const {
    return has_[rank].contains({kind, stage, microbatch});
  }

  [[nodiscard]] bool is_ready(size_t rank, const Cell& cell) const {
    return std::all_of(cell.actions.begin(), cell.actions.end(), [&](const Action& action) {
      const int m = action.microbatch, s = action.stage;
      if (action.kind == ActionKind::kForward) {
        return s == 0 || has(rank, ActionKind::kRecvF, s, m) ||
               has(rank, ActionKind::kForward, s - 1, m);
      }
      if (gives_input_grad(action.kind)) {
        return s + 1 == from_.num_stages || has(rank, ActionKind::kRecvB, s, m) ||
               has(rank, ActionKind::kBackward, s + 1, m) ||
               has(rank, ActionKind::kBackwardInput, s + 1, m);
      }
      return true;
    });
  }

  void add(size_t rank, const Action& action) {
    has_[rank].insert(action);
    to_.rows[rank].emplace_back(action);
  }

  void put(size_t rank, const Cell& cell) {
    if (cell.is_idle()) return;
    to_.rows[rank].push_back(cell);
    for (const Action& action : cell.actions) has_[rank].insert(action);
    for (const Action& action : cell.actions) {
      const bool is_forward = action.kind == ActionKind::kForward;
      if (!is_forward && !gives_input_grad(action.kind)) continue;
      const int to = action.stage + (is_forward ? 1 : -1);
      if (to < 0 || to >= from_.num_stages) continue;
      const int peer = rank_of_[static_cast<size_t>(to)];
      if (peer < 0 || peer == static_cast<int>(rank)) continue;
      const Action send{is_forward ? ActionKind::kSendF : ActionKind::kSendB, action.stage,
                        action.microbatch};
      add(rank, send);
      add(static_cast<size_t>(peer), other_end(send));
    }
  }

  const Schedule& from_;
  std::vector<int> rank_of_;
  std::vector<size_t> at_;
  std::vector<std::set<Action>> has_;
  Schedule to_;
};
}  // namespace

Schedule add_unshard_reshard(const Schedule& schedule, int stages_ahead) {
  Schedule out = schedule;
  for (auto& row : out.rows) {
    std::vector<Cell> old;
    old.swap(row);
    std::vector<int> whole;
    for (size_t at = 0; at < old.size(); ++at) {
      if (old[at].is_idle()) continue;
      const std::vector<int> next = next_stages(old, at, stages_ahead);
      std::erase_if(whole, [&](int stage) {
        if (contains(next, stage)) return false;
        row.emplace_back(Action{ActionKind::kReshard, stage});
        return true;
      });
      for (const int stage : next) {
        if (contains(whole, stage)) continue;
        row.emplace_back(Action{ActionKind::kUnshard, stage});
        whole.push_back(stage);
      }
      row.push_back(old[at]);
    }
    for (const int stage : whole) row.emplace_back(Action{ActionKind::kReshard, stage});
  }
  return out;
}

Schedule add_reduce_grad(const Schedule& schedule) {
  Schedule out = schedule;
  for (auto& row : out.rows) {
    std::vector<Cell> old;
    old.swap(row);
    for (size_t at = 0; at < old.size(); ++at) {
      row.push_back(old[at]);
      for (const Action& action : old[at].actions) {
        if (!ends_microbatch(action.kind)) continue;
        const auto is_later_end = [&](const Action& later) {
          return ends_microbatch(later.kind) && later.stage == action.stage;
        };
        const bool is_last = std::none_of(
            old.begin() + static_cast<std::ptrdiff_t>(at) + 1, old.end(), [&](const Cell& cell) {
              return std::any_of(cell.actions.begin(), cell.actions.end(), is_later_end);
            });
        if (is_last) row.emplace_back(Action{ActionKind::kReduceGrad, action.stage});
      }
    }
  }
  return out;
}

Result<Schedule> add_messages(const Schedule& schedule) { return MessageWalk(schedule).run(); }

Result<Schedule> lower(const Schedule& schedule, const LowerOptions& options) {
  if (!options.is_sharded) return add_messages(schedule);
  return add_messages(add_reduce_grad(add_unshard_reshard(schedule, options.stages_ahead)));
}

std::vector<Cell> merge_backward(const std::vector<Cell>& row) {
  std::vector<Cell> out;
  for (const Cell& cell : row) {
    if (cell.is_idle()) continue;
    if (!out.empty() && out.back().actions.size() == 1 && cell.actions.size() == 1) {
      Action& before = out.back().actions[0];
      const Action& action = cell.actions[0];
      if (before.kind == ActionKind::kBackwardInput && action.kind == ActionKind::kBackwardWeight &&
          before.stage == action.stage && before.microbatch == action.microbatch) {
        before.kind = ActionKind::kBackward;
        continue;
      }
    }
    out.push_back(cell);
  }
  return out;
}

Schedule forward_part(const Schedule& schedule) {
  Schedule out = schedule;
  for (auto& row : out.rows) {
    for (Cell& cell : row) {
      std::erase_if(cell.actions, [](const Action& action) {
        return action.kind != ActionKind::kForward && action.kind != ActionKind::kSendF &&
               action.kind != ActionKind::kRecvF && action.kind != ActionKind::kUnshard &&
               action.kind != ActionKind::kReshard;
      });
      cell.is_overlap = false;
    }
    std::erase_if(row, [](const Cell& cell) { return cell.is_idle(); });
  }
  return out;
}
}  // namespace muster::pipeline
