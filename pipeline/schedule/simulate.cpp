#include "pipeline/schedule/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "core/base/text.h"

namespace muster::pipeline {
namespace {
// What an action makes available to others.
struct Product {
  bool is_gradient = false;  // of the stage's input; else its output
  int stage = 0;
  int microbatch = 0;
  auto operator<=>(const Product&) const = default;
};

class Simulation {
 public:
  Simulation(const Schedule& schedule, const CostOf& cost_of, double message)
      : schedule_(schedule),
        cost_of_(cost_of),
        message_(message),
        rank_of_(ranks_of_stages(schedule)) {
    const size_t ranks = schedule.rows.size();
    out_.rows.resize(ranks);
    out_.busy.resize(ranks);
    out_.idle.resize(ranks);
    out_.peak_live.resize(ranks);
    todo_.resize(ranks);
    clock_.resize(ranks);
    live_.resize(ranks);
    for (const PlacedAction& placed : placed_actions(schedule)) {
      if (is_compute(placed.action.kind)) todo_[static_cast<size_t>(placed.rank)].push_back(placed);
    }
  }

  Result<Timeline> run() {
    std::vector<size_t> at(todo_.size());
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t rank = 0; rank < todo_.size(); ++rank) {
        while (at[rank] < todo_[rank].size() && try_start(rank, todo_[rank][at[rank]])) {
          ++at[rank];
          moved = true;
        }
      }
    }
    std::vector<std::string> stuck;
    for (size_t rank = 0; rank < todo_.size(); ++rank) {
      if (at[rank] == todo_[rank].size()) continue;
      const PlacedAction& placed = todo_[rank][at[rank]];
      stuck.push_back(
          fmt::format("rank {}, position {}, {}", rank, placed.position, to_string(placed.action)));
    }
    if (!stuck.empty()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "simulate {}: every action must get what it needs; never started: {}",
                        schedule_.name, join(stuck, "; "));
    }
    for (size_t rank = 0; rank < todo_.size(); ++rank) {
      const auto& row = out_.rows[rank];
      out_.makespan = std::max(out_.makespan, clock_[rank]);
      if (!row.empty()) out_.idle[rank] = row.back().end - row.front().start - out_.busy[rank];
    }
    return std::move(out_);
  }

 private:
  // When `product` can be used on `rank`; nothing if it does not exist yet.
  [[nodiscard]] std::optional<double> available(const Product& product, size_t rank) const {
    const auto found = made_.find(product);
    if (found == made_.end()) return std::nullopt;
    const bool is_near = rank_of_[static_cast<size_t>(product.stage)] == static_cast<int>(rank);
    return found->second + (is_near ? 0 : message_);
  }

  bool try_start(size_t rank, const PlacedAction& placed) {
    const Action& action = placed.action;
    if (action.stage >= schedule_.num_stages) return false;
    std::vector<Product> needs;
    const Product output{false, action.stage, action.microbatch};
    const Product gradient{true, action.stage, action.microbatch};
    if (action.kind == ActionKind::kForward) {
      if (action.stage > 0) needs.push_back({false, action.stage - 1, action.microbatch});
    } else if (action.kind == ActionKind::kBackwardWeight) {
      needs.push_back(gradient);
    } else {
      needs.push_back(output);
      if (action.stage + 1 < schedule_.num_stages) {
        needs.push_back({true, action.stage + 1, action.microbatch});
      }
    }
    double start = clock_[rank];
    for (const Product& need : needs) {
      const std::optional<double> when = available(need, rank);
      if (!when) return false;
      start = std::max(start, *when);
    }
    const double cost = cost_of_(action);
    clock_[rank] = start + cost;
    out_.busy[rank] += cost;
    out_.rows[rank].push_back({action, placed.position, start, clock_[rank]});
    if (action.kind == ActionKind::kForward) made_[output] = clock_[rank];
    if (gives_input_grad(action.kind)) made_[gradient] = clock_[rank];
    if (action.kind == ActionKind::kForward) ++live_[rank];
    if (ends_microbatch(action.kind)) --live_[rank];
    out_.peak_live[rank] = std::max(out_.peak_live[rank], live_[rank]);
    return true;
  }

  const Schedule& schedule_;
  const CostOf& cost_of_;
  double message_;
  std::vector<int> rank_of_;
  std::vector<std::vector<PlacedAction>> todo_;
  std::vector<double> clock_;
  std::vector<int> live_;
  std::map<Product, double> made_;
  Timeline out_;
};
}  // namespace

double Costs::of(ActionKind kind) const noexcept {
  switch (kind) {
    case ActionKind::kForward:
      return forward;
    case ActionKind::kBackward:
      return backward;
    case ActionKind::kBackwardInput:
      return input;
    case ActionKind::kBackwardWeight:
      return weight;
    default:
      return 0;
  }
}

double Timeline::bubble_fraction() const {
  const double work = std::accumulate(busy.begin(), busy.end(), 0.0);
  const double room = makespan * static_cast<double>(busy.size());
  return room > 0 ? (room - work) / room : 0;
}

Result<Timeline> simulate(const Schedule& schedule, const CostOf& cost_of, double message) {
  return Simulation(schedule, cost_of, message).run();
}

Result<Timeline> simulate(const Schedule& schedule, const Costs& costs) {
  return simulate(
      schedule, [&](const Action& action) { return costs.of(action.kind); }, costs.message);
}

double bubble_fraction(const Schedule& schedule) {
  return simulate(schedule).value().bubble_fraction();
}
}  // namespace muster::pipeline
