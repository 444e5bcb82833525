// Extremes, norms and logsumexp: amax, max, argmax and their kin.
#include <cmath>
#include <limits>

#include "core/ops/indexing.h"
#include "core/ops/pointwise.h"
#include "core/ops/reduction.h"
#include "core/ops/reduction_def.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
using Context = const BackwardContext&;
using kernels::cpu::ReduceKind;

// (self, dim, keepdim): dtype of self.
TensorSpec extreme_infer(const OpArgs& args) {
  const Tensor& self = args.tensor(0);
  check_not_empty(self, normalized_dims(args[1], self.ndim(), args.op_name()), args.op_name());
  return reduced_spec(self, args[1], args[2].boolean(), self.dtype(), args.op_name());
}

// (self): over all dims.
TensorSpec total_infer(const OpArgs& args) {
  const Tensor& self = args.tensor(0);
  MUSTER_CHECK(self.numel() > 0, ErrorCode::kInvalidArgument,
               "{}: expected reduction dim to be specified for input.numel() == 0; got {}",
               args.op_name(), self);
  return TensorSpec::contiguous({}, self.dtype(), self.device());
}

// (self, dim, keepdim) -> values, indices
std::vector<TensorSpec> indexed_infer(const OpArgs& args) {
  TensorSpec values = extreme_infer(args), indices = values;
  indices.dtype = DType::kI64;
  return {values, indices};
}

TensorSpec arg_infer(const OpArgs& args) {
  MUSTER_CHECK(args.tensor(0).dtype() != DType::kBool, ErrorCode::kInvalidArgument,
               "{}: not implemented for bool", args.op_name());
  const Tensor& self = args.tensor(0);
  MUSTER_CHECK(self.numel() > 0 || !args[1].is_none(), ErrorCode::kInvalidArgument,
               "{}: expected reduction dim to be specified for input.numel() == 0; got {}",
               args.op_name(), self);
  TensorSpec spec = extreme_infer(args);
  spec.dtype = DType::kI64;
  return spec;
}

template <ReduceKind kKind>
void extreme_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  const DimVector dims =
      normalized_dims(args.size() > 1 ? args[1] : Value(), self.ndim(), args.op_name());
  kernels::cpu::reduce(kKind, ReducedView(outs[0], self.sizes(), dims), self, dims);
}

template <bool kLargest>
void indexed_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  const DimVector dims = normalized_dims(args[1], self.ndim(), args.op_name());
  const ReducedView values(outs[0], self.sizes(), dims), indices(outs[1], self.sizes(), dims);
  kernels::cpu::reduce_with_index(kLargest, values, indices, self, dims);
}

template <bool kLargest>
void arg_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  const DimVector dims = normalized_dims(args[1], self.ndim(), args.op_name());
  const DimVector kept = reduced_sizes(self.sizes(), dims, true);
  const DimVector strides = contiguous_strides(kept);
  const TensorView values(nullptr, self.dtype(), kept, strides);
  kernels::cpu::reduce_with_index(kLargest, values, ReducedView(outs[0], self.sizes(), dims), self,
                                  dims);
}

// Each of the equals gets its share.
GradList shared_derivative(Context c) {
  const Tensor self = c.saved("self");
  const DimVector dims = dims_of(c);
  const bool keepdim = c.arg("keepdim").boolean();
  const Tensor chosen = eq(self, with_dims(c.saved("result"), dims, keepdim));
  const Tensor grad = mul(with_dims(c.grad(), dims, keepdim), chosen);
  return {dims.empty() ? grad : div(grad, sum(chosen, Dims(dims), true))};
}

GradList total_derivative(Context c) {
  const Tensor self = c.saved("self"), result = c.saved("result");
  const Tensor chosen = logical_or(eq(self, result), logical_and(isnan(self), isnan(result)));
  return {mul(chosen, div(c.grad(), sum(chosen)))};
}

GradList indexed_derivative(Context c) {
  const TensorSpec& self = c.spec("self");
  const DimVector dims = dims_of(c);
  if (dims.empty()) return {c.grad()};
  const bool keepdim = c.arg("keepdim").boolean();
  const Tensor grad = with_dims(c.grad(), dims, keepdim);
  const Tensor index = with_dims(c.saved("indices"), dims, keepdim);
  return {scatter_add(new_zeros(grad, self.sizes), dims[0], index, grad)};
}

// vector_norm(self, ord, dim, keepdim, dtype)
TensorSpec norm_infer(const OpArgs& args) {
  const Tensor& self = args.tensor(0);
  const double order = args[1].number();
  const DType dtype = args[4].is_none() ? self.dtype() : args[4].dtype();
  MUSTER_CHECK(is_floating(self.dtype()) && is_floating(dtype), ErrorCode::kInvalidArgument,
               "vector_norm: expected a floating point input; got {}", self.dtype());
  if (order < 0 || std::isinf(order)) {
    check_not_empty(self, normalized_dims(args[2], self.ndim(), "vector_norm"), "vector_norm");
  }
  return reduced_spec(self, args[2], args[3].boolean(), dtype, "vector_norm");
}

void norm_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor self = args[4].is_none() ? args.tensor(0) : cast_to(args.tensor(0), args[4].dtype());
  const DimVector dims = normalized_dims(args[2], self.ndim(), "vector_norm");
  kernels::cpu::vector_norm(ReducedView(outs[0], self.sizes(), dims), self, args[1].number(), dims);
}

// Every case of |x|^(p-1) sign(x) / norm^(p-1), with 0 where the norm is 0.
Tensor norm_slope(const Tensor& self, const Tensor& norm, const Tensor& grad, double p, Dims dims) {
  if (p == 0.0) return zeros_like(self);
  if (p == 1.0) return mul(sgn(self), grad);
  if (p == 2.0) return mul(grad, masked_fill(div(self, norm), eq(norm, 0), 0));
  if (std::isinf(p)) {
    const Tensor chosen = logical_or(eq(abs(self), norm), logical_and(isnan(self), isnan(norm)));
    const Tensor count = dims.empty() ? chosen : sum(chosen, dims, true);
    return mul(sgn(self), mul(div(grad, count), chosen));
  }
  if (p < 1.0) {
    const Tensor scaled = mul(sgn(self), masked_fill(pow(abs(self), p - 1), eq(self, 0), 0));
    return mul(mul(scaled, grad), pow(norm, 1 - p));
  }
  const Tensor scale = masked_fill(div(grad, pow(norm, p - 1)), eq(norm, 0), 0);
  if (p < 2.0) return mul(mul(sgn(self), pow(abs(self), p - 1)), scale);
  return mul(mul(self, pow(abs(self), p - 2)), scale);
}

GradList norm_derivative(Context c) {
  const DimVector dims = dims_of(c);
  const bool keepdim = c.arg("keepdim").boolean();
  return {norm_slope(c.saved("self"), with_dims(c.saved("result"), dims, keepdim),
                     with_dims(c.grad(), dims, keepdim), c.arg("ord").number(), dims)};
}

void norm_composite(const OpArgs& args, std::span<Tensor> outs) {
  static const Op& op = find_op("vector_norm");
  outs[0] = call_one(op, args[0], args[1], args[2], args[3], std::nullopt);
}

TensorSpec logsumexp_infer(const OpArgs& args) {
  const Tensor& self = args.tensor(0);
  return reduced_spec(self, args[1], args[2].boolean(), float_type(self.dtype()), "logsumexp");
}

void logsumexp_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor self = cast_to(args.tensor(0), float_type(args.tensor(0).dtype()));
  const DimVector dims = normalized_dims(args[1], self.ndim(), "logsumexp");
  kernels::cpu::reduce(ReduceKind::kLogsumexp, ReducedView(outs[0], self.sizes(), dims), self,
                       dims);
}

GradList logsumexp_derivative(Context c) {
  const DimVector dims = dims_of(c);
  const bool keepdim = c.arg("keepdim").boolean();
  const Tensor result = with_dims(c.saved("result"), dims, keepdim);
  return {mul(with_dims(c.grad(), dims, keepdim), exp(sub(c.saved("self"), result)))};
}

constexpr const char* kPairRule = "S(b) -> S(b/dim), S(b/dim) where b != dim";

OpDef extreme(const char* schema, KernelFn kernel, std::vector<std::string> rules,
              std::vector<std::string> samples) {
  return OpDef(schema)
      .kernel(DeviceType::kCpu, kernel)
      .shard(std::move(rules))
      .fusion(FusionClass::kRowReduction)
      .samples(std::move(samples));
}
}  // namespace

MUSTER_DEFINE_OPS(extremes) {
  using enum ReduceKind;
  const std::vector<std::string> some = {"f(2,3), [1], false", "f(2,3), None, true"};
  table.add(extreme("amax(Tensor self, int[]? dim=None, bool keepdim=False) -> (Tensor result)",
                    extreme_kernel<kAmax>, reduction_rules("P(max)"), some)
                .infer(extreme_infer)
                .derivative(shared_derivative, {"self", "result"}));
  table.add(extreme("amin(Tensor self, int[]? dim=None, bool keepdim=False) -> (Tensor result)",
                    extreme_kernel<kAmin>, reduction_rules("P(min)"), some)
                .infer(extreme_infer)
                .derivative(shared_derivative, {"self", "result"}));
  table.add(extreme("max(Tensor self) -> (Tensor result)", extreme_kernel<kAmax>,
                    {"S(b) -> P(max)"}, {"f(2,3)"})
                .infer(total_infer)
                .derivative(total_derivative, {"self", "result"}));
  table.add(extreme("min(Tensor self) -> (Tensor result)", extreme_kernel<kAmin>,
                    {"S(b) -> P(min)"}, {"f(2,3)"})
                .infer(total_infer)
                .derivative(total_derivative, {"self", "result"}));
  table.add(extreme("max_dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor "
                    "indices)",
                    indexed_kernel<true>, {kPairRule}, {"f(2,3), 1, false"})
                .infer(indexed_infer)
                .derivative(indexed_derivative, {"indices"}));
  table.add(extreme("min_dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor "
                    "indices)",
                    indexed_kernel<false>, {kPairRule}, {"f(2,3), 1, false"})
                .infer(indexed_infer)
                .derivative(indexed_derivative, {"indices"}));
  table.add(extreme("argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor",
                    arg_kernel<true>, reduction_rules(),
                    {"f(2,3), 1, false", "f(2,3), None, false"})
                .infer(arg_infer)
                .not_differentiable("the result is a place"));
  table.add(extreme("argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor",
                    arg_kernel<false>, reduction_rules(),
                    {"f(2,3), 1, false", "f(2,3), None, false"})
                .infer(arg_infer)
                .not_differentiable("the result is a place"));
  table.add(extreme("vector_norm(Tensor self, Scalar ord=2, int[]? dim=None, bool keepdim=False, "
                    "*, ScalarType? dtype=None) -> (Tensor result)",
                    norm_kernel, reduction_rules(),
                    {"f(2,3), 2, [1], false, None", "f(2,3), 1, None, false, None"})
                .infer(norm_infer)
                .derivative(norm_derivative, {"self", "result"}));
  table.add(composed("norm(Tensor self, Scalar p=2, int[]? dim=None, bool keepdim=False) -> Tensor",
                     norm_composite, {"f(2,3), 2, None, false"}));
  table.add(extreme("logsumexp(Tensor self, int[] dim, bool keepdim=False) -> (Tensor result)",
                    logsumexp_kernel, reduction_rules(), {"f(2,3), [1], false"})
                .infer(logsumexp_infer)
                .derivative(logsumexp_derivative, {"self", "result"}));
}
}  // namespace muster::ops

namespace muster {
using ops::find_op;

Tensor amax(const Tensor& self, Dims dim, bool keepdim) {
  static const Op& op = find_op("amax");
  return call_one(op, self, dim, keepdim);
}
Tensor amin(const Tensor& self, Dims dim, bool keepdim) {
  static const Op& op = find_op("amin");
  return call_one(op, self, dim, keepdim);
}
Tensor max(const Tensor& self) {
  static const Op& op = find_op("max");
  return call_one(op, self);
}
Tensor min(const Tensor& self) {
  static const Op& op = find_op("min");
  return call_one(op, self);
}
std::array<Tensor, 2> max(const Tensor& self, int64_t dim, bool keepdim) {
  static const Op& op = find_op("max_dim");
  return call_many<2>(op, self, dim, keepdim);
}
std::array<Tensor, 2> min(const Tensor& self, int64_t dim, bool keepdim) {
  static const Op& op = find_op("min_dim");
  return call_many<2>(op, self, dim, keepdim);
}
Tensor argmax(const Tensor& self, std::optional<int64_t> dim, bool keepdim) {
  static const Op& op = find_op("argmax");
  return call_one(op, self, dim, keepdim);
}
Tensor argmin(const Tensor& self, std::optional<int64_t> dim, bool keepdim) {
  static const Op& op = find_op("argmin");
  return call_one(op, self, dim, keepdim);
}
Tensor vector_norm(const Tensor& self, Scalar ord, Dims dim, bool keepdim, OptionalDType dtype) {
  static const Op& op = find_op("vector_norm");
  return call_one(op, self, ord, dim, keepdim, dtype);
}
Tensor norm(const Tensor& self, Scalar p, Dims dim, bool keepdim) {
  return vector_norm(self, p, dim, keepdim);
}
Tensor logsumexp(const Tensor& self, Dims dim, bool keepdim) {
  static const Op& op = find_op("logsumexp");
  return call_one(op, self, dim, keepdim);
}
}  // namespace muster
