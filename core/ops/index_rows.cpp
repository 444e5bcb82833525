// Indexing along one dim: index_select, index_add, index_copy, index_fill, gather, scatter.
#include "core/kernels/cpu/copy.h"
#include "core/kernels/cpu/index.h"
#include "core/ops/creation.h"
#include "core/ops/indexing.h"
#include "core/ops/op_support.h"
#include "core/ops/pointwise.h"
#include "core/ops/reduction.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
using Context = const BackwardContext&;
using kernels::cpu::ScatterKind;
namespace cpu = kernels::cpu;

int64_t dim_of(const OpArgs& args) {
  return wrap_dim(args[1].integer(), args.tensor(0).ndim(), args.op_name());
}

void check_index(const Tensor& index, const char* operation) {
  MUSTER_CHECK(index.dtype() == DType::kI64 || index.dtype() == DType::kI32,
               ErrorCode::kInvalidArgument,
               "{}: expected dtype int32 or int64 for index; got index {}", operation, index);
}

void check_rows(const OpArgs& args) {
  const Tensor& index = args.tensor(2);
  check_index(index, args.op_name());
  MUSTER_CHECK(index.ndim() <= 1, ErrorCode::kInvalidArgument,
               "{}: index is supposed to be a vector (1-D); got {}", args.op_name(), index);
}

TensorSpec self_infer(const OpArgs& args) {
  const Tensor& self = args.tensor(0);
  return TensorSpec::contiguous(self.sizes(), self.dtype(), self.device());
}

TensorSpec select_infer(const OpArgs& args) {
  check_rows(args);
  const Tensor& self = args.tensor(0);
  const auto dim = static_cast<size_t>(dim_of(args));
  DimVector sizes(self.sizes());
  if (!sizes.empty()) sizes[dim] = args.tensor(2).numel();
  return TensorSpec::contiguous(sizes, self.dtype(), self.device());
}

// A 0-dim tensor is a vector of one element here.
struct AsVector {
  explicit AsVector(const Tensor& tensor) : layout(tensor.layout()) {
    if (tensor.ndim() == 0) layout = unsqueeze_layout(layout, 0);
    view = view_with(tensor, layout);
  }
  AsVector(const AsVector&) = delete;
  AsVector& operator=(const AsVector&) = delete;
  Layout layout;
  TensorView view;
};

void select_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const AsVector out(outs[0]), self(args.tensor(0)), index(args.tensor(2));
  cpu::index_select(out.view, self.view, dim_of(args), index.view);
}

GradList select_derivative(Context c) {
  const TensorSpec& self = c.spec("self");
  const Tensor zero = new_zeros(c.grad(), self.sizes);
  return {index_add(zero, c.arg("dim").integer(), c.saved("index"), c.grad()), {}};
}

// (self, dim, index, source, ..): source has self's sizes but for `dim`.
TensorSpec index_rows_infer(const OpArgs& args) {
  check_rows(args);
  const Tensor &self = args.tensor(0), &index = args.tensor(2), &source = args.tensor(3);
  MUSTER_CHECK(self.dtype() == source.dtype(), ErrorCode::kInvalidArgument,
               "{}: self and source expected to have the same dtype; got (self) {} and (source) {}",
               args.op_name(), self.dtype(), source.dtype());
  const int64_t rows = source.ndim() == 0 ? 1 : source.size(dim_of(args));
  MUSTER_CHECK(index.numel() == rows, ErrorCode::kInvalidArgument,
               "{}: number of indices ({}) should be equal to source.size(dim) ({}) for dim {}",
               args.op_name(), index.numel(), rows, dim_of(args));
  DimVector wanted(self.sizes());
  if (!wanted.empty()) wanted[static_cast<size_t>(dim_of(args))] = rows;
  MUSTER_CHECK(same_sizes(wanted, source.sizes()) || (self.ndim() <= 1 && source.numel() == rows),
               ErrorCode::kInvalidArgument,
               "{}: source tensor shape must match self tensor shape, excluding dimension {}; got "
               "self {} and source {}",
               args.op_name(), dim_of(args), to_string(self.sizes()), to_string(source.sizes()));
  return self_infer(args);
}

TensorSpec fill_infer(const OpArgs& args) {
  check_rows(args);
  dim_of(args);
  MUSTER_CHECK(!args[3].is_tensor() || args.tensor(3).ndim() == 0, ErrorCode::kInvalidArgument,
               "index_fill: only supports a 0-dimensional value tensor; got {}",
               args[3].describe());
  const Tensor& self = args.tensor(0);
  return {DimVector(self.sizes()), preserved_strides(self.sizes(), self.strides()), self.dtype(),
          self.device()};
}

// Functional forms begin with a copy; in-place ones find self there.
void begin(const OpArgs& args, std::span<Tensor> outs) {
  if (!outs[0].is_same(args.tensor(0))) cpu::copy(outs[0], args.tensor(0));
}

void add_kernel(const OpArgs& args, std::span<Tensor> outs) {
  begin(args, outs);
  const AsVector out(outs[0]), index(args.tensor(2)), source(args.tensor(3));
  cpu::index_add(out.view, dim_of(args), index.view, source.view, args[4].scalar());
}

void copy_kernel(const OpArgs& args, std::span<Tensor> outs) {
  begin(args, outs);
  const AsVector out(outs[0]), index(args.tensor(2)), source(args.tensor(3));
  cpu::index_copy(out.view, dim_of(args), index.view, source.view);
}

Scalar number_of(const Value& value) {
  if (!value.is_tensor()) return value.scalar();
  const Tensor& tensor = value.tensor();
  return is_floating(tensor.dtype()) ? Scalar(tensor.item()) : Scalar(tensor.item_int());
}

void fill_kernel(const OpArgs& args, std::span<Tensor> outs) {
  begin(args, outs);
  const AsVector out(outs[0]), index(args.tensor(2));
  cpu::index_fill(out.view, dim_of(args), index.view, number_of(args[3]));
}

GradList add_derivative(Context c) {
  const auto source = [&] {
    const Tensor rows = index_select(c.grad(), c.arg("dim").integer(), c.saved("index"));
    const Tensor grad = reshape(rows, c.spec("source").sizes);
    const Scalar alpha = c.arg("alpha").scalar();
    return alpha.to_double() == 1.0 ? grad : mul(grad, alpha);
  };
  return {c.grad(), {}, c.needs("source") ? source() : Tensor()};
}

GradList copy_derivative(Context c) {
  const int64_t dim = c.arg("dim").integer();
  const Tensor index = c.saved("index");
  return {c.needs("self") ? index_fill(c.grad(), dim, index, 0) : Tensor(),
          {},
          c.needs("source") ? reshape(index_select(c.grad(), dim, index), c.spec("source").sizes)
                            : Tensor()};
}

// The value is written once to each place, however often the index names it.
GradList fill_derivative(Context c) {
  const int64_t dim = c.arg("dim").integer();
  const Tensor index = c.saved("index");
  const auto value = [&] {
    const Tensor written = index_fill(zeros_like(c.grad(), DType::kBool), dim, index, true);
    return sum(where(written, c.grad(), 0));
  };
  return {c.needs("self") ? index_fill(c.grad(), dim, index, 0) : Tensor(),
          {},
          c.needs("value") ? value() : Tensor()};
}

// No dim of `index` may exceed that of `other`, `free` (the indexed one) excepted.
void check_fits(const Tensor& index, const Tensor& other, int64_t free, const char* operation) {
  if (index.numel() == 0) return;
  const int64_t mine = std::max<int64_t>(index.ndim(), 1);
  const int64_t theirs = std::max<int64_t>(other.ndim(), 1);
  bool fits = mine == theirs;
  for (int64_t d = 0; fits && d < index.ndim(); ++d) {
    fits = d == free || other.ndim() == 0 || index.size(d) <= other.size(d);
  }
  MUSTER_CHECK(fits, ErrorCode::kInvalidArgument,
               "{}: index must have the same number of dimensions, and no size beyond it{}; got "
               "index {} and {}",
               operation, free >= 0 ? fmt::format(" apart from dimension {}", free) : "",
               to_string(index.sizes()), to_string(other.sizes()));
}

TensorSpec gather_infer(const OpArgs& args) {
  const Tensor &self = args.tensor(0), &index = args.tensor(2);
  check_index(index, "gather");
  check_fits(index, self, dim_of(args), "gather");
  return TensorSpec::contiguous(index.sizes(), self.dtype(), self.device());
}

void gather_kernel(const OpArgs& args, std::span<Tensor> outs) {
  if (outs[0].numel() == 0) return;
  const AsVector out(outs[0]), self(args.tensor(0)), index(args.tensor(2));
  cpu::gather(out.view, self.view, dim_of(args), index.view);
}

GradList gather_derivative(Context c) {
  const TensorSpec& self = c.spec("self");
  const Tensor zero = new_zeros(c.grad(), self.sizes);
  return {scatter_add(zero, c.arg("dim").integer(), c.saved("index"), c.grad()), {}};
}

TensorSpec scatter_infer(const OpArgs& args) {
  const Tensor &self = args.tensor(0), &index = args.tensor(2);
  check_index(index, args.op_name());
  check_fits(index, self, dim_of(args), args.op_name());
  if (args[3].is_tensor()) {
    const Tensor& src = args.tensor(3);
    MUSTER_CHECK(src.dtype() == self.dtype(), ErrorCode::kInvalidArgument,
                 "{}: expected self.dtype to be equal to src.dtype; got {} and {}", args.op_name(),
                 self.dtype(), src.dtype());
    check_fits(index, src, -1, args.op_name());
  }
  return self_infer(args);
}

template <ScatterKind kKind>
void scatter_kernel(const OpArgs& args, std::span<Tensor> outs) {
  begin(args, outs);
  const Tensor& index = args.tensor(2);
  if (index.numel() == 0) return;
  const AsVector out(outs[0]), places(index);
  if (args[3].is_tensor()) {
    const AsVector src(args.tensor(3));
    return cpu::scatter(kKind, out.view, dim_of(args), places.view, src.view);
  }
  const KernelOperand number(args[3], outs[0].dtype(), places.layout.sizes);
  cpu::scatter(kKind, out.view, dim_of(args), places.view, number);
}

// The gradient of src: what gather reads, zero where src is larger than index.
Tensor gathered(Context c, const char* src) {
  const Tensor index = c.saved("index");
  Tensor grad = gather(c.grad(), c.arg("dim").integer(), index);
  const DimVector& whole = c.spec(src).sizes;
  if (same_sizes(whole, grad.sizes())) return grad;
  static const Op& widen = find_op("slice_backward");
  for (size_t d = 0; d < whole.size(); ++d) {
    DimVector sizes(grad.sizes());
    if (sizes[d] == whole[d]) continue;
    const int64_t end = std::exchange(sizes[d], whole[d]);
    grad = call_one(widen, grad, sizes, static_cast<int64_t>(d), 0, end, 1);
  }
  return grad;
}

GradList scatter_derivative(Context c) {
  return {
      c.needs("self") ? scatter(c.grad(), c.arg("dim").integer(), c.saved("index"), 0) : Tensor(),
      {},
      c.needs("src") ? gathered(c, "src") : Tensor()};
}

GradList scatter_add_derivative(Context c) {
  return {c.grad(), {}, c.needs("src") ? gathered(c, "src") : Tensor()};
}

constexpr const char* kAnyRow = "an index may name a row of any shard";

OpDef along_dim(const char* schema, InferFn infer, KernelFn kernel, DerivativeFn derivative,
                std::vector<std::string> samples) {
  return OpDef(schema)
      .infer(infer)
      .kernel(DeviceType::kCpu, kernel)
      .derivative(derivative, {"index"})
      .samples(std::move(samples));
}
}  // namespace

MUSTER_DEFINE_OPS(index_rows) {
  table.add(along_dim("index_select(Tensor self, int dim, Tensor index) -> Tensor", select_infer,
                      select_kernel, select_derivative, {"f(4,3), 0, x4(3)", "f(2,4), -1, x4(2)"})
                .shard({"S(b), R -> S(b) where b != dim", "P, R -> P"}));
  table.add(along_dim("index_add(Tensor self, int dim, Tensor index, Tensor source, *, Scalar "
                      "alpha=1) -> Tensor",
                      index_rows_infer, add_kernel, add_derivative, {"f(4,3), 0, x4(2), f(2,3), 1"})
                .replicate_only(kAnyRow)
                .in_place());
  table.add(along_dim("index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor",
                      index_rows_infer, copy_kernel, copy_derivative, {"f(4,3), 0, x4(2), f(2,3)"})
                .autocast(AutocastClass::kPromote)
                .replicate_only(kAnyRow)
                .in_place());
  table.add(along_dim("index_fill(Tensor self, int dim, Tensor index, Tensor value) -> Tensor",
                      fill_infer, fill_kernel, fill_derivative, {"f(4,3), 0, x4(2), 0.5"})
                .replicate_only(kAnyRow)
                .in_place());
  table.add(along_dim("gather(Tensor self, int dim, Tensor index) -> Tensor", gather_infer,
                      gather_kernel, gather_derivative, {"f(4,3), 0, x4(2,3)"})
                .replicate_only(kAnyRow));
  table.add(along_dim("scatter(Tensor self, int dim, Tensor index, Tensor src) -> Tensor",
                      scatter_infer, scatter_kernel<ScatterKind::kAssign>, scatter_derivative,
                      {"f(4,3), 0, x4(2,3), f(2,3)", "f(4,3), 0, x4(2,3), 0.5"})
                .replicate_only(kAnyRow)
                .in_place());
  table.add(along_dim("scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor",
                      scatter_infer, scatter_kernel<ScatterKind::kSum>, scatter_add_derivative,
                      {"f(4,3), 0, x4(2,3), f(2,3)"})
                .replicate_only(kAnyRow)
                .in_place());
}
}  // namespace muster::ops

namespace muster {
using ops::find_op;

Tensor index_select(const Tensor& self, int64_t dim, const Tensor& index) {
  static const Op& op = find_op("index_select");
  return call_one(op, self, dim, index);
}
Tensor index_add(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source,
                 Scalar alpha) {
  static const Op& op = find_op("index_add");
  return call_one(op, self, dim, index, source, alpha);
}
Tensor index_add_(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source,
                  Scalar alpha) {
  static const Op& op = find_op("index_add_");
  return call_one(op, self, dim, index, source, alpha);
}
Tensor index_copy(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source) {
  static const Op& op = find_op("index_copy");
  return call_one(op, self, dim, index, source);
}
Tensor index_fill(const Tensor& self, int64_t dim, const Tensor& index, const Operand& value) {
  static const Op& op = find_op("index_fill");
  return call_one(op, self, dim, index, value);
}
Tensor gather(const Tensor& self, int64_t dim, const Tensor& index) {
  static const Op& op = find_op("gather");
  return call_one(op, self, dim, index);
}
Tensor scatter(const Tensor& self, int64_t dim, const Tensor& index, const Operand& src) {
  static const Op& op = find_op("scatter");
  return call_one(op, self, dim, index, src);
}
Tensor scatter_(const Tensor& self, int64_t dim, const Tensor& index, const Operand& src) {
  static const Op& op = find_op("scatter_");
  return call_one(op, self, dim, index, src);
}
Tensor scatter_add(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src) {
  static const Op& op = find_op("scatter_add");
  return call_one(op, self, dim, index, src);
}
Tensor scatter_add_(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src) {
  static const Op& op = find_op("scatter_add_");
  return call_one(op, self, dim, index, src);
}
}  // namespace muster
