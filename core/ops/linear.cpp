// linear: y = x @ W^T + b over the last dim, leading dims kept: one node of the tape.
#include "core/kernels/cpu/gemm.h"
#include "core/ops/creation.h"
#include "core/ops/linalg.h"
#include "core/ops/matrix_fold.h"
#include "core/ops/pointwise_def.h"
#include "core/ops/reduction.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
using Context = const BackwardContext&;
namespace cpu = kernels::cpu;

// `sizes` with another last dim.
TensorSpec with_last(const Tensor& like, int64_t last) {
  DimVector sizes(like.sizes());
  sizes.back() = last;
  return TensorSpec::contiguous(sizes, like.dtype(), like.device());
}

// (input, weight, bias)
TensorSpec linear_infer(const OpArgs& args) {
  const Tensor &input = args.tensor(0), &weight = args.tensor(1);
  MUSTER_CHECK(input.ndim() >= 1 && weight.ndim() == 2 && input.size(-1) == weight.size(1),
               ErrorCode::kInvalidArgument,
               "linear: input [.., in] and weight [out, in] are expected; got {} and {}", input,
               weight);
  MUSTER_CHECK(
      input.dtype() == weight.dtype() && input.dtype() != DType::kBool, ErrorCode::kInvalidArgument,
      "linear: input and weight must have one dtype, not bool; got {} and {}", input, weight);
  if (!args[2].is_none()) {
    const Tensor& bias = args.tensor(2);
    MUSTER_CHECK(
        bias.ndim() == 1 && bias.size(0) == weight.size(0) && bias.dtype() == weight.dtype(),
        ErrorCode::kInvalidArgument, "linear: bias must be [{}] of weight's dtype; got {}",
        weight.size(0), bias);
  }
  return with_last(input, weight.size(0));
}

void linear_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Rows out(outs[0]), input(args.tensor(0));
  const Layout weight = transpose_layout(args.tensor(1).layout(), 0, 1);
  cpu::GemmOptions options;
  options.bias = optional_view(args[2]);
  cpu::gemm(out, input, view_with(args.tensor(1), weight), options);
}

// (grad, weight) -> gradient of the input
TensorSpec grad_input_infer(const OpArgs& args) {
  return with_last(args.tensor(0), args.tensor(1).size(1));
}

void grad_input_kernel(const OpArgs& args, std::span<Tensor> outs) {
  cpu::gemm(Rows(outs[0]), Rows(args.tensor(0)), args.tensor(1));
}

// (grad, input) -> gradient of the weight
TensorSpec grad_weight_infer(const OpArgs& args) {
  const Tensor &grad = args.tensor(0), &input = args.tensor(1);
  return TensorSpec::contiguous({grad.size(-1), input.size(-1)}, grad.dtype(), grad.device());
}

void grad_weight_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Rows grad(args.tensor(0)), input(args.tensor(1));
  const DimVector sizes = {grad.view().sizes[1], grad.view().sizes[0]};
  const DimVector strides = {grad.view().strides[1], grad.view().strides[0]};
  cpu::gemm(outs[0], TensorView(grad.view().data, grad.view().dtype, sizes, strides), input);
}

Tensor sum_leading(const Tensor& grad) {
  DimVector dims;
  for (int64_t d = 0; d + 1 < grad.ndim(); ++d) dims.push_back(d);
  return dims.empty() ? grad : sum(grad, Dims(dims));
}

Tensor as_rows(const Tensor& tensor) {
  return reshape(tensor, {numel_of(tensor.sizes().first(static_cast<size_t>(tensor.ndim() - 1))),
                          tensor.size(-1)});
}

GradList linear_derivative(Context c) {
  static const Op& grad_input = find_op("linear_grad_input");
  static const Op& grad_weight = find_op("linear_grad_weight");
  const Tensor& grad = c.grad();
  GradList grads(3);
  if (c.needs("input")) {
    const Tensor weight = c.saved("weight");
    grads[0] = c.create_graph() ? view(mm(as_rows(grad), weight), c.spec("input").sizes)
                                : call_one(grad_input, grad, weight);
  }
  if (c.needs("weight")) {
    const Tensor input = c.saved("input");
    grads[1] = c.create_graph() ? mm(t(as_rows(grad)), as_rows(input))
                                : call_one(grad_weight, grad, input);
  }
  if (c.needs("bias")) grads[2] = sum_leading(grad);
  return grads;
}
}  // namespace

MUSTER_DEFINE_OPS(linear) {
  table.add(OpDef("linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor")
                .infer(linear_infer)
                .kernel(DeviceType::kCpu, linear_kernel)
                .derivative(linear_derivative, {"input for weight", "weight for input"})
                .shard({"S(b), R, R -> S(b) where b < ndim(input) - 1", "R, S(0), S(0) -> S(-1)",
                        "S(-1), S(1), P -> P", "P, R, P -> P", "R, P, P -> P"})
                .autocast(AutocastClass::kLowPrecision)
                .samples({"f(2,3), f(4,3), f(4)", "f(2,2,3), f(4,3), None", "f(3), f(4,3), f(4)",
                          "f(0,3), f(4,3), f(4)"}));
  table.add(OpDef("linear_grad_input(Tensor grad, Tensor weight) -> Tensor")
                .infer(grad_input_infer)
                .kernel(DeviceType::kCpu, grad_input_kernel)
                .not_differentiable(kComposedWhenRecorded)
                .shard({"S(b), R -> S(b) where b < ndim(grad) - 1", "S(-1), S(0) -> P",
                        "R, S(1) -> S(-1)", "P, R -> P", "R, P -> P"})
                .samples({"f(2,2,4), f(4,3)"}));
  table.add(OpDef("linear_grad_weight(Tensor grad, Tensor input) -> Tensor")
                .infer(grad_weight_infer)
                .kernel(DeviceType::kCpu, grad_weight_kernel)
                .not_differentiable(kComposedWhenRecorded)
                .shard({"S(b), S(b) -> P where b < ndim(grad) - 1", "S(-1), R -> S(0)",
                        "R, S(-1) -> S(1)", "P, R -> P", "R, P -> P"})
                .samples({"f(2,2,4), f(2,2,3)"}));
}
}  // namespace muster::ops

namespace muster {
Tensor linear(const Tensor& input, const Tensor& weight, const Tensor& bias) {
  static const Op& op = ops::find_op("linear");
  return call_one(op, input, weight, bias);
}
}  // namespace muster
