// rope: rotary position embedding.
//
// The turn itself is one operator that differentiates its input only and so keeps no more than the
// small tables of cosines and sines; where those want gradients rope is made of other operators.
#include "core/kernels/cpu/rope.h"

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
TensorSpec turn_infer(const OpArgs& args) {
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

void turn_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const DimVector sizes = table_sizes(args.tensor(0), args.tensor(1));
  const KernelOperand cos(args[1], DType::kF32, sizes), sin(args[2], DType::kF32, sizes);
  kernels::cpu::rope(outs[0], args.tensor(0), cos, sin,
                     {.interleaved = args[3].boolean(), .inverse = args[4].boolean()});
}

Tensor turn(const Tensor& input, const Tensor& cos, const Tensor& sin, bool interleaved,
            bool inverse) {
  static const Op& op = find_op("rope_turn");
  return call_one(op, input, cos, sin, interleaved, inverse);
}

// A turn is undone by the turn back, which is also its transpose.
GradList turn_derivative(Context c) {
  MUSTER_CHECK(!c.needs("cos") && !c.needs("sin"), ErrorCode::kUnimplemented,
               "backward of rope_turn: cos and sin have no derivative here; got one that requires "
               "a gradient; use rope");
  return {turn(c.grad(), c.saved("cos"), c.saved("sin"), c.arg("interleaved").boolean(),
               !c.arg("inverse").boolean()),
          {},
          {}};
}

Tensor composed_rope(const Tensor& input, const Tensor& cos, const Tensor& sin, bool interleaved) {
  const DType wide = statistics_dtype(input.dtype());
  const int64_t half = cos.size(-1), turned = 2 * half;
  const Tensor x = to(narrow(input, -1, 0, turned), wide), c = to(cos, wide), s = to(sin, wide);
  Tensor a, b, pairs;
  if (interleaved) {
    pairs = unflatten(x, -1, {half, 2});
    a = select(pairs, -1, 0), b = select(pairs, -1, 1);
  } else {
    a = narrow(x, -1, 0, half), b = narrow(x, -1, half, half);
  }
  const Tensor first = sub(mul(a, c), mul(b, s)), second = add(mul(b, c), mul(a, s));
  Tensor out = interleaved ? flatten(stack({first, second}, -1), -2, -1) : cat({first, second}, -1);
  out = to(out, input.dtype());
  const int64_t rest = input.size(-1) - turned;
  return rest == 0 ? out : cat({out, narrow(input, -1, turned, rest)}, -1);
}

// (input, cos, sin, interleaved)
void rope_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor &input = args.tensor(0), &cos = args.tensor(1), &sin = args.tensor(2);
  const bool tables_learn = thread_modes().grad && (cos.requires_grad() || sin.requires_grad());
  outs[0] = tables_learn ? composed_rope(input, cos, sin, args[3].boolean())
                         : turn(input, cos, sin, args[3].boolean(), false);
}
}  // namespace

MUSTER_DEFINE_OPS(rope) {
  table.add(OpDef("rope_turn(Tensor input, Tensor cos, Tensor sin, bool interleaved, bool inverse) "
                  "-> Tensor")
                .infer(turn_infer)
                .kernel(DeviceType::kCpu, turn_kernel)
                .derivative(turn_derivative, {"cos", "sin"})
                .shard({"S(b), S(b), S(b) -> S(b) where b < ndim(input) - 1", "P, R, R -> P"})
                .samples({"f(2,3,4), f(3,2), f(3,2), false, false",
                          "f(2,3,2,6), f(3,1,2), f(3,1,2), true, true",
                          "f(4,3).t, f(3,2), f(1,2), false, false"}));
  table.add(composed(
      "rope(Tensor input, Tensor cos, Tensor sin, *, bool interleaved=False) -> Tensor",
      rope_composite, {"f(2,3,4), f(3,2), f(3,2), false", "f(2,3,2,6), f(3,1,2), f(3,1,2), true"}));
}
}  // namespace muster::ops

namespace muster {
Tensor rope(const Tensor& input, const Tensor& cos, const Tensor& sin, bool interleaved) {
  static const Op& op = ops::find_op("rope");
  return call_one(op, input, cos, sin, interleaved);
}
}  // namespace muster
