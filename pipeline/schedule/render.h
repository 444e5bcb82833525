#pragma once
/// Drawings of schedules for people: one line a rank, one column a unit of time.
///
///   stage 0 | F0 F1 .  B0 F2 B1 F3 B2 .  B3
///   stage 1 | .  F0 B0 F1 B1 F2 B2 F3 B3 .

#include <optional>
#include <string>

#include "pipeline/schedule/schedule.h"

namespace muster::pipeline {

/// Compute actions where they run when each takes one unit; '.' is idle. Lines are called by stage
/// where each rank has one, else by rank, with the stage before each action. Begins with a line
/// break. `marked` is put in brackets; a message marks the action that needs or makes it.
/// @error kInvalidArgument (throws) the schedule cannot be run
std::string render(const Schedule& schedule, std::optional<Action> marked = {});

/// The cells around one position of a row, which is in brackets: "... 0B0 [0F1] 0B1 ...".
std::string render_near(const Schedule& schedule, int rank, int position, int reach = 4);

}  // namespace muster::pipeline
