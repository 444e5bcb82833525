// Views of a part: select, slice, diagonal, unfold; and the operators that put such a part's
// gradient back into zeros of the whole's sizes.
#include <limits>

#include "core/kernels/cpu/copy.h"
#include "core/kernels/cpu/pointwise.h"
#include "core/ops/creation.h"
#include "core/ops/op_support.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
Layout select_part(const Layout& in, std::span<const Value> where) {
  return select_layout(in, where[0].integer(), where[1].integer());
}

Layout slice_part(const Layout& in, std::span<const Value> where) {
  const int64_t start = where[1].is_none() ? 0 : where[1].integer();
  const int64_t end = where[2].is_none() ? std::numeric_limits<int64_t>::max() : where[2].integer();
  return slice_layout(in, where[0].integer(), start, end, where[3].integer());
}

Layout diagonal_part(const Layout& in, std::span<const Value> where) {
  return diagonal_layout(in, where[0].integer(), where[1].integer(), where[2].integer());
}

Layout unfold_part(const Layout& in, std::span<const Value> where) {
  return unfold_layout(in, where[0].integer(), where[1].integer(), where[2].integer());
}

using PartFn = Layout (*)(const Layout& in, std::span<const Value> where);

// x -> part(x, where..)
template <PartFn kPart>
Layout part_view(const OpArgs& args, size_t) {
  return kPart(args.tensor(0).layout(), args.values().subspan(1));
}

// (grad, sizes, where..): the inverse, zero outside the part.
TensorSpec put_back_infer(const OpArgs& args) {
  return TensorSpec::contiguous(args[1].ints(), args.tensor(0).dtype(), args.tensor(0).device());
}

template <PartFn kPart>
void put_back_kernel(const OpArgs& args, std::span<Tensor> outs) {
  kernels::cpu::fill(outs[0], 0);
  const Layout part = kPart(outs[0].layout(), args.values().subspan(2));
  kernels::cpu::copy(view_with(outs[0], part), args.tensor(0));
}

// Windows overlap, so that they are added one index of the window after the other.
void unfold_put_back_kernel(const OpArgs& args, std::span<Tensor> outs) {
  kernels::cpu::fill(outs[0], 0);
  const Layout windows = unfold_part(outs[0].layout(), args.values().subspan(2));
  const Layout grad = args.tensor(0).layout();
  const int64_t last = static_cast<int64_t>(windows.sizes.size()) - 1;
  for (int64_t i = 0; i < windows.sizes.back(); ++i) {
    const Layout to = select_layout(windows, last, i), from = select_layout(grad, last, i);
    const TensorView sum = view_with(outs[0], to);
    kernels::cpu::binary(kernels::cpu::BinaryKind::kAdd, sum, sum, view_with(args.tensor(0), from));
  }
}

void narrow_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  MUSTER_CHECK(self.ndim() > 0, ErrorCode::kInvalidArgument,
               "narrow: cannot be applied to a 0-dim tensor");
  const int64_t size = self.size(args[1].integer()), length = args[3].integer();
  int64_t start = args[2].integer();
  MUSTER_CHECK(length >= 0, ErrorCode::kInvalidArgument,
               "narrow: length must be non-negative; got {}", length);
  MUSTER_CHECK(start >= -size && start <= size, ErrorCode::kOutOfRange,
               "narrow: start must be in range [{}, {}]; got {}", -size, size, start);
  if (start < 0) start += size;
  MUSTER_CHECK(start <= size - length, ErrorCode::kInvalidArgument,
               "narrow: start ({}) + length ({}) exceeds dimension size ({})", start, length, size);
  outs[0] = slice(self, args[1].integer(), start, start + length, 1);
}

OpDef part(const char* schema, ViewFn layout, DerivativeFn derivative,
           std::vector<std::string> samples) {
  return OpDef(schema)
      .view(layout)
      .derivative(derivative)
      .shard({"P -> P"})
      .fusion(FusionClass::kView)
      .samples(std::move(samples));
}

OpDef put_back(const char* schema, KernelFn kernel, DerivativeFn derivative,
               std::vector<std::string> samples) {
  return OpDef(schema)
      .infer(put_back_infer)
      .kernel(DeviceType::kCpu, kernel)
      .derivative(derivative)
      .shard({"P -> P"})
      .samples(std::move(samples));
}
}  // namespace

MUSTER_DEFINE_OPS(views_slice) {
  table.add(part("select(Tensor(a) self, int dim, int index) -> Tensor(a)", part_view<select_part>,
                 [](const BackwardContext& c) -> GradList {
                   static const Op& op = find_op("select_backward");
                   return {
                       call_one(op, c.grad(), c.spec("self").sizes, c.arg("dim"), c.arg("index"))};
                 },
                 {"f(2,3), 0, 1", "f(2,3), -1, -2"})
                .shard({"S(b) -> S(b/dim) where b != dim", "P -> P"})
                .shard({"S(b) -> S(b/dim) where b != dim", "P -> P"}));
  table.add(part("slice(Tensor(a) self, int dim=0, int? start=None, int? end=None, int step=1) -> "
                 "Tensor(a)",
                 part_view<slice_part>,
                 [](const BackwardContext& c) -> GradList {
                   static const Op& op = find_op("slice_backward");
                   return {call_one(op, c.grad(), c.spec("self").sizes, c.arg("dim"),
                                    c.arg("start"), c.arg("end"), c.arg("step"))};
                 },
                 {"f(5,3), 0, 1, 4, 2", "f(5,3), 1, None, -1, 1"})
                .shard({"S(b) -> S(b) where b != dim", "P -> P"}));
  table.add(part("diagonal(Tensor(a) self, int offset=0, int dim1=0, int dim2=1) -> Tensor(a)",
                 part_view<diagonal_part>,
                 [](const BackwardContext& c) -> GradList {
                   static const Op& op = find_op("diagonal_backward");
                   return {call_one(op, c.grad(), c.spec("self").sizes, c.arg("offset"),
                                    c.arg("dim1"), c.arg("dim2"))};
                 },
                 {"f(3,3), 0, 0, 1", "f(2,3,4), 1, -1, 0"}));
  table.add(part("unfold(Tensor(a) self, int dimension, int size, int step) -> Tensor(a)",
                 part_view<unfold_part>,
                 [](const BackwardContext& c) -> GradList {
                   static const Op& op = find_op("unfold_backward");
                   return {call_one(op, c.grad(), c.spec("self").sizes, c.arg("dimension"),
                                    c.arg("size"), c.arg("step"))};
                 },
                 {"f(7), 0, 3, 2", "f(2,5), 1, 2, 1"})
                .shard({"S(b) -> S(b) where b != dimension", "P -> P"}));
  table.add(composed("narrow(Tensor(a) self, int dim, int start, int length) -> Tensor(a)",
                     narrow_composite, {"f(5,3), 0, 1, 3"}));

  table.add(put_back("select_backward(Tensor grad, int[] sizes, int dim, int index) -> Tensor",
                     put_back_kernel<select_part>,
                     [](const BackwardContext& c) -> GradList {
                       return {select(c.grad(), c.arg("dim").integer(), c.arg("index").integer())};
                     },
                     {"f(3), [2,3], 0, 1"}));
  table.add(put_back(
      "slice_backward(Tensor grad, int[] sizes, int dim, int? start, int? end, int "
      "step) -> Tensor",
      put_back_kernel<slice_part>,
      [](const BackwardContext& c) -> GradList {
        static const Op& op = find_op("slice");
        return {call_one(op, c.grad(), c.arg("dim"), c.arg("start"), c.arg("end"), c.arg("step"))};
      },
      {"f(2,3), [5,3], 0, 1, 4, 2"}));
  table.add(
      put_back("diagonal_backward(Tensor grad, int[] sizes, int offset, int dim1, int dim2) "
               "-> Tensor",
               put_back_kernel<diagonal_part>,
               [](const BackwardContext& c) -> GradList {
                 return {diagonal(c.grad(), c.arg("offset").integer(), c.arg("dim1").integer(),
                                  c.arg("dim2").integer())};
               },
               {"f(3), [3,3], 0, 0, 1"}));
  table.add(
      put_back("unfold_backward(Tensor grad, int[] sizes, int dimension, int size, int step) "
               "-> Tensor",
               unfold_put_back_kernel,
               [](const BackwardContext& c) -> GradList {
                 return {unfold(c.grad(), c.arg("dimension").integer(), c.arg("size").integer(),
                                c.arg("step").integer())};
               },
               {"f(3,3), [7], 0, 3, 2"}));
}
}  // namespace muster::ops

namespace muster {
using ops::find_op;

Tensor select(const Tensor& self, int64_t dim, int64_t index) {
  static const Op& op = find_op("select");
  return call_one(op, self, dim, index);
}

Tensor slice(const Tensor& self, int64_t dim, std::optional<int64_t> start,
             std::optional<int64_t> end, int64_t step) {
  static const Op& op = find_op("slice");
  return call_one(op, self, dim, start, end, step);
}

Tensor narrow(const Tensor& self, int64_t dim, int64_t start, int64_t length) {
  static const Op& op = find_op("narrow");
  return call_one(op, self, dim, start, length);
}

Tensor diagonal(const Tensor& self, int64_t offset, int64_t dim1, int64_t dim2) {
  static const Op& op = find_op("diagonal");
  return call_one(op, self, offset, dim1, dim2);
}

Tensor unfold(const Tensor& self, int64_t dimension, int64_t size, int64_t step) {
  static const Op& op = find_op("unfold");
  return call_one(op, self, dimension, size, step);
}
}  // namespace muster
