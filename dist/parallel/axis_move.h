#pragma once
/// Moves activations from one layout on a mesh axis to another, with the gradient that belongs to
/// it.
///
/// These are the only places where tensor parallel layers communicate. Tensors are local pieces;
/// how they lie is known to the layers and stated here. Every rank makes every move, also with an
/// empty piece.

#include <optional>

#include "dist/mesh/device_mesh.h"
#include "dist/tensor/shard_geometry.h"

namespace muster::parallel {

/// One move. Dims may count from the end.
struct AxisMove {
  MeshRef axis;  ///< a mesh of one axis
  Placement from;
  Placement to;
  /// With `to` replicated: each rank uses the value on its own pieces, so that the gradients that
  /// come back are shares to be added up. False: all ranks use it alike.
  bool partial_gradient = false;
  /// Size of the dim that `from` shards, over all ranks; nothing: all pieces have one size.
  std::optional<int64_t> whole_size = {};
};

/// @collective all ranks of the axis, forward where data moves and backward where gradients do:
///
///   from -> to      forward             backward
///   R    -> R       -                   all-reduce if partial_gradient
///   R    -> S       slice               all-gather
///   S    -> R       all-gather          slice; reduce-scatter if partial_gradient
///   P    -> R       all-reduce          -
///   P    -> S       reduce-scatter      all-gather
///   S    -> S       all-to-all          all-to-all
///
/// @error kInvalidArgument a piece that is not this rank's of `whole_size`
Tensor move(const Tensor& local, const AxisMove& move);

/// move() of a partial sum, then adds `bias` (undefined: none), which all ranks hold alike and
/// whose gradient all ranks get whole. May overwrite `partial`, which nothing else must use.
Tensor reduce_and_add_bias(const Tensor& partial, const Tensor& bias, const AxisMove& move);

}  // namespace muster::parallel
