#include "core/ops/attention/sdpa_problem.h"

#include <fmt/format.h>

#include <cmath>

#include "core/ops/creation.h"
#include "core/ops/op_support.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
void check_operands(const Tensor& q, const Tensor& k, const Tensor& v) {
  MUSTER_CHECK(q.ndim() >= 2 && k.ndim() >= 2 && v.ndim() >= 2, ErrorCode::kInvalidArgument,
               "sdpa: query, key and value need at least 2 dims; got {}, {} and {}", q, k, v);
  MUSTER_CHECK(is_floating(q.dtype()) && k.dtype() == q.dtype() && v.dtype() == q.dtype(),
               ErrorCode::kInvalidArgument,
               "sdpa: query, key and value must have one floating dtype; got {}, {} and {}", q, k,
               v);
  MUSTER_CHECK(q.size(-1) == k.size(-1), ErrorCode::kInvalidArgument,
               "sdpa: query and key must have the same last size; got {} and {}", q, k);
  MUSTER_CHECK(k.size(-2) == v.size(-2), ErrorCode::kInvalidArgument,
               "sdpa: key and value must have the same length; got {} and {}", k, v);
}

void check_options(const Tensor& q, const SdpaOptions& options) {
  const Tensor& mask = options.attn_mask;
  MUSTER_CHECK(!mask.defined() || options.causal == CausalAlignment::kNone,
               ErrorCode::kInvalidArgument,
               "sdpa: a mask must not come together with causal; got mask {}; fold the triangle "
               "into the mask",
               mask);
  MUSTER_CHECK(
      !mask.defined() || mask.dtype() == DType::kBool || mask.dtype() == q.dtype() ||
          mask.dtype() == DType::kF32,
      ErrorCode::kInvalidArgument,
      "sdpa: the mask's dtype must be bool, f32 or that of query; got mask {} for query {}", mask,
      q);
  MUSTER_CHECK(options.dropout_p >= 0 && options.dropout_p <= 1, ErrorCode::kInvalidArgument,
               "sdpa: dropout_p must be between 0 and 1; got {}", options.dropout_p);
}

// Dims before the heads.
Dims batch_of(const Tensor& tensor) {
  return tensor.sizes().first(static_cast<size_t>(std::max<int64_t>(tensor.ndim() - 3, 0)));
}
int64_t heads_of(const Tensor& tensor) { return tensor.ndim() >= 3 ? tensor.size(-3) : 1; }

// [.., H, length, dim] with `batch` and `heads` in front of its last two dims, as 4-D.
Tensor in_kernel_form(const Tensor& tensor, Dims batch, int64_t heads) {
  DimVector sizes(batch);
  for (const int64_t size : {heads, tensor.size(-2), tensor.size(-1)}) sizes.push_back(size);
  Tensor out = same_sizes(sizes, tensor.sizes()) ? tensor : expand(tensor, sizes);
  if (sizes.size() != 4) {
    out = reshape(out, {numel_of(batch), heads, tensor.size(-2), tensor.size(-1)});
  }
  return out;
}
}  // namespace

std::string SdpaProblem::describe() const {
  std::string text =
      fmt::format("q{} k{} {} {}", to_string(query.sizes()), to_string(key.sizes()),
                  muster::to_string(query.dtype()), muster::to_string(query.device()));
  if (mask.defined()) text += fmt::format(", mask {}", muster::to_string(mask.dtype()));
  if (causal == CausalAlignment::kUpperLeft) text += ", causal from the upper left";
  if (causal == CausalAlignment::kLowerRight) text += ", causal from the lower right";
  if (dropout_p > 0) text += fmt::format(", dropout {}", dropout_p);
  return text;
}

SdpaProblem make_sdpa_problem(const Tensor& query, const Tensor& key, const Tensor& value,
                              const SdpaOptions& options) {
  check_operands(query, key, value);
  check_options(query, options);
  DimVector batch = broadcast_sizes(batch_of(query), batch_of(key), "sdpa");
  batch = broadcast_sizes(batch, batch_of(value), "sdpa");
  int64_t heads = heads_of(query), kv_heads = heads_of(key);
  if (options.enable_gqa) {
    MUSTER_CHECK(kv_heads == heads_of(value) && kv_heads > 0 && heads % kv_heads == 0,
                 ErrorCode::kInvalidArgument,
                 "sdpa: with enable_gqa the heads of query must be a multiple of those of key and "
                 "value; got {}, {} and {}",
                 heads, kv_heads, heads_of(value));
  } else {
    const int64_t others[] = {kv_heads, heads_of(value)};
    for (const int64_t& other : others) {
      heads = broadcast_sizes(Dims(&heads, 1), Dims(&other, 1), "sdpa")[0];
    }
    kv_heads = heads;
  }
  // Operands of fewer than 3 dims have no dim of heads in the result.
  const int64_t ndim = std::max({query.ndim(), key.ndim(), value.ndim()});
  DimVector out_sizes = batch;
  if (ndim >= 3) out_sizes.push_back(heads);
  out_sizes.push_back(query.size(-2));
  SdpaProblem problem;
  problem.query = in_kernel_form(query, batch, heads);
  problem.key = in_kernel_form(key, batch, kv_heads);
  problem.value = in_kernel_form(value, batch, kv_heads);
  problem.dropout_p = options.dropout_p;
  problem.head_share = options.head_share;
  problem.head_shares = options.head_shares;
  problem.causal = options.causal;
  const auto width = static_cast<double>(query.size(-1));
  problem.scale = options.scale.value_or(width == 0 ? 1.0 : 1.0 / std::sqrt(width));
  if (options.attn_mask.defined()) {
    DimVector mask_sizes = out_sizes;
    mask_sizes.push_back(key.size(-2));
    MUSTER_CHECK(is_expandable_to(options.attn_mask.sizes(), mask_sizes),
                 ErrorCode::kInvalidArgument,
                 "sdpa: the mask must broadcast to [.., L, S] = {}; got {}",
                 to_string(Dims(mask_sizes)), options.attn_mask);
    const DType dtype = options.attn_mask.dtype() == DType::kBool ? DType::kBool : query.dtype();
    problem.mask = in_kernel_form(expand(to(options.attn_mask, dtype), mask_sizes), batch, heads);
    problem.mask_requires_grad = problem.mask.requires_grad() && thread_modes().grad;
  }
  out_sizes.push_back(value.size(-1));
  problem.out_sizes = out_sizes;
  return problem;
}
}  // namespace muster::ops
