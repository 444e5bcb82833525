#pragma once
/// A tensor kept for the backward pass, with the version it had.
///
/// An input is kept as it stands, a leaf as an alias of its data (so that leaf -> grad -> graph ->
/// leaf is no cycle), an output without its history; under saved-tensor hooks what pack returned is
/// kept instead. unpack() refuses a value that was written since.

#include <memory>

#include "core/autograd/autograd_meta.h"

namespace muster {

class SavedTensor {
 public:
  /// @error kFailedPrecondition for an inference tensor
  static SavedTensor input(const Tensor& tensor, const char* name, const Node& owner);
  /// Output `output_nr` of the node that saves it.
  static SavedTensor output(const Tensor& tensor, uint32_t output_nr, const char* name,
                            const Node& owner);

  /// The tensor with its history, for node `owner` that saved it.
  /// @error kFailedPrecondition modified since; message names operator, tensor and both versions
  [[nodiscard]] Tensor unpack(Node& owner) const;
  [[nodiscard]] const char* name() const noexcept { return name_; }
  /// True when unpack() runs a hook, and so may be costly or possible only once in a pass.
  [[nodiscard]] bool has_hooks() const noexcept { return hooked_ != nullptr; }

 private:
  struct Hooked;
  struct HookedDeleter {
    void operator()(Hooked* hooked) const noexcept;
  };
  void pack(const Tensor& tensor, const Node& owner);
  [[nodiscard]] Tensor unpack_hooked(Node& owner) const;
  [[nodiscard]] Tensor as_leaf(const Tensor& value) const;
  void check_version(const Node& owner, const Tensor& value) const;

  Tensor tensor_;  // undefined when hooked
  std::unique_ptr<Hooked, HookedDeleter> hooked_;
  Ref<AccumulateGrad> accumulator_;  // set when the tensor is a leaf that wants a gradient
  const char* name_ = "";            // from the OpDef, which lives as long as the process
  uint32_t version_ = 0;
  uint32_t output_nr_ = 0;
  bool is_output_ = false;
};

}  // namespace muster
