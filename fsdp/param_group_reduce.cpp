// From whole gradients to this rank's rows.
#include <algorithm>
#include <cstring>
#include <utility>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "fsdp/param_group.h"
#include "fsdp/rows.h"

namespace muster::fsdp {

void ParamGroup::keep_gradients_unsharded() {
  forget_arrivals();
  if (reduce_dtype() == gather_dtype_) return;  // .grad accumulates them as well
  const NoGradGuard no_grad;
  for (ShardedParam& param : params_) param.accumulated = take_whole_gradient(param);
}

// What arrived and what was kept, in the reduce dtype; undefined if nothing.
Tensor ParamGroup::take_whole_gradient(ShardedParam& param) const {
  const Tensor gradient = grad_of(param.unsharded);
  set_grad(param.unsharded, {});
  Tensor kept = std::exchange(param.accumulated, {});
  if (!gradient.defined()) return kept;
  const Tensor converted = to(contiguous(gradient), reduce_dtype());
  return kept.defined() ? add_(kept, converted) : converted;
}

void ParamGroup::install_gradient(ShardedParam& param, const Tensor& reduced) {
  const Tensor existing = grad_of(param.local);
  if (existing.defined()) {
    add_(existing, reduced);
    return;
  }
  const Tensor gradient = reduced.dtype() == dtype_ ? reduced : to(reduced, dtype_);
  set_grad(param.local, gradient);
  set_grad(param.sharded, make_dtensor(gradient, param.spec));
}

// Row block r of the result is rank r's rows of every gradient, each padded to the longest piece.
Tensor ParamGroup::pack_gradients(const std::vector<ShardedParam*>& params, int64_t padded) {
  const int world = group().world_size();
  const DType dtype = reduce_dtype();
  const Tensor send = empty_from_spec(TensorSpec::contiguous({world * padded}, dtype),
                                      &group().communication_allocator());
  const int64_t item = item_nbytes(dtype);
  int64_t at = 0;
  for (ShardedParam* param : params) {
    const Tensor whole = take_whole_gradient(*param);
    const int64_t row = row_numel(param->gathered_sizes);
    const int64_t most = most_rows(*param);
    for (int rank = 0; rank < world; ++rank) {
      const ChunkRange range =
          whole.defined() ? chunk_range(param->gathered_sizes[0], world, rank) : ChunkRange{};
      auto* to = static_cast<std::byte*>(send.data_ptr()) + (rank * padded + at) * item;
      if (whole.defined()) copy_rows(to, rows_of(whole, range.offset, range.size));
      std::memset(to + range.size * row * item, 0,
                  static_cast<size_t>((most - range.size) * row * item));
    }
    at += padded_numel(*param);
  }
  return send;
}

// `params` begin with those whose gradients are shares: their rows lie first in `reduced`.
void ParamGroup::sum_partial_gradients(const std::vector<ShardedParam*>& params,
                                       const Tensor& reduced) {
  int64_t shared = 0;
  MeshRef mesh;
  for (const ShardedParam* param : params) {
    if (!param->has_partial_gradient) break;
    shared += padded_numel(*param);
    mesh = param->spec.mesh;
  }
  if (!mesh) return;
  const Tensor rows = rows_of(reduced, 0, shared);
  for (int axis = 0; axis < mesh->num_axes() - options_.mesh->num_axes(); ++axis) {
    ProcessGroup& outer = *mesh->group(axis);
    outer.run(outer.all_reduce(rows, ReduceOp::kSum, false, ProcessGroup::Site::current(),
                               "gradients of " + name_));
  }
}

bool ParamGroup::reduce_over_replicas(const std::vector<ShardedParam*>& params,
                                      const Tensor& reduced, bool over_replicas) {
  if (replicas() == nullptr) return true;
  int64_t at = 0;
  for (ShardedParam* param : params) {
    const Tensor rows = rows_of(reduced, at, padded_numel(*param));
    if (param->partial.defined()) add_(rows, param->partial);
    param->partial = over_replicas ? Tensor() : rows;
    at += padded_numel(*param);
  }
  if (!over_replicas) return false;
  replicas()->run(replicas()->all_reduce(reduced, reduce_op(), false, ProcessGroup::Site::current(),
                                         "gradients of " + name_));
  return true;
}

void ParamGroup::reduce_packed(const std::vector<ShardedParam*>& params, double divisor,
                               const Tensor& received) {
  const Tensor send = pack_gradients(params, received.numel());
  if (divisor != 1) div_(send, divisor);
  group().run(group().reduce_scatter_tensor(
      received, send, reduce_op(), false, ProcessGroup::Site::current(), "gradients of " + name_));
}

// Gradients are read where they lie, as far as they are this rank's.
void ParamGroup::reduce_pieces(const std::vector<ShardedParam*>& params, double divisor,
                               const Tensor& received) {
  std::vector<Tensor> wholes, inputs, outputs;
  for (ShardedParam* param : params) {
    Tensor whole = take_whole_gradient(*param);
    if (!whole.defined()) whole = zeros(param->gathered_sizes, reduce_dtype());
    if (divisor != 1) div_(whole, divisor);
    wholes.push_back(view(whole, param->gathered_sizes));
  }
  for (int rank = 0; rank < group().world_size(); ++rank) {
    for (size_t i = 0; i < params.size(); ++i) {
      const ChunkRange rows = chunk_range(wholes[i].size(0), group().world_size(), rank);
      inputs.push_back(rows_of(wholes[i], rows.offset, rows.size));
    }
  }
  int64_t at = 0;
  for (const ShardedParam* param : params) {
    const int64_t numel = numel_of(param->spec.local_sizes());
    outputs.push_back(rows_of(received, at, numel));
    zero_(rows_of(received, at + numel, padded_numel(*param) - numel));
    at += padded_numel(*param);
  }
  group().run(group().reduce_scatter(outputs, inputs, reduce_op(), false,
                                     ProcessGroup::Site::current(), "gradients of " + name_));
}

void ParamGroup::reduce_gradients(bool over_replicas) {
  const NoGradGuard no_grad;
  forget_arrivals();
  std::vector<ShardedParam*> with_grad;
  int64_t padded = 0;
  for (ShardedParam& param : params_) {
    const bool has_any = grad_of(param.unsharded).defined() || param.accumulated.defined() ||
                         (over_replicas && param.partial.defined());
    if (!param.requires_grad || !has_any) continue;
    with_grad.push_back(&param);
    padded += padded_numel(param);
  }
  if (with_grad.empty()) return;
  std::stable_partition(with_grad.begin(), with_grad.end(),
                        [](const ShardedParam* param) { return param->has_partial_gradient; });
  const DivideFactors divide =
      divide_factors(reduce_dtype(), options_.gradient_divide_factor.value_or(1));
  // The reduced rows become gradients as they lie: no copy out.
  const Tensor received = empty_from_spec(TensorSpec::contiguous({padded}, reduce_dtype()));
  if (reduces_in_place()) {
    reduce_pieces(with_grad, divide.before, received);
  } else {
    reduce_packed(with_grad, divide.before, received);
  }
  may_be_read_ = false;  // who has given its gradients has used the parameters
  sum_partial_gradients(with_grad, received);
  if (!reduce_over_replicas(with_grad, received, over_replicas)) return;
  if (divide.after != 1) div_(received, divide.after);
  int64_t at = 0;
  for (ShardedParam* param : with_grad) {
    const DimVector sizes = param->spec.local_sizes();
    const Tensor rows = alias_with_layout(received, {sizes, contiguous_strides(sizes), at});
    install_gradient(*param, shallow_detach(rows));
    at += padded_numel(*param);
  }
}
}  // namespace muster::fsdp
