#include "core/kernels/cpu/reduce_plan.h"

#include <algorithm>
#include <cstdlib>

#include "core/base/error.h"

namespace muster::kernels::cpu {
namespace {
// Dims that are long enough for a row of many slices to pay.
constexpr int64_t kFewColumns = 8;

uint64_t reduced_mask(const char* operation, Dims sizes, Dims dims) {
  uint64_t mask = 0;
  for (const int64_t dim : dims) {
    const int64_t wrapped = wrap_dim(dim, static_cast<int64_t>(sizes.size()), operation);
    if (sizes.empty()) continue;
    const uint64_t bit = uint64_t{1} << wrapped;
    MUSTER_CHECK((mask & bit) == 0, ErrorCode::kInvalidArgument, "{}: each dim once; got {}",
                 operation, to_string(dims));
    mask |= bit;
  }
  return mask;
}

void check_output(const char* operation, const TensorView& out, Dims in_sizes, uint64_t reduced) {
  bool fits = out.ndim() == in_sizes.size();
  for (size_t i = 0; fits && i < in_sizes.size(); ++i) {
    fits = out.sizes[i] == ((reduced >> i & 1) != 0 ? 1 : in_sizes[i]);
  }
  MUSTER_CHECK(fits, ErrorCode::kInvalidArgument,
               "{}: the output must have the input's sizes with 1 at each reduced dim; got {} for "
               "an input of {}",
               operation, to_string(out.sizes), to_string(in_sizes));
}
}  // namespace

ReducePlan plan_reduction(const char* operation, const TensorView& in, Dims dims,
                          std::span<const TensorView* const> outs, bool row_major) {
  const uint64_t reduced = reduced_mask(operation, in.sizes, dims);
  DimVector kept_sizes;
  DimVector slice_sizes;
  DimVector slice_strides;
  DimVector kept_strides[3];
  for (const TensorView* out : outs) {
    if (out->data != nullptr) check_output(operation, *out, in.sizes, reduced);
  }
  for (size_t i = 0; i < in.ndim(); ++i) {
    if ((reduced >> i & 1) != 0) {
      slice_sizes.push_back(in.sizes[i]);
      slice_strides.push_back(in.strides[i]);
      continue;
    }
    kept_sizes.push_back(in.sizes[i]);
    kept_strides[0].push_back(in.strides[i]);
    for (size_t k = 0; k < outs.size(); ++k) {
      kept_strides[k + 1].push_back(outs[k]->data != nullptr ? outs[k]->strides[i] : 0);
    }
  }
  const Dims all_kept[] = {kept_strides[0].span(), kept_strides[1].span(), kept_strides[2].span()};
  const Dims element_strides = slice_strides.span();
  ReducePlan plan;
  plan.slices =
      LoopNest(kept_sizes.span(), std::span(all_kept, outs.size() + 1), LoopNest::Order::kByStride);
  plan.elements = LoopNest(slice_sizes.span(), std::span(&element_strides, 1),
                           row_major ? LoopNest::Order::kRowMajor : LoopNest::Order::kByStride);
  plan.num_slices = plan.slices.numel;
  plan.slice_numel = plan.elements.numel;
  if (plan.slices.ndim > 0 && plan.elements.ndim > 0 && plan.slices.sizes[0] >= kFewColumns) {
    int64_t element_step = std::abs(plan.elements.strides[0][0]);
    for (int d = 1; d < plan.elements.ndim; ++d) {
      element_step = std::min(element_step, std::abs(plan.elements.strides[0][d]));
    }
    plan.by_columns = std::abs(plan.slices.strides[0][0]) < element_step;
  }
  return plan;
}
}  // namespace muster::kernels::cpu
