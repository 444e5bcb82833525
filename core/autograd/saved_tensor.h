#pragma once
/// A tensor kept for the backward pass, with the version it had.
///
/// An input is kept as it stands, a leaf as an alias of its data (so that leaf -> grad -> graph ->
/// leaf is no cycle), an output without its history. unpack() refuses a value that was written
/// since.

#include "core/autograd/autograd_meta.h"

namespace muster {

class SavedTensor {
 public:
  /// @error kFailedPrecondition for an inference tensor
  static SavedTensor input(const Tensor& tensor, const char* name);
  /// Output `output_nr` of the node that saves it.
  static SavedTensor output(const Tensor& tensor, uint32_t output_nr, const char* name);

  /// The tensor with its history, for node `owner` that saved it.
  /// @error kFailedPrecondition modified since; message names operator, tensor and both versions
  [[nodiscard]] Tensor unpack(Node& owner) const;
  [[nodiscard]] const char* name() const noexcept { return name_; }

 private:
  Tensor tensor_;
  Ref<AccumulateGrad> accumulator_;  // set when the tensor is a leaf that wants a gradient
  const char* name_ = "";            // from the OpDef, which lives as long as the process
  uint32_t version_ = 0;
  uint32_t output_nr_ = 0;
  bool is_output_ = false;
};

}  // namespace muster
