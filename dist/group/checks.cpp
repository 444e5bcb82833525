#include "dist/group/checks.h"

#include "core/base/error.h"

namespace muster {

void check_tensor(CollectiveKind kind, const Tensor& tensor, const char* what) {
  MUSTER_CHECK(tensor.defined() && tensor.is_contiguous(), ErrorCode::kInvalidArgument,
               "{}: {} must be a contiguous tensor; got {}", to_string(kind), what, tensor);
}

void check_reduce(CollectiveKind kind, ReduceOp op, const Tensor& tensor) {
  MUSTER_CHECK(op != ReduceOp::kAvg || is_floating(tensor.dtype()), ErrorCode::kInvalidArgument,
               "{}: avg needs a floating tensor; got {}", to_string(kind), tensor);
  const bool is_bitwise = op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor;
  MUSTER_CHECK(!is_bitwise || !is_floating(tensor.dtype()), ErrorCode::kInvalidArgument,
               "{}: {} needs an integer or bool tensor; got {}", to_string(kind), to_string(op),
               tensor);
}
}  // namespace muster
