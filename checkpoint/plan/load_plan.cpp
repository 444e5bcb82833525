#include "checkpoint/plan/load_plan.h"

namespace muster::checkpoint {

std::vector<LoadPiece> plan_load(const Box& wanted, std::span<const Box> saved) {
  std::vector<LoadPiece> pieces;
  for (size_t i = 0; i < saved.size(); ++i)
    if (std::optional<Box> overlap = intersect(wanted, saved[i]))
      pieces.push_back({i, std::move(*overlap)});
  return pieces;
}
}  // namespace muster::checkpoint
