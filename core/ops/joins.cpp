// Joins and rearranging copies: cat, stack, repeat, flip, roll, tril, triu.
#include "core/kernels/cpu/copy.h"
#include "core/ops/creation.h"
#include "core/ops/op_support.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
// An empty vector joins with anything, as PyTorch keeps allowing.
bool is_skipped(Dims sizes) { return sizes.size() == 1 && sizes[0] == 0; }

const Tensor* first_joined(std::span<const Tensor> tensors) {
  for (const Tensor& tensor : tensors) {
    if (!is_skipped(tensor.sizes())) return &tensor;
  }
  return &tensors.front();
}

TensorSpec cat_infer(const OpArgs& args) {
  const std::span<const Tensor> tensors = args[0].tensors();
  MUSTER_CHECK(!tensors.empty(), ErrorCode::kInvalidArgument,
               "cat: expected a non-empty list of tensors; got none");
  for (size_t i = 0; i < tensors.size(); ++i) {
    MUSTER_CHECK(tensors[i].ndim() > 0, ErrorCode::kInvalidArgument,
                 "cat: a zero-dimensional tensor (at position {}) cannot be concatenated; use "
                 "stack",
                 i);
  }
  const Tensor& first = *first_joined(tensors);
  const auto dim = static_cast<size_t>(wrap_dim(args[1].integer(), first.ndim(), "cat"));
  DimVector sizes(first.sizes());
  sizes[dim] = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Dims own = tensors[i].sizes();
    if (is_skipped(own)) continue;
    bool fits = own.size() == sizes.size();
    for (size_t d = 0; fits && d < own.size(); ++d) fits = d == dim || own[d] == sizes[d];
    MUSTER_CHECK(fits, ErrorCode::kInvalidArgument,
                 "cat: sizes of tensors must match except in dimension {}; expected {} like the "
                 "first, got {} for tensor number {} in the list",
                 dim, to_string(first.sizes()), to_string(own), i);
    sizes[dim] += own[dim];
  }
  const DType dtype = result_type(args.values().first(1));
  // All in one order of dims (channels last, for one): the result keeps it.
  TensorSpec spec = TensorSpec::contiguous(sizes, dtype, common_device(args.values()));
  return spec;
}

void cat_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const std::span<const Tensor> tensors = args[0].tensors();
  const int64_t dim = wrap_dim(args[1].integer(), outs[0].ndim(), "cat");
  int64_t start = 0;
  for (const Tensor& tensor : tensors) {
    if (is_skipped(tensor.sizes())) continue;
    const int64_t end = start + tensor.size(dim);
    const Layout place = slice_layout(outs[0].layout(), dim, start, end, 1);
    kernels::cpu::copy(view_with(outs[0], place), tensor);
    start = end;
  }
}

GradList cat_derivative(const BackwardContext& c) {
  const int64_t dim = wrap_dim(c.arg("dim").integer(), c.grad().ndim(), "cat");
  GradList grads;
  int64_t start = 0;
  for (size_t i = 0; i < c.list_size("tensors"); ++i) {
    const TensorSpec& spec = c.spec("tensors", i);
    if (is_skipped(spec.sizes)) {
      grads.push_back(new_zeros(c.grad(), {0}));
      continue;
    }
    const int64_t length = spec.sizes[static_cast<size_t>(dim)];
    grads.push_back(narrow(c.grad(), dim, start, length));
    start += length;
  }
  return grads;
}

void stack_composite(const OpArgs& args, std::span<Tensor> outs) {
  const std::span<const Tensor> tensors = args[0].tensors();
  MUSTER_CHECK(!tensors.empty(), ErrorCode::kInvalidArgument,
               "stack: expected a non-empty list of tensors; got none");
  const int64_t dim = wrap_dim(args[1].integer(), tensors[0].ndim() + 1, "stack");
  std::vector<Tensor> rows;
  rows.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    MUSTER_CHECK(same_sizes(tensors[i].sizes(), tensors[0].sizes()), ErrorCode::kInvalidArgument,
                 "stack: each tensor must be equal size, but got {} at entry 0 and {} at entry {}",
                 to_string(tensors[0].sizes()), to_string(tensors[i].sizes()), i);
    rows.push_back(unsqueeze(tensors[i], dim));
  }
  outs[0] = cat(rows, dim);
}

void repeat_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  const Dims repeats = args[1].ints();
  MUSTER_CHECK(static_cast<int64_t>(repeats.size()) >= self.ndim(), ErrorCode::kInvalidArgument,
               "repeat: number of dimensions of repeat dims can not be smaller than number of "
               "dimensions of tensor; got {} for {}",
               to_string(repeats), self);
  const size_t lead = repeats.size() - self.sizes().size();
  DimVector apart, wide, joined;
  for (size_t i = 0; i < repeats.size(); ++i) {
    const int64_t size = i < lead ? 1 : self.sizes()[i - lead];
    MUSTER_CHECK(repeats[i] >= 0, ErrorCode::kInvalidArgument,
                 "repeat: repeats must not be negative; got {}", to_string(repeats));
    for (const int64_t part : {int64_t{1}, size}) apart.push_back(part);
    for (const int64_t part : {repeats[i], size}) wide.push_back(part);
    joined.push_back(repeats[i] * size);
  }
  const Tensor copied = clone(expand(reshape(self, apart), wide), MemoryFormat::kContiguous);
  outs[0] = view(copied, joined);
}

TensorSpec flip_infer(const OpArgs& args) {
  const Tensor& self = args.tensor(0);
  if (!args[1].ints().empty()) normalized_dims(args[1], self.ndim(), "flip");
  return {DimVector(self.sizes()), preserved_strides(self.sizes(), self.strides()), self.dtype(),
          self.device()};
}

void flip_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  Layout from = self.layout();
  for (const int64_t given : args[1].ints()) {
    if (self.ndim() == 0 || self.numel() == 0) break;
    const auto dim = static_cast<size_t>(wrap_dim(given, self.ndim(), "flip"));
    from.offset += (from.sizes[dim] - 1) * from.strides[dim];
    from.strides[dim] = -from.strides[dim];
  }
  kernels::cpu::copy(outs[0], view_with(self, from));
}

void roll_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  const Dims shifts = args[1].ints(), dims = args[2].ints();
  MUSTER_CHECK(!shifts.empty(), ErrorCode::kInvalidArgument, "roll: `shifts` required; got none");
  if (dims.empty()) {
    MUSTER_CHECK(shifts.size() == 1, ErrorCode::kInvalidArgument,
                 "roll: shifts and dimensions must align; got shifts {} and no dims",
                 to_string(shifts));
    const int64_t dim = 0;
    outs[0] = view(roll(reshape(self, {-1}), shifts, Dims(&dim, 1)), self.sizes());
    return;
  }
  MUSTER_CHECK(shifts.size() == dims.size(), ErrorCode::kInvalidArgument,
               "roll: shifts and dimensions must align; got shifts {} and dims {}",
               to_string(shifts), to_string(dims));
  Tensor rolled = self;
  for (size_t k = 0; k < dims.size(); ++k) {
    const int64_t size = self.size(dims[k]);
    const int64_t shift = size == 0 ? 0 : ((shifts[k] % size) + size) % size;
    rolled = cat(
        {narrow(rolled, dims[k], size - shift, shift), narrow(rolled, dims[k], 0, size - shift)},
        dims[k]);
  }
  outs[0] = rolled;
}

TensorSpec triangle_infer(const OpArgs& args) {
  const Tensor& self = args.tensor(0);
  MUSTER_CHECK(self.ndim() >= 2, ErrorCode::kInvalidArgument,
               "{}: input tensor must have at least 2 dimensions; got {}", args.op_name(), self);
  return TensorSpec::contiguous(self.sizes(), self.dtype(), self.device());
}

void tril_kernel(const OpArgs& args, std::span<Tensor> outs) {
  kernels::cpu::tril(outs[0], args.tensor(0), args[1].integer());
}
void triu_kernel(const OpArgs& args, std::span<Tensor> outs) {
  kernels::cpu::triu(outs[0], args.tensor(0), args[1].integer());
}
}  // namespace

MUSTER_DEFINE_OPS(joins) {
  table.add(OpDef("cat(Tensor[] tensors, int dim=0) -> Tensor")
                .infer(cat_infer)
                .kernel(DeviceType::kCpu, cat_kernel)
                .derivative(cat_derivative)
                .shard({"S(b) -> S(b) where b != dim", "P -> P"})
                .autocast(AutocastClass::kPromote)
                .samples({"[f(2,3), f(1,3)], 0", "[f(2,3), f(2,2)], -1"}));
  table.add(composed("stack(Tensor[] tensors, int dim=0) -> Tensor", stack_composite,
                     {"[f(2,3), f(2,3)], 0", "[f(2), f(2)], -1"}));
  table.add(composed("repeat(Tensor self, int[] repeats) -> Tensor", repeat_composite,
                     {"f(2,3), [2,1]", "f(3), [2,2]"}));
  table.add(OpDef("flip(Tensor self, int[] dims) -> Tensor")
                .infer(flip_infer)
                .kernel(DeviceType::kCpu, flip_kernel)
                .derivative([](const BackwardContext& c) -> GradList {
                  return {flip(c.grad(), c.arg("dims").ints())};
                })
                .shard({"S(b) -> S(b) where b not in dims", "P -> P"})
                .samples({"f(2,3), [0]", "f(2,3).t, [0,1]"}));
  table.add(composed("roll(Tensor self, int[] shifts, int[] dims) -> Tensor", roll_composite,
                     {"f(2,3), [1], [0]", "f(2,3), [-2], []"}));
  table.add(OpDef("tril(Tensor self, int diagonal=0) -> Tensor")
                .infer(triangle_infer)
                .kernel(DeviceType::kCpu, tril_kernel)
                .in_place()
                .derivative([](const BackwardContext& c) -> GradList {
                  return {tril(c.grad(), c.arg("diagonal").integer())};
                })
                .shard({"S(b) -> S(b) where b < ndim(self) - 2", "P -> P"})
                .samples({"f(3,3), 0", "f(2,3,4), -1"}));
  table.add(OpDef("triu(Tensor self, int diagonal=0) -> Tensor")
                .infer(triangle_infer)
                .kernel(DeviceType::kCpu, triu_kernel)
                .in_place()
                .derivative([](const BackwardContext& c) -> GradList {
                  return {triu(c.grad(), c.arg("diagonal").integer())};
                })
                .shard({"S(b) -> S(b) where b < ndim(self) - 2", "P -> P"})
                .samples({"f(3,3), 0", "f(2,3,4), 1"}));
}
}  // namespace muster::ops

namespace muster {
using ops::find_op;

Tensor cat(std::span<const Tensor> tensors, int64_t dim) {
  static const Op& op = find_op("cat");
  return call_one(op, tensors, dim);
}
Tensor stack(std::span<const Tensor> tensors, int64_t dim) {
  static const Op& op = find_op("stack");
  return call_one(op, tensors, dim);
}
Tensor repeat(const Tensor& self, Dims repeats) {
  static const Op& op = find_op("repeat");
  return call_one(op, self, repeats);
}
Tensor flip(const Tensor& self, Dims dims) {
  static const Op& op = find_op("flip");
  return call_one(op, self, dims);
}
Tensor roll(const Tensor& self, Dims shifts, Dims dims) {
  static const Op& op = find_op("roll");
  return call_one(op, self, shifts, dims);
}
Tensor tril(const Tensor& self, int64_t diagonal) {
  static const Op& op = find_op("tril");
  return call_one(op, self, diagonal);
}
Tensor triu(const Tensor& self, int64_t diagonal) {
  static const Op& op = find_op("triu");
  return call_one(op, self, diagonal);
}
}  // namespace muster
