#pragma once
/// How the tables of elementwise operators state one operator a row: dtype rules and kernels.
///
/// For the tables in core/ops only. A row names a kernel's kind and a Typing; shape rule and kernel
/// adapter follow.

#include "core/kernels/cpu/pointwise.h"
#include "core/ops/op_support.h"
#include "core/ops/operand.h"

namespace muster::ops {

using kernels::cpu::BinaryKind;
using kernels::cpu::PointwiseParams;
using kernels::cpu::TernaryKind;
using kernels::cpu::UnaryKind;

/// Which dtypes an operator takes, computes in and returns; t is the promoted type of its operands.
enum class Typing : uint8_t {
  kAny,        ///< t
  kNoBool,     ///< t; bool is refused
  kFloat,      ///< t, f32 for integers and bool
  kFloatOnly,  ///< t; integers and bool are refused
  kIntegral,   ///< t; floats are refused
  kInteger,    ///< t; floats and bool are refused
  kToBool,     ///< computes in t, returns bool
};

/// The dtype that a kernel computes in.
/// @error kUnimplemented naming the operator and the dtype that it refuses
DType compute_dtype(Typing typing, DType promoted, const char* operation);

inline DType output_dtype(Typing typing, DType promoted, const char* operation) {
  const DType compute = compute_dtype(typing, promoted, operation);
  return typing == Typing::kToBool ? DType::kBool : compute;
}

/// result_type of two operands; the common pairs are decided here.
inline DType promoted_type(const Value& a, const Value& b) {
  if (a.is_tensor() && b.is_tensor()) {
    const DType type = a.tensor().dtype();
    if (type == b.tensor().dtype()) return type;
  } else if (a.is_tensor() != b.is_tensor()) {
    const Value& number = a.is_tensor() ? b : a;
    const DType type = (a.is_tensor() ? a : b).tensor().dtype();
    if (number.is_number() &&
        (is_floating(type) || (is_integral(type) && number.tag() != ValueTag::kDouble))) {
      return type;
    }
  }
  return result_type(a, b);
}

template <Typing kTyping>
TensorSpec unary_infer(const OpArgs& args) {
  const DType dtype = output_dtype(kTyping, args.tensor(0).dtype(), args.op_name());
  return pointwise_spec(args.values().first(1), dtype, args.op_name());
}

template <Typing kTyping>
TensorSpec binary_infer(const OpArgs& args) {
  const DType dtype = output_dtype(kTyping, promoted_type(args[0], args[1]), args.op_name());
  return pointwise_spec(args.values().first(2), dtype, args.op_name());
}

/// Runs a unary kernel in the compute dtype.
void run_unary(UnaryKind kind, Typing typing, const Tensor& out, const Tensor& in,
               const PointwiseParams& params);
/// Runs a binary kernel on operands that are numbers, broadcast or of several dtypes.
void run_binary_general(BinaryKind kind, Typing typing, const Tensor& out, const Value& a,
                        const Value& b, const PointwiseParams& params);

/// Runs a binary kernel: at once where both operands look like `out`.
inline void run_binary(BinaryKind kind, Typing typing, const Tensor& out, const Value& a,
                       const Value& b, const PointwiseParams& params) {
  if (a.is_tensor() && b.is_tensor()) {
    const Tensor &x = a.tensor(), &y = b.tensor();
    if (x.dtype() == y.dtype() && (typing != Typing::kFloat || is_floating(x.dtype())) &&
        same_sizes(x.sizes(), out.sizes()) && same_sizes(y.sizes(), out.sizes())) {
      return kernels::cpu::binary(kind, out, x, y, params);
    }
  }
  run_binary_general(kind, typing, out, a, b, params);
}

/// The numbers that follow the tensor operands, in the order of the kernel's parameters.
inline PointwiseParams params_from(const OpArgs& args, size_t first) {
  PointwiseParams params;
  if (args.size() > first) params.a = args[first].scalar();
  if (args.size() > first + 1) params.b = args[first + 1].scalar();
  if (args.size() > first + 2) params.c = args[first + 2].scalar();
  return params;
}

template <UnaryKind kKind, Typing kTyping>
void unary_kernel(const OpArgs& args, std::span<Tensor> outs) {
  run_unary(kKind, kTyping, outs[0], args.tensor(0), params_from(args, 1));
}

template <BinaryKind kKind, Typing kTyping>
void binary_kernel(const OpArgs& args, std::span<Tensor> outs) {
  run_binary(kKind, kTyping, outs[0], args[0], args[1], params_from(args, 2));
}

/// Why fused backward operators have no derivative of their own.
inline constexpr const char* kComposedWhenRecorded =
    "a recorded backward pass uses composed operators instead";

/// A unary operator. Elementwise, so that any one sharded axis stays sharded.
template <UnaryKind kKind, Typing kTyping>
OpDef unary_op(const char* schema, DerivativeFn derivative, Saves saves = {}) {
  OpDef def(schema);
  def.infer(unary_infer<kTyping>)
      .kernel(DeviceType::kCpu, unary_kernel<kKind, kTyping>)
      .shard({"S(b) -> S(b)"})
      .fusion(FusionClass::kPointwise)
      .samples({"f(2,3)", "f(2,3).t", "f()", "f(0,3)"});
  if (derivative != nullptr) {
    def.derivative(derivative, std::move(saves));
  } else {
    def.not_differentiable("the result is no floating number");
  }
  return def;
}

template <BinaryKind kKind, Typing kTyping>
OpDef binary_op(const char* schema, DerivativeFn derivative, Saves saves = {}) {
  OpDef def(schema);
  def.infer(binary_infer<kTyping>)
      .kernel(DeviceType::kCpu, binary_kernel<kKind, kTyping>)
      .shard({"S(b), S(b) -> S(b)"})
      .fusion(FusionClass::kPointwise)
      .samples({"f(2,3), f(2,3)", "f(2,3), f(3)", "f(2,3), 2.5", "f(2,1), f(3)"});
  if (derivative != nullptr) {
    def.derivative(derivative, std::move(saves));
  } else {
    def.not_differentiable("the result is no floating number");
  }
  return def;
}

/// An argument of a recorded call as a derivative needs it: the saved tensor, or the number that
/// was passed in its place.
class SavedOperand {
 public:
  SavedOperand(const BackwardContext& context, const char* name) : number_(context.arg(name)) {
    if (!number_.is_number()) tensor_ = context.saved(name);
  }
  operator Operand() const {  // NOLINT(google-explicit-constructor)
    return tensor_.defined() ? Operand(tensor_) : Operand(number_);
  }
  [[nodiscard]] bool is_number() const { return !tensor_.defined(); }
  [[nodiscard]] Scalar number() const { return number_.scalar(); }

 private:
  Value number_;
  Tensor tensor_;
};

/// `body()` when the argument wants a gradient, else an undefined tensor.
template <typename Body>
Tensor if_needed(const BackwardContext& context, const char* name, Body&& body) {
  return context.needs(name) ? body() : Tensor();
}

}  // namespace muster::ops
