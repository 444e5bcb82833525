#include "dist/backend/nccl/nccl_rules.h"

#include <nccl.h>

#include "core/base/result.h"

namespace muster::nccl {

std::optional<Error> refusal(const CollectiveRequest& request, Device device, int group_rank) {
  const WorkDescriptor& what = request.descriptor;
  for (const auto* tensors : {&request.inputs, &request.outputs}) {
    for (const Tensor& tensor : *tensors) {
      if (tensor.device() == device) continue;
      return make_error(ErrorCode::kInvalidArgument,
                        "{}: nccl moves tensors of {}; got {} on {}\n  fix: make it with "
                        "communication_allocator(), or use dist.backend shm or gloo",
                        to_string(what.kind), to_string(device), tensor,
                        to_string(tensor.device()));
    }
  }
  if (what.kind == CollectiveKind::kSend || what.kind == CollectiveKind::kRecv) {
    if (what.peer != group_rank) return std::nullopt;
    return make_error(ErrorCode::kUnimplemented,
                      "{}: nccl has no messages of a rank to itself; got peer {}",
                      to_string(what.kind), what.peer);
  }
  if (what.kind != CollectiveKind::kAllReduce && what.kind != CollectiveKind::kReduceScatter &&
      what.kind != CollectiveKind::kReduce) {
    return std::nullopt;
  }
  if (reduction_op(what.op) && reduction_dtype(what.dtype)) return std::nullopt;
  return make_error(ErrorCode::kUnimplemented,
                    "{}: nccl reduces u8, i8, i32, i64, f16, bf16, f32, f64 by sum, avg, product, "
                    "min, max; got {} by {}",
                    to_string(what.kind), what.dtype, to_string(what.op));
}

std::optional<int> reduction_dtype(DType dtype) noexcept {
  switch (dtype) {
    case DType::kU8:
      return ncclUint8;
    case DType::kI8:
      return ncclInt8;
    case DType::kI32:
      return ncclInt32;
    case DType::kI64:
      return ncclInt64;
    case DType::kF16:
      return ncclFloat16;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kF32:
      return ncclFloat32;
    case DType::kF64:
      return ncclFloat64;
    case DType::kBool:
    case DType::kI16:
      break;
  }
  return std::nullopt;
}

std::optional<int> reduction_op(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::kSum:
      return ncclSum;
    case ReduceOp::kAvg:
      return ncclAvg;
    case ReduceOp::kProduct:
      return ncclProd;
    case ReduceOp::kMin:
      return ncclMin;
    case ReduceOp::kMax:
      return ncclMax;
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      break;
  }
  return std::nullopt;
}

ErrorCode code_of(int nccl_result) noexcept {
  switch (nccl_result) {
    case ncclRemoteError:
      return ErrorCode::kPeerLost;
    case ncclSystemError:
      return ErrorCode::kIo;
    default:
      return ErrorCode::kInternal;
  }
}
}  // namespace muster::nccl
