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
};

/// @thread before the first wrapper is made
void set_wrapper_hooks(WrapperHooks hooks) noexcept;

}  // namespace muster
