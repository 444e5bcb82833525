// Copies and conversions of one tensor, and the writes copy_, fill_ and zero_.
#include "core/kernels/cpu/copy.h"
#include "core/ops/creation.h"
#include "core/ops/op_support.h"
#include "core/ops/reduction.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
TensorSpec preserving_infer(const OpArgs& args) {
  const Tensor& self = args.tensor(0);
  return {DimVector(self.sizes()), preserved_strides(self.sizes(), self.strides()), self.dtype(),
          self.device()};
}

TensorSpec row_major_infer(const OpArgs& args) {
  const Tensor& self = args.tensor(0);
  return TensorSpec::contiguous(self.sizes(), self.dtype(), self.device());
}

TensorSpec cast_infer(const OpArgs& args) {
  TensorSpec spec = preserving_infer(args);
  spec.dtype = args[1].dtype();
  return spec;
}

// For operators that only write: the result is what self is.
TensorSpec self_infer(const OpArgs& args) { return TensorSpec::of(args.tensor(0)); }

TensorSpec copy_infer(const OpArgs& args) {
  const Tensor &self = args.tensor(0), &src = args.tensor(1);
  MUSTER_CHECK(is_expandable_to(src.sizes(), self.sizes()), ErrorCode::kInvalidArgument,
               "copy_: src must broadcast to self; got src {} for self {}", src, self);
  return self_infer(args);
}

TensorSpec fill_infer(const OpArgs& args) {
  MUSTER_CHECK(!args[1].is_tensor() || args.tensor(1).ndim() == 0, ErrorCode::kInvalidArgument,
               "fill_: value must be a number or a tensor with 0 dimensions; got {}",
               args[1].describe());
  return self_infer(args);
}

void copy_kernel(const OpArgs& args, std::span<Tensor> outs) {
  kernels::cpu::copy(outs[0], args.tensor(0));
}

void copy_in_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor &self = outs[0], &src = args.tensor(1);
  // Undecided overlap: read everything before the first write.
  const bool shared = self.storage() == src.storage() && self.numel() > 0;
  const bool exact = shared && self.storage_offset() == src.storage_offset() &&
                     self.impl()->strides == src.impl()->strides;
  if (exact && self.dtype() == src.dtype()) return;
  Tensor held = src;
  if (shared && !exact) {
    held = scratch(src.sizes(), src.dtype());
    kernels::cpu::copy(held, src);
  }
  kernels::cpu::copy(self, KernelOperand(held, held.dtype(), self.sizes()));
}

void fill_kernel(const OpArgs& args, std::span<Tensor> outs) {
  if (args[1].is_tensor()) {
    kernels::cpu::copy(outs[0], KernelOperand(args[1], args.tensor(1).dtype(), outs[0].sizes()));
  } else {
    kernels::cpu::fill(outs[0], args[1].scalar());
  }
}

void zero_kernel(const OpArgs&, std::span<Tensor> outs) { kernels::cpu::fill(outs[0], 0); }

GradList pass_on(const BackwardContext& c) { return {c.grad()}; }

void to_composite(const OpArgs& args, std::span<Tensor> outs) {
  static const Op& op = find_op("_to_copy");
  const Tensor& self = args.tensor(0);
  outs[0] = self.dtype() == args[1].dtype() ? self : call_one(op, self, args[1]);
}

void contiguous_composite(const OpArgs& args, std::span<Tensor> outs) {
  static const Op& op = find_op("clone_contiguous");
  const Tensor& self = args.tensor(0);
  outs[0] = self.is_contiguous() ? self : call_one(op, self);
}

OpDef copying(const char* schema, InferFn infer, KernelFn kernel, DerivativeFn derivative,
              std::vector<std::string> samples) {
  return OpDef(schema)
      .infer(infer)
      .kernel(DeviceType::kCpu, kernel)
      .derivative(derivative)
      .fusion(FusionClass::kPointwise)
      .samples(std::move(samples));
}
}  // namespace

MUSTER_DEFINE_OPS(copies) {
  table.add(copying("clone(Tensor self) -> Tensor", preserving_infer, copy_kernel, pass_on,
                    {"f(2,3)", "f(2,3).t", "f(0)"})
                .shard({"S(b) -> S(b)", "P -> P"}));
  table.add(copying("clone_contiguous(Tensor self) -> Tensor", row_major_infer, copy_kernel,
                    pass_on, {"f(2,3).t"})
                .shard({"S(b) -> S(b)", "P -> P"}));
  table.add(copying("_to_copy(Tensor self, ScalarType dtype) -> Tensor", cast_infer, copy_kernel,
                    pass_on, {"f(2,3), f64", "f(2,3).t, i64"})
                .shard({"S(b) -> S(b)"}));
  table.add(copying("copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)",
                    copy_infer, copy_in_kernel,
                    [](const BackwardContext& c) -> GradList {
                      return {zeros_like(c.grad()), c.grad()};
                    },
                    {"f(2,3), f(3), false"})
                .only_in_place()
                .shard({"S(b), S(b) -> S(b)"}));
  table.add(copying("fill_(Tensor(a!) self, Tensor value) -> Tensor(a!)", fill_infer, fill_kernel,
                    [](const BackwardContext& c) -> GradList {
                      return {zeros_like(c.grad()), c.needs("value") ? sum(c.grad()) : Tensor()};
                    },
                    {"f(2,3), 1.5", "f(2,3), f()"})
                .only_in_place()
                .shard({"S(b), R -> S(b)"}));
  table.add(copying("zero_(Tensor(a!) self) -> Tensor(a!)", self_infer, zero_kernel,
                    [](const BackwardContext& c) -> GradList { return {zeros_like(c.grad())}; },
                    {"f(2,3)"})
                .only_in_place()
                .shard({"S(b) -> S(b)"}));
  table.add(composed("to(Tensor(a) self, ScalarType dtype) -> Tensor(a)", to_composite,
                     {"f(2,3), f64", "f(2,3), f32"}));
  table.add(composed("contiguous(Tensor(a) self) -> Tensor(a)", contiguous_composite,
                     {"f(2,3)", "f(2,3).t"}));
}
}  // namespace muster::ops

namespace muster {
using ops::find_op;

Tensor clone(const Tensor& self, MemoryFormat memory_format) {
  static const Op& preserve = find_op("clone");
  static const Op& row_major = find_op("clone_contiguous");
  return call_one(memory_format == MemoryFormat::kPreserve ? preserve : row_major, self);
}

Tensor contiguous(const Tensor& self) {
  static const Op& op = find_op("contiguous");
  return call_one(op, self);
}

Tensor to(const Tensor& self, DType dtype) {
  static const Op& op = find_op("to");
  return call_one(op, self, dtype);
}

Tensor copy_(const Tensor& self, const Tensor& src, bool non_blocking) {
  static const Op& op = find_op("copy_");
  return call_one(op, self, src, non_blocking);
}

Tensor fill_(const Tensor& self, Scalar value) {
  static const Op& op = find_op("fill_");
  return call_one(op, self, value);
}

Tensor fill_(const Tensor& self, const Tensor& value) {
  static const Op& op = find_op("fill_");
  return call_one(op, self, value);
}

Tensor zero_(const Tensor& self) {
  static const Op& op = find_op("zero_");
  return call_one(op, self);
}
}  // namespace muster
