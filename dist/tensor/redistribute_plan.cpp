#include "dist/tensor/redistribute_plan.h"

#include <algorithm>

namespace muster {
namespace {
void check_move(Placement from, Placement to, PartialTargets partial_targets) {
  if (from == to) return;
  MUSTER_ASSERT(
      from.kind != Placement::Kind::kStridedShard && to.kind != Placement::Kind::kStridedShard,
      "strided shards are gathered before a plan is made; got {} -> {}", to_string(from),
      to_string(to));
  if (!to.is_partial()) return;
  const bool is_share = from.is_shard() && to.op == PartialOp::kSum;
  MUSTER_CHECK((from.is_replicate() || is_share) && partial_targets == PartialTargets::kAllow,
               ErrorCode::kInvalidArgument,
               "redistribute: a target can be Partial only where the source is the same Partial; "
               "got {} -> {}\n  fix: ask for R or a shard",
               to_string(from), to_string(to));
}

void check_dims(int64_t ndim, std::span<const Placement> placements) {
  for (const Placement& placement : placements) {
    MUSTER_CHECK(!placement.is_shard() || (placement.dim >= 0 && placement.dim < ndim),
                 ErrorCode::kOutOfRange, "redistribute: shard dims must be in [0, {}); got {}",
                 ndim, to_string(placements));
  }
}

// True when a change on an axis outside `axis` cuts or joins the dim that `axis` shards.
bool is_torn(size_t axis, int32_t dim, std::span<const Placement> now,
             std::span<const Placement> target) {
  for (size_t outer = 0; outer < axis; ++outer) {
    if (now[outer] == target[outer]) continue;
    if (now[outer].is_shard_of(dim) || target[outer].is_shard_of(dim)) return true;
  }
  return false;
}
}  // namespace

std::vector<RedistributeStep> plan_redistribute(int64_t ndim, std::span<const Placement> source,
                                                std::span<const Placement> target,
                                                PartialTargets partial_targets) {
  MUSTER_CHECK(source.size() == target.size(), ErrorCode::kInvalidArgument,
               "redistribute: one placement for each of {} mesh axes; got {}", source.size(),
               to_string(target));
  check_dims(ndim, target);
  for (size_t axis = 0; axis < source.size(); ++axis) {
    check_move(source[axis], target[axis], partial_targets);
  }
  std::vector<Placement> now(source.begin(), source.end());
  std::vector<RedistributeStep> steps;
  const auto move = [&](size_t axis, Placement to) {
    if (now[axis] == to) return;
    check_move(now[axis], to, partial_targets);
    steps.push_back({static_cast<int>(axis), now[axis], to});
    now[axis] = to;
  };
  for (size_t axis = source.size(); axis-- > 0;) {
    if (now[axis].is_shard() && is_torn(axis, now[axis].dim, now, target)) {
      move(axis, Placement::replicate());
    }
  }
  // An inner axis that will be cut along a dim still whole outside waits for the outer ones.
  for (size_t axis = 0; axis < source.size(); ++axis) move(axis, target[axis]);
  return steps;
}
}  // namespace muster
