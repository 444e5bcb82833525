#include "pipeline/runtime/split_backward.h"

#include "core/autograd/autograd.h"
#include "core/autograd/autograd_meta.h"
#include "core/autograd/engine.h"
#include "core/autograd/function.h"
#include "core/dispatch/op_table.h"
#include "core/nn/layers.h"
#include "core/ops/ops.h"

namespace muster::pipeline {
namespace {
thread_local WeightWork* current_work = nullptr;

Tensor weight_gradient(const Tensor& grad, const Tensor& input) {
  static const Op& op = op_table().find("linear_grad_weight");
  return call_one(op, grad, input);
}

Tensor bias_gradient(const Tensor& grad) {
  DimVector dims;
  for (int64_t d = 0; d + 1 < grad.ndim(); ++d) dims.push_back(d);
  return dims.empty() ? grad : sum(grad, Dims(dims));
}

// (input, weight, bias or an undefined tensor) -> linear, whose backward may leave out the weights.
struct SplitLinear {
  static std::vector<Tensor> forward(FunctionContext& context, std::span<const Tensor> in) {
    context.set_once_differentiable();
    context.save_for_backward({in[0], in[1], in[2]});
    return {linear(in[0], in[1], in[2])};
  }

  static GradList backward(FunctionContext& context, const GradList& grads) {
    static const Op& grad_input = op_table().find("linear_grad_input");
    const std::vector<Tensor> saved = context.saved();
    const Tensor &input = saved[0], &weight = saved[1], &bias = saved[2], &grad = grads[0];
    const bool needs_bias = context.needs_input_grad(2);
    GradList out(3);
    if (context.needs_input_grad(0)) out[0] = call_one(grad_input, grad, weight);
    const bool can_wait = current_work != nullptr && context.needs_input_grad(1) &&
                          is_leaf(weight) && (!needs_bias || is_leaf(bias));
    if (can_wait) {
      current_work->add({weight, needs_bias ? bias : Tensor(), input, grad});
      return out;
    }
    if (context.needs_input_grad(1)) out[1] = weight_gradient(grad, input);
    if (needs_bias) out[2] = bias_gradient(grad);
    return out;
  }
};
}  // namespace

void WeightWork::run() {
  std::vector<Edge> edges;
  GradList grads;
  for (const Item& item : items_) {
    const NoGradGuard no_grad;
    // What was saved of a leaf is an alias that leads to the leaf's own accumulator.
    edges.push_back(gradient_edge(item.weight));
    grads.push_back(weight_gradient(item.grad, item.input));
    if (!item.bias.defined()) continue;
    edges.push_back(gradient_edge(item.bias));
    grads.push_back(bias_gradient(item.grad));
  }
  items_.clear();
  if (!edges.empty()) run_engine(edges, std::move(grads), {}, {});
}

DeferWeights::DeferWeights(WeightWork& work) noexcept
    : previous_(std::exchange(current_work, &work)) {}
DeferWeights::~DeferWeights() { current_work = previous_; }

int split_linear_backward(Module& stage) {
  int count = 0;
  for (const NamedModule& named : stage.named_modules()) {
    if (dynamic_cast<Linear*>(named.module) == nullptr) continue;
    Tensor* weight = nullptr;
    Tensor* bias = nullptr;
    for (const TensorSlot& slot : named.module->parameter_slots(false)) {
      (slot.name == "weight" ? weight : bias) = slot.tensor;
    }
    named.module->replace_compute([weight, bias](const Tensor& input) {
      return apply_function<SplitLinear>({input, *weight, bias == nullptr ? Tensor() : *bias},
                                         "linear")[0];
    });
    ++count;
  }
  return count;
}
}  // namespace muster::pipeline
