// Elementwise losses, made of other operators.
#include "core/ops/losses.h"

#include "core/autograd/function.h"
#include "core/ops/activation.h"
#include "core/ops/loss_reduction.h"

namespace muster::ops {
namespace {
void check_equal_sizes(const OpArgs& args) {
  MUSTER_CHECK(same_sizes(args.tensor(0).sizes(), args.tensor(1).sizes()),
               ErrorCode::kInvalidArgument,
               "{}: target size must be the same as input size; got input {} and target {}",
               args.op_name(), args.tensor(0), args.tensor(1));
}

// loss * weight, and the sum of weights as denominator where the loss is a weighted mean.
Tensor weighted(const Tensor& loss, const Value& weight, Reduction reduction, bool by_weights) {
  if (weight.is_none()) return reduce_loss(loss, reduction);
  const Tensor& w = weight.tensor();
  return reduce_loss(mul(loss, w), reduction, by_weights ? sum(w) : Tensor());
}

// (input, target, reduction, weight)
void mse_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Reduction reduction = parse_reduction(args[2], "mse_loss");
  outs[0] = weighted(square(sub(args.tensor(0), args.tensor(1))), args[3], reduction,
                     /*by_weights=*/true);
}

void l1_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Reduction reduction = parse_reduction(args[2], "l1_loss");
  outs[0] =
      weighted(abs(sub(args.tensor(0), args.tensor(1))), args[3], reduction, /*by_weights=*/true);
}

// d^2/2 up to |d| = delta, then a line: b (d - b/2) with b = d limited to +-delta. In this form inf
// and nan have the gradients that they should.
Tensor huber_of(const Tensor& difference, double delta) {
  const Tensor bent = clamp(difference, -delta, delta);
  return mul(bent, sub(difference, mul(bent, 0.5)));
}

// (input, target, reduction, beta)
void smooth_l1_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Reduction reduction = parse_reduction(args[2], "smooth_l1_loss");
  const double beta = args[3].number();
  MUSTER_CHECK(beta >= 0, ErrorCode::kInvalidArgument,
               "smooth_l1_loss: beta must not be negative; got {}", beta);
  const Tensor difference = sub(args.tensor(0), args.tensor(1));
  outs[0] =
      reduce_loss(beta == 0 ? abs(difference) : div(huber_of(difference, beta), beta), reduction);
}

// (input, target, reduction, delta, weight)
void huber_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Reduction reduction = parse_reduction(args[2], "huber_loss");
  const double delta = args[3].number();
  MUSTER_CHECK(delta > 0, ErrorCode::kInvalidArgument, "huber_loss: delta must be positive; got {}",
               delta);
  outs[0] = weighted(huber_of(sub(args.tensor(0), args.tensor(1)), delta), args[4], reduction,
                     /*by_weights=*/false);
}

// -(y log x + (1 - y) log(1 - x)) with logarithms of at least -100. Its gradient is stated, as that
// of clamped logarithms is nan at 0 and 1.
struct BinaryCrossEntropy {
  static std::vector<Tensor> forward(FunctionContext& context, std::span<const Tensor> in) {
    context.save_for_backward({in[0], in[1]});
    const Tensor log_x = clamp(log(in[0]), -100), log_rest = clamp(log1p(neg(in[0])), -100);
    return {sub(mul(sub(in[1], 1), log_rest), mul(in[1], log_x))};
  }
  static GradList backward(FunctionContext& context, const GradList& grads) {
    const std::vector<Tensor> saved = context.saved();
    const Tensor &x = saved[0], &y = saved[1];
    GradList out(2);
    if (context.needs_input_grad(0)) {
      // PyTorch's limit is the f32 number for all dtypes.
      const Tensor spread = clamp(mul(sub(1, x), x), static_cast<double>(1e-12f));
      out[0] = mul(grads[0], div(sub(x, y), spread));
    }
    if (context.needs_input_grad(1)) {
      out[1] = mul(grads[0], sub(clamp(log1p(neg(x)), -100), clamp(log(x), -100)));
    }
    return out;
  }
};

// (input, target, weight, reduction)
void bce_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Reduction reduction = parse_reduction(args[3], "binary_cross_entropy");
  check_equal_sizes(args);
  const Tensor& input = args.tensor(0);
  if (!input.is_meta() && !input.impl()->keys_own.has(DispatchKey::kDTensor) && input.numel() > 0) {
    const NoGradGuard no_grad;
    const Tensor outside = logical_or(lt(input, 0), gt(input, 1));
    MUSTER_CHECK(any(outside).item() == 0, ErrorCode::kInvalidArgument,
                 "binary_cross_entropy: all elements of input should be between 0 and 1; got {} "
                 "outside",
                 count_nonzero(outside).item_int());
  }
  const Tensor loss =
      apply_function<BinaryCrossEntropy>({input, args.tensor(1)}, "binary_cross_entropy")[0];
  outs[0] = weighted(loss, args[2], reduction, /*by_weights=*/false);
}

// (input, target, weight, pos_weight, reduction)
void bce_with_logits_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Reduction reduction = parse_reduction(args[4], "binary_cross_entropy_with_logits");
  check_equal_sizes(args);
  const Tensor &x = args.tensor(0), &y = args.tensor(1);
  Tensor log_p = logsigmoid(x);
  if (!args[3].is_none()) log_p = mul(log_p, add(mul(y, sub(args.tensor(3), 1)), 1));
  outs[0] = weighted(sub(mul(sub(1, y), x), log_p), args[2], reduction, /*by_weights=*/false);
}

// (input, target, reduction, log_target)
void kl_div_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Reduction reduction = parse_reduction(args[2], "kl_div");
  const Tensor &input = args.tensor(0), &target = args.tensor(1);
  const Tensor loss = args[3].boolean() ? mul(exp(target), sub(target, input))
                                        : sub(xlogy(target, target), mul(target, input));
  outs[0] = reduce_loss(loss, reduction);
}
}  // namespace

MUSTER_DEFINE_OPS(losses) {
  table.add(composed("mse_loss(Tensor input, Tensor target, str reduction='mean', Tensor? "
                     "weight=None) -> Tensor",
                     mse_composite, {"f(2,3), f(2,3), \"mean\", None"})
                .autocast(AutocastClass::kFloat32));
  table.add(composed("l1_loss(Tensor input, Tensor target, str reduction='mean', Tensor? "
                     "weight=None) -> Tensor",
                     l1_composite, {"f(2,3), f(2,3), \"sum\", None"})
                .autocast(AutocastClass::kFloat32));
  table.add(composed("smooth_l1_loss(Tensor input, Tensor target, str reduction='mean', float "
                     "beta=1.0) -> Tensor",
                     smooth_l1_composite, {"f(2,3), f(2,3), \"none\", 0.5"})
                .autocast(AutocastClass::kFloat32));
  table.add(composed("huber_loss(Tensor input, Tensor target, str reduction='mean', float "
                     "delta=1.0, Tensor? weight=None) -> Tensor",
                     huber_composite, {"f(2,3), f(2,3), \"mean\", 0.5, None"})
                .autocast(AutocastClass::kFloat32));
  table.add(composed("binary_cross_entropy(Tensor input, Tensor target, Tensor? weight=None, str "
                     "reduction='mean') -> Tensor",
                     bce_composite, {"u(2,3), u(2,3), None, \"mean\""})
                .autocast(AutocastClass::kFloat32));
  table.add(composed("binary_cross_entropy_with_logits(Tensor input, Tensor target, Tensor? "
                     "weight=None, Tensor? pos_weight=None, str reduction='mean') -> Tensor",
                     bce_with_logits_composite, {"f(2,3), u(2,3), None, None, \"mean\""})
                .autocast(AutocastClass::kFloat32));
  table.add(composed("kl_div(Tensor input, Tensor target, str reduction='mean', bool "
                     "log_target=False) -> Tensor",
                     kl_div_composite, {"f(2,3), u(2,3), \"mean\", false"})
                .autocast(AutocastClass::kFloat32));
}
}  // namespace muster::ops

namespace muster {
using ops::find_op;
using ops::reduction_text;

Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction,
                const Tensor& weight) {
  static const Op& op = find_op("mse_loss");
  return call_one(op, input, target, reduction_text(reduction), weight);
}
Tensor l1_loss(const Tensor& input, const Tensor& target, Reduction reduction,
               const Tensor& weight) {
  static const Op& op = find_op("l1_loss");
  return call_one(op, input, target, reduction_text(reduction), weight);
}
Tensor smooth_l1_loss(const Tensor& input, const Tensor& target, Reduction reduction, double beta) {
  static const Op& op = find_op("smooth_l1_loss");
  return call_one(op, input, target, reduction_text(reduction), beta);
}
Tensor huber_loss(const Tensor& input, const Tensor& target, Reduction reduction, double delta,
                  const Tensor& weight) {
  static const Op& op = find_op("huber_loss");
  return call_one(op, input, target, reduction_text(reduction), delta, weight);
}
Tensor binary_cross_entropy(const Tensor& input, const Tensor& target, const Tensor& weight,
                            Reduction reduction) {
  static const Op& op = find_op("binary_cross_entropy");
  return call_one(op, input, target, weight, reduction_text(reduction));
}
Tensor binary_cross_entropy_with_logits(const Tensor& input, const Tensor& target,
                                        const Tensor& weight, const Tensor& pos_weight,
                                        Reduction reduction) {
  static const Op& op = find_op("binary_cross_entropy_with_logits");
  return call_one(op, input, target, weight, pos_weight, reduction_text(reduction));
}
Tensor kl_div(const Tensor& input, const Tensor& target, Reduction reduction, bool log_target) {
  static const Op& op = find_op("kl_div");
  return call_one(op, input, target, reduction_text(reduction), log_target);
}
}  // namespace muster
