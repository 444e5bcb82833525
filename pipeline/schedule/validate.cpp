#include "pipeline/schedule/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "pipeline/schedule/kind_letters.h"
#include "pipeline/schedule/validate_internal.h"

namespace muster::pipeline {
namespace {
using internal::kB;
using internal::kF;
using internal::kI;
using internal::kW;

// Looks at each action where it stands. Ranks go through their rows in order, so what an action
// needs from its own rank must stand before it.
class Check {
 public:
  Check(const Schedule& schedule, const ValidateOptions& options)
      : schedule_(schedule),
        options_(options),
        actions_(placed_actions(schedule)),
        rank_of_(ranks_of_stages(schedule)),
        has_messages_(schedule.has_messages()) {}

  std::vector<Fault> run() {
    const int ranks = options_.num_ranks > 0 ? options_.num_ranks : schedule_.num_ranks();
    if (schedule_.num_stages < 1 || schedule_.num_microbatches < 1 || schedule_.rows.empty() ||
        schedule_.num_ranks() != ranks) {
      faults_.push_back({-1, -1, schedule_.name,
                         fmt::format("one row a rank, and one stage and one microbatch or more; "
                                     "got {} rows for {} ranks, {} stages, {} microbatches",
                                     schedule_.num_ranks(), ranks, schedule_.num_stages,
                                     schedule_.num_microbatches)});
      return faults_;
    }
    for (const PlacedAction& placed : actions_) first_.try_emplace(placed.action, placed);
    for (const PlacedAction& placed : actions_) {
      if (check_names(placed)) check_needs(placed);
    }
    check_complete();
    check_shards();
    return faults_;
  }

 private:
  void fault(const PlacedAction& placed, std::string reason) {
    faults_.push_back({placed.rank, placed.position, to_string(placed.action), std::move(reason)});
  }

  // False when the action names something that does not exist here, so that nothing follows from
  // it.
  bool check_names(const PlacedAction& placed) {
    const Action& action = placed.action;
    if (action.stage >= schedule_.num_stages) {
      fault(placed, fmt::format("the stage must be in [0, {}); got {}", schedule_.num_stages,
                                action.stage));
      return false;
    }
    if (has_microbatch(action.kind) && action.microbatch >= schedule_.num_microbatches) {
      fault(placed, fmt::format("the microbatch must be in [0, {}); got {}",
                                schedule_.num_microbatches, action.microbatch));
      return false;
    }
    const int owner = rank_of_[static_cast<size_t>(action.stage)];
    if (owner != placed.rank) {
      fault(placed, fmt::format("a stage must be on one rank; stage {} is also on rank {}",
                                action.stage, owner));
      return false;
    }
    const PlacedAction& first = first_.at(action);
    const bool may_repeat =
        action.kind == ActionKind::kUnshard || action.kind == ActionKind::kReshard;
    if (!may_repeat && !is_at(first, placed)) {
      fault(placed,
            fmt::format("it must run once; it stands at position {} already", first.position));
      return false;
    }
    if (options_.forward_only && (gives_input_grad(action.kind) || action.kind == kW)) {
      fault(placed, "a forward-only schedule must not go backward");
      return false;
    }
    return !is_message(action.kind) || check_message(placed);
  }

  bool is_at(const PlacedAction& a, const PlacedAction& b) const {
    return a.rank == b.rank && a.position == b.position && count_in_cell(b) == 1;
  }
  int count_in_cell(const PlacedAction& placed) const {
    const Cell& cell =
        schedule_.rows[static_cast<size_t>(placed.rank)][static_cast<size_t>(placed.position)];
    return static_cast<int>(std::count(cell.actions.begin(), cell.actions.end(), placed.action));
  }

  bool check_message(const PlacedAction& placed) {
    const Action other = other_end(placed.action);
    if (other.stage < 0 || other.stage >= schedule_.num_stages) {
      fault(placed, fmt::format("there is no stage {} at its other end", other.stage));
      return false;
    }
    if (rank_of_[static_cast<size_t>(other.stage)] == placed.rank) {
      fault(placed, fmt::format("stages {} and {} are on one rank, which passes tensors on "
                                "without messages",
                                placed.action.stage, other.stage));
      return false;
    }
    if (!first_.contains(other)) {
      fault(placed, fmt::format("a message must have both ends; {} is missing on rank {}",
                                to_string(other), rank_of_[static_cast<size_t>(other.stage)]));
    }
    return true;
  }

  // True when `action` stands before `placed` in the same row (or before it in the same overlap).
  bool is_before(const Action& action, const PlacedAction& placed) const {
    const auto found = first_.find(action);
    if (found == first_.end() || found->second.rank != placed.rank) return false;
    if (found->second.position != placed.position) {
      return found->second.position < placed.position;
    }
    const Cell& cell =
        schedule_.rows[static_cast<size_t>(placed.rank)][static_cast<size_t>(placed.position)];
    const auto at = std::find(cell.actions.begin(), cell.actions.end(), action);
    return cell.is_overlap && at != cell.actions.end() &&
           at < std::find(cell.actions.begin(), cell.actions.end(), placed.action);
  }

  void need(const PlacedAction& placed, const Action& action) {
    if (is_before(action, placed)) return;
    const auto found = first_.find(action);
    if (found == first_.end()) {
      fault(placed, fmt::format("it needs {} before it, which never runs", to_string(action)));
    } else if (found->second.rank == placed.rank) {
      fault(placed, fmt::format("it needs {} before it, which stands at position {}",
                                to_string(action), found->second.position));
    } else {
      fault(placed, fmt::format("it needs {} before it, which stands on rank {}", to_string(action),
                                found->second.rank));
    }
  }

  // B or I, whichever the schedule has.
  Action input_grad_of(int stage, int microbatch) const {
    const Action split{kI, stage, microbatch};
    return first_.contains(split) ? split : Action{kB, stage, microbatch};
  }

  bool is_here(int stage, const PlacedAction& placed) const {
    return rank_of_[static_cast<size_t>(stage)] == placed.rank;
  }

  void check_needs(const PlacedAction& placed) {
    const auto [kind, stage, m] = placed.action;
    const bool is_first = stage == 0;
    const bool is_last = stage + 1 == schedule_.num_stages;
    switch (kind) {
      case kF:
        if (is_first) return;
        if (is_here(stage - 1, placed)) {
          need(placed, {kF, stage - 1, m});
        } else if (has_messages_) {
          need(placed, {ActionKind::kRecvF, stage, m});
        }
        return;
      case kB:
      case kI:
        need(placed, {kF, stage, m});
        if (kind == kB && first_.contains({kI, stage, m})) {
          fault(placed,
                fmt::format("backward must be B, or I and W; {} stands at position {}",
                            to_string(Action{kI, stage, m}), first_.at({kI, stage, m}).position));
        }
        if (is_last) return;
        if (is_here(stage + 1, placed)) {
          need(placed, input_grad_of(stage + 1, m));
        } else if (has_messages_) {
          need(placed, {ActionKind::kRecvB, stage, m});
        }
        return;
      case kW:
        return need(placed, {kI, stage, m});
      case ActionKind::kSendF:
        return need(placed, {kF, stage, m});
      case ActionKind::kSendB:
        return need(placed, input_grad_of(stage, m));
      default:
        return;
    }
  }

  void missing(int stage, int microbatch, ActionKind kind, const char* why) {
    const int rank = rank_of_[static_cast<size_t>(stage)];
    const auto length = static_cast<int>(schedule_.rows[static_cast<size_t>(rank)].size());
    faults_.push_back({rank, length, to_string(Action{kind, stage, microbatch}),
                       fmt::format("it is missing: {}", why)});
  }

  void check_complete() {
    for (int stage = 0; stage < schedule_.num_stages; ++stage) {
      if (rank_of_[static_cast<size_t>(stage)] < 0) {
        faults_.push_back({-1, -1, schedule_.name, fmt::format("no rank runs stage {}", stage)});
        continue;
      }
      for (int m = 0; m < schedule_.num_microbatches; ++m) {
        const auto has = [&](ActionKind kind) { return first_.contains({kind, stage, m}); };
        if (!has(kF)) missing(stage, m, kF, "each microbatch goes forward once on each stage");
        if (options_.forward_only) continue;
        if (!has(kB) && !has(kI) && !has(kW)) {
          missing(stage, m, kB, "each microbatch goes backward once on each stage");
        }
        if (has(kI) && !has(kB) && !has(kW)) missing(stage, m, kW, "I must be followed by W");
      }
    }
  }

  void check_shards() {
    std::set<int> sharded, whole, reduced;
    std::map<int, PlacedAction> last_end;
    for (const PlacedAction& placed : actions_) {
      if (placed.action.kind == ActionKind::kUnshard) sharded.insert(placed.action.stage);
      if (placed.action.kind == ActionKind::kReduceGrad) reduced.insert(placed.action.stage);
      if (ends_microbatch(placed.action.kind)) last_end[placed.action.stage] = placed;
    }
    for (const PlacedAction& placed : actions_) {
      const auto [kind, stage, m] = placed.action;
      if (kind == ActionKind::kUnshard && !whole.insert(stage).second) {
        fault(placed, fmt::format("stage {} is whole already", stage));
      } else if (kind == ActionKind::kReshard && whole.erase(stage) == 0) {
        fault(placed, fmt::format("stage {} is not whole", stage));
      } else if (is_compute(kind) && sharded.contains(stage) && !whole.contains(stage)) {
        fault(placed,
              fmt::format("it needs {} before it", to_string(Action{ActionKind::kUnshard, stage})));
      } else if (kind == ActionKind::kReduceGrad && last_end.contains(stage) &&
                 last_end[stage].position > placed.position) {
        fault(placed, fmt::format("it must follow the last backward of its stage, {} at position "
                                  "{}",
                                  to_string(last_end[stage].action), last_end[stage].position));
      }
    }
    for (int stage = 0; stage < schedule_.num_stages && !reduced.empty(); ++stage) {
      if (reduced.contains(stage) || rank_of_[static_cast<size_t>(stage)] < 0) continue;
      missing(stage, kNoMicrobatch, ActionKind::kReduceGrad, "other stages reduce theirs");
    }
  }

  const Schedule& schedule_;
  const ValidateOptions& options_;
  const std::vector<PlacedAction> actions_;
  const std::vector<int> rank_of_;
  const bool has_messages_;
  std::map<Action, PlacedAction> first_;  // where each action stands first
  std::vector<Fault> faults_;
};
}  // namespace

std::string to_string(const Fault& fault) {
  if (fault.rank < 0) return fmt::format("{}: {}", fault.action, fault.reason);
  return fmt::format("rank {}, position {}, {}: {}", fault.rank, fault.position, fault.action,
                     fault.reason);
}

std::vector<Fault> find_faults(const Schedule& schedule, const ValidateOptions& options) {
  std::vector<Fault> faults = Check(schedule, options).run();
  if (!faults.empty()) return faults;
  const auto append = [&](const std::vector<Fault>& more) {
    faults.insert(faults.end(), more.begin(), more.end());
  };
  append(internal::find_deadlock(schedule, options.transport));
  if (options.match_by_order) append(internal::find_order_faults(schedule));
  append(internal::find_memory_faults(schedule, options.max_live));
  return faults;
}

Result<void> validate(const Schedule& schedule, const ValidateOptions& options) {
  const std::vector<Fault> faults = find_faults(schedule, options);
  if (faults.empty()) return {};
  Error error = make_error(ErrorCode::kInvalidArgument, "schedule {}: {}", schedule.name,
                           to_string(faults.front()));
  if (faults.size() > 1) error.add_context(fmt::format("and {} faults more", faults.size() - 1));
  return error;
}

bool is_executable_plan(const Schedule& schedule) {
  bool has_parameter_actions = false;
  for (const PlacedAction& placed : placed_actions(schedule))
    has_parameter_actions = has_parameter_actions || placed.action.kind == ActionKind::kReduceGrad;
  return has_parameter_actions && schedule.has_messages();
}

}  // namespace muster::pipeline
