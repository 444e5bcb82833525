#pragma once
/// What a schedule costs: start times, makespan, idle time, live microbatches. Pure.
///
/// Every rank runs its row in order, as early as dependencies allow: F after the previous stage's
/// F, B and I after the own F and the next stage's B or I, W after the own I. Messages take no time
/// of a rank, but may take time on the way.

#include <functional>
#include <vector>

#include "pipeline/schedule/schedule.h"

namespace muster::pipeline {

/// Times of one stage's work on one microbatch, in any one unit.
struct Costs {
  double forward = 1;
  double backward = 2;
  double input = 1;
  double weight = 1;
  double message = 0;  ///< from the end of an action to where another rank can use its result
  [[nodiscard]] double of(ActionKind kind) const noexcept;
};
/// The time of a compute action; for stages that differ.
using CostOf = std::function<double(const Action& action)>;

struct TimedAction {
  Action action;
  int position = 0;  ///< index of its cell
  double start = 0;
  double end = 0;
};

struct Timeline {
  double makespan = 0;
  std::vector<std::vector<TimedAction>> rows;  ///< compute actions by rank, in order
  std::vector<double> busy;                    ///< by rank
  std::vector<double> idle;                    ///< by rank: gaps between its first and last action
  /// By rank: most microbatches whose activations were kept at once, a stage each. One lives from
  /// its F to its B or W.
  std::vector<int> peak_live;

  /// The share of all ranks' time that no action fills.
  [[nodiscard]] double bubble_fraction() const;
};

/// @error kInvalidArgument the schedule cannot be run: names each rank's action that never starts
Result<Timeline> simulate(const Schedule& schedule, const Costs& costs = {});
Result<Timeline> simulate(const Schedule& schedule, const CostOf& cost_of, double message = 0);

/// Timeline::bubble_fraction() of the default costs. @error kInvalidArgument (throws)
double bubble_fraction(const Schedule& schedule);

}  // namespace muster::pipeline
