#pragma once
/// The handler of DispatchKey::kDTensor: runs an operator on the pieces.
///
/// It chooses placements by the operator's shard rules (shard_rules.h, cached per call signature),
/// redistributes the inputs, runs the operator on local tensors and wraps the results. It stands
/// below autograd: histories are of global values and know nothing of placements. Random numbers
/// are functions of the seed and the global place, so they do not depend on the layout.

#include "core/dispatch/op_table.h"

namespace muster {

/// @collective all ranks of the mesh, when inputs must move
/// @error kInvalidArgument a plain tensor of several elements beside DTensors, or one that requires
/// a gradient; two meshes; a written DTensor that no rule can write
void dispatch_dtensor(const Op& op, Args args, std::span<Tensor> outs);

/// While one lives, calls of this thread take plain tensors beside DTensors as replicated: all
/// ranks must hold the same values, which nobody checks.
class ImplicitReplicationGuard {
 public:
  ImplicitReplicationGuard() noexcept;
  ~ImplicitReplicationGuard();
  ImplicitReplicationGuard(const ImplicitReplicationGuard&) = delete;
  ImplicitReplicationGuard& operator=(const ImplicitReplicationGuard&) = delete;

 private:
  bool before_;
};

/// Calls of this thread whose layout was (not) known already.
struct LayoutCacheCounts {
  int64_t hits = 0;
  int64_t misses = 0;
};
LayoutCacheCounts layout_cache_counts() noexcept;

}  // namespace muster
