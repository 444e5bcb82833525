// Functions of one number. One row an operator: schema, kernel, dtypes, derivative.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "core/kernels/cpu/copy.h"
#include "core/ops/creation.h"
#include "core/ops/pointwise.h"
#include "core/ops/pointwise_def.h"

namespace muster::ops {
namespace {
using Context = const BackwardContext&;

// Of a function that is constant but for its steps.
GradList zero_slope(Context c) { return {zeros_like(c.grad())}; }

// factor * exp(sign * x^2)
Tensor bell(const Tensor& x, double factor, double sign) {
  return mul(exp(mul(square(x), sign)), factor);
}

// bool squares to i64, as a product of numbers does.
TensorSpec square_infer(const OpArgs& args) {
  const DType dtype = args.tensor(0).dtype();
  return pointwise_spec(args.values().first(1), dtype == DType::kBool ? DType::kI64 : dtype,
                        "square");
}

void square_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  kernels::cpu::unary(UnaryKind::kSquare, outs[0],
                      self.dtype() == DType::kBool ? cast_to(self, DType::kI64) : self);
}

// Fused where nothing is recorded, else composed of the result's history.
GradList sigmoid_derivative(Context c) {
  static const Op& fused = find_op("sigmoid_backward");
  const Tensor result = c.saved("result");
  if (!c.create_graph()) return {call_one(fused, c.grad(), result)};
  return {mul(c.grad(), mul(result, sub(1, result)))};
}

GradList tanh_derivative(Context c) {
  static const Op& fused = find_op("tanh_backward");
  const Tensor result = c.saved("result");
  if (!c.create_graph()) return {call_one(fused, c.grad(), result)};
  return {mul(c.grad(), sub(1, square(result)))};
}

// The second derivative of log gamma: reflection below 1/2, recurrence up to 10, then the series of
// Bernoulli numbers.
double trigamma_of(double x) {
  if (x < 0.5) {
    const double sine = std::sin(std::numbers::pi * x);
    return std::numbers::pi * std::numbers::pi / (sine * sine) - trigamma_of(1.0 - x);
  }
  double below = 0.0;
  for (; x < 10.0; x += 1.0) below += 1.0 / (x * x);
  const double y = 1.0 / (x * x);
  const double series =
      y * (1.0 / 6 - y * (1.0 / 30 - y * (1.0 / 42 - y * (1.0 / 30 - y * 5.0 / 66))));
  return below + (1.0 + 0.5 / x + series) / x;
}

void trigamma_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor values = scratch(args.tensor(0).sizes(), DType::kF64);
  kernels::cpu::copy(values, args.tensor(0));
  double* data = values.data<double>();
  std::transform(data, data + values.numel(), data, trigamma_of);
  kernels::cpu::copy(outs[0], values);
}

GradList trigamma_derivative(Context) {
  throw_error(ErrorCode::kUnimplemented, "backward of trigamma: higher polygammas are not there");
}

// round(self, decimals): scales in the dtype, as PyTorch does.
void round_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const int64_t decimals = args[1].integer();
  const Tensor& self = args.tensor(0);
  if (decimals == 0 || !is_floating(self.dtype())) {
    return kernels::cpu::unary(UnaryKind::kRound, outs[0], self);
  }
  const double ten = std::pow(10.0, static_cast<double>(std::abs(decimals)));
  const BinaryKind scale = decimals > 0 ? BinaryKind::kMul : BinaryKind::kDiv;
  const BinaryKind unscale = decimals > 0 ? BinaryKind::kDiv : BinaryKind::kMul;
  kernels::cpu::binary_scalar(scale, outs[0], self, ten);
  kernels::cpu::unary(UnaryKind::kRound, outs[0], outs[0]);
  kernels::cpu::binary_scalar(unscale, outs[0], outs[0], ten);
}

void logit_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const double eps = args[1].is_none() ? -1.0 : args[1].number();
  run_unary(UnaryKind::kLogit, Typing::kFloat, outs[0], args.tensor(0), {.a = eps});
}

GradList logit_derivative(Context c) {
  const Tensor self = c.saved("self");
  const double eps = c.arg("eps").is_none() ? 0.0 : c.arg("eps").number();
  const Tensor inside = logical_and(ge(self, eps), le(self, 1.0 - eps));
  const double outside = c.arg("eps").is_none() ? std::numeric_limits<double>::quiet_NaN() : 0.0;
  return {where(inside, div(c.grad(), mul(self, sub(1, self))), outside)};
}

// d sinc = (cos(pi x) pi x - sin(pi x)) / (pi x^2), and 0 where the divisor is 0.
GradList sinc_derivative(Context c) {
  const Tensor self = c.saved("self"), angle = mul(self, std::numbers::pi);
  const Tensor divisor = mul(square(self), std::numbers::pi);
  const Tensor slope = div(sub(mul(angle, cos(angle)), sin(angle)), divisor);
  return {where(eq(divisor, 0), 0.0, mul(c.grad(), slope))};
}

double largest_finite(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return std::numeric_limits<double>::max();
    case DType::kF16:
      return 65504.0;
    case DType::kBF16:
      return 3.3895313892515355e38;
    default:
      return static_cast<double>(std::numeric_limits<float>::max());
  }
}

void nan_to_num_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  if (!is_floating(self.dtype())) return kernels::cpu::copy(outs[0], self);
  const double largest = largest_finite(self.dtype());
  kernels::cpu::unary(UnaryKind::kNanToNum, outs[0], self,
                      {.a = args[1].is_none() ? 0.0 : args[1].number(),
                       .b = args[2].is_none() ? largest : args[2].number(),
                       .c = args[3].is_none() ? -largest : args[3].number()});
}
}  // namespace

MUSTER_DEFINE_OPS(unary) {
  using enum UnaryKind;
  table.add(unary_op<kNeg, Typing::kNoBool>("neg(Tensor self) -> Tensor",
                                            [](Context c) -> GradList { return {neg(c.grad())}; })
                .shard({"S(b) -> S(b)", "P -> P", "P(avg) -> P(avg)", "P(max) -> P(min)",
                        "P(min) -> P(max)"})
                .in_place());
  table.add(unary_op<kAbs, Typing::kNoBool>(
                "abs(Tensor self) -> Tensor",
                [](Context c) -> GradList { return {mul(c.grad(), sgn(c.saved("self")))}; },
                {"self"})
                .in_place());
  table.add(unary_op<kSign, Typing::kAny>("sign(Tensor self) -> Tensor", zero_slope).in_place());
  table.add(unary_op<kSign, Typing::kAny>("sgn(Tensor self) -> Tensor", zero_slope).in_place());
  table.add(unary_op<kSquare, Typing::kAny>(
                "square(Tensor self) -> Tensor",
                [](Context c) -> GradList { return {mul(c.grad(), mul(c.saved("self"), 2))}; },
                {"self"})
                .infer(square_infer)
                .kernel(DeviceType::kCpu, square_kernel)
                .in_place());
  table.add(
      unary_op<kFloor, Typing::kNoBool>("floor(Tensor self) -> Tensor", zero_slope).in_place());
  table.add(unary_op<kCeil, Typing::kNoBool>("ceil(Tensor self) -> Tensor", zero_slope).in_place());
  table.add(
      unary_op<kTrunc, Typing::kNoBool>("trunc(Tensor self) -> Tensor", zero_slope).in_place());
  table.add(
      unary_op<kFrac, Typing::kFloatOnly>("frac(Tensor self) -> Tensor", [](Context c) -> GradList {
        return {c.grad()};
      }).in_place());
  table.add(
      unary_op<kReciprocal, Typing::kFloat>(
          "reciprocal(Tensor self) -> (Tensor result)",
          [](Context c) -> GradList { return {neg(mul(c.grad(), square(c.saved("result"))))}; },
          {"result"})
          .samples({"p(2,3)", "p(2,3).t", "p()"})
          .in_place());
  table.add(unary_op<kSqrt, Typing::kFloat>(
                "sqrt(Tensor self) -> (Tensor result)",
                [](Context c) -> GradList { return {div(c.grad(), mul(c.saved("result"), 2))}; },
                {"result"})
                .samples({"p(2,3)", "p(2,3).t", "p()"})
                .in_place());
  table.add(unary_op<kRsqrt, Typing::kFloat>("rsqrt(Tensor self) -> (Tensor result)",
                                             [](Context c) -> GradList {
                                               return {mul(mul(c.grad(), pow(c.saved("result"), 3)),
                                                           -0.5)};
                                             },
                                             {"result"})
                .samples({"p(2,3)", "p(2,3).t", "p()"})
                .in_place());
  table.add(unary_op<kExp, Typing::kFloat>(
                "exp(Tensor self) -> (Tensor result)",
                [](Context c) -> GradList { return {mul(c.grad(), c.saved("result"))}; },
                {"result"})
                .in_place());
  table.add(unary_op<kExp2, Typing::kFloat>("exp2(Tensor self) -> (Tensor result)",
                                            [](Context c) -> GradList {
                                              return {mul(mul(c.grad(), c.saved("result")),
                                                          std::numbers::ln2)};
                                            },
                                            {"result"})
                .in_place());
  table.add(unary_op<kExpm1, Typing::kFloat>(
                "expm1(Tensor self) -> (Tensor result)",
                [](Context c) -> GradList { return {mul(c.grad(), add(c.saved("result"), 1))}; },
                {"result"})
                .in_place());
  table.add(unary_op<kLog, Typing::kFloat>(
                "log(Tensor self) -> Tensor",
                [](Context c) -> GradList { return {div(c.grad(), c.saved("self"))}; }, {"self"})
                .samples({"p(2,3)", "p(2,3).t", "p()"})
                .in_place());
  table.add(unary_op<kLog2, Typing::kFloat>("log2(Tensor self) -> Tensor",
                                            [](Context c) -> GradList {
                                              return {div(c.grad(),
                                                          mul(c.saved("self"), std::numbers::ln2))};
                                            },
                                            {"self"})
                .samples({"p(2,3)", "p(2,3).t", "p()"})
                .in_place());
  table.add(unary_op<kLog10, Typing::kFloat>(
                "log10(Tensor self) -> Tensor",
                [](Context c) -> GradList {
                  return {div(c.grad(), mul(c.saved("self"), std::numbers::ln10))};
                },
                {"self"})
                .samples({"p(2,3)", "p(2,3).t", "p()"})
                .in_place());
  table.add(unary_op<kLog1p, Typing::kFloat>(
                "log1p(Tensor self) -> Tensor",
                [](Context c) -> GradList { return {div(c.grad(), add(c.saved("self"), 1))}; },
                {"self"})
                .samples({"p(2,3)", "p(2,3).t", "p()"})
                .in_place());
  table.add(unary_op<kSin, Typing::kFloat>(
                "sin(Tensor self) -> Tensor",
                [](Context c) -> GradList { return {mul(c.grad(), cos(c.saved("self")))}; },
                {"self"})
                .in_place());
  table.add(unary_op<kCos, Typing::kFloat>(
                "cos(Tensor self) -> Tensor",
                [](Context c) -> GradList { return {mul(c.grad(), neg(sin(c.saved("self"))))}; },
                {"self"})
                .in_place());
  table.add(
      unary_op<kTan, Typing::kFloat>(
          "tan(Tensor self) -> (Tensor result)",
          [](Context c) -> GradList { return {mul(c.grad(), add(square(c.saved("result")), 1))}; },
          {"result"})
          .in_place());
  table.add(unary_op<kSinh, Typing::kFloat>(
                "sinh(Tensor self) -> Tensor",
                [](Context c) -> GradList { return {mul(c.grad(), cosh(c.saved("self")))}; },
                {"self"})
                .in_place());
  table.add(unary_op<kCosh, Typing::kFloat>(
                "cosh(Tensor self) -> Tensor",
                [](Context c) -> GradList { return {mul(c.grad(), sinh(c.saved("self")))}; },
                {"self"})
                .in_place());
  table.add(unary_op<kAsin, Typing::kFloat>("asin(Tensor self) -> Tensor",
                                            [](Context c) -> GradList {
                                              return {mul(c.grad(),
                                                          rsqrt(sub(1, square(c.saved("self")))))};
                                            },
                                            {"self"})
                .samples({"u(2,3)", "u(2,3).t", "u()"})
                .in_place());
  table.add(unary_op<kAcos, Typing::kFloat>(
                "acos(Tensor self) -> Tensor",
                [](Context c) -> GradList {
                  return {mul(c.grad(), neg(rsqrt(sub(1, square(c.saved("self"))))))};
                },
                {"self"})
                .samples({"u(2,3)", "u(2,3).t", "u()"})
                .in_place());
  table.add(
      unary_op<kAtan, Typing::kFloat>(
          "atan(Tensor self) -> Tensor",
          [](Context c) -> GradList { return {div(c.grad(), add(square(c.saved("self")), 1))}; },
          {"self"})
          .in_place());
  table.add(unary_op<kAsinh, Typing::kFloat>("asinh(Tensor self) -> Tensor",
                                             [](Context c) -> GradList {
                                               return {mul(c.grad(),
                                                           rsqrt(add(square(c.saved("self")), 1)))};
                                             },
                                             {"self"})
                .in_place());
  table.add(unary_op<kAcosh, Typing::kFloat>("acosh(Tensor self) -> Tensor",
                                             [](Context c) -> GradList {
                                               return {mul(c.grad(),
                                                           rsqrt(sub(square(c.saved("self")), 1)))};
                                             },
                                             {"self"})
                .samples({"q(2,3)", "q(2,3).t", "q()"})
                .in_place());
  table.add(
      unary_op<kAtanh, Typing::kFloat>(
          "atanh(Tensor self) -> Tensor",
          [](Context c) -> GradList { return {div(c.grad(), sub(1, square(c.saved("self"))))}; },
          {"self"})
          .samples({"u(2,3)", "u(2,3).t", "u()"})
          .in_place());
  table.add(unary_op<kErf, Typing::kFloat>(
                "erf(Tensor self) -> Tensor",
                [](Context c) -> GradList {
                  return {
                      mul(c.grad(), bell(c.saved("self"), 2.0 * std::numbers::inv_sqrtpi, -1.0))};
                },
                {"self"})
                .in_place());
  table.add(unary_op<kErfc, Typing::kFloat>(
                "erfc(Tensor self) -> Tensor",
                [](Context c) -> GradList {
                  return {
                      mul(c.grad(), bell(c.saved("self"), -2.0 * std::numbers::inv_sqrtpi, -1.0))};
                },
                {"self"})
                .in_place());
  table.add(unary_op<kErfinv, Typing::kFloat>(
                "erfinv(Tensor self) -> (Tensor result)",
                [](Context c) -> GradList {
                  return {
                      mul(c.grad(), bell(c.saved("result"), 0.5 / std::numbers::inv_sqrtpi, 1.0))};
                },
                {"result"})
                .samples({"u(2,3)", "u(2,3).t", "u()"})
                .in_place());
  table.add(unary_op<kLgamma, Typing::kFloat>(
                "lgamma(Tensor self) -> Tensor",
                [](Context c) -> GradList { return {mul(c.grad(), digamma(c.saved("self")))}; },
                {"self"})
                .in_place());
  table.add(unary_op<kSigmoid, Typing::kFloat>("sigmoid(Tensor self) -> (Tensor result)",
                                               sigmoid_derivative, {"result"})
                .in_place());
  table.add(unary_op<kTanh, Typing::kFloat>("tanh(Tensor self) -> (Tensor result)", tanh_derivative,
                                            {"result"})
                .in_place());
  table.add(binary_op<BinaryKind::kSigmoidBackward, Typing::kFloatOnly>(
                "sigmoid_backward(Tensor grad, Tensor result) -> Tensor", nullptr)
                .not_differentiable(kComposedWhenRecorded));
  table.add(binary_op<BinaryKind::kTanhBackward, Typing::kFloatOnly>(
                "tanh_backward(Tensor grad, Tensor result) -> Tensor", nullptr)
                .not_differentiable(kComposedWhenRecorded));
  table.add(unary_op<kDigamma, Typing::kFloat>("digamma(Tensor self) -> Tensor",
                                               [](Context c) -> GradList {
                                                 static const Op& op = find_op("trigamma");
                                                 return {
                                                     mul(c.grad(), call_one(op, c.saved("self")))};
                                               },
                                               {"self"}));
  table.add(OpDef("trigamma(Tensor self) -> Tensor")
                .infer(unary_infer<Typing::kFloat>)
                .kernel(DeviceType::kCpu, trigamma_kernel)
                .derivative(trigamma_derivative)
                .shard({"S(b) -> S(b)"})
                .samples({"f(2,3)", "p(2,3).t"}));
  table.add(
      unary_op<kSinc, Typing::kFloat>("sinc(Tensor self) -> Tensor", sinc_derivative, {"self"}));
  table.add(unary_op<kRound, Typing::kNoBool>("round(Tensor self, *, int decimals=0) -> Tensor",
                                              zero_slope)
                .kernel(DeviceType::kCpu, round_kernel)
                .samples({"f(2,3), 0", "f(2,3), 1"})
                .in_place());
  table.add(unary_op<kLogit, Typing::kFloat>("logit(Tensor self, float? eps=None) -> Tensor",
                                             logit_derivative, {"self"})
                .kernel(DeviceType::kCpu, logit_kernel)
                .samples({"u(2,3), None", "u(2,3), 0.1"}));
  table.add(
      unary_op<kNanToNum, Typing::kAny>(
          "nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> "
          "Tensor",
          [](Context c) -> GradList { return {where(isfinite(c.saved("self")), c.grad(), 0.0)}; },
          {"self"})
          .kernel(DeviceType::kCpu, nan_to_num_kernel)
          .samples({"f(2,3), None, None, None"})
          .in_place());
}
}  // namespace muster::ops

namespace muster {
using ops::find_op;

Tensor neg(const Tensor& self) {
  static const Op& op = find_op("neg");
  return call_one(op, self);
}
Tensor abs(const Tensor& self) {
  static const Op& op = find_op("abs");
  return call_one(op, self);
}
Tensor sign(const Tensor& self) {
  static const Op& op = find_op("sign");
  return call_one(op, self);
}
Tensor sgn(const Tensor& self) {
  static const Op& op = find_op("sgn");
  return call_one(op, self);
}
Tensor square(const Tensor& self) {
  static const Op& op = find_op("square");
  return call_one(op, self);
}
Tensor floor(const Tensor& self) {
  static const Op& op = find_op("floor");
  return call_one(op, self);
}
Tensor ceil(const Tensor& self) {
  static const Op& op = find_op("ceil");
  return call_one(op, self);
}
Tensor trunc(const Tensor& self) {
  static const Op& op = find_op("trunc");
  return call_one(op, self);
}
Tensor frac(const Tensor& self) {
  static const Op& op = find_op("frac");
  return call_one(op, self);
}
Tensor reciprocal(const Tensor& self) {
  static const Op& op = find_op("reciprocal");
  return call_one(op, self);
}
Tensor sqrt(const Tensor& self) {
  static const Op& op = find_op("sqrt");
  return call_one(op, self);
}
Tensor rsqrt(const Tensor& self) {
  static const Op& op = find_op("rsqrt");
  return call_one(op, self);
}
Tensor exp(const Tensor& self) {
  static const Op& op = find_op("exp");
  return call_one(op, self);
}
Tensor exp2(const Tensor& self) {
  static const Op& op = find_op("exp2");
  return call_one(op, self);
}
Tensor expm1(const Tensor& self) {
  static const Op& op = find_op("expm1");
  return call_one(op, self);
}
Tensor log(const Tensor& self) {
  static const Op& op = find_op("log");
  return call_one(op, self);
}
Tensor log2(const Tensor& self) {
  static const Op& op = find_op("log2");
  return call_one(op, self);
}
Tensor log10(const Tensor& self) {
  static const Op& op = find_op("log10");
  return call_one(op, self);
}
Tensor log1p(const Tensor& self) {
  static const Op& op = find_op("log1p");
  return call_one(op, self);
}
Tensor sin(const Tensor& self) {
  static const Op& op = find_op("sin");
  return call_one(op, self);
}
Tensor cos(const Tensor& self) {
  static const Op& op = find_op("cos");
  return call_one(op, self);
}
Tensor tan(const Tensor& self) {
  static const Op& op = find_op("tan");
  return call_one(op, self);
}
Tensor sinh(const Tensor& self) {
  static const Op& op = find_op("sinh");
  return call_one(op, self);
}
Tensor cosh(const Tensor& self) {
  static const Op& op = find_op("cosh");
  return call_one(op, self);
}
Tensor asin(const Tensor& self) {
  static const Op& op = find_op("asin");
  return call_one(op, self);
}
Tensor acos(const Tensor& self) {
  static const Op& op = find_op("acos");
  return call_one(op, self);
}
Tensor atan(const Tensor& self) {
  static const Op& op = find_op("atan");
  return call_one(op, self);
}
Tensor asinh(const Tensor& self) {
  static const Op& op = find_op("asinh");
  return call_one(op, self);
}
Tensor acosh(const Tensor& self) {
  static const Op& op = find_op("acosh");
  return call_one(op, self);
}
Tensor atanh(const Tensor& self) {
  static const Op& op = find_op("atanh");
  return call_one(op, self);
}
Tensor erf(const Tensor& self) {
  static const Op& op = find_op("erf");
  return call_one(op, self);
}
Tensor erfc(const Tensor& self) {
  static const Op& op = find_op("erfc");
  return call_one(op, self);
}
Tensor erfinv(const Tensor& self) {
  static const Op& op = find_op("erfinv");
  return call_one(op, self);
}
Tensor lgamma(const Tensor& self) {
  static const Op& op = find_op("lgamma");
  return call_one(op, self);
}
Tensor sigmoid(const Tensor& self) {
  static const Op& op = find_op("sigmoid");
  return call_one(op, self);
}
Tensor tanh(const Tensor& self) {
  static const Op& op = find_op("tanh");
  return call_one(op, self);
}
Tensor digamma(const Tensor& self) {
  static const Op& op = find_op("digamma");
  return call_one(op, self);
}
Tensor sinc(const Tensor& self) {
  static const Op& op = find_op("sinc");
  return call_one(op, self);
}
Tensor neg_(const Tensor& self) {
  static const Op& op = find_op("neg_");
  return call_one(op, self);
}
Tensor sqrt_(const Tensor& self) {
  static const Op& op = find_op("sqrt_");
  return call_one(op, self);
}
Tensor exp_(const Tensor& self) {
  static const Op& op = find_op("exp_");
  return call_one(op, self);
}
Tensor round(const Tensor& self) {
  static const Op& op = find_op("round");
  return call_one(op, self, 0);
}
Tensor logit(const Tensor& self, std::optional<double> eps) {
  static const Op& op = find_op("logit");
  return call_one(op, self, eps);
}
Tensor nan_to_num(const Tensor& self, double nan, std::optional<double> posinf,
                  std::optional<double> neginf) {
  static const Op& op = find_op("nan_to_num");
  return call_one(op, self, nan, posinf, neginf);
}
}  // namespace muster
