// Comparisons, logic and bits: results without a derivative.
#include "core/kernels/cpu/copy.h"
#include "core/ops/pointwise.h"
#include "core/ops/pointwise_def.h"

namespace muster::ops {
namespace {
TensorSpec logic_infer(const OpArgs& args) {
  MUSTER_CHECK(args[0].is_tensor() && args[1].is_tensor(), ErrorCode::kInvalidArgument,
               "{}: both operands must be tensors; got {} and {}", args.op_name(),
               args[0].describe(), args[1].describe());
  return binary_infer<Typing::kToBool>(args);
}

OpDef logic(OpDef def) {
  def.infer(logic_infer).samples({"b(2,3), b(2,3)", "f(2,3), b(3)"}).in_place();
  return def;
}
}  // namespace

MUSTER_DEFINE_OPS(compare) {
  using enum BinaryKind;
  constexpr Typing kBool = Typing::kToBool, kBits = Typing::kIntegral, kShift = Typing::kInteger;
  table.add(binary_op<kEq, kBool>("eq(Tensor self, Tensor other) -> Tensor", nullptr).in_place());
  table.add(binary_op<kNe, kBool>("ne(Tensor self, Tensor other) -> Tensor", nullptr).in_place());
  table.add(binary_op<kLt, kBool>("lt(Tensor self, Tensor other) -> Tensor", nullptr).in_place());
  table.add(binary_op<kLe, kBool>("le(Tensor self, Tensor other) -> Tensor", nullptr).in_place());
  table.add(binary_op<kGt, kBool>("gt(Tensor self, Tensor other) -> Tensor", nullptr).in_place());
  table.add(binary_op<kGe, kBool>("ge(Tensor self, Tensor other) -> Tensor", nullptr).in_place());
  table.add(logic(
      binary_op<kLogicalAnd, kBool>("logical_and(Tensor self, Tensor other) -> Tensor", nullptr)));
  table.add(logic(
      binary_op<kLogicalOr, kBool>("logical_or(Tensor self, Tensor other) -> Tensor", nullptr)));
  table.add(logic(
      binary_op<kLogicalXor, kBool>("logical_xor(Tensor self, Tensor other) -> Tensor", nullptr)));
  table.add(
      binary_op<kBitwiseAnd, kBits>("bitwise_and(Tensor self, Tensor other) -> Tensor", nullptr)
          .samples({"i(2,3), i(2,3)", "i(2,3), 3"})
          .in_place());
  table.add(binary_op<kBitwiseOr, kBits>("bitwise_or(Tensor self, Tensor other) -> Tensor", nullptr)
                .samples({"i(2,3), i(2,3)", "i(2,3), 3"})
                .in_place());
  table.add(
      binary_op<kBitwiseXor, kBits>("bitwise_xor(Tensor self, Tensor other) -> Tensor", nullptr)
          .samples({"i(2,3), i(2,3)", "i(2,3), 3"})
          .in_place());
  table.add(binary_op<kLeftShift, kShift>("bitwise_left_shift(Tensor self, Tensor other) -> Tensor",
                                          nullptr)
                .samples({"i(2,3), i(2,3)", "i(2,3), 3"})
                .in_place());
  table.add(binary_op<kRightShift, kShift>(
                "bitwise_right_shift(Tensor self, Tensor other) -> Tensor", nullptr)
                .samples({"i(2,3), i(2,3)", "i(2,3), 3"})
                .in_place());
  table.add(unary_op<UnaryKind::kLogicalNot, kBool>("logical_not(Tensor self) -> Tensor", nullptr)
                .in_place());
  table.add(unary_op<UnaryKind::kIsnan, kBool>("isnan(Tensor self) -> Tensor", nullptr));
  table.add(unary_op<UnaryKind::kIsinf, kBool>("isinf(Tensor self) -> Tensor", nullptr));
  table.add(unary_op<UnaryKind::kIsfinite, kBool>("isfinite(Tensor self) -> Tensor", nullptr));
  table.add(unary_op<UnaryKind::kIsposinf, kBool>("isposinf(Tensor self) -> Tensor", nullptr));
  table.add(unary_op<UnaryKind::kIsneginf, kBool>("isneginf(Tensor self) -> Tensor", nullptr));
  table.add(unary_op<UnaryKind::kSignbit, kBool>("signbit(Tensor self) -> Tensor", nullptr));
  table.add(unary_op<UnaryKind::kBitwiseNot, kBits>("bitwise_not(Tensor self) -> Tensor", nullptr)
                .samples({"i(2,3)"})
                .in_place());
}
}  // namespace muster::ops

namespace muster {
using ops::find_op;

Tensor eq(const Operand& self, const Operand& other) {
  static const Op& op = find_op("eq");
  return call_one(op, self, other);
}
Tensor ne(const Operand& self, const Operand& other) {
  static const Op& op = find_op("ne");
  return call_one(op, self, other);
}
Tensor lt(const Operand& self, const Operand& other) {
  static const Op& op = find_op("lt");
  return call_one(op, self, other);
}
Tensor le(const Operand& self, const Operand& other) {
  static const Op& op = find_op("le");
  return call_one(op, self, other);
}
Tensor gt(const Operand& self, const Operand& other) {
  static const Op& op = find_op("gt");
  return call_one(op, self, other);
}
Tensor ge(const Operand& self, const Operand& other) {
  static const Op& op = find_op("ge");
  return call_one(op, self, other);
}
Tensor logical_and(const Tensor& self, const Tensor& other) {
  static const Op& op = find_op("logical_and");
  return call_one(op, self, other);
}
Tensor logical_or(const Tensor& self, const Tensor& other) {
  static const Op& op = find_op("logical_or");
  return call_one(op, self, other);
}
Tensor logical_xor(const Tensor& self, const Tensor& other) {
  static const Op& op = find_op("logical_xor");
  return call_one(op, self, other);
}
Tensor bitwise_and(const Operand& self, const Operand& other) {
  static const Op& op = find_op("bitwise_and");
  return call_one(op, self, other);
}
Tensor bitwise_or(const Operand& self, const Operand& other) {
  static const Op& op = find_op("bitwise_or");
  return call_one(op, self, other);
}
Tensor bitwise_xor(const Operand& self, const Operand& other) {
  static const Op& op = find_op("bitwise_xor");
  return call_one(op, self, other);
}
Tensor logical_not(const Tensor& self) {
  static const Op& op = find_op("logical_not");
  return call_one(op, self);
}
Tensor bitwise_not(const Tensor& self) {
  static const Op& op = find_op("bitwise_not");
  return call_one(op, self);
}
Tensor isnan(const Tensor& self) {
  static const Op& op = find_op("isnan");
  return call_one(op, self);
}
Tensor isinf(const Tensor& self) {
  static const Op& op = find_op("isinf");
  return call_one(op, self);
}
Tensor isfinite(const Tensor& self) {
  static const Op& op = find_op("isfinite");
  return call_one(op, self);
}

bool equal(const Tensor& self, const Tensor& other) {
  if (!ops::same_sizes(self.sizes(), other.sizes())) return false;
  MUSTER_CHECK(!self.is_meta() && !other.is_meta(), ErrorCode::kFailedPrecondition,
               "equal: both tensors must have data; got {} and {}", self, other);
  const DType common = promote_types(self.dtype(), other.dtype());
  return kernels::cpu::equal(ops::cast_to(self, common), ops::cast_to(other, common));
}
}  // namespace muster
