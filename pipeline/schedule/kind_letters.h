#pragma once
/// The kinds of action under the letters that schedule files give them.

#include "pipeline/schedule/action.h"

namespace muster::pipeline::internal {

inline constexpr auto kF = ActionKind::kForward;
inline constexpr auto kB = ActionKind::kBackward;
inline constexpr auto kI = ActionKind::kBackwardInput;
inline constexpr auto kW = ActionKind::kBackwardWeight;

}  // namespace muster::pipeline::internal
