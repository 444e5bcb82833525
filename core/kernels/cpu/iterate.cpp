#include "core/kernels/cpu/iterate.h"

#include <cstdlib>

#include "core/base/error.h"

namespace muster::kernels::cpu {
namespace {
// True when dim a belongs further inside than dim b: the first operand in which both move decides.
bool is_inside(std::span<const Dims> strides, size_t a, size_t b) {
  for (const Dims& operand : strides) {
    const int64_t stride_a = std::abs(operand[a]);
    const int64_t stride_b = std::abs(operand[b]);
    if (stride_a == 0 || stride_b == 0 || stride_a == stride_b) continue;
    return stride_a < stride_b;
  }
  return false;
}

// Dims larger than 1, innermost first; all of them for an empty tensor.
DimVector ordered_dims(Dims sizes, std::span<const Dims> strides, LoopNest::Order order) {
  DimVector dims;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] != 1) dims.push_back(static_cast<int64_t>(i));
  }
  if (order == LoopNest::Order::kRowMajor) return dims;
  for (size_t i = 1; i < dims.size(); ++i) {
    for (size_t j = i; j > 0 && is_inside(strides, static_cast<size_t>(dims[j]),
                                          static_cast<size_t>(dims[j - 1]));
         --j) {
      std::swap(dims[j], dims[j - 1]);
    }
  }
  return dims;
}
}  // namespace

LoopNest::LoopNest(Dims full_sizes, std::span<const Dims> operand_strides, Order order)
    : operands(static_cast<int>(operand_strides.size())), numel(numel_of(full_sizes)) {
  for (const int64_t dim : ordered_dims(full_sizes, operand_strides, order)) {
    const auto d = static_cast<size_t>(dim);
    bool merges = ndim > 0;
    for (int k = 0; merges && k < operands; ++k) {
      merges = operand_strides[static_cast<size_t>(k)][d] == strides[k][ndim - 1] * sizes[ndim - 1];
    }
    if (merges) {
      sizes[ndim - 1] *= full_sizes[d];
      continue;
    }
    MUSTER_CHECK(ndim < kMaxDims, ErrorCode::kUnimplemented,
                 "kernel: at most {} dims that cannot be merged; got sizes {}", kMaxDims,
                 to_string(full_sizes));
    sizes[ndim] = full_sizes[d];
    for (int k = 0; k < operands; ++k) {
      strides[k][ndim] = operand_strides[static_cast<size_t>(k)][d];
    }
    ++ndim;
  }
}

bool LoopNest::is_contiguous(int operand) const noexcept {
  int64_t step = 1;
  for (int d = 0; d < ndim; ++d) {
    if (strides[operand][d] != step) return false;
    step *= sizes[d];
  }
  return true;
}

bool LoopNest::is_broadcast(int operand) const noexcept {
  for (int d = 0; d < ndim; ++d) {
    if (strides[operand][d] != 0) return false;
  }
  return true;
}
}  // namespace muster::kernels::cpu
