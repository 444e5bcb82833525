// linear_cross_entropy: the loss of a linear layer's logits, which are made for a chunk of rows at
// a time, twice: in forward, and again in backward. Never is more than one chunk of them alive.
#include <algorithm>

#include "core/autograd/checkpoint.h"
#include "core/ops/creation.h"
#include "core/ops/linalg.h"
#include "core/ops/loss_reduction.h"
#include "core/ops/nn.h"
#include "core/ops/op_support.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
// (input, linear_weight, target, linear_bias, weight, ignore_index, label_smoothing, reduction,
// chunk)
void linear_cross_entropy_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor &input = args.tensor(0), &linear_weight = args.tensor(1), &target = args.tensor(2);
  MUSTER_CHECK(input.ndim() >= 1 &&
                   same_sizes(target.sizes(), input.sizes().first(size_t(input.ndim() - 1))) &&
                   (target.dtype() == DType::kI64 || target.dtype() == DType::kU8),
               ErrorCode::kInvalidArgument,
               "linear_cross_entropy: input [.., K] needs i64 targets [..]; got {} and {}", input,
               target);
  const Tensor linear_bias = args[3].is_none() ? Tensor() : args.tensor(3);
  const CrossEntropyOptions options{.weight = args[4].is_none() ? Tensor() : args.tensor(4),
                                    .ignore_index = args[5].integer(),
                                    .label_smoothing = args[6].number()};
  const Reduction reduction = parse_reduction(args[7], "linear_cross_entropy");
  const Tensor rows = reshape(input, {-1, input.size(-1)}), classes = reshape(target, {-1});
  if (reduction == Reduction::kNone) {
    std::vector<Tensor> losses;
    for_each_chunk(rows, classes, args[8].integer(), [&](const Tensor& x, const Tensor& t) {
      losses.push_back(activation_checkpoint(
          [=](const Tensor& in) {
            const Tensor logits = linear(in, linear_weight, linear_bias);
            return cross_entropy(logits, t, options, Reduction::kNone);
          },
          x));
    });
    outs[0] = to(view(cat(losses), target.sizes()), input.dtype());
    return;
  }
  const LossSum loss =
      chunked_loss(rows, classes, args[8].integer(), [=](const Tensor& x, const Tensor& t) {
        const Tensor logits = linear(x, linear_weight, linear_bias);
        return cross_entropy_sum_count(logits, t, options);
      });
  outs[0] = to(reduction == Reduction::kSum ? loss.sum : div(loss.sum, loss.count), input.dtype());
}
}  // namespace

MUSTER_DEFINE_OP(linear_cross_entropy) {
  return composed(
      "linear_cross_entropy(Tensor input, Tensor linear_weight, Tensor target, Tensor? "
      "linear_bias=None, Tensor? weight=None, int ignore_index=-100, float label_smoothing=0.0, "
      "str reduction='mean', int chunk=1024) -> Tensor",
      linear_cross_entropy_composite,
      {"f(4,3), f(5,3), x5(4), f(5), None, -100, 0.0, \"mean\", 3",
       "f(2,2,3), f(5,3), x5(2,2), None, None, 1, 0.1, \"none\", 3",
       "f(0,3), f(5,3), x5(0), None, None, -100, 0.0, \"sum\", 3"});
}
}  // namespace muster::ops

namespace muster {
using ops::find_op;
using ops::reduction_text;

void for_each_chunk(const Tensor& rows, const Tensor& targets, int64_t chunk,
                    const std::function<void(const Tensor& rows, const Tensor& targets)>& body) {
  const int64_t all = rows.size(0);
  MUSTER_CHECK(chunk >= 0 && targets.size(0) == all, ErrorCode::kInvalidArgument,
               "chunk: it must be 0 (all rows) or more, and every row needs a target; got {}, {} "
               "rows and {} targets",
               chunk, all, targets.size(0));
  if (chunk == 0 || chunk >= all) return body(rows, targets);
  for (int64_t first = 0; first < all; first += chunk) {
    const int64_t count = std::min(chunk, all - first);
    body(narrow(rows, 0, first, count), narrow(targets, 0, first, count));
  }
}

LossSum chunked_loss(const Tensor& rows, const Tensor& targets, int64_t chunk,
                     const RowsLoss& loss) {
  LossSum total;
  for_each_chunk(rows, targets, chunk, [&](const Tensor& x, const Tensor& t) {
    const std::vector<Tensor> part = activation_checkpoint(
        [loss, t](std::span<const Tensor> in) {
          const LossSum one = loss(in[0], t);
          return std::vector<Tensor>{one.sum, one.count};
        },
        {x});
    total.sum = total.sum.defined() ? add(total.sum, part[0]) : part[0];
    total.count = total.count.defined() ? add(total.count, part[1]) : part[1];
  });
  return total;
}

Tensor linear_cross_entropy(const Tensor& input, const Tensor& linear_weight, const Tensor& target,
                            const LinearCrossEntropyOptions& options, Reduction reduction) {
  static const Op& op = find_op("linear_cross_entropy");
  return call_one(op, input, linear_weight, target, options.linear_bias, options.loss.weight,
                  options.loss.ignore_index, options.loss.label_smoothing,
                  reduction_text(reduction), options.chunk);
}
}  // namespace muster
