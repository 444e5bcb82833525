#pragma once
/// How a module is sharded: the options of fully_shard().

#include <optional>

#include "core/tensor/dtype.h"
#include "dist/group/collective_kind.h"
#include "dist/mesh/device_mesh.h"

namespace muster::fsdp {

/// Dtypes that differ from the parameters' own; nothing means "as the parameters".
struct MixedPrecision {
  std::optional<DType> param_dtype = {};  ///< of gathered parameters and of floating forward inputs
  std::optional<DType> reduce_dtype = {};  ///< in which gradients are reduced
};

struct Options {
  /// One axis: parameters are cut along it. Two axes, {replicate, shard}: each set of ranks along
  /// `shard` holds the whole, and gradients are reduced over both. Under tensor parallelism a slice
  /// of the mesh that the plan's axis is a slice of.
  MeshRef mesh;
  /// Free gathered parameters after forward and gather them again in backward. Nothing: true,
  /// except for the root, whose parameters backward needs first.
  std::optional<bool> reshard_after_forward = {};
  MixedPrecision mixed_precision = {};
  /// Parameter groups gathered ahead on the group's own thread; 0 gathers when needed. Pays only
  /// where cores are left over.
  int prefetch = 0;
  /// How ranks' gradients combine: the mean, or the sum when the loss was already divided by the
  /// global count.
  ReduceOp reduce_op = ReduceOp::kAvg;
};

}  // namespace muster::fsdp
