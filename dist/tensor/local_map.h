#pragma once
/// Runs a function of plain tensors on the pieces of DTensors.
///
/// The caller says how arguments and results lie; sizes of results are learnt from all pieces and
/// never guessed from one. Gradients follow from the same statement: where the results of an axis
/// are pieces or shares, each rank has used a replicated argument in its own way, so the gradients
/// are summed over that axis. @source torch.distributed.tensor.experimental.local_map

#include <functional>
#include <optional>

#include "dist/tensor/redistribute.h"

namespace muster {

struct LocalMapOptions {
  /// How each result lies.
  std::vector<std::vector<Placement>> out;
  /// How each argument must lie; nothing for one that may lie as it does. Empty: all may.
  std::vector<std::optional<std::vector<Placement>>> in = {};
  /// How the gradients of the arguments lie that the function's backward gives, where the rule
  /// above does not say it right. Empty: by the rule.
  std::vector<std::optional<std::vector<Placement>>> in_grad = {};
  /// Global sizes of the results; empty: the ranks tell each other the sizes of their pieces.
  std::vector<DimVector> out_sizes = {};
  /// Moves an argument that lies otherwise than `in` says; false: refuses it.
  bool redistributes = false;
};

using LocalFunction = std::function<std::vector<Tensor>(const std::vector<Tensor>& locals)>;

/// Arguments that are plain tensors are passed on as they are. The function runs on every rank,
/// also with empty pieces.
/// @collective all ranks of the mesh, unless `out_sizes` is given and nothing must move
/// @error kInvalidArgument no argument is a DTensor; two meshes; an argument that lies otherwise;
/// another number of results than `out`; results that are no pieces of one tensor
std::vector<Tensor> local_map(const LocalFunction& function, const std::vector<Tensor>& arguments,
                              const LocalMapOptions& options);

}  // namespace muster
