#include "dist/parallel/vocab.h"

#include <limits>

#include "core/autograd/autograd_meta.h"
#include "core/autograd/saved_tensor.h"
#include "core/dispatch/mode.h"
#include "core/dispatch/op_table.h"
#include "core/ops/op_registry.h"
#include "core/ops/ops.h"
#include "dist/tensor/shard_geometry.h"

namespace muster::parallel {
namespace {
ChunkRange own_rows(const DeviceMesh& axis, int64_t vocab) {
  const ProcessGroup& group = *axis.group(0);
  return chunk_range(vocab, group.world_size(), group.group_rank());
}

DType row_dtype(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

// Targets that count are classes of the whole vocabulary. All ranks see the same ones.
void check_classes(const Tensor& target, int64_t vocab, int64_t ignored, const char* operation) {
  const Tensor flat = contiguous(to(target, DType::kI64));
  const auto* const values = flat.data<int64_t>();
  for (int64_t i = 0; i < flat.numel(); ++i) {
    MUSTER_CHECK((values[i] >= 0 && values[i] < vocab) || values[i] == ignored,
                 ErrorCode::kOutOfRange, "{}: entry {} must be in [0, {}); got {}", operation, i,
                 vocab, values[i]);
  }
}

// Rows of logits and their targets, as this rank sees them.
struct Rows {
  Tensor logits;          // [N, own classes]
  Tensor is_own;          // [N] bool: the target is a class of this rank
  Tensor is_ignored;      // [N] bool
  Tensor own_target;      // [N, 1] i64: its column, 0 where it is not here
  Tensor weight;          // [N] of the target; 0 for ignored rows
  Tensor class_weight;    // [own classes], or undefined
  double weight_sum = 0;  // of all classes
  double smoothing = 0;
  int64_t vocab = 0;
};

Tensor as_column(const Tensor& rows) { return unsqueeze(rows, 1); }

Rows rows_of(const Tensor& logits, const Tensor& target, const DeviceMesh& axis, int64_t vocab,
             const CrossEntropyOptions& options) {
  const NoGradGuard no_grad;
  const ChunkRange own = own_rows(axis, vocab);
  const DType wide = row_dtype(logits.dtype());
  Rows rows;
  rows.vocab = vocab;
  rows.smoothing = options.label_smoothing;
  rows.logits = to(detach(logits), wide);
  rows.is_ignored = eq(target, options.ignore_index);
  const Tensor here = sub(target, own.offset);
  rows.is_own =
      logical_and(logical_and(ge(here, 0), lt(here, own.size)), logical_not(rows.is_ignored));
  rows.own_target = as_column(masked_fill(here, logical_not(rows.is_own), 0));
  rows.weight_sum = static_cast<double>(vocab);
  if (options.weight.defined()) {
    const Tensor weights = to(options.weight, wide);
    rows.weight = index_select(weights, 0, masked_fill(target, rows.is_ignored, 0));
    rows.class_weight = narrow(weights, 0, own.offset, own.size);
    rows.weight_sum = sum(to(weights, DType::kF64)).item();
  } else {
    rows.weight = ones(target.sizes(), wide);
  }
  rows.weight = masked_fill(rows.weight, rows.is_ignored, 0);
  return rows;
}

// log(sum(exp)) of this rank's classes, one visit of each row.
Tensor own_lse(const Rows& rows) {
  if (rows.logits.size(1) == 0) {
    return full({rows.logits.size(0)}, -std::numeric_limits<double>::infinity(),
                rows.logits.dtype());
  }
  static const Op& op = ops::find_op("cross_entropy_rows");
  constexpr int64_t kNothingIgnored = -1;
  const Tensor first = zeros({rows.logits.size(0)}, DType::kI64);
  return call_many<3>(op, rows.logits, first, Tensor(), kNothingIgnored, 0.0)[1];
}

struct RowResults {
  Tensor loss;  // [N]
  Tensor lse;   // [N], of the whole vocabulary
};

RowResults row_losses(const Rows& rows, ProcessGroup& group) {
  const NoGradGuard no_grad;
  const Tensor lse = own_lse(rows);
  const Tensor largest = clone(lse);
  group.run(group.all_reduce(largest, ReduceOp::kMax));
  const bool has_classes = rows.logits.size(1) > 0;
  const Tensor none = zeros(lse.sizes(), lse.dtype());
  const Tensor chosen = has_classes
                            ? masked_fill(squeeze(gather(rows.logits, 1, rows.own_target), 1),
                                          logical_not(rows.is_own), 0)
                            : none;
  std::vector<Tensor> shares = {exp(sub(lse, largest)), chosen};
  const bool is_smoothed = rows.smoothing > 0;
  if (is_smoothed) {
    const Tensor weighted =
        rows.class_weight.defined() ? mul(rows.logits, rows.class_weight) : rows.logits;
    shares.push_back(has_classes ? sum(weighted, 1) : none);
  }
  const Tensor totals = stack(shares);
  group.run(group.all_reduce(totals));
  const Tensor whole = add(largest, log(select(totals, 0, 0)));
  Tensor loss = mul(mul(sub(whole, select(totals, 0, 1)), rows.weight), 1.0 - rows.smoothing);
  if (is_smoothed) {
    const double share = rows.smoothing / static_cast<double>(rows.vocab);
    loss = add(loss, mul(sub(mul(whole, rows.weight_sum), select(totals, 0, 2)), share));
  }
  return {masked_fill(loss, rows.is_ignored, 0), whole};
}

class RowLossNode final : public Node {
 public:
  RowLossNode(Rows rows, Tensor lse, DType dtype)
      : rows_(std::move(rows)),
        lse_(std::move(lse)),
        version_(rows_.logits.version()),
        dtype_(dtype) {}

  GradList apply(GradList&& grads, bool create_graph) override {
    if (!grads[0].defined()) return GradList(1);
    MUSTER_CHECK(!create_graph, ErrorCode::kUnimplemented,
                 "backward of vocab_parallel_cross_entropy: it has no second derivative");
    MUSTER_CHECK(
        lse_.defined(), ErrorCode::kFailedPrecondition,
        "backward of vocab_parallel_cross_entropy: its saved values were freed by the first "
        "pass\n  fix: retain_graph = true");
    MUSTER_CHECK(
        rows_.logits.version() == version_, ErrorCode::kFailedPrecondition,
        "backward of vocab_parallel_cross_entropy: saved tensor \"logits\" {} was modified "
        "in place; saved at version {}, now {}",
        rows_.logits, version_, rows_.logits.version());
    return {to(gradient(grads[0]), dtype_)};
  }
  [[nodiscard]] std::string name() const override { return "vocab_parallel_cross_entropy"; }
  void release_saved() noexcept override {
    rows_ = {};
    lse_ = {};
  }

 private:
  // g * ((1-s) w[t] (p - onehot) + s/C (W p - w)), with p rebuilt from the log-sum-exp.
  [[nodiscard]] Tensor gradient(const Tensor& grad) const {
    const double share = rows_.smoothing / static_cast<double>(rows_.vocab);
    const Tensor chosen = mul(mul(grad, rows_.weight), 1.0 - rows_.smoothing);
    const Tensor of_p = rows_.smoothing > 0 ? add(chosen, grad, share * rows_.weight_sum) : chosen;
    Tensor slope = exp_(sub(rows_.logits, as_column(lse_)));
    if (slope.size(1) == 0) return slope;
    mul_(slope, as_column(of_p));
    scatter_add_(slope, 1, rows_.own_target,
                 as_column(neg(masked_fill(chosen, logical_not(rows_.is_own), 0))));
    if (rows_.smoothing > 0) {
      const Tensor even = as_column(mul(grad, share));
      sub_(slope, rows_.class_weight.defined() ? mul(even, rows_.class_weight) : even);
    }
    return masked_fill_(slope, as_column(rows_.is_ignored), 0);
  }

  Rows rows_;
  Tensor lse_;
  uint32_t version_;
  DType dtype_;
};

struct RowLosses {
  Tensor loss;    // [N], carries the gradient
  Tensor weight;  // [N]
  DimVector sizes;
};

RowLosses losses_of(const Tensor& input, const Tensor& target, const MeshRef& axis, int64_t vocab,
                    const CrossEntropyOptions& options) {
  const ChunkRange own = own_rows(*axis, vocab);
  MUSTER_CHECK(input.ndim() >= 2 && input.size(1) == own.size && is_floating(input.dtype()),
               ErrorCode::kInvalidArgument,
               "vocab_parallel_cross_entropy: logits [N, {}, ..] are group rank {}'s share of {} "
               "classes; got {}\n  fix: replicated logits go to cross_entropy",
               own.size, axis->group(0)->group_rank(), vocab, input);
  DimVector sizes(input.sizes());
  sizes.erase(1);
  MUSTER_CHECK(DimVector(target.sizes()) == sizes && target.dtype() == DType::kI64,
               ErrorCode::kInvalidArgument,
               "vocab_parallel_cross_entropy: targets must be i64{}; got {}",
               to_string(Dims(sizes)), target);
  MUSTER_CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1,
               ErrorCode::kInvalidArgument,
               "vocab_parallel_cross_entropy: label_smoothing must be between 0 and 1; got {}",
               options.label_smoothing);
  MUSTER_CHECK(!options.weight.defined() || DimVector(options.weight.sizes()) == DimVector{vocab},
               ErrorCode::kInvalidArgument,
               "vocab_parallel_cross_entropy: weight must be [{}], one per class; got {}", vocab,
               options.weight);
  check_classes(target, vocab, options.ignore_index, "vocab_parallel_cross_entropy");
  const Tensor logits = input.ndim() == 2 ? input : flatten(movedim(input, 1, -1), 0, -2);
  Rows rows = rows_of(logits, reshape(target, {-1}), *axis, vocab, options);
  RowResults results = row_losses(rows, *axis->group(0));
  Tensor weight = rows.weight;
  if (grad_enabled() && logits.requires_grad()) {
    const Ref<Node> node = make_ref<RowLossNode>(std::move(rows), results.lse, logits.dtype());
    node->add_next_edge(gradient_edge(logits));
    node->add_output({DimVector(results.loss.sizes()), results.loss.dtype()});
    set_history(results.loss, node, 0);
  }
  return {results.loss, std::move(weight), std::move(sizes)};
}
}  // namespace

Tensor vocab_parallel_embedding(const Tensor& weight, const Tensor& indices, const DeviceMesh& axis,
                                int64_t vocab, int64_t padding_idx) {
  const ChunkRange own = own_rows(axis, vocab);
  MUSTER_CHECK(weight.ndim() == 2 && weight.size(0) == own.size, ErrorCode::kInvalidArgument,
               "vocab_parallel_embedding: weight must be group rank {}'s {} of {} rows; got {}",
               axis.group(0)->group_rank(), own.size, vocab, weight);
  MUSTER_CHECK(padding_idx < vocab, ErrorCode::kInvalidArgument,
               "vocab_parallel_embedding: padding_idx must be within {} rows; got {}", vocab,
               padding_idx);
  check_classes(indices, vocab, 0, "vocab_parallel_embedding");
  if (own.size == 0) {
    DimVector sizes(indices.sizes());
    sizes.push_back(weight.size(1));
    // Hangs on the weight, so that its (empty) gradient arrives when those of other ranks do.
    return add(zeros(sizes, weight.dtype()), sum(weight));
  }
  const Tensor here = sub(indices, own.offset);
  const Tensor is_elsewhere = logical_or(lt(here, 0), ge(here, own.size));
  const bool owns_padding = padding_idx >= own.offset && padding_idx < own.offset + own.size;
  const Tensor rows = embedding(weight, masked_fill(here, is_elsewhere, 0),
                                owns_padding ? padding_idx - own.offset : -1);
  return masked_fill(rows, unsqueeze(is_elsewhere, -1), 0);
}

Tensor vocab_parallel_cross_entropy(const Tensor& logits, const Tensor& target, const MeshRef& axis,
                                    int64_t vocab, const CrossEntropyOptions& options,
                                    Reduction reduction) {
  MUSTER_CHECK(reduction != Reduction::kBatchMean, ErrorCode::kInvalidArgument,
               "vocab_parallel_cross_entropy: reduction must be none, mean or sum");
  const RowLosses rows = losses_of(logits, target, axis, vocab, options);
  if (reduction == Reduction::kNone) return to(view(rows.loss, rows.sizes), logits.dtype());
  const Tensor total = sum(rows.loss);
  return to(reduction == Reduction::kSum ? total : div(total, sum(rows.weight)), logits.dtype());
}

LossSum vocab_parallel_cross_entropy_sum_count(const Tensor& logits, const Tensor& target,
                                               const MeshRef& axis, int64_t vocab,
                                               const CrossEntropyOptions& options) {
  const RowLosses rows = losses_of(logits, target, axis, vocab, options);
  return {sum(rows.loss), sum(rows.weight)};
}
}  // namespace muster::parallel
