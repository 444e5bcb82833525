#pragma once
/// What operations ask of their tensors before anything is launched.

#include "core/tensor/tensor.h"
#include "dist/group/collective_kind.h"

namespace muster {

/// @error throws kInvalidArgument naming `what` unless it is a contiguous tensor
void check_tensor(CollectiveKind kind, const Tensor& tensor, const char* what);
/// @error throws kInvalidArgument unless `op` reduces the tensor's dtype
void check_reduce(CollectiveKind kind, ReduceOp op, const Tensor& tensor);

}  // namespace muster
