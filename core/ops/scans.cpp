// Running sums, products and extremes along one dim.
#include <limits>

#include "core/kernels/cpu/scan.h"
#include "core/ops/indexing.h"
#include "core/ops/op_support.h"
#include "core/ops/pointwise.h"
#include "core/ops/reduction.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
using Context = const BackwardContext&;
using kernels::cpu::ScanKind;

// (self, dim, dtype): row-major, integers give i64.
TensorSpec scan_infer(const OpArgs& args) {
  const Tensor& self = args.tensor(0);
  wrap_dim(args[1].integer(), self.ndim(), args.op_name());
  DType dtype = is_floating(self.dtype()) ? self.dtype() : DType::kI64;
  if (!args[2].is_none()) dtype = args[2].dtype();
  return TensorSpec::contiguous(self.sizes(), dtype, self.device());
}

// (self, dim)
TensorSpec float_scan_infer(const OpArgs& args) {
  const Tensor& self = args.tensor(0);
  wrap_dim(args[1].integer(), self.ndim(), args.op_name());
  MUSTER_CHECK(is_floating(self.dtype()), ErrorCode::kInvalidArgument, "{}: not implemented for {}",
               args.op_name(), self.dtype());
  return TensorSpec::contiguous(self.sizes(), self.dtype(), self.device());
}

std::vector<TensorSpec> extreme_scan_infer(const OpArgs& args) {
  const Tensor& self = args.tensor(0);
  wrap_dim(args[1].integer(), self.ndim(), args.op_name());
  return {TensorSpec::contiguous(self.sizes(), self.dtype(), self.device()),
          TensorSpec::contiguous(self.sizes(), DType::kI64, self.device())};
}

template <ScanKind kKind>
void scan_kernel(const OpArgs& args, std::span<Tensor> outs) {
  Tensor self = args.tensor(0);
  if (is_floating(self.dtype()) != is_floating(outs[0].dtype())) {
    self = cast_to(self, outs[0].dtype());
  }
  if (self.ndim() == 0) {
    return kernels::cpu::scan(kKind, view_with(outs[0], unsqueeze_layout(outs[0].layout(), 0)),
                              view_with(self, unsqueeze_layout(self.layout(), 0)), 0);
  }
  kernels::cpu::scan(kKind, outs[0], self, wrap_dim(args[1].integer(), self.ndim(), "scan"));
}

template <bool kLargest>
void extreme_scan_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  if (self.ndim() == 0) {
    const Layout in = unsqueeze_layout(self.layout(), 0),
                 values = unsqueeze_layout(outs[0].layout(), 0),
                 indices = unsqueeze_layout(outs[1].layout(), 0);
    return kernels::cpu::scan_extreme(kLargest, view_with(outs[0], values),
                                      view_with(outs[1], indices), view_with(self, in), 0);
  }
  kernels::cpu::scan_extreme(kLargest, outs[0], outs[1], self,
                             wrap_dim(args[1].integer(), self.ndim(), "scan"));
}

int64_t scanned_dim(Context c) {
  return wrap_dim(c.arg("dim").integer(), static_cast<int64_t>(c.spec("self").sizes.size()),
                  "scan");
}

// Running sum from the end.
Tensor sum_from_end(const Tensor& x, int64_t dim) {
  if (x.ndim() == 0 || x.numel() <= 1 || x.size(dim) == 1) return x;
  return flip(cumsum(flip(x, Dims(&dim, 1)), dim), Dims(&dim, 1));
}

GradList cumsum_derivative(Context c) { return {sum_from_end(c.grad(), scanned_dim(c))}; }

// dx[k] = sum over i >= k of grad[i] * product of x[j], j <= i, j != k. Divides by x where no
// element is 0 and nothing is recorded; else one step per k.
GradList cumprod_derivative(Context c) {
  const Tensor self = c.saved("self");
  if (self.ndim() == 0 || self.numel() == 0) return {c.grad()};
  const int64_t dim = scanned_dim(c), size = self.size(dim);
  if (size == 1) return {c.grad()};
  const bool divides = !c.create_graph() && !self.is_meta() && all(self).item_int() != 0;
  if (divides) return {div(sum_from_end(mul(c.grad(), c.saved("result")), dim), self)};
  DimVector one_sizes(self.sizes());
  one_sizes[static_cast<size_t>(dim)] = 1;
  const Tensor one = new_ones(self, one_sizes);
  std::vector<Tensor> slopes;
  Tensor before = one;
  for (int64_t k = 0; k < size; ++k) {
    const Tensor after = cumprod(cat({one, narrow(self, dim, k + 1, size - k - 1)}, dim), dim);
    const Tensor later = mul(narrow(c.grad(), dim, k, size - k), after);
    slopes.push_back(mul(before, sum(later, dim, true)));
    before = mul(before, narrow(self, dim, k, 1));
  }
  return {cat(slopes, dim)};
}

// sum over i >= k of grad[i] * exp(x[k] - result[i]), positive and negative parts in log space.
GradList logcumsumexp_derivative(Context c) {
  const Tensor self = c.saved("self"), result = c.saved("result");
  if (self.ndim() == 0 || self.numel() == 0) return {c.grad()};
  const int64_t dim = scanned_dim(c);
  const Dims flipped(&dim, 1);
  const double low = -std::numeric_limits<double>::infinity();
  const auto part = [&](const Tensor& magnitude) {
    // Masked before and after the logarithm, so that no derivative of this meets 0 / 0 or inf -
    // inf.
    const Tensor counts = gt(magnitude, 0);
    const Tensor logs = sub(log(where(counts, magnitude, 1)), result);
    const Tensor masked = flip(where(counts, logs, low), flipped);
    const Tensor scanned = flip(logcumsumexp(masked, dim), flipped);
    return exp(add(scanned, self));
  };
  return {sub(part(c.grad()), part(neg(c.grad())))};
}

GradList extreme_scan_derivative(Context c) {
  const TensorSpec& self = c.spec("self");
  if (self.sizes.empty()) return {c.grad()};
  return {
      scatter_add(new_zeros(c.grad(), self.sizes), scanned_dim(c), c.saved("indices"), c.grad())};
}

constexpr const char* kOneRule = "S(b) -> S(b) where b != dim";
constexpr const char* kTwoRule = "S(b) -> S(b), S(b) where b != dim";

OpDef scan_op(const char* schema, KernelFn kernel, DerivativeFn derivative, Saves saves,
              const char* rule, std::vector<std::string> samples) {
  return OpDef(schema)
      .kernel(DeviceType::kCpu, kernel)
      .derivative(derivative, std::move(saves))
      .shard({rule})
      .samples(std::move(samples));
}
}  // namespace

MUSTER_DEFINE_OPS(scans) {
  table.add(scan_op("cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor",
                    scan_kernel<ScanKind::kSum>, cumsum_derivative, {}, kOneRule,
                    {"f(2,3), 1, None", "i(2,3), 0, None"})
                .infer(scan_infer)
                .shard({kOneRule, "P -> P"}));
  table.add(scan_op("cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> (Tensor result)",
                    scan_kernel<ScanKind::kProd>, cumprod_derivative, {"self", "result"}, kOneRule,
                    {"f(2,3), 1, None"})
                .infer(scan_infer));
  table.add(scan_op("logcumsumexp(Tensor self, int dim) -> (Tensor result)",
                    scan_kernel<ScanKind::kLogsumexp>, logcumsumexp_derivative, {"self", "result"},
                    kOneRule, {"f(2,3), 1"})
                .infer(float_scan_infer));
  table.add(scan_op("cummax(Tensor self, int dim) -> (Tensor values, Tensor indices)",
                    extreme_scan_kernel<true>, extreme_scan_derivative, {"indices"}, kTwoRule,
                    {"f(2,3), 1"})
                .infer(extreme_scan_infer));
  table.add(scan_op("cummin(Tensor self, int dim) -> (Tensor values, Tensor indices)",
                    extreme_scan_kernel<false>, extreme_scan_derivative, {"indices"}, kTwoRule,
                    {"f(2,3), 1"})
                .infer(extreme_scan_infer));
}
}  // namespace muster::ops

namespace muster {
using ops::find_op;

Tensor cumsum(const Tensor& self, int64_t dim, OptionalDType dtype) {
  static const Op& op = find_op("cumsum");
  return call_one(op, self, dim, dtype);
}
Tensor cumprod(const Tensor& self, int64_t dim, OptionalDType dtype) {
  static const Op& op = find_op("cumprod");
  return call_one(op, self, dim, dtype);
}
Tensor logcumsumexp(const Tensor& self, int64_t dim) {
  static const Op& op = find_op("logcumsumexp");
  return call_one(op, self, dim);
}
std::array<Tensor, 2> cummax(const Tensor& self, int64_t dim) {
  static const Op& op = find_op("cummax");
  return call_many<2>(op, self, dim);
}
std::array<Tensor, 2> cummin(const Tensor& self, int64_t dim) {
  static const Op& op = find_op("cummin");
  return call_many<2>(op, self, dim);
}
}  // namespace muster
