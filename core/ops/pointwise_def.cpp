#include "core/ops/pointwise_def.h"

namespace muster::ops {

DType compute_dtype(Typing typing, DType promoted, const char* operation) {
  const bool floating = is_floating(promoted), boolean = promoted == DType::kBool;
  bool refused = false;
  switch (typing) {
    case Typing::kAny:
    case Typing::kToBool:
      return promoted;
    case Typing::kFloat:
      return float_type(promoted);
    case Typing::kNoBool:
      refused = boolean;
      break;
    case Typing::kFloatOnly:
      refused = !floating;
      break;
    case Typing::kIntegral:
      refused = floating;
      break;
    case Typing::kInteger:
      refused = floating || boolean;
      break;
  }
  MUSTER_CHECK(!refused, ErrorCode::kInvalidArgument, "{}: not implemented for {}", operation,
               promoted);
  return promoted;
}

void run_unary(UnaryKind kind, Typing typing, const Tensor& out, const Tensor& in,
               const PointwiseParams& params) {
  if (typing == Typing::kFloat && !is_floating(in.dtype())) {
    return kernels::cpu::unary(kind, out, cast_to(in, kDefaultDType), params);
  }
  kernels::cpu::unary(kind, out, in, params);
}

void run_binary_general(BinaryKind kind, Typing typing, const Tensor& out, const Value& a,
                        const Value& b, const PointwiseParams& params) {
  const DType promoted = promoted_type(a, b);
  const DType compute = typing == Typing::kFloat ? float_type(promoted) : promoted;
  const bool number_first = a.is_number();
  if (number_first != b.is_number()) {
    const Tensor& in = (number_first ? b : a).tensor();
    const Scalar number = (number_first ? a : b).scalar();
    if (in.dtype() == compute && same_sizes(in.sizes(), out.sizes())) {
      return kernels::cpu::binary_scalar(kind, out, in, number, number_first, params);
    }
  }
  const KernelOperand left(a, compute, out.sizes()), right(b, compute, out.sizes());
  kernels::cpu::binary_as(compute, kind, out, left, right, params);
}
}  // namespace muster::ops
