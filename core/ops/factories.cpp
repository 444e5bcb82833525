// Factories: tensors made from sizes and numbers.
#include <cmath>

#include "core/dispatch/mode.h"
#include "core/kernels/cpu/copy.h"
#include "core/ops/creation.h"
#include "core/ops/op_support.h"
#include "core/tensor/wrapper_hooks.h"

namespace muster::ops {
namespace {
constexpr const char* kConstant = "the result does not depend on an input";
constexpr const char* kFactory = "dist/tensor makes a shard from its local sizes";

DType dtype_or(const Value& value, DType fallback) {
  return value.is_none() ? fallback : value.dtype();
}

Device device_or_default(const Value& value) {
  return value.is_none() ? thread_modes().default_device : value.device();
}

// (size, dtype, device)
TensorSpec sized_infer(const OpArgs& args) {
  checked_numel(args[0].ints());
  return TensorSpec::contiguous(args[0].ints(), dtype_or(args[1], kDefaultDType),
                                device_or_default(args[2]));
}

// (size, fill_value, dtype, device)
TensorSpec full_infer(const OpArgs& args) {
  checked_numel(args[0].ints());
  return TensorSpec::contiguous(args[0].ints(), dtype_or(args[2], args[1].scalar().dtype()),
                                device_or_default(args[3]));
}

TensorSpec arange_infer(const OpArgs& args) {
  const Scalar start = args[0].scalar(), end = args[1].scalar(), step = args[2].scalar();
  const bool floating = start.is_floating() || end.is_floating() || step.is_floating();
  const double from = start.to_double(), to = end.to_double(), by = step.to_double();
  MUSTER_CHECK(by != 0, ErrorCode::kInvalidArgument, "arange: step must be nonzero; got {}", by);
  MUSTER_CHECK(std::isfinite(from) && std::isfinite(to), ErrorCode::kInvalidArgument,
               "arange: unsupported range: the bounds must be finite; got {} -> {}", from, to);
  MUSTER_CHECK((to - from) * by >= 0, ErrorCode::kInvalidArgument,
               "arange: upper bound and lower bound must be consistent with the sign of step; got "
               "{} to {} by {}",
               from, to, by);
  int64_t count = 0;
  if (floating) {
    count = static_cast<int64_t>(std::ceil((to - from) / by));
  } else {
    const int64_t n =
        step.to_int() > 0 ? end.to_int() - start.to_int() : start.to_int() - end.to_int();
    const int64_t width = std::abs(step.to_int());
    count = (n + width - 1) / width;
  }
  const DType dtype = dtype_or(args[3], floating ? kDefaultDType : DType::kI64);
  return TensorSpec::contiguous({count}, dtype, device_or_default(args[4]));
}

TensorSpec linspace_infer(const OpArgs& args) {
  MUSTER_CHECK(args[2].integer() >= 0, ErrorCode::kInvalidArgument,
               "linspace: number of steps must be non-negative; got {}", args[2].integer());
  return TensorSpec::contiguous({args[2].integer()}, dtype_or(args[3], kDefaultDType),
                                device_or_default(args[4]));
}

TensorSpec eye_infer(const OpArgs& args) {
  const int64_t n = args[0].integer(), m = args[1].is_none() ? n : args[1].integer();
  MUSTER_CHECK(n >= 0 && m >= 0, ErrorCode::kInvalidArgument,
               "eye: n and m must be greater or equal to 0; got {} and {}", n, m);
  return TensorSpec::contiguous({n, m}, dtype_or(args[2], kDefaultDType),
                                device_or_default(args[3]));
}

TensorSpec like_infer(const OpArgs& args) {
  const Tensor& self = args.tensor(0);
  return {DimVector(self.sizes()), preserved_strides(self.sizes(), self.strides()),
          dtype_or(args[args.size() - 1], self.dtype()), self.device()};
}

void nothing_kernel(const OpArgs&, std::span<Tensor>) {}
void zeros_kernel(const OpArgs&, std::span<Tensor> outs) { kernels::cpu::fill(outs[0], 0); }
void ones_kernel(const OpArgs&, std::span<Tensor> outs) { kernels::cpu::fill(outs[0], 1); }
void full_kernel(const OpArgs& args, std::span<Tensor> outs) {
  kernels::cpu::fill(outs[0], args[1].scalar());
}
void arange_kernel(const OpArgs& args, std::span<Tensor> outs) {
  kernels::cpu::arange(outs[0], args[0].scalar(), args[2].scalar());
}
void linspace_kernel(const OpArgs& args, std::span<Tensor> outs) {
  kernels::cpu::linspace(outs[0], args[0].scalar(), args[1].scalar());
}
void eye_kernel(const OpArgs&, std::span<Tensor> outs) { kernels::cpu::eye(outs[0]); }

OpDef factory(const char* schema, InferFn infer, KernelFn kernel,
              std::vector<std::string> samples) {
  return OpDef(schema)
      .infer(infer)
      .kernel(DeviceType::kCpu, kernel)
      .not_differentiable(kConstant)
      .replicate_only(kFactory)
      .samples(std::move(samples));
}

// What `like` operators do is elementwise: a shard's result is the shard of the result.
OpDef like(const char* schema, KernelFn kernel, std::vector<std::string> samples) {
  return OpDef(schema)
      .infer(like_infer)
      .kernel(DeviceType::kCpu, kernel)
      .not_differentiable(kConstant)
      .shard({"S(b) -> S(b)", "* -> R"})  // values are not read, so an open sum stays open
      .samples(std::move(samples));
}

// (self, size, .., dtype) -> the factory of that name with self's dtype and device.
void new_empty_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  outs[0] = as_constant_beside(
      empty(args[1].ints(), dtype_or(args[2], self.dtype()), self.device()), self);
}
void new_zeros_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  outs[0] = as_constant_beside(
      zeros(args[1].ints(), dtype_or(args[2], self.dtype()), self.device()), self);
}
void new_ones_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  outs[0] = as_constant_beside(ones(args[1].ints(), dtype_or(args[2], self.dtype()), self.device()),
                               self);
}
void new_full_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  outs[0] = as_constant_beside(
      full(args[1].ints(), args[2].scalar(), dtype_or(args[3], self.dtype()), self.device()), self);
}
}  // namespace

MUSTER_DEFINE_OPS(factories) {
  table.add(factory("empty(int[] size, *, ScalarType? dtype=None, Device? device=None) -> Tensor",
                    sized_infer, nothing_kernel, {"[2,3], None, None"})
                .random());
  table.add(factory("zeros(int[] size, *, ScalarType? dtype=None, Device? device=None) -> Tensor",
                    sized_infer, zeros_kernel, {"[2,3], None, None", "[0], i64, None"}));
  table.add(factory("ones(int[] size, *, ScalarType? dtype=None, Device? device=None) -> Tensor",
                    sized_infer, ones_kernel, {"[2,3], None, None"}));
  table.add(
      factory("full(int[] size, Scalar fill_value, *, ScalarType? dtype=None, Device? "
              "device=None) -> Tensor",
              full_infer, full_kernel, {"[2,3], 1.5, None, None", "[2], 3, None, None"}));
  table.add(
      factory("arange(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, "
              "Device? device=None) -> Tensor",
              arange_infer, arange_kernel, {"0, 5, 1, None, None", "0.0, 1.0, 0.3, f64, None"}));
  table.add(
      factory("linspace(Scalar start, Scalar end, int steps, *, ScalarType? dtype=None, "
              "Device? device=None) -> Tensor",
              linspace_infer, linspace_kernel, {"0, 1, 5, None, None"}));
  table.add(
      factory("eye(int n, int? m=None, *, ScalarType? dtype=None, Device? device=None) -> "
              "Tensor",
              eye_infer, eye_kernel, {"3, None, None, None", "2, 3, None, None"}));

  table.add(like("empty_like(Tensor self, *, ScalarType? dtype=None) -> Tensor", nothing_kernel,
                 {"f(2,3), None"})
                .random());
  table.add(like("zeros_like(Tensor self, *, ScalarType? dtype=None) -> Tensor", zeros_kernel,
                 {"f(2,3), None", "f(2,3), i64"}));
  table.add(like("ones_like(Tensor self, *, ScalarType? dtype=None) -> Tensor", ones_kernel,
                 {"f(2,3), None"}));
  table.add(like("full_like(Tensor self, Scalar fill_value, *, ScalarType? dtype=None) -> Tensor",
                 full_kernel, {"f(2,3), 1.5, None"}));
  table.add(composed("new_empty(Tensor self, int[] size, *, ScalarType? dtype=None) -> Tensor",
                     new_empty_composite, {"f(2), [3], None"})
                .random());
  table.add(composed("new_zeros(Tensor self, int[] size, *, ScalarType? dtype=None) -> Tensor",
                     new_zeros_composite, {"f(2), [3], None"}));
  table.add(composed("new_ones(Tensor self, int[] size, *, ScalarType? dtype=None) -> Tensor",
                     new_ones_composite, {"f(2), [3], None"}));
  table.add(
      composed("new_full(Tensor self, int[] size, Scalar fill_value, *, ScalarType? "
               "dtype=None) -> Tensor",
               new_full_composite, {"f(2), [3], 1.5, None"}));
}
}  // namespace muster::ops

namespace muster {
using ops::find_op;

Tensor empty(Dims size, OptionalDType dtype, OptionalDevice device) {
  static const Op& op = find_op("empty");
  return call_one(op, size, dtype, device);
}
Tensor zeros(Dims size, OptionalDType dtype, OptionalDevice device) {
  static const Op& op = find_op("zeros");
  return call_one(op, size, dtype, device);
}
Tensor ones(Dims size, OptionalDType dtype, OptionalDevice device) {
  static const Op& op = find_op("ones");
  return call_one(op, size, dtype, device);
}
Tensor full(Dims size, Scalar fill_value, OptionalDType dtype, OptionalDevice device) {
  static const Op& op = find_op("full");
  return call_one(op, size, fill_value, dtype, device);
}
Tensor arange(Scalar end, OptionalDType dtype, OptionalDevice device) {
  return arange(0, end, 1, dtype, device);
}
Tensor arange(Scalar start, Scalar end, Scalar step, OptionalDType dtype, OptionalDevice device) {
  static const Op& op = find_op("arange");
  return call_one(op, start, end, step, dtype, device);
}
Tensor linspace(Scalar start, Scalar end, int64_t steps, OptionalDType dtype,
                OptionalDevice device) {
  static const Op& op = find_op("linspace");
  return call_one(op, start, end, steps, dtype, device);
}
Tensor eye(int64_t n, std::optional<int64_t> m, OptionalDType dtype, OptionalDevice device) {
  static const Op& op = find_op("eye");
  return call_one(op, n, m, dtype, device);
}

Tensor empty_like(const Tensor& self, OptionalDType dtype) {
  static const Op& op = find_op("empty_like");
  return call_one(op, self, dtype);
}
Tensor zeros_like(const Tensor& self, OptionalDType dtype) {
  static const Op& op = find_op("zeros_like");
  return call_one(op, self, dtype);
}
Tensor ones_like(const Tensor& self, OptionalDType dtype) {
  static const Op& op = find_op("ones_like");
  return call_one(op, self, dtype);
}
Tensor full_like(const Tensor& self, Scalar fill_value, OptionalDType dtype) {
  static const Op& op = find_op("full_like");
  return call_one(op, self, fill_value, dtype);
}
Tensor new_empty(const Tensor& self, Dims size, OptionalDType dtype) {
  static const Op& op = find_op("new_empty");
  return call_one(op, self, size, dtype);
}
Tensor new_zeros(const Tensor& self, Dims size, OptionalDType dtype) {
  static const Op& op = find_op("new_zeros");
  return call_one(op, self, size, dtype);
}
Tensor new_ones(const Tensor& self, Dims size, OptionalDType dtype) {
  static const Op& op = find_op("new_ones");
  return call_one(op, self, size, dtype);
}
Tensor new_full(const Tensor& self, Dims size, Scalar fill_value, OptionalDType dtype) {
  static const Op& op = find_op("new_full");
  return call_one(op, self, size, fill_value, dtype);
}

namespace {
template <typename T, typename Literal>
Tensor from_literals(std::initializer_list<Literal> values, OptionalDType dtype) {
  std::vector<T> converted(values.begin(), values.end());
  Tensor out = from_span(std::span<const T>(converted), {static_cast<int64_t>(values.size())});
  return ops::cast_to(out, dtype.value_or(std::is_same_v<T, double> ? kDefaultDType : out.dtype()));
}
}  // namespace

Tensor tensor(double value, OptionalDType dtype) {
  const double values[] = {value};
  return ops::cast_to(from_span(std::span<const double>(values), {}),
                      dtype.value_or(kDefaultDType));
}
Tensor tensor(std::initializer_list<double> values, OptionalDType dtype) {
  return from_literals<double>(values, dtype);
}
Tensor tensor(std::initializer_list<int> values, OptionalDType dtype) {
  return from_literals<int64_t>(values, dtype);
}
Tensor tensor(std::initializer_list<int64_t> values, OptionalDType dtype) {
  return from_literals<int64_t>(values, dtype);
}
Tensor tensor(std::initializer_list<bool> values) {
  Tensor out = ops::scratch({static_cast<int64_t>(values.size())}, DType::kBool);
  std::copy(values.begin(), values.end(), out.data<bool>());
  return out;
}

template <typename T>
std::vector<T> to_vector(const Tensor& self) {
  const Tensor rows = ops::dense(readable_value(self));
  const T* data = rows.data<T>();
  return std::vector<T>(data, data + rows.numel());
}
template std::vector<float> to_vector<float>(const Tensor&);
template std::vector<double> to_vector<double>(const Tensor&);
template std::vector<int64_t> to_vector<int64_t>(const Tensor&);
template std::vector<int32_t> to_vector<int32_t>(const Tensor&);
template std::vector<bool> to_vector<bool>(const Tensor&);
template std::vector<uint8_t> to_vector<uint8_t>(const Tensor&);
}  // namespace muster
