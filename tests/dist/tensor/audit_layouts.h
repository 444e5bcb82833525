#pragma once
/// The layouts in which operators are tried against one process, and how tensors come into them.

#include <functional>
#include <vector>

#include "core/ops/op_registry.h"
#include "dist/tensor/dtensor.h"
#include "tests/support_ranks/mesh.h"

namespace muster::testing {

/// One placement per tensor of a call, on one mesh axis.
using AuditLayouts = std::vector<Placement>;

/// In which layouts a call on these tensors is tried: each choice has one entry per mesh axis.
using AuditChoices = std::function<std::vector<std::vector<AuditLayouts>>(
    const std::vector<Tensor>& dense, const DeviceMesh& mesh)>;

/// Every shard and open sum: all combinations for one or two tensors; for more, one moved at a time
/// and all cut alike.
std::vector<std::vector<AuditLayouts>> shards_and_sums(const std::vector<Tensor>& dense,
                                                       const DeviceMesh& mesh);
/// One tensor, or all alike, under another reduction than the sum.
std::vector<std::vector<AuditLayouts>> other_reductions(const std::vector<Tensor>& dense,
                                                        const DeviceMesh& mesh);
/// One tensor, or all alike, with a dim that the inner of two axes has cut first.
std::vector<std::vector<AuditLayouts>> strided_shards(const std::vector<Tensor>& dense,
                                                      const DeviceMesh& mesh);

/// `x` under `placements`. Ranks hold different shares of a Partial, whose reduction is x.
Tensor audit_placed(const Tensor& x, const MeshRef& mesh, const std::vector<Placement>& placements);

/// Sizes, dtypes and values are equal, values to nine digits; a nan equals a nan.
bool same_values(const Tensor& a, const Tensor& b);

/// Runs `audit_op(op, mesh, audit)` for every operator on every rank of a mesh; what rank 0 found.
template <typename Audit, typename AuditOp>
Audit audit_every_op(const std::vector<DeviceMesh::Axis>& axes, AuditOp audit_op) {
  int world = 1;
  for (const DeviceMesh::Axis& axis : axes) world *= axis.size;
  std::vector<Audit> audits(static_cast<size_t>(world));
  run_ranks(
      world,
      [&](RankContext& ctx) {
        const MeshRef mesh = mesh_of(ctx, axes);
        Audit& own = audits[static_cast<size_t>(ctx.group_rank())];
        for (const auto& op : ops::all_ops().all()) audit_op(*op, mesh, own);
      },
      240s);
  return std::move(audits[0]);
}

}  // namespace muster::testing
