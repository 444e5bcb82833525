// Advanced indexing and masks: index, index_put, masked_select, nonzero, take, one_hot.
//
// Lists of index tensors and masks are first made one i64 tensor [k, b..] with the k dims that it
// indexes: that form alone is recorded, so that a derivative saves one tensor.
#include "core/kernels/cpu/copy.h"
#include "core/kernels/cpu/index.h"
#include "core/ops/creation.h"
#include "core/ops/indexing.h"
#include "core/ops/op_support.h"
#include "core/ops/pointwise.h"
#include "core/ops/reduction.h"
#include "core/ops/views.h"
#include "core/tensor/wrapper_hooks.h"

namespace muster::ops {
namespace {
using Context = const BackwardContext&;
namespace cpu = kernels::cpu;

void check_has_data(const Tensor& tensor, const char* operation) {
  MUSTER_CHECK(!tensor.is_meta(), ErrorCode::kFailedPrecondition,
               "{}: the size of the result depends on data; got {}", operation, tensor);
}

TensorSpec nonzero_infer(const OpArgs& args) {
  const Tensor& self = args.tensor(0);
  check_has_data(self, "nonzero");
  // One column after the other, as PyTorch lays them, so that each is dense.
  const int64_t count = cpu::count_nonzero(self);
  return {{count, self.ndim()}, {1, count}, DType::kI64, self.device()};
}

void nonzero_kernel(const OpArgs& args, std::span<Tensor> outs) {
  if (outs[0].numel() > 0) cpu::nonzero(outs[0], args.tensor(0));
}

// The arrangement of an indexed result: which dims of self go where.
struct Arrangement {
  DimVector order;      // dims of self, indexed ones first
  DimVector out_sizes;  // of the result
  DimVector out_order;  // dims of the result, those of the index first
};

Arrangement arrange(Dims self, Dims index_sizes, Dims dims) {
  Arrangement a;
  const size_t n = self.size(), k = dims.size(), b = index_sizes.size();
  const bool adjacent = dims[k - 1] - dims[0] == static_cast<int64_t>(k) - 1;
  const size_t place = adjacent ? static_cast<size_t>(dims[0]) : 0;
  DimVector rest;
  for (size_t d = 0; d < n; ++d) {
    if (std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) == dims.end()) {
      rest.push_back(static_cast<int64_t>(d));
    }
  }
  for (const int64_t d : dims) a.order.push_back(d);
  for (const int64_t d : rest) a.order.push_back(d);
  for (size_t i = 0; i < place; ++i) a.out_sizes.push_back(self[static_cast<size_t>(rest[i])]);
  for (const int64_t size : index_sizes) a.out_sizes.push_back(size);
  for (size_t i = place; i < rest.size(); ++i) {
    a.out_sizes.push_back(self[static_cast<size_t>(rest[i])]);
  }
  for (size_t i = 0; i < b; ++i) a.out_order.push_back(static_cast<int64_t>(place + i));
  for (size_t i = 0; i < rest.size(); ++i) {
    a.out_order.push_back(static_cast<int64_t>(i < place ? i : i + b));
  }
  return a;
}

// (self, index, dims, ..)
Arrangement arrangement_of(const OpArgs& args) {
  return arrange(args.tensor(0).sizes(), args.tensor(1).sizes().subspan(1), args[2].ints());
}

TensorSpec index_infer(const OpArgs& args) {
  const Tensor &self = args.tensor(0), &index = args.tensor(1);
  const Arrangement a = arrangement_of(args);
  // The result lies as self does, without its indexed dims, and then as the indices do.
  const size_t n = a.out_sizes.size(), b = index.sizes().size() - 1, k = args[2].ints().size();
  DimVector from_self(n), index_sizes(n, 1), from_index(n);
  for (size_t i = 0; i < n; ++i) {
    const auto to = static_cast<size_t>(a.out_order[i]);
    if (i < b) {
      index_sizes[to] = index.sizes()[i + 1];
      from_index[to] = index.strides()[i + 1];
    } else {
      from_self[to] = self.strides()[static_cast<size_t>(a.order[i - b + k])];
    }
  }
  const StridedShape operands[] = {{a.out_sizes, from_self}, {index_sizes, from_index}};
  return {a.out_sizes, result_strides(operands, a.out_sizes), self.dtype(), self.device()};
}

// Rows of the stacked index as kernels want them: one view per indexed dim.
struct IndexViews {
  explicit IndexViews(const Tensor& index) {
    layouts.reserve(static_cast<size_t>(index.size(0)));
    for (int64_t i = 0; i < index.size(0); ++i) {
      layouts.push_back(select_layout(index.layout(), 0, i));
      views.push_back(view_with(index, layouts.back()));
    }
  }
  std::vector<Layout> layouts;
  std::vector<TensorView> views;
};

// Runs a kernel; an error then also says which dimensions are indexed.
template <typename Body>
void with_index_context(const OpArgs& args, const Body& body) {
  try {
    body();
  } catch (Error& error) {
    error.add_context(fmt::format("indexed dimension {} of size {}", to_string(args[2].ints()),
                                  to_string(args.tensor(0).sizes())));
    throw;
  }
}

void index_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Arrangement a = arrangement_of(args);
  const IndexViews indices(args.tensor(1));
  const Layout out = permute_layout(outs[0].layout(), a.out_order);
  const Layout in = permute_layout(args.tensor(0).layout(), a.order);
  with_index_context(args, [&] {
    cpu::index(view_with(outs[0], out), view_with(args.tensor(0), in), indices.views);
  });
}

Tensor index_stacked(const Tensor& self, const Tensor& index, const Value& dims) {
  static const Op& op = find_op("index_stacked");
  return call_one(op, self, index, dims);
}

Tensor put_stacked(const Tensor& self, const Tensor& index, const Value& dims,
                   const Operand& values, bool accumulate) {
  static const Op& op = find_op("index_put_stacked");
  return call_one(op, self, index, dims, values, accumulate);
}

GradList index_derivative(Context c) {
  const TensorSpec& self = c.spec("self");
  const Tensor zero = new_zeros(c.grad(), self.sizes);
  return {put_stacked(zero, c.saved("index"), c.arg("dims"), c.grad(), true), {}};
}

// (self, index, dims, values, accumulate)
TensorSpec put_infer(const OpArgs& args) {
  const Tensor& self = args.tensor(0);
  const Arrangement a = arrangement_of(args);
  if (args[3].is_tensor()) {
    const Tensor& values = args.tensor(3);
    MUSTER_CHECK(values.dtype() == self.dtype(), ErrorCode::kInvalidArgument,
                 "index_put: requires the source and destination dtypes match; got {} for the "
                 "destination and {} for the source",
                 self.dtype(), values.dtype());
    MUSTER_CHECK(is_expandable_to(values.sizes(), a.out_sizes), ErrorCode::kInvalidArgument,
                 "index_put: shape mismatch: value tensor of shape {} cannot be broadcast to "
                 "indexing result of shape {}",
                 to_string(values.sizes()), to_string(Dims(a.out_sizes)));
  }
  return {DimVector(self.sizes()), preserved_strides(self.sizes(), self.strides()), self.dtype(),
          self.device()};
}

void put_kernel(const OpArgs& args, std::span<Tensor> outs) {
  if (!outs[0].is_same(args.tensor(0))) cpu::copy(outs[0], args.tensor(0));
  const Arrangement a = arrangement_of(args);
  if (numel_of(a.out_sizes) == 0) return;
  const IndexViews indices(args.tensor(1));
  const KernelOperand values(args[3], outs[0].dtype(), a.out_sizes);
  const TensorView& wide = values;
  const Layout arranged = permute_layout({wide.sizes, wide.strides, 0}, a.out_order);
  const Layout out = permute_layout(outs[0].layout(), a.order);
  const TensorView source(wide.data, wide.dtype, arranged.sizes, arranged.strides);
  with_index_context(args, [&] {
    cpu::index_put(view_with(outs[0], out), indices.views, source, args[4].boolean());
  });
}

// Of several writes to one place the last stays, so that it alone has a gradient.
Tensor last_writes(Context c, const Tensor& index, const Tensor& read) {
  const Value dims = c.arg("dims");
  const Tensor order = as_constant_beside(reshape(arange(0, read.numel()), read.sizes()), read);
  const Tensor none =
      as_constant_beside(zeros(c.spec("self").sizes, DType::kI64, read.device()), read);
  const Tensor latest = put_stacked(none, index, dims, order, false);
  return where(eq(index_stacked(latest, index, dims), order), read, 0);
}

GradList put_derivative(Context c) {
  const Tensor index = c.saved("index");
  const Value dims = c.arg("dims");
  const bool accumulate = c.arg("accumulate").boolean();
  GradList grads(3);
  if (c.needs("self")) {
    grads[0] = accumulate ? c.grad() : put_stacked(c.grad(), index, dims, 0, false);
  }
  if (c.needs("values")) {
    const Tensor read = index_stacked(c.grad(), index, dims);
    grads[2] = sum_to_size(accumulate ? read : last_writes(c, index, read), c.spec("values").sizes);
  }
  return grads;
}

struct Stacked {
  Tensor index;  // i64 [k, b..]
  DimVector dims;
};

// Masks become the coordinates of their true elements; all index tensors are broadcast together.
Stacked stack_indices(const Tensor& self, std::span<const Tensor> indices, const char* operation) {
  Stacked out;
  std::vector<Tensor> rows;
  int64_t dim = 0;
  for (const Tensor& index : indices) {
    const bool is_mask =
        index.defined() && (index.dtype() == DType::kBool || index.dtype() == DType::kU8);
    const int64_t width = is_mask ? index.ndim() : 1;
    MUSTER_CHECK(dim + width <= self.ndim(), ErrorCode::kOutOfRange,
                 "{}: too many indices for tensor of dimension {} (got {})", operation, self.ndim(),
                 indices.size());
    if (is_mask) {
      for (int64_t d = 0; d < width; ++d) {
        MUSTER_CHECK(index.size(d) == self.size(dim + d), ErrorCode::kOutOfRange,
                     "{}: the shape of the mask {} at index {} does not match the shape of the "
                     "indexed tensor {} at index {}",
                     operation, to_string(index.sizes()), d, to_string(self.sizes()), dim + d);
      }
      for (const Tensor& column : unbind(nonzero(index), 1)) rows.push_back(column);
    } else if (index.defined()) {
      MUSTER_CHECK(index.dtype() == DType::kI64 || index.dtype() == DType::kI32,
                   ErrorCode::kInvalidArgument,
                   "{}: tensors used as indices must be long, int or bool tensors; got {}",
                   operation, index);
      rows.push_back(to(index, DType::kI64));
    }
    for (int64_t d = 0; index.defined() && d < width; ++d) out.dims.push_back(dim + d);
    dim += width;
  }
  MUSTER_CHECK(!rows.empty(), ErrorCode::kInvalidArgument,
               "{}: at least one index tensor must be given", operation);
  DimVector sizes;
  for (const Tensor& row : rows) {
    try {
      sizes = broadcast_sizes(sizes, row.sizes(), operation);
    } catch (Error& error) {
      error.add_context("shape mismatch: indexing tensors could not be broadcast together");
      throw;
    }
  }
  for (Tensor& row : rows) row = expand(row, sizes);
  out.index = stack(rows, 0);
  return out;
}

void index_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Stacked at = stack_indices(args.tensor(0), args[1].tensors(), "index");
  outs[0] = index_stacked(args.tensor(0), at.index, Value(at.dims));
}

void index_put_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Stacked at = stack_indices(args.tensor(0), args[1].tensors(), "index_put");
  outs[0] =
      put_stacked(args.tensor(0), at.index, Value(at.dims), Operand(args[2]), args[3].boolean());
}

void index_put_in_place_composite(const OpArgs& args, std::span<Tensor> outs) {
  static const Op& op = find_op("index_put_stacked_");
  const Stacked at = stack_indices(args.tensor(0), args[1].tensors(), "index_put_");
  outs[0] = call_one(op, args[0], at.index, at.dims, args[2], args[3]);
}

void masked_select_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor &self = args.tensor(0), &mask = args.tensor(1);
  MUSTER_CHECK(mask.dtype() == DType::kBool, ErrorCode::kInvalidArgument,
               "masked_select: expected BoolTensor for mask; got {}", mask);
  const DimVector sizes = broadcast_sizes(self.sizes(), mask.sizes(), "masked_select");
  if (sizes.empty()) {
    outs[0] = index(reshape(self, {1}), {reshape(mask, {1})});
  } else {
    outs[0] = index(expand(self, sizes), {expand(mask, sizes)});
  }
}

void take_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& where = args.tensor(1);
  MUSTER_CHECK(where.dtype() == DType::kI64, ErrorCode::kInvalidArgument,
               "take: expected a long tensor for index; got {}", where);
  outs[0] = index(reshape(args.tensor(0), {-1}), {where});
}

void take_along_dim_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor &self = args.tensor(0), &indices = args.tensor(1);
  MUSTER_CHECK(indices.dtype() == DType::kI64, ErrorCode::kInvalidArgument,
               "take_along_dim: dtype of indices should be Long; got {}", indices.dtype());
  if (args[2].is_none()) {
    outs[0] = gather(reshape(self, {-1}), 0, reshape(indices, {-1}));
    return;
  }
  MUSTER_CHECK(self.ndim() == indices.ndim(), ErrorCode::kInvalidArgument,
               "take_along_dim: input and indices should have the same number of dimensions; got "
               "{} and {}",
               self.ndim(), indices.ndim());
  const int64_t dim = wrap_dim(args[2].integer(), self.ndim(), "take_along_dim");
  const auto d = static_cast<size_t>(dim);
  DimVector self_sizes(self.sizes()), index_sizes(indices.sizes());
  self_sizes[d] = index_sizes[d] = 1;
  const DimVector common = broadcast_sizes(self_sizes, index_sizes, "take_along_dim");
  self_sizes = index_sizes = common;
  self_sizes[d] = self.size(dim);
  index_sizes[d] = indices.size(dim);
  outs[0] = gather(expand(self, self_sizes), dim, expand(indices, index_sizes));
}

TensorSpec one_hot_infer(const OpArgs& args) {
  const Tensor& self = args.tensor(0);
  DimVector sizes(self.sizes());
  sizes.push_back(args[1].integer());
  return TensorSpec::contiguous(sizes, DType::kI64, self.device());
}

void one_hot_kernel(const OpArgs& args, std::span<Tensor> outs) {
  try {
    cpu::one_hot(outs[0], args.tensor(0));
  } catch (Error& error) {
    error.add_context(
        fmt::format("class values must be smaller than num_classes, {}", args[1].integer()));
    throw;
  }
}

void one_hot_composite(const OpArgs& args, std::span<Tensor> outs) {
  static const Op& op = find_op("one_hot_classes");
  const Tensor& self = args.tensor(0);
  int64_t classes = args[1].integer();
  MUSTER_CHECK(self.dtype() == DType::kI64, ErrorCode::kInvalidArgument,
               "one_hot: is only applicable to index tensor of type long; got {}", self);
  if (classes == -1) {
    check_has_data(self, "one_hot");
    MUSTER_CHECK(self.numel() > 0, ErrorCode::kInvalidArgument,
                 "one_hot: can not infer total number of classes from empty tensor");
    classes = max(self).item_int() + 1;
  }
  MUSTER_CHECK(classes > 0, ErrorCode::kInvalidArgument,
               "one_hot: num_classes should be positive; got {}", classes);
  outs[0] = call_one(op, self, classes);
}

constexpr const char* kAnyElement = "an index may name an element of any shard";
}  // namespace

MUSTER_DEFINE_OPS(index_places) {
  table.add(OpDef("nonzero(Tensor self) -> Tensor")
                .infer(nonzero_infer)
                .kernel(DeviceType::kCpu, nonzero_kernel)
                .not_differentiable("the result is places")
                .replicate_only("the size of the result depends on data")
                .samples({"b(2,3)"}));
  table.add(OpDef("index_stacked(Tensor self, Tensor index, int[] dims) -> Tensor")
                .infer(index_infer)
                .kernel(DeviceType::kCpu, index_kernel)
                .derivative(index_derivative, {"index"})
                .replicate_only(kAnyElement)
                .samples({"f(4,3), x3(1,2), [0]", "f(3,4,3), x3(2,2), [0,2]"}));
  table.add(
      OpDef("index_put_stacked(Tensor self, Tensor index, int[] dims, Tensor values, bool "
            "accumulate=False) -> Tensor")
          .infer(put_infer)
          .kernel(DeviceType::kCpu, put_kernel)
          .in_place()
          .derivative(put_derivative, {"index"})
          .replicate_only(kAnyElement)
          .samples({"f(4,3), x3(1,2), [0], f(2,3), true", "f(4,3), x3(1,2), [0], f(3), false"}));
  table.add(composed("index(Tensor self, Tensor?[] indices) -> Tensor", index_composite,
                     {"f(4,3), [x4(2)]"}));
  table.add(
      composed("index_put(Tensor self, Tensor?[] indices, Tensor values, bool "
               "accumulate=False) -> Tensor",
               index_put_composite, {"f(4,3), [x4(2)], f(2,3), true"}));
  table.add(composed("index_put_(Tensor(a!) self, Tensor?[] indices, Tensor values, bool "
                     "accumulate=False) -> Tensor(a!)",
                     index_put_in_place_composite, {"f(4,3), [x4(2)], f(2,3), true"})
                .only_in_place());
  table.add(composed("masked_select(Tensor self, Tensor mask) -> Tensor", masked_select_composite,
                     {"f(2,3), b(2,3)"}));
  table.add(
      composed("take(Tensor self, Tensor index) -> Tensor", take_composite, {"f(2,3), x6(4)"}));
  table.add(composed("take_along_dim(Tensor self, Tensor indices, int? dim=None) -> Tensor",
                     take_along_dim_composite, {"f(4,3), x4(2,3), 0", "f(2,3), x6(4), None"}));
  table.add(OpDef("one_hot_classes(Tensor self, int num_classes) -> Tensor")
                .infer(one_hot_infer)
                .kernel(DeviceType::kCpu, one_hot_kernel)
                .not_differentiable("the input is classes")
                .shard({"S(b) -> S(b)"})
                .samples({"x3(2), 3"}));
  table.add(composed("one_hot(Tensor self, int num_classes=-1) -> Tensor", one_hot_composite,
                     {"x3(2), 3", "x3(4), -1"}));
}
}  // namespace muster::ops

namespace muster {
using ops::find_op;

Tensor take_along_dim(const Tensor& self, const Tensor& indices, std::optional<int64_t> dim) {
  static const Op& op = find_op("take_along_dim");
  return call_one(op, self, indices, dim);
}
Tensor take(const Tensor& self, const Tensor& index) {
  static const Op& op = find_op("take");
  return call_one(op, self, index);
}
Tensor index(const Tensor& self, std::span<const Tensor> indices) {
  static const Op& op = find_op("index");
  return call_one(op, self, indices);
}
Tensor index_put(const Tensor& self, std::span<const Tensor> indices, const Operand& values,
                 bool accumulate) {
  static const Op& op = find_op("index_put");
  return call_one(op, self, indices, values, accumulate);
}
Tensor index_put_(const Tensor& self, std::span<const Tensor> indices, const Operand& values,
                  bool accumulate) {
  static const Op& op = find_op("index_put_");
  return call_one(op, self, indices, values, accumulate);
}
Tensor masked_select(const Tensor& self, const Tensor& mask) {
  static const Op& op = find_op("masked_select");
  return call_one(op, self, mask);
}
Tensor nonzero(const Tensor& self) {
  static const Op& op = find_op("nonzero");
  return call_one(op, self);
}
Tensor one_hot(const Tensor& self, int64_t num_classes) {
  static const Op& op = find_op("one_hot");
  return call_one(op, self, num_classes);
}
}  // namespace muster
