// Optimizer updates on lists. They return nothing and write their lists.
#include "core/ops/optimizer.h"

#include "core/kernels/cpu/grad_norm.h"
#include "core/kernels/cpu/optimizer.h"
#include "core/ops/op_support.h"

namespace muster::ops {
namespace {
namespace cpu = kernels::cpu;
constexpr const char* kUpdate = "an update of parameters is not differentiated";
constexpr const char* kLocal = "elementwise: dist/tensor updates the local shards";

std::vector<TensorSpec> nothing_infer(const OpArgs& args) {
  const size_t count = args[0].tensors().size();
  for (size_t i = 1; i < args.size() && args[i].is_tensor_list(); ++i) {
    const auto list = args[i].tensors();
    MUSTER_CHECK(list.size() == count || list.empty(), ErrorCode::kInvalidArgument,
                 "{}: lists must have one entry per parameter; got {} for {} parameters",
                 args.op_name(), list.size(), count);
  }
  return {};
}

// Contiguous memory for a gradient, a copy where it lies otherwise.
Tensor as_dense(const Tensor& tensor, bool is_written, const char* operation) {
  MUSTER_CHECK(!is_written || tensor.is_contiguous(), ErrorCode::kInvalidArgument,
               "{}: written tensors must be contiguous; got {} of strides {}", operation, tensor,
               to_string(tensor.strides()));
  return dense(tensor);
}

void count_write(const Tensor& tensor) {
  if (!tensor.impl()->is_inference) tensor.storage()->bump_version();
}

// (params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, lr, beta1, beta2, eps,
//  weight_decay, decoupled_decay, maximize, grad_scale, zero_grad)
void adamw_kernel(const OpArgs& args, std::span<Tensor>) {
  const auto params = args[0].tensors(), grads = args[1].tensors(), first = args[2].tensors(),
             second = args[3].tensors(), largest = args[4].tensors();
  const Dims steps = args[5].ints();
  MUSTER_CHECK(steps.size() == params.size(), ErrorCode::kInvalidArgument,
               "fused_adamw_: one step per parameter is needed; got {} for {}", steps.size(),
               params.size());
  const cpu::AdamOptions options{.lr = args[6].number(),
                                 .beta1 = args[7].number(),
                                 .beta2 = args[8].number(),
                                 .eps = args[9].number(),
                                 .weight_decay = args[10].number(),
                                 .decoupled_decay = args[11].boolean(),
                                 .maximize = args[12].boolean(),
                                 .grad_scale = args[13].number(),
                                 .zero_grad = args[14].boolean()};
  for (size_t i = 0; i < params.size(); ++i) {
    const Tensor grad = as_dense(grads[i], options.zero_grad, "fused_adamw_");
    cpu::AdamState state{first[i], second[i], std::nullopt};
    if (!largest.empty()) state.max_exp_avg_sq = TensorView(largest[i]);
    cpu::adam_step(params[i], grad, state, steps[i], options);
    count_write(params[i]);
    if (options.zero_grad) count_write(grads[i]);
  }
}

// (params, grads, momentum_buffers, first_steps, lr, momentum, dampening, weight_decay, nesterov,
//  maximize, grad_scale, zero_grad)
void sgd_kernel(const OpArgs& args, std::span<Tensor>) {
  const auto params = args[0].tensors(), grads = args[1].tensors(), buffers = args[2].tensors();
  const Dims first_steps = args[3].ints();
  cpu::SgdOptions options{.lr = args[4].number(),
                          .momentum = args[5].number(),
                          .dampening = args[6].number(),
                          .weight_decay = args[7].number(),
                          .nesterov = args[8].boolean(),
                          .maximize = args[9].boolean(),
                          .grad_scale = args[10].number(),
                          .zero_grad = args[11].boolean()};
  MUSTER_CHECK(buffers.empty() || first_steps.size() == params.size(), ErrorCode::kInvalidArgument,
               "fused_sgd_: one first_steps entry per parameter is needed; got {} for {}",
               first_steps.size(), params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    const Tensor grad = as_dense(grads[i], options.zero_grad, "fused_sgd_");
    std::optional<TensorView> buffer;
    if (!buffers.empty()) {
      buffer = TensorView(buffers[i]);
      options.first_momentum = first_steps[i] != 0;
    }
    cpu::sgd_step(params[i], grad, buffer, options);
    count_write(params[i]);
    if (options.zero_grad) count_write(grads[i]);
  }
}

TensorSpec sum_infer(const OpArgs& args) {
  return TensorSpec::contiguous({}, DType::kF64, common_device(args.values()));
}

void sum_kernel(const OpArgs& args, std::span<Tensor> outs) {
  double total = 0;
  for (const Tensor& tensor : args[0].tensors()) total += cpu::sum_of_squares(tensor);
  *outs[0].data<double>() = total;
}

void mul_kernel(const OpArgs& args, std::span<Tensor>) {
  for (const Tensor& tensor : args[0].tensors()) {
    cpu::scale_inplace(tensor, args[1].number());
    count_write(tensor);
  }
}

OpDef update(const char* schema, KernelFn kernel, const char* sample) {
  return OpDef(schema)
      .infer(nothing_infer)
      .kernel(DeviceType::kCpu, kernel)
      .not_differentiable(kUpdate)
      .replicate_only(kLocal)
      .samples({sample});
}
}  // namespace

MUSTER_DEFINE_OPS(optimizer) {
  table.add(update(
      "fused_adamw_(Tensor(a!)[] params, Tensor(b!)[] grads, Tensor(c!)[] exp_avgs, Tensor(d!)[] "
      "exp_avg_sqs, Tensor(e!)[] max_exp_avg_sqs, int[] steps, float lr, float beta1, float "
      "beta2, float eps, float weight_decay, bool decoupled_decay, bool maximize, float "
      "grad_scale, bool zero_grad) -> ()",
      adamw_kernel,
      "[f(2,3)], [f(2,3)], [f(2,3)], [p(2,3)], [], [1], 0.1, 0.9, 0.999, 1e-8, 0.0, true, false, "
      "1.0, false"));
  table.add(update(
      "fused_sgd_(Tensor(a!)[] params, Tensor(b!)[] grads, Tensor(c!)[] "
      "momentum_buffers, int[] first_steps, float lr, float momentum, float "
      "dampening, float weight_decay, bool nesterov, bool maximize, float grad_scale, "
      "bool zero_grad) -> ()",
      sgd_kernel, "[f(2,3)], [f(2,3)], [], [], 0.1, 0.0, 0.0, 0.0, false, false, 1.0, false"));
  table.add(update("foreach_mul_(Tensor(a!)[] tensors, float factor) -> ()", mul_kernel,
                   "[f(2,3), f(4)], 0.5"));
  table.add(OpDef("foreach_sum_of_squares(Tensor[] tensors) -> Tensor")
                .infer(sum_infer)
                .kernel(DeviceType::kCpu, sum_kernel)
                .not_differentiable("gradient clipping is not differentiated")
                .replicate_only(kLocal)
                .samples({"[f(2,3), f(4)]"}));
}

namespace {
template <typename... Arguments>
void run_update(const Op& op, const Arguments&... arguments) {
  const Value values[] = {Value(arguments)...};
  op.call(Args(values, sizeof...(arguments)), {});
}
}  // namespace
}  // namespace muster::ops

namespace muster {
using ops::find_op;

void fused_adamw_(std::span<const Tensor> params, std::span<const Tensor> grads,
                  std::span<const Tensor> exp_avgs, std::span<const Tensor> exp_avg_sqs,
                  std::span<const Tensor> max_exp_avg_sqs, Dims steps,
                  const AdamArguments& arguments) {
  static const Op& op = find_op("fused_adamw_");
  const NoGradGuard no_grad;
  const AdamArguments& a = arguments;
  ops::run_update(op, params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, a.lr, a.beta1,
                  a.beta2, a.eps, a.weight_decay, a.decoupled_decay, a.maximize, a.grad_scale,
                  a.zero_grad);
}

void fused_sgd_(std::span<const Tensor> params, std::span<const Tensor> grads,
                std::span<const Tensor> momentum_buffers, Dims first_steps,
                const SgdArguments& arguments) {
  static const Op& op = find_op("fused_sgd_");
  const NoGradGuard no_grad;
  const SgdArguments& a = arguments;
  ops::run_update(op, params, grads, momentum_buffers, first_steps, a.lr, a.momentum, a.dampening,
                  a.weight_decay, a.nesterov, a.maximize, a.grad_scale, a.zero_grad);
}

Tensor foreach_sum_of_squares(std::span<const Tensor> tensors) {
  static const Op& op = find_op("foreach_sum_of_squares");
  const NoGradGuard no_grad;
  return call_one(op, tensors);
}

void foreach_mul_(std::span<const Tensor> tensors, double factor) {
  static const Op& op = find_op("foreach_mul_");
  const NoGradGuard no_grad;
  ops::run_update(op, tensors, factor);
}
}  // namespace muster
