#pragma once
/// DTensor: a global tensor of which each rank of a mesh holds a piece, told by placements.
///
/// A DTensor is a Tensor whose sizes are the global ones and whose data is a local Tensor; it
/// carries DispatchKey::kDTensor. What is sharded and what must be reduced follows from placements
/// alone, never from a flag. Reading values goes through full_tensor() or to_local().
/// @source torch.distributed.tensor: names, chunk sizes

#include <vector>

#include "core/tensor/tensor.h"
#include "dist/mesh/device_mesh.h"
#include "dist/tensor/shard_geometry.h"

namespace muster {

/// Where the pieces of a tensor lie.
struct DTensorSpec {
  MeshRef mesh;
  std::vector<Placement> placements;  ///< one per mesh axis
  DimVector sizes;                    ///< global
  DType dtype = kDefaultDType;

  /// This rank's box of the global tensor.
  [[nodiscard]] ShardBox local_box() const;
  /// Sizes of this rank's piece; strided shards too.
  [[nodiscard]] DimVector local_sizes() const;
  /// The box of another coordinate.
  [[nodiscard]] ShardBox box_of(std::span<const int> coordinate) const;
  /// "f32[8, 4] as [S(0), R] on mesh [fsdp=2, tp=2]".
  [[nodiscard]] std::string describe() const;
};

class DTensorImpl final : public TensorImpl {
 public:
  DTensorImpl(Tensor local, DTensorSpec spec);
  Tensor local;
  DTensorSpec spec;
  /// It came of a view that had to communicate: writes would not reach the viewed tensor.
  bool is_copied_view = false;
};

[[nodiscard]] inline bool is_dtensor(const Tensor& tensor) noexcept {
  return tensor.defined() && tensor.impl()->keys_own.has(DispatchKey::kDTensor);
}
/// @error kInvalidArgument the tensor is no DTensor
[[nodiscard]] const DTensorSpec& dtensor_spec(const Tensor& tensor);
/// This rank's piece, without history. @error kInvalidArgument the tensor is no DTensor
[[nodiscard]] const Tensor& local_tensor(const Tensor& tensor);

/// Wraps a local piece. Pure metadata, no communication and no history.
/// @error kInvalidArgument the piece has not the sizes that placements give this rank, or another
/// dtype
Tensor make_dtensor(Tensor local, DTensorSpec spec);
/// Makes operators, item() and autograd know DTensors. make_dtensor() does it; again is harmless.
void install_dtensor();

}  // namespace muster
