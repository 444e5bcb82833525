#pragma once
/// The ways in and out of DTensors, and from one layout to another. All are differentiable.
///
/// A gradient of a DTensor means the gradient of its global value. That of a Partial input is
/// therefore replicated; at the border to local tensors the adjoint of the reduction is applied
/// (1/W for an average, the winners for an extreme). @source torch.distributed.tensor

#include <optional>

#include "dist/tensor/dtensor.h"

namespace muster {

/// In which dtype values and gradients move, hence are reduced.
struct MoveDTypes {
  std::optional<DType> forward = {};   ///< the value takes this dtype first and keeps it
  std::optional<DType> backward = {};  ///< the gradient moves in it; nothing: in the input's dtype
};

/// The same global value under other placements, over the same mesh. The gradient has the input's
/// dtype. @collective all ranks of the mesh, unless nothing or only R -> S moves
/// @error kInvalidArgument not a DTensor, or a Partial target that is no no-op
Tensor redistribute(const Tensor& dtensor, const std::vector<Placement>& placements,
                    const MoveDTypes& dtypes = {});

/// The global value as a plain tensor. `grad_placements` as for to_local: give a Partial sum where
/// each rank uses the value differently. @collective as redistribute to all R
Tensor full_tensor(const Tensor& dtensor,
                   std::optional<std::vector<Placement>> grad_placements = {});

/// This rank's piece as a plain tensor; shares memory. `grad_placements` says how the gradients
/// that come back lie; without it as the DTensor itself, a Partial sum as R, other Partials as sum.
Tensor to_local(const Tensor& dtensor, std::optional<std::vector<Placement>> grad_placements = {});

/// A DTensor of which this rank holds `local`; shares memory if that is contiguous. Without
/// `global_sizes` the ranks tell each other their sizes and compare them with the layout of Shard.
/// `grad_placements` says how the gradient lies that `local` gets; without it as `placements`, a
/// Partial as R. Give a Partial sum for a replicated value whose gradients are summed later: each
/// rank then gets its share, without communication where the gradient is that sum already.
/// @collective all ranks of the mesh, only without `global_sizes`
/// @error kInvalidArgument the pieces are not those of the placements; on all ranks
Tensor from_local(const Tensor& local, MeshRef mesh, std::vector<Placement> placements,
                  std::optional<DimVector> global_sizes = {},
                  std::optional<std::vector<Placement>> grad_placements = {});

/// Cuts this rank's piece out of a tensor that all ranks hold alike. Communicates nothing.
Tensor distribute_tensor(const Tensor& full, MeshRef mesh, std::vector<Placement> placements);

}  // namespace muster
