// softmax, log_softmax and safe_softmax along one dim.
#include "core/kernels/cpu/softmax.h"

#include "core/ops/nn.h"
#include "core/ops/pointwise.h"
#include "core/ops/pointwise_def.h"
#include "core/ops/reduction.h"

namespace muster::ops {
namespace {
using Context = const BackwardContext&;
namespace cpu = kernels::cpu;
using ForwardKernel = void (*)(const TensorView& y, const TensorView& x, int64_t dim);
using BackwardKernel = void (*)(const TensorView& dx, const TensorView& dy, const TensorView& y,
                                int64_t dim);
constexpr const char* kRule = "S(b) -> S(b) where b != dim";
constexpr const char* kBackwardRule = "S(b), S(b) -> S(b) where b != dim";

// (self, dim, dtype)
TensorSpec infer(const OpArgs& args) {
  const Tensor& self = args.tensor(0);
  wrap_dim(args[1].integer(), self.ndim(), args.op_name());
  const DType dtype = args[2].is_none() ? self.dtype() : args[2].dtype();
  MUSTER_CHECK(is_floating(dtype), ErrorCode::kInvalidArgument,
               "{}: not implemented for {}; pass a floating dtype", args.op_name(), dtype);
  return TensorSpec::contiguous(self.sizes(), dtype, self.device());
}

template <ForwardKernel kKernel>
void kernel(const OpArgs& args, std::span<Tensor> outs) {
  kKernel(outs[0], cast_to(args.tensor(0), outs[0].dtype()), args[1].integer());
}

// (grad, result, dim)
TensorSpec softmax_backward_infer(const OpArgs& args) {
  const Tensor& result = args.tensor(1);
  return TensorSpec::contiguous(result.sizes(), result.dtype(), result.device());
}

template <BackwardKernel kKernel>
void softmax_backward_kernel(const OpArgs& args, std::span<Tensor> outs) {
  kKernel(outs[0], args.tensor(0), args.tensor(1), args[2].integer());
}

GradList softmax_derivative(Context c) {
  const Tensor result = c.saved("result");
  if (c.create_graph()) {
    const Tensor inner = sum(mul(c.grad(), result), c.arg("dim").integer(), true);
    return {mul(result, sub(c.grad(), inner))};
  }
  static const Op& fused = find_op("softmax_backward");
  return {call_one(fused, c.grad(), result, c.arg("dim"))};
}

GradList log_softmax_derivative(Context c) {
  const Tensor result = c.saved("result");
  if (c.create_graph()) {
    const Tensor total = sum(c.grad(), c.arg("dim").integer(), true);
    return {sub(c.grad(), mul(exp(result), total))};
  }
  static const Op& fused = find_op("log_softmax_backward");
  return {call_one(fused, c.grad(), result, c.arg("dim"))};
}

OpDef forward_op(const char* schema, KernelFn fn, DerivativeFn derivative) {
  return OpDef(schema)
      .infer(infer)
      .kernel(DeviceType::kCpu, fn)
      .derivative(derivative, {"result"})
      .shard({kRule})
      .autocast(AutocastClass::kNone, AutocastClass::kFloat32)
      .fusion(FusionClass::kRowReduction)
      .samples({"f(2,3), 1, None", "f(2,3), 0, None", "f(2,3).t, -1, None", "f(), 0, None"});
}

OpDef backward_op(const char* schema, KernelFn fn) {
  return OpDef(schema)
      .infer(softmax_backward_infer)
      .kernel(DeviceType::kCpu, fn)
      .not_differentiable(kComposedWhenRecorded)
      .shard({kBackwardRule})
      .fusion(FusionClass::kRowReduction)
      .samples({"f(2,3), p(2,3), 1"});
}
}  // namespace

MUSTER_DEFINE_OPS(softmax) {
  table.add(
      forward_op("softmax(Tensor self, int dim, *, ScalarType? dtype=None) -> (Tensor result)",
                 kernel<cpu::softmax>, softmax_derivative));
  table.add(
      forward_op("safe_softmax(Tensor self, int dim, *, ScalarType? dtype=None) -> (Tensor result)",
                 kernel<cpu::safe_softmax>, softmax_derivative));
  table.add(
      forward_op("log_softmax(Tensor self, int dim, *, ScalarType? dtype=None) -> (Tensor result)",
                 kernel<cpu::log_softmax>, log_softmax_derivative));
  table.add(backward_op("softmax_backward(Tensor grad, Tensor result, int dim) -> Tensor",
                        softmax_backward_kernel<cpu::softmax_backward>));
  table.add(backward_op("log_softmax_backward(Tensor grad, Tensor result, int dim) -> Tensor",
                        softmax_backward_kernel<cpu::log_softmax_backward>));
}
}  // namespace muster::ops

namespace muster {
using ops::find_op;

Tensor softmax(const Tensor& self, int64_t dim, OptionalDType dtype) {
  static const Op& op = find_op("softmax");
  return call_one(op, self, dim, dtype);
}
Tensor safe_softmax(const Tensor& self, int64_t dim) {
  static const Op& op = find_op("safe_softmax");
  return call_one(op, self, dim, std::nullopt);
}
Tensor log_softmax(const Tensor& self, int64_t dim, OptionalDType dtype) {
  static const Op& op = find_op("log_softmax");
  return call_one(op, self, dim, dtype);
}
}  // namespace muster
