// swiglu: silu(gate) * up, one pass over memory instead of two, and none of silu's result is kept.
#include "core/ops/activation.h"
#include "core/ops/creation.h"
#include "core/ops/pointwise.h"
#include "core/ops/pointwise_def.h"

namespace muster::ops {
namespace {
using Context = const BackwardContext&;

// (grad, gate, up) -> gradient of gate
TensorSpec swiglu_backward_infer(const OpArgs& args) {
  DType dtype = promote_types(args.tensor(1).dtype(), args.tensor(2).dtype());
  dtype = compute_dtype(Typing::kFloatOnly, promote_types(dtype, args.tensor(0).dtype()),
                        args.op_name());
  return pointwise_spec(args.values(), dtype, args.op_name());
}

void swiglu_backward_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& out = outs[0];
  const KernelOperand grad(args[0], out.dtype(), out.sizes());
  const KernelOperand gate(args[1], out.dtype(), out.sizes());
  const KernelOperand up(args[2], out.dtype(), out.sizes());
  kernels::cpu::ternary(TernaryKind::kSwigluBackward, out, grad, gate, up);
}

// d up = grad * silu(gate) is a swiglu itself.
GradList derivative(Context c) {
  static const Op& fused = find_op("swiglu_backward");
  const Tensor gate = c.saved("gate");
  GradList grads(2);
  if (c.needs("gate")) {
    const Tensor up = c.saved("up");
    if (c.create_graph()) {
      const Tensor s = sigmoid(gate);
      grads[0] = mul(mul(c.grad(), up), mul(s, add(mul(gate, sub(1, s)), 1)));
    } else {
      grads[0] = call_one(fused, c.grad(), gate, up);
    }
  }
  if (c.needs("up")) grads[1] = swiglu(gate, c.grad());
  return grads;
}
}  // namespace

MUSTER_DEFINE_OPS(swiglu) {
  table.add(binary_op<BinaryKind::kSwiglu, Typing::kFloatOnly>(
                "swiglu(Tensor gate, Tensor up) -> Tensor", derivative, {"gate", "up for gate"})
                .shard({"S(b), S(b) -> S(b)", "R, P -> P"})
                .samples({"f(2,3), f(2,3)", "f(2,3), f(3)", "f(2,3).t, f(3,2)", "f(0,3), f(0,3)"}));
  table.add(OpDef("swiglu_backward(Tensor grad, Tensor gate, Tensor up) -> Tensor")
                .infer(swiglu_backward_infer)
                .kernel(DeviceType::kCpu, swiglu_backward_kernel)
                .not_differentiable(kComposedWhenRecorded)
                .shard({"S(b), S(b), S(b) -> S(b)", "P, R, R -> P"})
                .fusion(FusionClass::kPointwise)
                .samples({"f(2,3), f(2,3), f(2,3)", "f(2,3), f(2,3), f(3)"}));
}
}  // namespace muster::ops

namespace muster {
Tensor swiglu(const Tensor& gate, const Tensor& up) {
  static const Op& op = ops::find_op("swiglu");
  return call_one(op, gate, up);
}
}  // namespace muster
