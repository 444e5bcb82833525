// Operators of three operands: where, masked_fill, clamp, lerp, addcmul, addcdiv.
#include <cmath>

#include "core/ops/creation.h"
#include "core/ops/pointwise.h"
#include "core/ops/pointwise_def.h"
#include "core/ops/reduction.h"

namespace muster::ops {
namespace {
using Context = const BackwardContext&;

// Runs a ternary kernel on operands that may be numbers, broadcast or of several dtypes.
void run_ternary(TernaryKind kind, DType compute, const Tensor& out, const Value& a, const Value& b,
                 const Value& c, const PointwiseParams& params = {}) {
  const Value operands[] = {a, b, c};
  std::array<Tensor, 3> cast;
  std::array<Value, 3> ready;
  for (size_t i = 0; i < 3; ++i) {
    const bool is_condition = kind == TernaryKind::kWhere && i == 0;
    ready[i] = operands[i];
    if (!operands[i].is_tensor() || is_condition) continue;
    cast[i] = cast_to(operands[i].tensor(), compute);
    ready[i] = Value(cast[i]);
  }
  const KernelOperand x(ready[0], compute, out.sizes()), y(ready[1], compute, out.sizes()),
      z(ready[2], compute, out.sizes());
  kernels::cpu::ternary(kind, out, x, y, z, params);
}

TensorSpec where_infer(const OpArgs& args) {
  const DType condition = args.tensor(0).dtype();
  MUSTER_CHECK(condition == DType::kBool || condition == DType::kU8, ErrorCode::kInvalidArgument,
               "where: expected condition to be a boolean tensor; got {}", args.tensor(0));
  return pointwise_spec(args.values(), result_type(args[1], args[2]), "where");
}

void where_kernel(const OpArgs& args, std::span<Tensor> outs) {
  run_ternary(TernaryKind::kWhere, outs[0].dtype(), outs[0], args[0], args[1], args[2]);
}

GradList where_derivative(Context c) {
  const Tensor condition = c.saved("condition");
  return {{},
          if_needed(c, "self", [&] { return where(condition, c.grad(), 0); }),
          if_needed(c, "other", [&] { return where(condition, 0, c.grad()); })};
}

TensorSpec masked_fill_infer(const OpArgs& args) {
  const Tensor& mask = args.tensor(1);
  MUSTER_CHECK(mask.dtype() == DType::kBool, ErrorCode::kInvalidArgument,
               "masked_fill: only supports boolean masks; got mask with dtype {}", mask.dtype());
  MUSTER_CHECK(!args[2].is_tensor() || args.tensor(2).ndim() == 0, ErrorCode::kInvalidArgument,
               "masked_fill: only supports a 0-dimensional value tensor; got {}",
               args[2].describe());
  const DimVector sizes = broadcast_sizes(args.tensor(0).sizes(), mask.sizes(), "masked_fill");
  return TensorSpec::contiguous(sizes, args.tensor(0).dtype(), common_device(args.values()));
}

void masked_fill_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& out = outs[0];
  Scalar value = 0;
  if (!args[2].is_tensor()) {
    value = args[2].scalar();
  } else if (is_floating(args.tensor(2).dtype())) {
    value = args.tensor(2).item();
  } else {
    value = args.tensor(2).item_int();
  }
  const KernelOperand self(args[0], out.dtype(), out.sizes()),
      mask(args[1], DType::kBool, out.sizes());
  kernels::cpu::masked_fill(out, self, mask, value);
}

GradList masked_fill_derivative(Context c) {
  const Tensor mask = c.saved("mask");
  return {if_needed(c, "self", [&] { return masked_fill(c.grad(), mask, 0); }),
          {},
          if_needed(c, "value", [&] { return sum(where(mask, c.grad(), 0)); })};
}

TensorSpec clamp_infer(const OpArgs& args) {
  MUSTER_CHECK(!args[1].is_none() || !args[2].is_none(), ErrorCode::kInvalidArgument,
               "clamp: at least one of 'min' or 'max' must not be None");
  const DType dtype = result_type(args.values());
  const bool of_tensors = args[1].is_tensor() || args[2].is_tensor();
  MUSTER_CHECK(dtype != DType::kBool || of_tensors, ErrorCode::kInvalidArgument,
               "clamp: not implemented for bool and numbers; got {}", args.tensor(0));
  return pointwise_spec(args.values(), dtype, "clamp");
}

void clamp_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& out = outs[0];
  const DType compute = result_type(args.values());
  const Value &self = args[0], &low = args[1], &high = args[2];
  const bool numbers = low.is_number() && high.is_number() && !std::isnan(low.number()) &&
                       !std::isnan(high.number());
  if (numbers && args.tensor(0).dtype() == compute) {
    return kernels::cpu::unary(UnaryKind::kClamp, out, args.tensor(0),
                               {.a = low.scalar(), .b = high.scalar()});
  }
  if (low.is_none()) return run_binary(BinaryKind::kMinimum, Typing::kAny, out, self, high, {});
  if (high.is_none()) return run_binary(BinaryKind::kMaximum, Typing::kAny, out, self, low, {});
  run_ternary(TernaryKind::kClamp, compute, out, self, low, high);
}

// Inside: min <= self <= max. A bound gets the gradient where it was taken.
GradList clamp_derivative(Context c) {
  const Tensor self = c.saved("self");
  const Value min_number = c.arg("min"), max_number = c.arg("max");
  const Tensor min_tensor = min_number.is_number() ? Tensor() : c.saved("min");
  const Tensor max_tensor = max_number.is_number() ? Tensor() : c.saved("max");
  const Operand low = min_number.is_number() ? Operand(min_number) : Operand(min_tensor);
  const Operand high = max_number.is_number() ? Operand(max_number) : Operand(max_tensor);
  GradList grads(3);
  if (c.needs("self")) {
    Tensor grad = c.grad();
    if (!low.is_none()) grad = where(ge(self, low), grad, 0);
    if (!high.is_none()) grad = where(le(self, high), grad, 0);
    grads[0] = grad;
  }
  if (c.needs("min")) {
    Tensor taken = lt(self, low);
    if (!high.is_none()) taken = logical_and(taken, lt(low, high));
    grads[1] = where(taken, c.grad(), 0);
  }
  if (c.needs("max")) {
    Tensor taken = gt(self, high);
    if (!low.is_none()) taken = logical_or(taken, lt(high, low));
    grads[2] = where(taken, c.grad(), 0);
  }
  return grads;
}

void clamp_min_composite(const OpArgs& args, std::span<Tensor> outs) {
  outs[0] = clamp(args.tensor(0), Operand(args[1]), std::nullopt);
}
void clamp_max_composite(const OpArgs& args, std::span<Tensor> outs) {
  outs[0] = clamp(args.tensor(0), std::nullopt, Operand(args[1]));
}

// lerp takes no promotion: all operands have one dtype.
TensorSpec lerp_infer(const OpArgs& args) {
  const DType dtype = compute_dtype(Typing::kFloatOnly, args.tensor(0).dtype(), "lerp");
  for (size_t i = 1; i < 3; ++i) {
    MUSTER_CHECK(!args[i].is_tensor() || args.tensor(i).dtype() == dtype,
                 ErrorCode::kInvalidArgument, "lerp: expected dtype {} for `{}` but got dtype {}",
                 dtype, i == 1 ? "end" : "weight", args.tensor(i).dtype());
  }
  return pointwise_spec(args.values(), dtype, "lerp");
}

void lerp_kernel(const OpArgs& args, std::span<Tensor> outs) {
  if (args[2].is_tensor()) {
    return run_ternary(TernaryKind::kLerp, outs[0].dtype(), outs[0], args[0], args[1], args[2]);
  }
  const KernelOperand self(args[0], outs[0].dtype(), outs[0].sizes()),
      end(args[1], outs[0].dtype(), outs[0].sizes());
  kernels::cpu::binary(BinaryKind::kLerp, outs[0], self, end, {.a = args[2].scalar()});
}

GradList lerp_derivative(Context c) {
  const SavedOperand weight(c, "weight");
  return {if_needed(c, "self",
                    [&] {
                      return weight.is_number() ? mul(c.grad(), 1.0 - weight.number().to_double())
                                                : mul(c.grad(), sub(1, weight));
                    }),
          if_needed(c, "end", [&] { return mul(c.grad(), weight); }), if_needed(c, "weight", [&] {
            return mul(c.grad(), sub(c.saved("end"), c.saved("self")));
          })};
}

template <Typing kTyping>
TensorSpec addc_infer(const OpArgs& args) {
  const DType dtype = compute_dtype(kTyping, result_type(args.values().first(3)), args.op_name());
  MUSTER_CHECK(!args[3].scalar().is_floating() || is_floating(dtype), ErrorCode::kInvalidArgument,
               "{}: for integral input tensors, argument value must not be a floating point "
               "number; got {}",
               args.op_name(), args[3].number());
  return pointwise_spec(args.values().first(3), dtype, args.op_name());
}

TensorSpec addcdiv_infer(const OpArgs& args) {
  MUSTER_CHECK(
      is_floating(args.tensor(1).dtype()) || is_floating(args.tensor(2).dtype()),
      ErrorCode::kInvalidArgument,
      "addcdiv: integer division is not supported; got {} and {}; use floor_divide or cast "
      "one to a float",
      args.tensor(1), args.tensor(2));
  return addc_infer<Typing::kFloatOnly>(args);
}

template <TernaryKind kKind>
void addc_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const DType compute = result_type(args.values().first(3));
  run_ternary(kKind, compute, outs[0], args[0], args[1], args[2], {.a = args[3].scalar()});
}

GradList addcmul_derivative(Context c) {
  const Scalar value = c.arg("value").scalar();
  return {if_needed(c, "self", [&] { return c.grad(); }),
          if_needed(c, "tensor1", [&] { return mul(mul(c.grad(), c.saved("tensor2")), value); }),
          if_needed(c, "tensor2", [&] { return mul(mul(c.grad(), c.saved("tensor1")), value); })};
}

GradList addcdiv_derivative(Context c) {
  const Scalar value = c.arg("value").scalar();
  const Tensor divisor = c.saved("tensor2");
  return {if_needed(c, "self", [&] { return c.grad(); }),
          if_needed(c, "tensor1", [&] { return mul(div(c.grad(), divisor), value); }),
          if_needed(c, "tensor2", [&] {
            return neg(mul(c.grad(), div(mul(c.saved("tensor1"), value), square(divisor))));
          })};
}

OpDef ternary_op(const char* schema, InferFn infer, KernelFn kernel, DerivativeFn derivative,
                 Saves saves, std::vector<std::string> samples) {
  return OpDef(schema)
      .infer(infer)
      .kernel(DeviceType::kCpu, kernel)
      .derivative(derivative, std::move(saves))
      .shard({"S(b), S(b), S(b) -> S(b)"})
      .fusion(FusionClass::kPointwise)
      .samples(std::move(samples));
}
}  // namespace

MUSTER_DEFINE_OPS(ternary) {
  table.add(ternary_op("where(Tensor condition, Tensor self, Tensor other) -> Tensor", where_infer,
                       where_kernel, where_derivative, {"condition"},
                       {"b(2,3), f(2,3), f(3)", "b(2,3), f(2,3), 0.5"}));
  table.add(ternary_op("masked_fill(Tensor self, Tensor mask, Tensor value) -> Tensor",
                       masked_fill_infer, masked_fill_kernel, masked_fill_derivative, {"mask"},
                       {"f(2,3), b(2,3), 0.5", "f(2,3), b(3), f()"})
                .in_place());
  table.add(ternary_op("clamp(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor",
                       clamp_infer, clamp_kernel, clamp_derivative, {"self", "min", "max"},
                       {"f(2,3), -0.5, 0.5", "f(2,3), None, 0.5", "f(2,3), f(3), None"})
                .in_place());
  table.add(composed("clamp_min(Tensor self, Tensor min) -> Tensor", clamp_min_composite,
                     {"f(2,3), 0.1"}));
  table.add(composed("clamp_max(Tensor self, Tensor max) -> Tensor", clamp_max_composite,
                     {"f(2,3), 0.1"}));
  table.add(ternary_op("lerp(Tensor self, Tensor end, Tensor weight) -> Tensor", lerp_infer,
                       lerp_kernel, lerp_derivative, {"self", "end", "weight"},
                       {"f(2,3), f(2,3), 0.3", "f(2,3), f(3), f(2,1)"})
                .in_place());
  table.add(ternary_op("addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> "
                       "Tensor",
                       addc_infer<Typing::kNoBool>, addc_kernel<TernaryKind::kAddcmul>,
                       addcmul_derivative, {"tensor1 for tensor2", "tensor2 for tensor1"},
                       {"f(2,3), f(2,3), f(2,3), 1", "f(2,3), f(3), f(2,1), 0.5"})
                .in_place());
  table.add(ternary_op("addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> "
                       "Tensor",
                       addcdiv_infer, addc_kernel<TernaryKind::kAddcdiv>, addcdiv_derivative,
                       {"tensor1 for tensor2", "tensor2"},
                       {"f(2,3), f(2,3), p(2,3), 1", "f(2,3), f(3), p(2,1), 0.5"})
                .in_place());
}
}  // namespace muster::ops

namespace muster {
using ops::find_op;

Tensor where(const Tensor& condition, const Operand& self, const Operand& other) {
  static const Op& op = find_op("where");
  return call_one(op, condition, self, other);
}
Tensor masked_fill(const Tensor& self, const Tensor& mask, const Operand& value) {
  static const Op& op = find_op("masked_fill");
  return call_one(op, self, mask, value);
}
Tensor masked_fill_(const Tensor& self, const Tensor& mask, const Operand& value) {
  static const Op& op = find_op("masked_fill_");
  return call_one(op, self, mask, value);
}
Tensor clamp(const Tensor& self, const Operand& min, const Operand& max) {
  static const Op& op = find_op("clamp");
  return call_one(op, self, min, max);
}
Tensor clamp_(const Tensor& self, const Operand& min, const Operand& max) {
  static const Op& op = find_op("clamp_");
  return call_one(op, self, min, max);
}
Tensor clamp_min(const Tensor& self, const Operand& min) { return clamp(self, min, std::nullopt); }
Tensor clamp_max(const Tensor& self, const Operand& max) { return clamp(self, std::nullopt, max); }
Tensor lerp(const Tensor& self, const Tensor& end, const Operand& weight) {
  static const Op& op = find_op("lerp");
  return call_one(op, self, end, weight);
}
Tensor lerp_(const Tensor& self, const Tensor& end, const Operand& weight) {
  static const Op& op = find_op("lerp_");
  return call_one(op, self, end, weight);
}
Tensor addcmul(const Tensor& self, const Tensor& tensor1, const Tensor& tensor2, Scalar value) {
  static const Op& op = find_op("addcmul");
  return call_one(op, self, tensor1, tensor2, value);
}
Tensor addcmul_(const Tensor& self, const Tensor& tensor1, const Tensor& tensor2, Scalar value) {
  static const Op& op = find_op("addcmul_");
  return call_one(op, self, tensor1, tensor2, value);
}
Tensor addcdiv(const Tensor& self, const Tensor& tensor1, const Tensor& tensor2, Scalar value) {
  static const Op& op = find_op("addcdiv");
  return call_one(op, self, tensor1, tensor2, value);
}
Tensor addcdiv_(const Tensor& self, const Tensor& tensor1, const Tensor& tensor2, Scalar value) {
  static const Op& op = find_op("addcdiv_");
  return call_one(op, self, tensor1, tensor2, value);
}
}  // namespace muster
