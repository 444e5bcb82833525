// rope: rotary position embedding.
#include "core/kernels/cpu/rope.h"

#include <array>

#include "core/ops/creation.h"
#include "core/ops/matrix_fold.h"
#include "core/ops/nn.h"
#include "core/ops/op_support.h"
#include "core/ops/pointwise.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
using Context = const BackwardContext&;

// Sizes of cos and sin after broadcasting: those of the input, but half the turned features.
DimVector table_sizes(const Tensor& input, const Tensor& cos) {
  DimVector sizes(input.sizes());
  sizes.back() = cos.size(-1);
  return sizes;
}

// (input, cos, sin, interleaved, inverse)
TensorSpec infer(const OpArgs& args) {
  const Tensor &input = args.tensor(0), &cos = args.tensor(1), &sin = args.tensor(2);
  MUSTER_CHECK(input.ndim() >= 1 && is_floating(input.dtype()), ErrorCode::kInvalidArgument,
               "rope: input must be floating and have a dim; got {}", input);
  for (const Tensor* table : {&cos, &sin}) {
    const bool fits = table->ndim() >= 1 && 2 * table->size(-1) <= input.size(-1) &&
                      table->size(-1) == cos.size(-1) &&
                      is_expandable_to(table->sizes(), table_sizes(input, cos));
    MUSTER_CHECK(fits, ErrorCode::kInvalidArgument,
                 "rope: cos and sin must broadcast to [.., R/2] for input [.., D], R <= D; got cos "
                 "{} and sin {} for input {}",
                 cos, sin, input);
    MUSTER_CHECK(
        table->dtype() == input.dtype() || table->dtype() == statistics_dtype(input.dtype()),
        ErrorCode::kInvalidArgument,
        "rope: cos and sin must have input's dtype or {}; got {} for input {}",
        statistics_dtype(input.dtype()), *table, input);
  }
  return {DimVector(input.sizes()), preserved_strides(input.sizes(), input.strides()),
          input.dtype(), input.device()};
}

void kernel(const OpArgs& args, std::span<Tensor> outs) {
  const DimVector sizes = table_sizes(args.tensor(0), args.tensor(1));
  const KernelOperand cos(args[1], DType::kF32, sizes), sin(args[2], DType::kF32, sizes);
  kernels::cpu::rope(outs[0], args.tensor(0), cos, sin,
                     {.interleaved = args[3].boolean(), .inverse = args[4].boolean()});
}

Tensor turn(const Tensor& input, const Tensor& cos, const Tensor& sin, bool interleaved,
            bool inverse) {
  static const Op& op = find_op("rope");
  return call_one(op, input, cos, sin, interleaved, inverse);
}

// The first and the second features of all pairs.
std::array<Tensor, 2> pairs_of(const Tensor& x, int64_t half, bool interleaved) {
  const Tensor turned = narrow(x, -1, 0, 2 * half);
  if (!interleaved) return {narrow(turned, -1, 0, half), narrow(turned, -1, half, half)};
  const Tensor pairs = unflatten(turned, -1, {half, 2});
  return {select(pairs, -1, 0), select(pairs, -1, 1)};
}

// The input's gradient is the turn back, which is also the transpose. With the turned pair
// (a cos - b sin, b cos + a sin) and its gradient (g, h): dcos = g a + h b, dsin = h a - g b.
GradList derivative(Context c) {
  const bool interleaved = c.arg("interleaved").boolean(), inverse = c.arg("inverse").boolean();
  GradList grads(3);
  if (c.needs("input")) {
    grads[0] = turn(c.grad(), c.saved("cos"), c.saved("sin"), interleaved, !inverse);
  }
  if (!c.needs("cos") && !c.needs("sin")) return grads;
  const DType wide = statistics_dtype(c.spec("input").dtype);
  const int64_t half = c.spec("cos").sizes.back();
  const auto [a, b] = pairs_of(to(c.saved("input"), wide), half, interleaved);
  const auto [g, h] = pairs_of(to(c.grad(), wide), half, interleaved);
  if (c.needs("cos")) grads[1] = add(mul(g, a), mul(h, b));
  if (c.needs("sin")) {
    grads[2] = inverse ? sub(mul(g, b), mul(h, a)) : sub(mul(h, a), mul(g, b));
  }
  return grads;
}
}  // namespace

MUSTER_DEFINE_OP(rope) {
  return OpDef(
             "rope(Tensor input, Tensor cos, Tensor sin, *, bool interleaved=False, bool "
             "inverse=False) -> Tensor")
      .infer(infer)
      .kernel(DeviceType::kCpu, kernel)
      .derivative(derivative, {"cos for input", "sin for input", "input for cos, sin"})
      .shard({"S(b), S(b), S(b) -> S(b) where b < ndim(input) - 1", "P, R, R -> P"})
      .samples({"f(2,3,4), f(3,2), f(3,2), false, false",
                "f(2,3,2,6), f(3,1,2), f(3,1,2), true, true",
                "f(2,3,2,6), f(3,1,2), f(3,1,2), true, false",
                "f(4,3).t, f(3,2), f(1,2), false, true", "f(0,4), f(2), f(2), false, false"});
}
}  // namespace muster::ops

namespace muster {
Tensor rope(const Tensor& input, const Tensor& cos, const Tensor& sin, bool interleaved,
            bool inverse) {
  return ops::turn(input, cos, sin, interleaved, inverse);
}
}  // namespace muster
