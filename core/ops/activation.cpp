// Activations. One row an operator: schema, kernel, fused backward kernel, composed derivative.
#include "core/ops/activation.h"

#include <cmath>
#include <numbers>

#include "core/ops/creation.h"
#include "core/ops/pointwise.h"
#include "core/ops/pointwise_def.h"
#include "core/ops/reduction.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
using Context = const BackwardContext&;

Scalar number(Context c, const char* name) { return c.arg(name).scalar(); }

// Composed derivatives, for a recorded backward pass: slope(x) of differentiable operators.
Tensor gelu_slope(const Tensor& x, bool tanh_form) {
  if (!tanh_form) {
    const Tensor below = mul(add(erf(mul(x, std::numbers::sqrt2 / 2)), 1), 0.5);
    const double norm = std::numbers::inv_sqrtpi / std::numbers::sqrt2;
    return add(below, mul(x, mul(exp(mul(square(x), -0.5)), norm)));
  }
  constexpr double kCubic = 0.044715;
  const double beta = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  const Tensor bend = tanh(mul(add(x, mul(pow(x, 3), kCubic)), beta));
  const Tensor inner = mul(add(mul(square(x), 3 * kCubic), 1), beta);
  return add(mul(add(bend, 1), 0.5), mul(mul(mul(x, 0.5), sub(1, square(bend))), inner));
}

Tensor silu_slope(const Tensor& x) {
  const Tensor s = sigmoid(x);
  return mul(s, add(mul(x, sub(1, s)), 1));
}

Tensor mish_slope(const Tensor& x) {
  const Tensor t = tanh(softplus(x));
  return add(t, mul(mul(x, sigmoid(x)), sub(1, square(t))));
}

GradList relu_derivative(Context c) {
  const Tensor result = c.saved("result");
  if (c.create_graph()) return {masked_fill(c.grad(), le(result, 0), 0)};
  static const Op& fused = find_op("relu_backward");
  return {call_one(fused, c.grad(), result)};
}

GradList gelu_derivative(Context c) {
  const Tensor self = c.saved("self");
  if (c.create_graph()) {
    return {mul(c.grad(), gelu_slope(self, c.arg("approximate").text() == "tanh"))};
  }
  static const Op& fused = find_op("gelu_backward");
  return {call_one(fused, c.grad(), self, c.arg("approximate"))};
}

GradList silu_derivative(Context c) {
  const Tensor self = c.saved("self");
  if (c.create_graph()) return {mul(c.grad(), silu_slope(self))};
  static const Op& fused = find_op("silu_backward");
  return {call_one(fused, c.grad(), self)};
}

GradList softplus_derivative(Context c) {
  const Tensor self = c.saved("self");
  const Scalar beta = number(c, "beta"), limit = number(c, "threshold");
  if (c.create_graph()) {
    const Tensor scaled = mul(self, beta);
    return {where(gt(scaled, limit), c.grad(), mul(c.grad(), sigmoid(scaled)))};
  }
  static const Op& fused = find_op("softplus_backward");
  return {call_one(fused, c.grad(), self, beta, limit)};
}

GradList logsigmoid_derivative(Context c) {
  const Tensor self = c.saved("self");
  if (c.create_graph()) return {mul(c.grad(), sigmoid(neg(self)))};
  static const Op& fused = find_op("logsigmoid_backward");
  return {call_one(fused, c.grad(), self)};
}

GradList elu_derivative(Context c) {
  const Tensor self = c.saved("self");
  const Scalar alpha = number(c, "alpha"), scale = number(c, "scale"),
               input_scale = number(c, "input_scale");
  if (c.create_graph()) {
    const double factor = input_scale.to_double() * scale.to_double() * alpha.to_double();
    const Tensor below = mul(exp(mul(self, input_scale)), factor);
    return {where(le(self, 0), mul(c.grad(), below), mul(c.grad(), scale))};
  }
  static const Op& fused = find_op("elu_backward");
  return {call_one(fused, c.grad(), self, alpha, scale, input_scale)};
}

GradList leaky_relu_derivative(Context c) {
  const Tensor self = c.saved("self");
  const Scalar slope = number(c, "negative_slope");
  if (c.create_graph()) return {where(gt(self, 0), c.grad(), mul(c.grad(), slope))};
  static const Op& fused = find_op("leaky_relu_backward");
  return {call_one(fused, c.grad(), self, slope)};
}

GradList hardtanh_derivative(Context c) {
  const Tensor self = c.saved("self");
  const Scalar low = number(c, "min_val"), high = number(c, "max_val");
  if (c.create_graph()) {
    return {masked_fill(c.grad(), logical_or(le(self, low), ge(self, high)), 0)};
  }
  static const Op& fused = find_op("hardtanh_backward");
  return {call_one(fused, c.grad(), self, low, high)};
}

GradList hardsigmoid_derivative(Context c) {
  const Tensor self = c.saved("self");
  if (c.create_graph()) {
    const Tensor flat = logical_or(le(self, -3), ge(self, 3));
    return {masked_fill(div(c.grad(), 6), flat, 0)};
  }
  static const Op& fused = find_op("hardsigmoid_backward");
  return {call_one(fused, c.grad(), self)};
}

GradList hardswish_derivative(Context c) {
  const Tensor self = c.saved("self");
  if (c.create_graph()) {
    const Tensor bent = mul(c.grad(), add(div(self, 3), 0.5));
    return {where(lt(self, 3), masked_fill(bent, le(self, -3), 0), c.grad())};
  }
  static const Op& fused = find_op("hardswish_backward");
  return {call_one(fused, c.grad(), self)};
}

GradList mish_derivative(Context c) {
  const Tensor self = c.saved("self");
  if (c.create_graph()) return {mul(c.grad(), mish_slope(self))};
  static const Op& fused = find_op("mish_backward");
  return {call_one(fused, c.grad(), self)};
}

GradList shrink_derivative(Context c) {
  const Tensor self = c.saved("self");
  const Scalar lambd = number(c, "lambd");
  if (c.create_graph()) return {masked_fill(c.grad(), le(abs(self), lambd), 0)};
  static const Op& fused = find_op("softshrink_backward");
  return {call_one(fused, c.grad(), self, lambd)};
}

GradList threshold_derivative(Context c) {
  const Tensor self = c.saved("self");
  const Scalar limit = number(c, "threshold");
  if (c.create_graph()) return {masked_fill(c.grad(), le(self, limit), 0)};
  static const Op& fused = find_op("threshold_backward");
  return {call_one(fused, c.grad(), self, limit)};
}

bool is_tanh_form(const Value& approximate) {
  if (approximate.text() == "tanh") return true;
  MUSTER_CHECK(approximate.text() == "none", ErrorCode::kInvalidArgument,
               "gelu: approximate must be either \"none\" or \"tanh\"; got \"{}\"",
               approximate.text());
  return false;
}

// PyTorch gives it row-major, whatever self is.
TensorSpec logsigmoid_infer(const OpArgs& args) {
  const DType dtype = compute_dtype(Typing::kFloatOnly, args.tensor(0).dtype(), "logsigmoid");
  return TensorSpec::contiguous(args.tensor(0).sizes(), dtype, args.tensor(0).device());
}

void refuse_negative(const OpArgs& args, bool negative) {
  MUSTER_CHECK(args.tensor(0).dtype() != DType::kU8 || !negative, ErrorCode::kInvalidArgument,
               "{}: an unsigned type has no negative limits; got {} and {}", args.op_name(),
               args[1].describe(), args[2].describe());
}

TensorSpec hardtanh_infer(const OpArgs& args) {
  refuse_negative(args, args[1].scalar().to_int() < 0 || args[2].scalar().to_int() < 0);
  return unary_infer<Typing::kNoBool>(args);
}

TensorSpec threshold_infer(const OpArgs& args) {
  refuse_negative(args, args[2].number() < 0);
  return unary_infer<Typing::kNoBool>(args);
}

void gelu_kernel(const OpArgs& args, std::span<Tensor> outs) {
  kernels::cpu::unary(is_tanh_form(args[1]) ? UnaryKind::kGeluTanh : UnaryKind::kGelu, outs[0],
                      args.tensor(0));
}

void gelu_backward_kernel(const OpArgs& args, std::span<Tensor> outs) {
  run_binary(is_tanh_form(args[2]) ? BinaryKind::kGeluTanhBackward : BinaryKind::kGeluBackward,
             Typing::kFloatOnly, outs[0], args[0], args[1], {});
}

void relu6_composite(const OpArgs& args, std::span<Tensor> outs) {
  outs[0] = hardtanh(args.tensor(0), 0, 6);
}
void celu_composite(const OpArgs& args, std::span<Tensor> outs) {
  const double alpha = args[1].number();
  MUSTER_CHECK(alpha != 0.0, ErrorCode::kInvalidArgument, "celu: alpha must not be 0");
  outs[0] = elu(args.tensor(0), alpha, 1.0, 1.0 / alpha);
}
void selu_composite(const OpArgs& args, std::span<Tensor> outs) {
  outs[0] = elu(args.tensor(0), 1.6732632423543772848170429916717,
                1.0507009873554804934193349852946, 1.0);
}
void softsign_composite(const OpArgs& args, std::span<Tensor> outs) {
  outs[0] = div(args.tensor(0), add(abs(args.tensor(0)), 1));
}
void tanhshrink_composite(const OpArgs& args, std::span<Tensor> outs) {
  outs[0] = sub(args.tensor(0), tanh(args.tensor(0)));
}

void glu_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  MUSTER_CHECK(self.ndim() > 0, ErrorCode::kInvalidArgument,
               "glu: does not support 0-dimensional tensors");
  const int64_t dim = wrap_dim(args[1].integer(), self.ndim(), "glu"), size = self.size(dim);
  MUSTER_CHECK(size % 2 == 0, ErrorCode::kInvalidArgument,
               "glu: halving dimension must be even, but dimension {} is size {}", dim, size);
  outs[0] = mul(narrow(self, dim, 0, size / 2), sigmoid(narrow(self, dim, size / 2, size / 2)));
}

void prelu_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  Tensor weight = args.tensor(1);
  if (weight.numel() != 1) {
    const int64_t channels = self.ndim() < 2 ? (self.ndim() == 1 ? self.size(0) : 1) : self.size(1);
    MUSTER_CHECK(self.ndim() > 0 && weight.numel() == channels, ErrorCode::kInvalidArgument,
                 "prelu: mismatch of parameter numbers and input channel size: found parameter "
                 "numbers = {} and channel size = {}",
                 weight.numel(), channels);
    DimVector sizes(static_cast<size_t>(self.ndim()), 1);
    sizes[self.ndim() < 2 ? 0 : 1] = weight.numel();
    weight = reshape(weight, sizes);
  } else if (weight.ndim() > 0) {
    weight = reshape(weight, {});
  }
  outs[0] = where(gt(self, 0), self, mul(self, weight));
}

template <BinaryKind kKind>
OpDef fused_backward(const char* schema, const char* sample) {
  return binary_op<kKind, Typing::kFloatOnly>(schema, nullptr)
      .not_differentiable(kComposedWhenRecorded)
      .samples({sample});
}
}  // namespace

MUSTER_DEFINE_OPS(activation) {
  using enum UnaryKind;
  constexpr Typing kFloats = Typing::kFloatOnly, kNumbers = Typing::kNoBool;
  table.add(
      unary_op<kRelu, kNumbers>("relu(Tensor self) -> (Tensor result)", relu_derivative, {"result"})
          .in_place());
  table.add(unary_op<kGelu, kFloats>("gelu(Tensor self, *, str approximate='none') -> Tensor",
                                     gelu_derivative, {"self"})
                .kernel(DeviceType::kCpu, gelu_kernel)
                .samples({"f(2,3), \"none\"", "f(2,3), \"tanh\""}));
  table.add(unary_op<kSilu, kFloats>("silu(Tensor self) -> Tensor", silu_derivative, {"self"})
                .in_place());
  table.add(unary_op<kSoftplus, kFloats>(
                "softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor",
                softplus_derivative, {"self"})
                .samples({"f(2,3), 1, 20", "f(2,3), 2.0, 1.0"}));
  table.add(unary_op<kLogsigmoid, kFloats>("logsigmoid(Tensor self) -> Tensor",
                                           logsigmoid_derivative, {"self"})
                .infer(logsigmoid_infer));
  table.add(unary_op<kElu, kFloats>(
                "elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor",
                elu_derivative, {"self"})
                .samples({"f(2,3), 1, 1, 1", "f(2,3), 0.5, 2, 1"})
                .in_place());
  table.add(
      unary_op<kLeakyRelu, kFloats>("leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor",
                                    leaky_relu_derivative, {"self"})
          .samples({"f(2,3), 0.01"})
          .in_place());
  table.add(unary_op<kHardtanh, kNumbers>(
                "hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor",
                hardtanh_derivative, {"self"})
                .infer(hardtanh_infer)
                .samples({"f(2,3), -1, 1"})
                .in_place());
  table.add(unary_op<kHardsigmoid, kFloats>("hardsigmoid(Tensor self) -> Tensor",
                                            hardsigmoid_derivative, {"self"}));
  table.add(unary_op<kHardswish, kFloats>("hardswish(Tensor self) -> Tensor", hardswish_derivative,
                                          {"self"}));
  table.add(unary_op<kMish, kFloats>("mish(Tensor self) -> Tensor", mish_derivative, {"self"}));
  table.add(unary_op<kSoftshrink, kFloats>("softshrink(Tensor self, Scalar lambd=0.5) -> Tensor",
                                           shrink_derivative, {"self"})
                .samples({"f(2,3), 0.5"}));
  table.add(unary_op<kHardshrink, kFloats>("hardshrink(Tensor self, Scalar lambd=0.5) -> Tensor",
                                           shrink_derivative, {"self"})
                .samples({"f(2,3), 0.5"}));
  table.add(unary_op<kThreshold, kNumbers>(
                "threshold(Tensor self, Scalar threshold, Scalar value) -> Tensor",
                threshold_derivative, {"self"})
                .infer(threshold_infer)
                .samples({"f(2,3), 0.1, 0.5"})
                .in_place());

  table.add(composed("relu6(Tensor self) -> Tensor", relu6_composite, {"f(2,3)"}));
  table.add(
      composed("celu(Tensor self, float alpha=1.0) -> Tensor", celu_composite, {"f(2,3), 1.0"}));
  table.add(composed("selu(Tensor self) -> Tensor", selu_composite, {"f(2,3)"}));
  table.add(composed("softsign(Tensor self) -> Tensor", softsign_composite, {"f(2,3)"}));
  table.add(composed("tanhshrink(Tensor self) -> Tensor", tanhshrink_composite, {"f(2,3)"}));
  table.add(composed("glu(Tensor self, int dim=-1) -> Tensor", glu_composite, {"f(2,4), -1"}));
  table.add(composed("prelu(Tensor self, Tensor weight) -> Tensor", prelu_composite,
                     {"f(2,3), f(3)", "f(2,3), f(1)"})
                .autocast(AutocastClass::kLowPrecision));

  table.add(fused_backward<BinaryKind::kReluBackward>(
      "relu_backward(Tensor grad, Tensor result) -> Tensor", "f(2,3), f(2,3)"));
  table.add(fused_backward<BinaryKind::kGeluBackward>(
                "gelu_backward(Tensor grad, Tensor self, *, str approximate='none') -> Tensor",
                "f(2,3), f(2,3), \"none\"")
                .kernel(DeviceType::kCpu, gelu_backward_kernel));
  table.add(fused_backward<BinaryKind::kSiluBackward>(
      "silu_backward(Tensor grad, Tensor self) -> Tensor", "f(2,3), f(2,3)"));
  table.add(fused_backward<BinaryKind::kSoftplusBackward>(
      "softplus_backward(Tensor grad, Tensor self, Scalar beta, Scalar threshold) -> Tensor",
      "f(2,3), f(2,3), 1, 20"));
  table.add(fused_backward<BinaryKind::kLogsigmoidBackward>(
      "logsigmoid_backward(Tensor grad, Tensor self) -> Tensor", "f(2,3), f(2,3)"));
  table.add(fused_backward<BinaryKind::kEluBackward>(
      "elu_backward(Tensor grad, Tensor self, Scalar alpha, Scalar "
      "scale, Scalar input_scale) -> Tensor",
      "f(2,3), f(2,3), 1, 1, 1"));
  table.add(fused_backward<BinaryKind::kLeakyReluBackward>(
      "leaky_relu_backward(Tensor grad, Tensor self, Scalar negative_slope) -> Tensor",
      "f(2,3), f(2,3), 0.01"));
  table.add(fused_backward<BinaryKind::kHardtanhBackward>(
      "hardtanh_backward(Tensor grad, Tensor self, Scalar min_val, Scalar max_val) -> Tensor",
      "f(2,3), f(2,3), -1, 1"));
  table.add(fused_backward<BinaryKind::kHardsigmoidBackward>(
      "hardsigmoid_backward(Tensor grad, Tensor self) -> Tensor", "f(2,3), f(2,3)"));
  table.add(fused_backward<BinaryKind::kHardswishBackward>(
      "hardswish_backward(Tensor grad, Tensor self) -> Tensor", "f(2,3), f(2,3)"));
  table.add(fused_backward<BinaryKind::kMishBackward>(
      "mish_backward(Tensor grad, Tensor self) -> Tensor", "f(2,3), f(2,3)"));
  table.add(fused_backward<BinaryKind::kSoftshrinkBackward>(
      "softshrink_backward(Tensor grad, Tensor self, Scalar lambd) -> Tensor",
      "f(2,3), f(2,3), 0.5"));
  table.add(fused_backward<BinaryKind::kThresholdBackward>(
      "threshold_backward(Tensor grad, Tensor self, Scalar threshold) -> Tensor",
      "f(2,3), f(2,3), 0.1"));
}
}  // namespace muster::ops

namespace muster {
using ops::find_op;

Tensor relu(const Tensor& self) {
  static const Op& op = find_op("relu");
  return call_one(op, self);
}
Tensor relu_(const Tensor& self) {
  static const Op& op = find_op("relu_");
  return call_one(op, self);
}
Tensor relu6(const Tensor& self) {
  static const Op& op = find_op("relu6");
  return call_one(op, self);
}
Tensor gelu(const Tensor& self, std::string_view approximate) {
  static const Op& op = find_op("gelu");
  return call_one(op, self, approximate);
}
Tensor silu(const Tensor& self) {
  static const Op& op = find_op("silu");
  return call_one(op, self);
}
Tensor softplus(const Tensor& self, Scalar beta, Scalar threshold) {
  static const Op& op = find_op("softplus");
  return call_one(op, self, beta, threshold);
}
Tensor logsigmoid(const Tensor& self) {
  static const Op& op = find_op("logsigmoid");
  return call_one(op, self);
}
Tensor elu(const Tensor& self, Scalar alpha, Scalar scale, Scalar input_scale) {
  static const Op& op = find_op("elu");
  return call_one(op, self, alpha, scale, input_scale);
}
Tensor celu(const Tensor& self, double alpha) {
  static const Op& op = find_op("celu");
  return call_one(op, self, alpha);
}
Tensor selu(const Tensor& self) {
  static const Op& op = find_op("selu");
  return call_one(op, self);
}
Tensor leaky_relu(const Tensor& self, Scalar negative_slope) {
  static const Op& op = find_op("leaky_relu");
  return call_one(op, self, negative_slope);
}
Tensor leaky_relu_(const Tensor& self, Scalar negative_slope) {
  static const Op& op = find_op("leaky_relu_");
  return call_one(op, self, negative_slope);
}
Tensor hardtanh(const Tensor& self, Scalar min_val, Scalar max_val) {
  static const Op& op = find_op("hardtanh");
  return call_one(op, self, min_val, max_val);
}
Tensor hardsigmoid(const Tensor& self) {
  static const Op& op = find_op("hardsigmoid");
  return call_one(op, self);
}
Tensor hardswish(const Tensor& self) {
  static const Op& op = find_op("hardswish");
  return call_one(op, self);
}
Tensor mish(const Tensor& self) {
  static const Op& op = find_op("mish");
  return call_one(op, self);
}
Tensor softsign(const Tensor& self) {
  static const Op& op = find_op("softsign");
  return call_one(op, self);
}
Tensor tanhshrink(const Tensor& self) {
  static const Op& op = find_op("tanhshrink");
  return call_one(op, self);
}
Tensor softshrink(const Tensor& self, Scalar lambd) {
  static const Op& op = find_op("softshrink");
  return call_one(op, self, lambd);
}
Tensor hardshrink(const Tensor& self, Scalar lambd) {
  static const Op& op = find_op("hardshrink");
  return call_one(op, self, lambd);
}
Tensor threshold(const Tensor& self, Scalar threshold, Scalar value) {
  static const Op& op = find_op("threshold");
  return call_one(op, self, threshold, value);
}
Tensor glu(const Tensor& self, int64_t dim) {
  static const Op& op = find_op("glu");
  return call_one(op, self, dim);
}
Tensor prelu(const Tensor& self, const Tensor& weight) {
  static const Op& op = find_op("prelu");
  return call_one(op, self, weight);
}
}  // namespace muster
