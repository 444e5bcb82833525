#pragma once
/// Operators over lists of DTensors that have one entry per parameter: updates and norms.
///
/// Internal to dist/tensor. Entries have nothing to do with each other, so each keeps its own
/// layout and mesh; dtensor_dispatch.h, which finds one layout for a whole call, leaves these
/// operators to this file.

#include "core/dispatch/op_table.h"

namespace muster {

/// True for operators that write their first list, entry by entry, and return nothing; and for the
/// sum of squares of a list.
[[nodiscard]] bool works_on_lists(const Op& op);

/// Entry i of each list lies as entry i of the first, which is never moved: other entries are
/// brought to it, so an open gradient is reduced into the layout of its parameter. A sum of squares
/// counts replicas once, and is reduced once along each axis that cuts an entry.
/// @collective all ranks of the meshes, where entries must move or a sum is over pieces
/// @error kInvalidArgument plain entries beside DTensors of one parameter, two meshes or two sizes
/// for one parameter, or a first entry that is an open reduction, unless it is a sum to be scaled
void dispatch_lists(const Op& op, Args args, std::span<Tensor> outs);

}  // namespace muster
