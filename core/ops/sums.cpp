// Sums and what is made of them: sum, mean, prod, var, std, any, all, count_nonzero, sum_to_size.
#include <algorithm>

#include "core/ops/pointwise.h"
#include "core/ops/reduction.h"
#include "core/ops/reduction_def.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
using Context = const BackwardContext&;
using kernels::cpu::ReduceKind;

DType sum_dtype(DType in, const Value& dtype) {
  if (!dtype.is_none()) return dtype.dtype();
  return is_floating(in) ? in : DType::kI64;
}

// (self, dim, keepdim, dtype)
TensorSpec sum_infer(const OpArgs& args) {
  const Tensor& self = args.tensor(0);
  return reduced_spec(self, args[1], args[2].boolean(), sum_dtype(self.dtype(), args[3]),
                      args.op_name());
}

TensorSpec mean_infer(const OpArgs& args) {
  const Tensor& self = args.tensor(0);
  const DType dtype = args[3].is_none() ? self.dtype() : args[3].dtype();
  MUSTER_CHECK(is_floating(dtype), ErrorCode::kInvalidArgument,
               "mean: could not infer output dtype: input dtype must be a floating point dtype; "
               "got {}; pass dtype",
               dtype);
  return reduced_spec(self, args[1], args[2].boolean(), dtype, "mean");
}

TensorSpec bool_infer(const OpArgs& args) {
  const Tensor& self = args.tensor(0);
  const DType dtype = self.dtype() == DType::kU8 ? DType::kU8 : DType::kBool;
  return reduced_spec(self, args[1], args[2].boolean(), dtype, args.op_name());
}

TensorSpec count_infer(const OpArgs& args) {
  return reduced_spec(args.tensor(0), args[1], false, DType::kI64, "count_nonzero");
}

void run_reduce(ReduceKind kind, const OpArgs& args, const Tensor& out) {
  Tensor self = args.tensor(0);
  // An integer result of floats truncates each element first.
  if (is_floating(self.dtype()) && !is_floating(out.dtype()) && kind != ReduceKind::kAny &&
      kind != ReduceKind::kAll && kind != ReduceKind::kCountNonzero) {
    self = cast_to(self, out.dtype());
  }
  const DimVector dims = normalized_dims(args[1], self.ndim(), args.op_name());
  kernels::cpu::reduce(kind, ReducedView(out, self.sizes(), dims), self, dims);
}

template <ReduceKind kKind>
void reduce_kernel(const OpArgs& args, std::span<Tensor> outs) {
  run_reduce(kKind, args, outs[0]);
}

GradList sum_derivative(Context c) {
  return {unreduced(c.grad(), c.spec("self").sizes, dims_of(c), c.arg("keepdim").boolean())};
}

int64_t count_over(Dims sizes, Dims dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= sizes[static_cast<size_t>(dim)];
  return count;
}

GradList mean_derivative(Context c) {
  const DimVector dims = dims_of(c);
  const int64_t count = count_over(c.spec("self").sizes, dims);
  return {div(sum_derivative(c)[0], count)};
}

// Right around zeros: each element's gradient is the product of all others, from running products
// of both sides.
Tensor product_of_others(const Tensor& self, int64_t dim) {
  const int64_t size = self.size(dim);
  DimVector one_sizes(self.sizes());
  one_sizes[static_cast<size_t>(dim)] = 1;
  const Tensor one = new_ones(self, one_sizes);
  const Tensor before = cumprod(cat({one, narrow(self, dim, 0, size - 1)}, dim), dim);
  const Dims flipped(&dim, 1);
  const Tensor reversed = flip(narrow(self, dim, 1, size - 1), flipped);
  const Tensor after = flip(cumprod(cat({one, reversed}, dim), dim), flipped);
  return mul(before, after);
}

GradList prod_derivative(Context c) {
  const Tensor self = c.saved("self");
  if (self.ndim() == 0) return {c.grad()};
  if (self.numel() == 0) return {zeros_like(self)};
  if (c.arg("dim").is_none()) {
    const Tensor others = product_of_others(reshape(self, {-1}), 0);
    return {mul(reshape(others, self.sizes()), c.grad())};
  }
  const int64_t dim = wrap_dim(c.arg("dim").integer(), self.ndim(), "prod");
  const Tensor grad = with_dims(c.grad(), Dims(&dim, 1), c.arg("keepdim").boolean());
  return {mul(product_of_others(self, dim), grad)};
}

// (self, dim, correction, keepdim)
DType var_dtype(const OpArgs& args) {
  const DType dtype = args.tensor(0).dtype();
  MUSTER_CHECK(is_floating(dtype), ErrorCode::kInvalidArgument,
               "{}: only support floating point dtypes; got {}", args.op_name(), dtype);
  return dtype;
}

TensorSpec var_infer(const OpArgs& args) {
  return reduced_spec(args.tensor(0), args[1], args[3].boolean(), var_dtype(args), args.op_name());
}

std::vector<TensorSpec> var_mean_infer(const OpArgs& args) {
  return {var_infer(args), var_infer(args)};
}

double correction_of(const Value& value) { return value.is_none() ? 1.0 : value.number(); }

template <bool kRoot>
void var_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  const DimVector dims = normalized_dims(args[1], self.ndim(), args.op_name());
  const ReducedView var(outs[0], self.sizes(), dims);
  TensorView mean;
  std::optional<ReducedView> mean_out;
  if (outs.size() > 1) mean = mean_out.emplace(outs[1], self.sizes(), dims);
  kernels::cpu::var_mean(var, mean, self, dims, correction_of(args[2]), kRoot);
}

// d var = 2 / (n - correction) * (x - mean) * grad, grad given with its dims.
Tensor var_slope(const Tensor& self, const Tensor& grad, Dims dims, double correction) {
  // Without freedom the factor is inf: the slope is nan where the deviation is 0, else infinite.
  const double freedom =
      std::max(0.0, static_cast<double>(count_over(self.sizes(), dims)) - correction);
  const Tensor deviation = sub(self, dims.empty() ? self : mean(self, dims, true));
  return mul(mul(grad, 2.0 / freedom), deviation);
}

Tensor var_grad(Context c, const Tensor& var_grad) {
  const DimVector dims = dims_of(c);
  return var_slope(c.saved("self"), with_dims(var_grad, dims, c.arg("keepdim").boolean()), dims,
                   correction_of(c.arg("correction")));
}

Tensor root_grad(const Tensor& grad, const Tensor& root) {
  return masked_fill(div(grad, mul(root, 2)), eq(root, 0), 0);
}

GradList var_derivative(Context c) { return {var_grad(c, c.grad())}; }
GradList std_derivative(Context c) { return {var_grad(c, root_grad(c.grad(), c.saved("result")))}; }

template <bool kRoot>
GradList var_mean_derivative(Context c) {
  const Tensor self = c.saved("self");
  const DimVector dims = dims_of(c);
  Tensor total;
  if (c.grad(0).defined()) {
    total = var_grad(c, kRoot ? root_grad(c.grad(0), c.saved("result")) : c.grad(0));
  }
  if (c.grad(1).defined()) {
    const Tensor from_mean =
        div(unreduced(c.grad(1), self.sizes(), dims, c.arg("keepdim").boolean()),
            count_over(self.sizes(), dims));
    total = total.defined() ? add(total, from_mean) : from_mean;
  }
  return {total};
}

void nanmean_composite(const OpArgs& args, std::span<Tensor> outs) {
  static const Op& nansum_op = find_op("nansum");
  static const Op& sum_op = find_op("sum");
  const Tensor& self = args.tensor(0);
  MUSTER_CHECK(is_floating(self.dtype()), ErrorCode::kInvalidArgument,
               "nanmean: expected input to have floating point dtype; got {}", self.dtype());
  const Tensor count = call_one(sum_op, logical_not(isnan(self)), args[1], args[2], std::nullopt);
  outs[0] = div(call_one(nansum_op, self, args[1], args[2], args[3]), count);
}

void sum_to_size_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  const Dims size = args[1].ints();
  MUSTER_CHECK(is_expandable_to(size, self.sizes()), ErrorCode::kInvalidArgument,
               "sum_to_size: size {} is not expandable to size {}", to_string(size),
               to_string(self.sizes()));
  const size_t lead = self.sizes().size() - size.size();
  DimVector dims;
  for (size_t i = 0; i < self.sizes().size(); ++i) {
    if (i < lead || (size[i - lead] == 1 && self.sizes()[i] != 1)) {
      dims.push_back(static_cast<int64_t>(i));
    }
  }
  if (dims.empty()) {
    outs[0] = self;
  } else {
    outs[0] = view(sum(self, Dims(dims), true, self.dtype()), size);
  }
}

std::vector<std::string> linear_rules() {
  std::vector<std::string> rules = reduction_rules("P");
  rules.push_back("P -> P");
  return rules;
}

// A mean of means is the mean only where shards are even, which dist/tensor asks of an average.
std::vector<std::string> mean_rules() {
  std::vector<std::string> rules = reduction_rules("P(avg)");
  rules.push_back("P -> P");
  return rules;
}

std::vector<std::string> pair_rules() { return {"S(b) -> S(b/dim), S(b/dim) where b not in dim"}; }

OpDef reduction(const char* schema, InferFn infer, KernelFn kernel, DerivativeFn derivative,
                Saves saves, std::vector<std::string> rules, std::vector<std::string> samples) {
  OpDef def(schema);
  def.infer(infer)
      .kernel(DeviceType::kCpu, kernel)
      .shard(std::move(rules))
      .fusion(FusionClass::kRowReduction)
      .samples(std::move(samples));
  if (derivative != nullptr) {
    def.derivative(derivative, std::move(saves));
  } else {
    def.not_differentiable("the result is a count or a truth value");
  }
  return def;
}
}  // namespace

MUSTER_DEFINE_OPS(sums) {
  using enum ReduceKind;
  table.add(reduction(
      "sum(Tensor self, int[]? dim=None, bool keepdim=False, *, ScalarType? "
      "dtype=None) -> Tensor",
      sum_infer, reduce_kernel<kSum>, sum_derivative, {}, linear_rules(),
      {"f(2,3), None, false, None", "f(2,3,4), [0,-1], true, None", "i(2,3), [0], false, None"}));
  table.add(
      reduction("mean(Tensor self, int[]? dim=None, bool keepdim=False, *, ScalarType? "
                "dtype=None) -> Tensor",
                mean_infer, reduce_kernel<kMean>, mean_derivative, {}, mean_rules(),
                {"f(2,3), None, false, None", "f(2,3,4), [1], true, None"}));
  table.add(
      reduction("nansum(Tensor self, int[]? dim=None, bool keepdim=False, *, ScalarType? "
                "dtype=None) -> Tensor",
                sum_infer, reduce_kernel<kNansum>,
                [](Context c) -> GradList {
                  return {where(isnan(c.saved("self")), 0.0, sum_derivative(c)[0])};
                },
                {"self"}, reduction_rules("P"), {"f(2,3), None, false, None"}));
  table.add(
      composed("nanmean(Tensor self, int[]? dim=None, bool keepdim=False, *, ScalarType? "
               "dtype=None) -> Tensor",
               nanmean_composite, {"f(2,3), [1], false, None"}));
  table.add(reduction("prod(Tensor self, int? dim=None, bool keepdim=False, *, ScalarType? "
                      "dtype=None) -> Tensor",
                      sum_infer, reduce_kernel<kProd>, prod_derivative, {"self"},
                      reduction_rules("P(product)"),
                      {"f(2,3), None, false, None", "f(2,3), 1, true, None"})
                .autocast(AutocastClass::kFloat32));
  table.add(reduction("any(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor", bool_infer,
                      reduce_kernel<kAny>, nullptr, {}, reduction_rules(), {"b(2,3), [1], false"}));
  table.add(reduction("all(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor", bool_infer,
                      reduce_kernel<kAll>, nullptr, {}, reduction_rules(), {"b(2,3), [1], false"}));
  table.add(reduction("count_nonzero(Tensor self, int[]? dim=None) -> Tensor", count_infer,
                      reduce_kernel<kCountNonzero>, nullptr, {}, reduction_rules("P"),
                      {"i(2,3), [1]"}));

  table.add(
      reduction("var(Tensor self, int[]? dim=None, *, Scalar? correction=None, bool "
                "keepdim=False) -> Tensor",
                var_infer, var_kernel<false>, var_derivative, {"self"}, reduction_rules(),
                {"f(2,3), [1], 1, false", "f(2,3), None, 0, true"}));
  table.add(
      reduction("std(Tensor self, int[]? dim=None, *, Scalar? correction=None, bool "
                "keepdim=False) -> (Tensor result)",
                var_infer, var_kernel<true>, std_derivative, {"self", "result"}, reduction_rules(),
                {"f(2,3), [1], 1, false", "f(2,3), None, 0, true"}));
  table.add(reduction("var_mean(Tensor self, int[]? dim=None, *, Scalar? correction=None, bool "
                      "keepdim=False) -> (Tensor result, Tensor mean)",
                      nullptr, var_kernel<false>, var_mean_derivative<false>, {"self"},
                      pair_rules(), {"f(2,3), [1], 1, false"})
                .infer(var_mean_infer));
  table.add(reduction("std_mean(Tensor self, int[]? dim=None, *, Scalar? correction=None, bool "
                      "keepdim=False) -> (Tensor result, Tensor mean)",
                      nullptr, var_kernel<true>, var_mean_derivative<true>, {"self", "result"},
                      pair_rules(), {"f(2,3), [1], 1, false"})
                .infer(var_mean_infer));
  table.add(composed("sum_to_size(Tensor self, int[] size) -> Tensor", sum_to_size_composite,
                     {"f(2,3), [1,3]", "f(2,3), [3]", "f(2,3), []"}));
}
}  // namespace muster::ops

namespace muster {
using ops::find_op;

Tensor sum(const Tensor& self, OptionalDType dtype) {
  static const Op& op = find_op("sum");
  return call_one(op, self, std::nullopt, false, dtype);
}
Tensor sum(const Tensor& self, Dims dim, bool keepdim, OptionalDType dtype) {
  static const Op& op = find_op("sum");
  return call_one(op, self, dim, keepdim, dtype);
}
Tensor sum(const Tensor& self, int64_t dim, bool keepdim, OptionalDType dtype) {
  return sum(self, Dims(&dim, 1), keepdim, dtype);
}
Tensor mean(const Tensor& self, OptionalDType dtype) {
  static const Op& op = find_op("mean");
  return call_one(op, self, std::nullopt, false, dtype);
}
Tensor mean(const Tensor& self, Dims dim, bool keepdim, OptionalDType dtype) {
  static const Op& op = find_op("mean");
  return call_one(op, self, dim, keepdim, dtype);
}
Tensor mean(const Tensor& self, int64_t dim, bool keepdim, OptionalDType dtype) {
  return mean(self, Dims(&dim, 1), keepdim, dtype);
}
Tensor nansum(const Tensor& self, OptionalDType dtype) {
  static const Op& op = find_op("nansum");
  return call_one(op, self, std::nullopt, false, dtype);
}
Tensor prod(const Tensor& self, OptionalDType dtype) {
  static const Op& op = find_op("prod");
  return call_one(op, self, std::nullopt, false, dtype);
}
Tensor prod(const Tensor& self, int64_t dim, bool keepdim, OptionalDType dtype) {
  static const Op& op = find_op("prod");
  return call_one(op, self, dim, keepdim, dtype);
}
Tensor any(const Tensor& self, Dims dim, bool keepdim) {
  static const Op& op = find_op("any");
  return call_one(op, self, dim, keepdim);
}
Tensor all(const Tensor& self, Dims dim, bool keepdim) {
  static const Op& op = find_op("all");
  return call_one(op, self, dim, keepdim);
}
Tensor count_nonzero(const Tensor& self, Dims dim) {
  static const Op& op = find_op("count_nonzero");
  return call_one(op, self, dim);
}
Tensor var(const Tensor& self, double correction) { return var(self, {}, correction); }
Tensor var(const Tensor& self, Dims dim, double correction, bool keepdim) {
  static const Op& op = find_op("var");
  return call_one(op, self, dim, correction, keepdim);
}
Tensor std(const Tensor& self, double correction) { return std(self, {}, correction); }
Tensor std(const Tensor& self, Dims dim, double correction, bool keepdim) {
  static const Op& op = find_op("std");
  return call_one(op, self, dim, correction, keepdim);
}
std::array<Tensor, 2> var_mean(const Tensor& self, Dims dim, double correction, bool keepdim) {
  static const Op& op = find_op("var_mean");
  return call_many<2>(op, self, dim, correction, keepdim);
}
Tensor sum_to_size(const Tensor& self, Dims size) {
  static const Op& op = find_op("sum_to_size");
  return call_one(op, self, size);
}
}  // namespace muster
