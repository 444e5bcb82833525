// cross_entropy and nll_loss. One primitive gives the loss of each row; sums, means and counts are
// made of its outputs, so that a sharded batch yields partial sums.
#include "core/kernels/cpu/loss.h"
#include "core/ops/indexing.h"
#include "core/ops/loss_reduction.h"
#include "core/ops/losses.h"
#include "core/ops/matrix_fold.h"
#include "core/ops/nn.h"
#include "core/ops/pointwise_def.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
using Context = const BackwardContext&;
namespace cpu = kernels::cpu;

// weight, ignore_index and label_smoothing start at argument `first`.
cpu::CrossEntropyOptions options_of(const OpArgs& args, size_t first) {
  cpu::CrossEntropyOptions options;
  options.weight = optional_view(args[first]);
  options.ignore_index = args[first + 1].integer();
  options.label_smoothing = args[first + 2].number();
  return options;
}

// (logits, target, weight, ignore_index, label_smoothing) -> row_loss, lse, row_weight
std::vector<TensorSpec> rows_infer(const OpArgs& args) {
  const Tensor &logits = args.tensor(0), &target = args.tensor(1);
  MUSTER_CHECK(logits.ndim() == 2 && is_floating(logits.dtype()) && target.ndim() == 1 &&
                   target.size(0) == logits.size(0) && target.dtype() == DType::kI64,
               ErrorCode::kInvalidArgument,
               "cross_entropy: floating logits [N, C] and i64 targets [N] are expected; got {} "
               "and {}",
               logits, target);
  if (!args[2].is_none()) {
    const Tensor& weight = args.tensor(2);
    MUSTER_CHECK(
        weight.ndim() == 1 && weight.size(0) == logits.size(1) && weight.dtype() == logits.dtype(),
        ErrorCode::kInvalidArgument, "cross_entropy: weight must be {} [{}], one per class; got {}",
        logits.dtype(), logits.size(1), weight);
  }
  const double smoothing = args[4].number();
  MUSTER_CHECK(smoothing >= 0 && smoothing <= 1, ErrorCode::kInvalidArgument,
               "cross_entropy: label_smoothing must be between 0 and 1; got {}", smoothing);
  const TensorSpec row =
      TensorSpec::contiguous(target.sizes(), statistics_dtype(logits.dtype()), logits.device());
  return {row, row, row};
}

template <typename T>
void write_row_weights(const Tensor& out, const Tensor& target, const Tensor& weight,
                       int64_t ignore_index) {
  const Tensor targets = dense(target);
  const Tensor wide = weight.defined() ? dense(cast_to(weight, out.dtype())) : Tensor();
  T* to = out.data<T>();
  const int64_t* index = targets.data<int64_t>();
  for (int64_t i = 0; i < targets.numel(); ++i) {
    const T kept = weight.defined() && index[i] != ignore_index ? wide.data<T>()[index[i]] : T{1};
    to[i] = index[i] == ignore_index ? T{0} : kept;
  }
}

void rows_kernel(const OpArgs& args, std::span<Tensor> outs) {
  // Checks the targets first.
  Tensor weight;
  cpu::CrossEntropyOptions options = options_of(args, 2);
  if (!args[2].is_none()) {
    weight = dense(args.tensor(2));
    options.weight = TensorView(weight);
  }
  cpu::cross_entropy(TensorView(outs[0]), outs[1], args.tensor(0), args.tensor(1), options);
  if (outs[2].dtype() == DType::kF64) {
    write_row_weights<double>(outs[2], args.tensor(1), weight, options.ignore_index);
  } else {
    write_row_weights<float>(outs[2], args.tensor(1), weight, options.ignore_index);
  }
}

// (grad, logits, target, lse, weight, ignore_index, label_smoothing)
TensorSpec cross_entropy_backward_infer(const OpArgs& args) {
  const Tensor& logits = args.tensor(1);
  return {DimVector(logits.sizes()), preserved_strides(logits.sizes(), logits.strides()),
          logits.dtype(), logits.device()};
}

void cross_entropy_backward_kernel(const OpArgs& args, std::span<Tensor> outs) {
  Tensor weight;
  cpu::CrossEntropyOptions options = options_of(args, 4);
  if (!args[4].is_none()) {
    weight = dense(args.tensor(4));
    options.weight = TensorView(weight);
  }
  cpu::cross_entropy_backward(outs[0], args.tensor(1), args.tensor(2), args.tensor(3),
                              TensorView(args.tensor(0)), 1.0, options);
}

// d row_loss / d logits = (1-s) w[t] (p - onehot) + s/C (sum_c w[c] p - w), made of operators.
Tensor composed_gradient(Context c, const Tensor& grad) {
  const Tensor target = c.saved("target"), weight = c.saved("weight");
  const DType wide = statistics_dtype(c.spec("logits").dtype);
  const Tensor logits = to(c.saved("logits"), wide);
  const int64_t classes = logits.size(1);
  const double smoothing = c.arg("label_smoothing").number();
  const Tensor ignored = eq(target, c.arg("ignore_index").integer());
  const Tensor safe = masked_fill(target, ignored, 0);
  const Tensor w = weight.defined() ? to(weight, wide) : ones({classes}, wide, logits.device());
  const Tensor chosen = mul(unsqueeze(index_select(w, 0, safe), 1), 1.0 - smoothing);
  const Tensor one = to(one_hot(safe, classes), wide);
  const Tensor p = softmax(logits, 1);
  Tensor slope = mul(chosen, sub(p, one));
  if (smoothing > 0) {
    const double share = smoothing / static_cast<double>(classes);
    slope = add(slope, mul(sub(mul(sum(w), p), w), share));
  }
  return masked_fill(mul(unsqueeze(grad, 1), slope), unsqueeze(ignored, 1), 0);
}

GradList rows_derivative(Context c) {
  static const Op& fused = find_op("cross_entropy_backward");
  Tensor total;
  if (c.grad(0).defined() && c.create_graph()) {
    total = composed_gradient(c, c.grad(0));
  } else if (c.grad(0).defined()) {
    total = call_one(fused, c.grad(0), c.saved("logits"), c.saved("target"), c.saved("lse"),
                     c.saved("weight"), c.arg("ignore_index"), c.arg("label_smoothing"));
  }
  if (c.grad(1).defined()) {
    const Tensor from_lse = mul(unsqueeze(c.grad(1), 1), softmax(c.saved("logits"), 1));
    total = total.defined() ? add(total, from_lse) : from_lse;
  }
  return {total, {}, {}};
}

// Logits [N, C] and targets [N] of a call with any number of dims.
struct Batch {
  Tensor logits;
  Tensor target;
  DimVector row_sizes;  // sizes of the loss without reduction
};

Batch as_batch(const Tensor& input, const Tensor& target, const char* operation) {
  DimVector rows(input.sizes());
  if (input.ndim() > 0) rows.erase(input.ndim() == 1 ? 0 : 1);
  MUSTER_CHECK(input.ndim() >= 1 && same_sizes(target.sizes(), rows), ErrorCode::kInvalidArgument,
               "{}: input [N, C, ..] (or [C]) needs targets {}; got input {} and target {}",
               operation, to_string(Dims(rows)), input, target);
  MUSTER_CHECK(target.dtype() == DType::kI64 || target.dtype() == DType::kU8,
               ErrorCode::kInvalidArgument, "{}: targets must be i64; got {}", operation, target);
  Batch batch{input, to(target, DType::kI64), rows};
  if (input.ndim() == 1) batch.logits = unsqueeze(input, 0);
  if (input.ndim() > 2) batch.logits = flatten(movedim(input, 1, -1), 0, -2);
  if (input.ndim() != 2) batch.target = reshape(batch.target, {-1});
  return batch;
}

struct RowLosses {
  Batch batch;
  Tensor loss;
  Tensor weight;
};

RowLosses row_losses(const OpArgs& args) {
  static const Op& op = find_op("cross_entropy_rows");
  Batch batch = as_batch(args.tensor(0), args.tensor(1), "cross_entropy");
  const auto outs = call_many<3>(op, batch.logits, batch.target, args[2], args[3], args[4]);
  return {std::move(batch), outs[0], detach(outs[2])};
}

// Targets are probabilities of all classes.
Tensor soft_cross_entropy(const OpArgs& args, Reduction reduction) {
  const Tensor& input = args.tensor(0);
  Tensor target = args.tensor(1);
  const int64_t dim = input.ndim() == 1 ? 0 : 1, classes = input.size(dim);
  MUSTER_CHECK(target.dtype() == input.dtype(), ErrorCode::kInvalidArgument,
               "cross_entropy: target probabilities must have input's dtype; got {} for {}", target,
               input);
  MUSTER_CHECK(args[3].integer() < 0, ErrorCode::kInvalidArgument,
               "cross_entropy: ignore_index is not supported for probabilities; got {}",
               args[3].integer());
  const double smoothing = args[4].number();
  MUSTER_CHECK(smoothing >= 0 && smoothing <= 1, ErrorCode::kInvalidArgument,
               "cross_entropy: label_smoothing must be between 0 and 1; got {}", smoothing);
  if (smoothing > 0) {
    target = add(mul(target, 1 - smoothing), smoothing / static_cast<double>(classes));
  }
  Tensor terms = mul(target, log_softmax(input, dim));
  if (!args[2].is_none()) {
    DimVector sizes(static_cast<size_t>(input.ndim()), 1);
    sizes[static_cast<size_t>(dim)] = classes;
    terms = mul(terms, reshape(args.tensor(2), sizes));
  }
  const Tensor loss = neg(sum(terms, dim));
  return reduce_loss(loss, reduction);
}

// (input, target, weight, ignore_index, label_smoothing, reduction)
void cross_entropy_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Reduction reduction = parse_reduction(args[5], "cross_entropy");
  const Tensor &input = args.tensor(0), &target = args.tensor(1);
  if (is_floating(target.dtype()) && same_sizes(input.sizes(), target.sizes())) {
    outs[0] = soft_cross_entropy(args, reduction);
    return;
  }
  const RowLosses rows = row_losses(args);
  const Tensor result = reduction == Reduction::kNone
                            ? view(rows.loss, rows.batch.row_sizes)
                            : reduce_loss(rows.loss, reduction, sum(rows.weight));
  outs[0] = to(result, input.dtype());
}

void sum_count_composite(const OpArgs& args, std::span<Tensor> outs) {
  const RowLosses rows = row_losses(args);
  outs[0] = sum(rows.loss);
  outs[1] = sum(rows.weight);
}

// (input, target, weight, ignore_index, reduction)
void nll_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Reduction reduction = parse_reduction(args[4], "nll_loss");
  const Batch batch = as_batch(args.tensor(0), args.tensor(1), "nll_loss");
  const Tensor ignored = eq(batch.target, args[3].integer());
  const Tensor safe = masked_fill(batch.target, ignored, 0);
  Tensor loss = neg(squeeze(gather(batch.logits, 1, unsqueeze(safe, 1)), 1));
  Tensor weight;
  if (args[2].is_none()) {
    weight = to(logical_not(ignored), loss.dtype());
  } else {
    weight = masked_fill(index_select(args.tensor(2), 0, safe), ignored, 0);
    loss = mul(loss, weight);
  }
  loss = masked_fill(loss, ignored, 0);
  outs[0] = reduction == Reduction::kNone ? view(loss, batch.row_sizes)
                                          : reduce_loss(loss, reduction, sum(weight));
}
}  // namespace

MUSTER_DEFINE_OPS(cross_entropy) {
  table.add(OpDef("cross_entropy_rows(Tensor logits, Tensor target, Tensor? weight, int "
                  "ignore_index, float label_smoothing) -> (Tensor row_loss, Tensor lse, Tensor "
                  "row_weight)")
                .infer(rows_infer)
                .kernel(DeviceType::kCpu, rows_kernel)
                .derivative(rows_derivative, {"logits", "target", "weight", "lse"})
                .shard({"S(0), S(0), R -> S(0), S(0), S(0)"})
                // Low-precision logits are widened row by row and every result is f32: no f32 copy
                // is due.
                .autocast(AutocastClass::kPromote, AutocastClass::kFloat32)
                .fusion(FusionClass::kRowReduction)
                .samples({"f(2,5), x5(2), None, -100, 0.0", "f(2,5), x5(2), f(5), 1, 0.1",
                          "f(0,5), x5(0), None, -100, 0.0"}));
  table.add(OpDef("cross_entropy_backward(Tensor grad, Tensor logits, Tensor target, Tensor lse, "
                  "Tensor? weight, int ignore_index, float label_smoothing) -> Tensor")
                .infer(cross_entropy_backward_infer)
                .kernel(DeviceType::kCpu, cross_entropy_backward_kernel)
                .not_differentiable(kComposedWhenRecorded)
                .shard({"S(0), S(0), S(0), S(0), R -> S(0)"})
                .samples({"f(2), f(2,5), x5(2), f(2), None, -100, 0.0"}));
  table.add(composed("cross_entropy(Tensor input, Tensor target, Tensor? weight=None, int "
                     "ignore_index=-100, float label_smoothing=0.0, str reduction='mean') -> "
                     "Tensor",
                     cross_entropy_composite,
                     {"f(2,5), x5(2), None, -100, 0.0, \"mean\"",
                      "f(2,5), p(2,5), None, -100, 0.1, \"none\"",
                      "f(2,5,3), x5(2,3), f(5), -100, 0.0, \"sum\""})
                .autocast(AutocastClass::kFloat32));
  table.add(composed("cross_entropy_sum_count(Tensor input, Tensor target, Tensor? weight=None, "
                     "int ignore_index=-100, float label_smoothing=0.0) -> (Tensor sum, Tensor "
                     "count)",
                     sum_count_composite, {"f(2,5), x5(2), None, -100, 0.0"})
                .autocast(AutocastClass::kNone, AutocastClass::kFloat32));
  table.add(composed("nll_loss(Tensor input, Tensor target, Tensor? weight=None, int "
                     "ignore_index=-100, str reduction='mean') -> Tensor",
                     nll_composite, {"f(2,5), x5(2), None, -100, \"mean\""})
                .autocast(AutocastClass::kFloat32));
}
}  // namespace muster::ops

namespace muster {
using ops::find_op;
using ops::reduction_text;

Tensor cross_entropy(const Tensor& input, const Tensor& target, const CrossEntropyOptions& options,
                     Reduction reduction) {
  static const Op& op = find_op("cross_entropy");
  return call_one(op, input, target, options.weight, options.ignore_index, options.label_smoothing,
                  reduction_text(reduction));
}
LossSum cross_entropy_sum_count(const Tensor& input, const Tensor& target,
                                const CrossEntropyOptions& options) {
  static const Op& op = find_op("cross_entropy_sum_count");
  auto outs = call_many<2>(op, input, target, options.weight, options.ignore_index,
                           options.label_smoothing);
  return {std::move(outs[0]), std::move(outs[1])};
}
Tensor nll_loss(const Tensor& input, const Tensor& target, const Tensor& weight,
                int64_t ignore_index, Reduction reduction) {
  static const Op& op = find_op("nll_loss");
  return call_one(op, input, target, weight, ignore_index, reduction_text(reduction));
}
}  // namespace muster
