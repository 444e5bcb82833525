#pragma once
/// What a tensor that wraps another one (DTensor) does where core code reads or copies handles.
///
/// core/tensor knows no wrapper; the layer that defines one installs these once. A tensor with
/// DispatchKey::kDTensor goes through them, every other tensor pays one bit test.

#include "core/tensor/tensor.h"

namespace muster {

struct WrapperHooks {
  /// The same value without history and without view relation, as shallow_detach().
  Tensor (*detach)(const Tensor& source) = nullptr;
  /// The tensor whose memory holds the value that item() asks for. May throw.
  Tensor (*readable)(const Tensor& source) = nullptr;
  /// A plain tensor that is the same on all ranks, as a wrapper beside `wrapper`.
  Tensor (*replicated)(const Tensor& plain, const Tensor& wrapper) = nullptr;
};

/// `asked`, or the tensor whose memory holds the value of a wrapper. @error as `readable`
Tensor readable_value(const Tensor& asked);

/// `plain`, or what stands for it in a call with `beside` where that is a wrapper: for constants
/// that depend on sizes alone.
Tensor as_constant_beside(const Tensor& plain, const Tensor& beside);

/// @thread before the first wrapper is made
void set_wrapper_hooks(WrapperHooks hooks) noexcept;

}  // namespace muster
