// Arithmetic of two operands. One row an operator: schema, kernel, dtypes, derivative.
#include <cmath>

#include "core/ops/creation.h"
#include "core/ops/pointwise.h"
#include "core/ops/pointwise_def.h"

namespace muster::ops {
namespace {
using Context = const BackwardContext&;

Tensor scaled(const Tensor& grad, Scalar alpha) {
  return alpha.to_double() == 1.0 ? grad : mul(grad, alpha);
}

void check_alpha(const OpArgs& args) {
  const DType promoted = result_type(args.values().first(2));
  const Scalar alpha = args[2].scalar();
  MUSTER_CHECK(!alpha.is_bool() || promoted == DType::kBool, ErrorCode::kInvalidArgument,
               "{}: boolean alpha only supported for boolean results; got {}", args.op_name(),
               promoted);
  MUSTER_CHECK(!alpha.is_floating() || is_floating(promoted), ErrorCode::kInvalidArgument,
               "{}: for integral input tensors, argument alpha must not be a floating point "
               "number; got {}",
               args.op_name(), alpha.to_double());
}

TensorSpec add_infer(const OpArgs& args) {
  if (args[2].tag() != ValueTag::kInt) check_alpha(args);
  return binary_infer<Typing::kAny>(args);
}

bool is_bool_operand(const Value& value) {
  return value.is_tensor() ? value.tensor().dtype() == DType::kBool
                           : value.tag() == ValueTag::kBool;
}

TensorSpec sub_infer(const OpArgs& args) {
  MUSTER_CHECK(!is_bool_operand(args[0]) && !is_bool_operand(args[1]), ErrorCode::kInvalidArgument,
               "sub: subtraction with a bool operand is not supported; got {} and {}; use "
               "logical_xor or bitwise_not",
               args[0].describe(), args[1].describe());
  return add_infer(args);
}

GradList sub_derivative(Context c) {
  return {c.grad(),
          if_needed(c, "other", [&] { return scaled(neg(c.grad()), c.arg("alpha").scalar()); })};
}

enum class Rounding : uint8_t { kNone, kTrunc, kFloor };

Rounding rounding_of(const Value& mode) {
  if (mode.is_none()) return Rounding::kNone;
  if (mode.text() == "trunc") return Rounding::kTrunc;
  MUSTER_CHECK(mode.text() == "floor", ErrorCode::kInvalidArgument,
               "div: rounding_mode must be None, \"trunc\" or \"floor\"; got \"{}\"", mode.text());
  return Rounding::kFloor;
}

TensorSpec div_infer(const OpArgs& args) {
  return rounding_of(args[2]) == Rounding::kNone ? binary_infer<Typing::kFloat>(args)
                                                 : binary_infer<Typing::kNoBool>(args);
}

void div_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Rounding rounding = rounding_of(args[2]);
  if (rounding == Rounding::kNone) {
    return run_binary(BinaryKind::kDiv, Typing::kFloat, outs[0], args[0], args[1], {});
  }
  run_binary(rounding == Rounding::kTrunc ? BinaryKind::kTruncDivide : BinaryKind::kFloorDivide,
             Typing::kNoBool, outs[0], args[0], args[1], {});
}

GradList div_derivative(Context c) {
  if (rounding_of(c.arg("rounding_mode")) != Rounding::kNone) {
    return {if_needed(c, "self", [&] { return zeros_like(c.grad()); }),
            if_needed(c, "other", [&] { return zeros_like(c.grad()); })};
  }
  const SavedOperand other(c, "other");
  return {if_needed(c, "self", [&] { return div(c.grad(), other); }), if_needed(c, "other", [&] {
            return neg(mul(c.grad(), div(div(SavedOperand(c, "self"), other), other)));
          })};
}

GradList remainder_derivative(Context c, std::string_view rounding) {
  return {
      c.grad(), if_needed(c, "other", [&] {
        return neg(mul(c.grad(), div(SavedOperand(c, "self"), SavedOperand(c, "other"), rounding)));
      })};
}

Tensor pow_grad_self(Context c) {
  const SavedOperand exponent(c, "exponent");
  const Tensor self = c.saved("self");
  if (exponent.is_number()) {
    const double e = exponent.number().to_double();
    if (e == 0.0) return zeros_like(c.grad());
    const Scalar less =
        exponent.number().is_floating() ? Scalar(e - 1.0) : Scalar(exponent.number().to_int() - 1);
    return mul(c.grad(), mul(pow(self, less), exponent));
  }
  const Tensor power = c.saved("exponent");
  return mul(c.grad(), where(eq(power, 0), 0.0, mul(power, pow(self, sub(power, 1)))));
}

Tensor pow_grad_exponent(Context c) {
  const SavedOperand self(c, "self");
  const Tensor exponent = c.saved("exponent"), result = c.saved("result");
  if (self.is_number()) {
    const double base = self.number().to_double();
    const Tensor slope = mul(c.grad(), mul(result, std::log(base)));
    return base == 0.0 ? where(ge(exponent, 0), 0.0, slope) : slope;
  }
  const Tensor base = c.saved("self");
  const Tensor no_slope = logical_and(eq(base, 0), ge(exponent, 0));
  return mul(c.grad(), where(no_slope, 0.0, mul(result, log(base))));
}

GradList pow_derivative(Context c) {
  return {if_needed(c, "self", [&] { return pow_grad_self(c); }),
          if_needed(c, "exponent", [&] { return pow_grad_exponent(c); })};
}

GradList atan2_derivative(Context c) {
  const Tensor y = c.saved("self"), x = c.saved("other");
  const Tensor squares = add(mul(y, y), mul(x, x));
  const Tensor scale = masked_fill(reciprocal(squares), eq(squares, 0), 0);
  return {if_needed(c, "self", [&] { return mul(mul(c.grad(), x), scale); }),
          if_needed(c, "other", [&] { return mul(mul(c.grad(), neg(y)), scale); })};
}

// Ties give each operand half.
GradList extreme_derivative(Context c, bool largest) {
  const Tensor self = c.saved("self"), other = c.saved("other");
  const auto share = [&](const Tensor& mine, const Tensor& theirs) {
    const Tensor loses = largest ? lt(mine, theirs) : gt(mine, theirs);
    return masked_fill(where(eq(mine, theirs), div(c.grad(), 2), c.grad()), loses, 0);
  };
  return {if_needed(c, "self", [&] { return share(self, other); }),
          if_needed(c, "other", [&] { return share(other, self); })};
}

// The first wins ties; a number wins over nan.
GradList number_extreme_derivative(Context c, bool largest) {
  const Tensor self = c.saved("self"), other = c.saved("other");
  const Tensor first = logical_or(largest ? ge(self, other) : le(self, other), isnan(other));
  return {if_needed(c, "self", [&] { return masked_fill(c.grad(), logical_not(first), 0); }),
          if_needed(c, "other", [&] { return masked_fill(c.grad(), first, 0); })};
}

GradList hypot_derivative(Context c) {
  const Tensor result = c.saved("result");
  return {if_needed(c, "self", [&] { return mul(c.grad(), div(c.saved("self"), result)); }),
          if_needed(c, "other", [&] { return mul(c.grad(), div(c.saved("other"), result)); })};
}

GradList copysign_derivative(Context c) {
  return {if_needed(c, "self",
                    [&] {
                      const Tensor self = c.saved("self");
                      return masked_fill(mul(c.grad(), div(c.saved("result"), self)), eq(self, 0),
                                         0);
                    }),
          if_needed(c, "other", [&] { return zeros_like(c.grad()); })};
}

GradList logaddexp_derivative(Context c) {
  const Tensor self = c.saved("self"), other = c.saved("other");
  return {if_needed(c, "self", [&] { return mul(c.grad(), sigmoid(sub(self, other))); }),
          if_needed(c, "other", [&] { return mul(c.grad(), sigmoid(sub(other, self))); })};
}

GradList logaddexp2_derivative(Context c) {
  const Tensor self = c.saved("self"), other = c.saved("other");
  return {if_needed(c, "self", [&] { return div(c.grad(), add(exp2(sub(other, self)), 1)); }),
          if_needed(c, "other", [&] { return div(c.grad(), add(exp2(sub(self, other)), 1)); })};
}

GradList xlogy_derivative(Context c) {
  const SavedOperand self(c, "self"), other(c, "other");
  return {if_needed(c, "self",
                    [&] {
                      const Tensor slope = xlogy(c.grad(), other), at_zero = eq(self, 0);
                      if (!other.is_number()) {
                        return masked_fill(slope, logical_and(at_zero, le(other, 0)), 0);
                      }
                      return other.number().to_double() > 0 ? slope
                                                            : masked_fill(slope, at_zero, 0);
                    }),
          if_needed(c, "other", [&] { return mul(c.grad(), div(self, other)); })};
}

TensorSpec pow_infer(const OpArgs& args) {
  const DType promoted = result_type(args.values().first(2));
  MUSTER_CHECK(promoted != DType::kBool || args[1].is_number(), ErrorCode::kInvalidArgument,
               "pow: not implemented for bool");
  const bool negative = args[1].tag() == ValueTag::kInt && args[1].integer() < 0;
  MUSTER_CHECK(!negative || is_floating(promoted), ErrorCode::kInvalidArgument,
               "pow: integers to negative integer powers are not allowed; got exponent {}",
               args[1].describe());
  return binary_infer<Typing::kAny>(args);
}

TensorSpec one_dtype_infer(const OpArgs& args) {
  const DType a = args.tensor(0).dtype(), b = args.tensor(1).dtype();
  MUSTER_CHECK(a == b, ErrorCode::kInvalidArgument,
               "{}: self and values must have the same dtype; got {} and {}", args.op_name(), a, b);
  return binary_infer<Typing::kAny>(args);
}
// An operator whose operands are both tensors.
OpDef of_tensors(OpDef def) {
  def.samples({"f(2,3), f(2,3)", "f(2,3), f(3)", "f(2,1), f(3)"});
  return def;
}
}  // namespace

MUSTER_DEFINE_OPS(binary) {
  using enum BinaryKind;
  table.add(
      binary_op<kAdd, Typing::kAny>("add(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
                                    [](Context c) -> GradList {
                                      return {c.grad(), if_needed(c, "other", [&] {
                                                return scaled(c.grad(), c.arg("alpha").scalar());
                                              })};
                                    })
          .infer(add_infer)
          .shard({"S(b), S(b) -> S(b)", "P, P -> P"})
          .in_place());
  table.add(binary_op<kSub, Typing::kAny>(
                "sub(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", sub_derivative)
                .infer(sub_infer)
                .shard({"S(b), S(b) -> S(b)", "P, P -> P"})
                .in_place());
  table.add(
      binary_op<kMul, Typing::kAny>(
          "mul(Tensor self, Tensor other) -> Tensor",
          [](Context c) -> GradList {
            return {if_needed(c, "self", [&] { return mul(c.grad(), SavedOperand(c, "other")); }),
                    if_needed(c, "other", [&] { return mul(c.grad(), SavedOperand(c, "self")); })};
          },
          {"self for other", "other for self"})
          .shard({"S(b), S(b) -> S(b)", "P, R -> P", "R, P -> P"})
          .in_place());
  table.add(binary_op<kDiv, Typing::kFloat>(
                "div(Tensor self, Tensor other, *, str? rounding_mode=None) -> Tensor",
                div_derivative, {"self for other", "other"})
                .infer(div_infer)
                .kernel(DeviceType::kCpu, div_kernel)
                .samples({"f(2,3), f(2,3), None", "f(2,3), f(3), None", "f(2,3), 2.5, \"floor\""})
                .in_place());
  table.add(binary_op<kFloorDivide, Typing::kNoBool>(
                "floor_divide(Tensor self, Tensor other) -> Tensor", nullptr)
                .not_differentiable("the result is constant between its steps")
                .in_place());
  table.add(binary_op<kRemainder, Typing::kNoBool>(
                "remainder(Tensor self, Tensor other) -> Tensor",
                [](Context c) -> GradList { return remainder_derivative(c, "floor"); },
                {"self", "other"})
                .in_place());
  table.add(binary_op<kFmod, Typing::kNoBool>(
                "fmod(Tensor self, Tensor other) -> Tensor",
                [](Context c) -> GradList { return remainder_derivative(c, "trunc"); },
                {"self", "other"})
                .in_place());
  table.add(binary_op<kPow, Typing::kAny>("pow(Tensor self, Tensor exponent) -> (Tensor result)",
                                          pow_derivative, {"self", "exponent", "result"})
                .infer(pow_infer)
                .samples({"p(2,3), f(2,3)", "p(2,3), 2", "p(2,3), 0.5"})
                .in_place());
  table.add(
      of_tensors(binary_op<kAtan2, Typing::kFloat>("atan2(Tensor self, Tensor other) -> Tensor",
                                                   atan2_derivative, {"self", "other"}))
          .in_place());
  table.add(of_tensors(binary_op<kMaximum, Typing::kAny>(
      "maximum(Tensor self, Tensor other) -> Tensor",
      [](Context c) -> GradList { return extreme_derivative(c, true); }, {"self", "other"})));
  table.add(of_tensors(binary_op<kMinimum, Typing::kAny>(
      "minimum(Tensor self, Tensor other) -> Tensor",
      [](Context c) -> GradList { return extreme_derivative(c, false); }, {"self", "other"})));
  table.add(of_tensors(binary_op<kFmax, Typing::kAny>(
      "fmax(Tensor self, Tensor other) -> Tensor",
      [](Context c) -> GradList { return number_extreme_derivative(c, true); },
      {"self", "other"})));
  table.add(of_tensors(binary_op<kFmin, Typing::kAny>(
      "fmin(Tensor self, Tensor other) -> Tensor",
      [](Context c) -> GradList { return number_extreme_derivative(c, false); },
      {"self", "other"})));
  table.add(of_tensors(
      binary_op<kHypot, Typing::kFloatOnly>("hypot(Tensor self, Tensor other) -> (Tensor result)",
                                            hypot_derivative, {"self", "other", "result"})));
  table.add(
      binary_op<kCopysign, Typing::kFloat>("copysign(Tensor self, Tensor other) -> (Tensor result)",
                                           copysign_derivative, {"self", "result"}));
  table.add(of_tensors(binary_op<kLogaddexp, Typing::kFloatOnly>(
      "logaddexp(Tensor self, Tensor other) -> Tensor", logaddexp_derivative, {"self", "other"})));
  table.add(of_tensors(
      binary_op<kLogaddexp2, Typing::kFloatOnly>("logaddexp2(Tensor self, Tensor other) -> Tensor",
                                                 logaddexp2_derivative, {"self", "other"})));
  table.add(binary_op<kXlogy, Typing::kFloat>("xlogy(Tensor self, Tensor other) -> Tensor",
                                              xlogy_derivative, {"self", "other"})
                .samples({"f(2,3), p(2,3)", "f(2,3), p(3)", "f(2,3), 2.5"}));
  table.add(of_tensors(binary_op<kNextafter, Typing::kFloatOnly>(
                           "nextafter(Tensor self, Tensor other) -> Tensor", nullptr))
                .not_differentiable("it names the neighbouring number"));
  table.add(binary_op<kHeaviside, Typing::kAny>("heaviside(Tensor self, Tensor values) -> Tensor",
                                                nullptr)
                .infer(one_dtype_infer)
                .samples({"f(2,3), f(2,3)", "f(2,3), f(3)"})
                .not_differentiable("the result is a step"));
}
}  // namespace muster::ops

namespace muster {
using ops::find_op;

Tensor add(const Operand& self, const Operand& other, Scalar alpha) {
  static const Op& op = find_op("add");
  return call_one(op, self, other, alpha);
}
Tensor add_(const Tensor& self, const Operand& other, Scalar alpha) {
  static const Op& op = find_op("add_");
  return call_one(op, self, other, alpha);
}
Tensor sub(const Operand& self, const Operand& other, Scalar alpha) {
  static const Op& op = find_op("sub");
  return call_one(op, self, other, alpha);
}
Tensor sub_(const Tensor& self, const Operand& other, Scalar alpha) {
  static const Op& op = find_op("sub_");
  return call_one(op, self, other, alpha);
}
Tensor mul(const Operand& self, const Operand& other) {
  static const Op& op = find_op("mul");
  return call_one(op, self, other);
}
Tensor mul_(const Tensor& self, const Operand& other) {
  static const Op& op = find_op("mul_");
  return call_one(op, self, other);
}
Tensor div(const Operand& self, const Operand& other) {
  static const Op& op = find_op("div");
  return call_one(op, self, other, std::nullopt);
}
Tensor div(const Operand& self, const Operand& other, std::string_view rounding_mode) {
  static const Op& op = find_op("div");
  return call_one(op, self, other, rounding_mode);
}
Tensor div_(const Tensor& self, const Operand& other) {
  static const Op& op = find_op("div_");
  return call_one(op, self, other, std::nullopt);
}
Tensor floor_divide(const Operand& self, const Operand& other) {
  static const Op& op = find_op("floor_divide");
  return call_one(op, self, other);
}
Tensor remainder(const Operand& self, const Operand& other) {
  static const Op& op = find_op("remainder");
  return call_one(op, self, other);
}
Tensor fmod(const Operand& self, const Operand& other) {
  static const Op& op = find_op("fmod");
  return call_one(op, self, other);
}
Tensor pow(const Operand& self, const Operand& exponent) {
  static const Op& op = find_op("pow");
  return call_one(op, self, exponent);
}
Tensor pow_(const Tensor& self, const Operand& exponent) {
  static const Op& op = find_op("pow_");
  return call_one(op, self, exponent);
}
Tensor atan2(const Tensor& self, const Tensor& other) {
  static const Op& op = find_op("atan2");
  return call_one(op, self, other);
}
Tensor maximum(const Tensor& self, const Tensor& other) {
  static const Op& op = find_op("maximum");
  return call_one(op, self, other);
}
Tensor minimum(const Tensor& self, const Tensor& other) {
  static const Op& op = find_op("minimum");
  return call_one(op, self, other);
}
Tensor fmax(const Tensor& self, const Tensor& other) {
  static const Op& op = find_op("fmax");
  return call_one(op, self, other);
}
Tensor fmin(const Tensor& self, const Tensor& other) {
  static const Op& op = find_op("fmin");
  return call_one(op, self, other);
}
Tensor hypot(const Tensor& self, const Tensor& other) {
  static const Op& op = find_op("hypot");
  return call_one(op, self, other);
}
Tensor copysign(const Operand& self, const Operand& other) {
  static const Op& op = find_op("copysign");
  return call_one(op, self, other);
}
Tensor logaddexp(const Tensor& self, const Tensor& other) {
  static const Op& op = find_op("logaddexp");
  return call_one(op, self, other);
}
Tensor logaddexp2(const Tensor& self, const Tensor& other) {
  static const Op& op = find_op("logaddexp2");
  return call_one(op, self, other);
}
Tensor xlogy(const Operand& self, const Operand& other) {
  static const Op& op = find_op("xlogy");
  return call_one(op, self, other);
}
}  // namespace muster
