#pragma once
/// How a module is sharded: the options of fully_shard().

#include <optional>

#include "core/tensor/dtype.h"
#include "dist/group/collective_kind.h"
#include "dist/mesh/device_mesh.h"

namespace muster::fsdp {

/// Dtypes that differ from the parameters' own; nothing means "as the parameters".
struct MixedPrecision {
  std::optional<DType> param_dtype = {};   ///< of gathered parameters
  std::optional<DType> reduce_dtype = {};  ///< in which gradients are reduced
  std::optional<DType> output_dtype = {};  ///< of floating forward outputs
  bool cast_forward_inputs = true;         ///< floating inputs become param_dtype
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
  /// The sum over all ranks of the mesh divided by this, in place of `reduce_op`: what it is does
  /// not depend on how the ranks are arranged. Greater than 0.
  std::optional<double> gradient_divide_factor = {};
};

/// A division in two parts, before and after a sum.
struct DivideFactors {
  double before = 1;
  double after = 1;
};

/// How a sum in `dtype` is divided by `factor`: f16 before and after it, near the square root each,
/// so that neither the sum overflows nor small terms vanish; others afterwards. Pure.
DivideFactors divide_factors(DType dtype, double factor);

}  // namespace muster::fsdp
