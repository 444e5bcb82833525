#pragma once
/// What NCCL can do, and what its results mean: pure functions, so that they run without a GPU.

#include <optional>

#include "core/base/error.h"
#include "dist/group/backend.h"

namespace muster::nccl {

/// Why a group on `device` does not take this operation, or nothing: tensors elsewhere, reductions
/// and dtypes that NCCL has not, a message to oneself. `group_rank` is this rank.
[[nodiscard]] std::optional<Error> refusal(const CollectiveRequest& request, Device device,
                                           int group_rank);

/// An ncclDataType_t for reductions; nothing where NCCL has none (bool, i16).
[[nodiscard]] std::optional<int> reduction_dtype(DType dtype) noexcept;
/// An ncclRedOp_t; nothing where NCCL has none (band, bor, bxor).
[[nodiscard]] std::optional<int> reduction_op(ReduceOp op) noexcept;

/// The code of a failed ncclResult_t: kPeerLost for a remote one, kIo for a system's, else
/// kInternal.
[[nodiscard]] ErrorCode code_of(int nccl_result) noexcept;

}  // namespace muster::nccl
