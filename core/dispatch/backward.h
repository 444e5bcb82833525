#pragma once
/// What a derivative sees of the call it differentiates.
///
/// An operator states its derivative against this interface, although it knows no tape. The
/// recorder (core/autograd) implements it. Names are those of the operator's schema.

#include <string_view>
#include <vector>

#include "core/dispatch/value.h"

namespace muster {

class BackwardContext {
 public:
  virtual ~BackwardContext() = default;

  /// Incoming gradient of output `index`; undefined when that output got none.
  [[nodiscard]] virtual const Tensor& grad(size_t index = 0) const = 0;
  /// A tensor that the OpDef's Saves names (an argument or a return).
  /// @error kFailedPrecondition it was modified in place since, or the graph was freed
  [[nodiscard]] virtual Tensor saved(std::string_view name) const = 0;
  /// A non-tensor argument as it was passed; a number in a Tensor slot comes back as the number.
  [[nodiscard]] virtual Value arg(std::string_view name) const = 0;
  /// True when the tensor argument `name` (any tensor of it, for a list) wants a gradient.
  [[nodiscard]] virtual bool needs(std::string_view name) const = 0;
  /// Sizes, strides and dtype of a tensor argument at the time of the call; `index` for lists.
  [[nodiscard]] virtual const TensorSpec& spec(std::string_view name, size_t index = 0) const = 0;
  /// Number of tensors passed for a list argument.
  [[nodiscard]] virtual size_t list_size(std::string_view name) const = 0;
  /// True while the backward pass itself is recorded; fused backward kernels without a derivative
  /// of their own then use composed operators.
  [[nodiscard]] virtual bool create_graph() const = 0;
};

/// One gradient per tensor slot of the schema, in order: a Tensor (or a number in its place) is one
/// slot, a list as many as it has tensors. Undefined entries mean "no gradient". Gradients of
/// broadcast inputs may keep the broadcast sizes and dtype: the engine reduces and casts them.
using GradList = std::vector<Tensor>;
using DerivativeFn = GradList (*)(const BackwardContext& context);

}  // namespace muster
