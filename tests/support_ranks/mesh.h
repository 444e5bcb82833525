#pragma once
/// Device meshes over the ranks of a test.

#include <memory>
#include <utility>
#include <vector>

#include "dist/mesh/device_mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster::testing {

/// The group of all ranks, which the context keeps.
inline std::shared_ptr<ProcessGroup> world_of(RankContext& ctx) {
  return {&ctx.group(), [](ProcessGroup*) {}};
}

/// @collective all ranks
inline MeshRef mesh_of(RankContext& ctx, std::vector<DeviceMesh::Axis> axes) {
  return DeviceMesh::open(world_of(ctx), std::move(axes), ctx.deadline()).value();
}

}  // namespace muster::testing
