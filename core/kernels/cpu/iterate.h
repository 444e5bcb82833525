#pragma once
/// LoopNest: the dims of one or more strided operands of equal sizes, merged to as few as possible.
///
/// Kernels plan a nest once and then walk ranges of its linear index; where every operand is
/// contiguous one dim remains. Lives on the stack, allocates nothing. Knows no dtypes: offsets
/// count elements.

#include <cstdint>
#include <span>

#include "core/tensor/layout.h"

namespace muster::kernels::cpu {

struct LoopNest {
  static constexpr int kMaxDims = 16;  ///< after merging
  static constexpr int kMaxOperands = 4;

  enum class Order {
    kByStride,  ///< smallest stride innermost: for kernels whose order is free
    kRowMajor,  ///< the linear index counts elements in row-major order
  };

  LoopNest() = default;  // NOLINT: the arrays stay unset beyond ndim and operands
  /// @error kUnimplemented  more than kMaxDims dims remain
  LoopNest(Dims full_sizes, std::span<const Dims> operand_strides, Order order);

  /// Offset of the element with the given linear index.
  [[nodiscard]] int64_t offset_of(int operand, int64_t index) const noexcept {
    int64_t offset = 0;
    for (int d = 0; d < ndim; ++d) {
      offset += (index % sizes[d]) * strides[operand][d];
      index /= sizes[d];
    }
    return offset;
  }
  /// True when the element with linear index i lies at offset i.
  [[nodiscard]] bool is_contiguous(int operand) const noexcept;
  /// True when all elements lie at offset 0.
  [[nodiscard]] bool is_broadcast(int operand) const noexcept;
  [[nodiscard]] int64_t inner_size() const noexcept { return ndim == 0 ? 1 : sizes[0]; }
  [[nodiscard]] int64_t inner_stride(int operand) const noexcept {
    return ndim == 0 ? 0 : strides[operand][0];
  }

  int ndim = 0;
  int operands = 0;
  int64_t numel = 1;
  int64_t sizes[kMaxDims];  ///< innermost first
  int64_t strides[kMaxOperands][kMaxDims];
};

/// Calls `row(offset, count)` for the stretches of the innermost dim that make up the elements
/// [begin, end) of one operand, in order.
template <typename Row>
void for_each_row(const LoopNest& nest, int operand, int64_t begin, int64_t end, const Row& row) {
  if (begin >= end) return;
  if (nest.ndim <= 1) {
    row(begin * nest.inner_stride(operand), end - begin);
    return;
  }
  const int64_t* strides = nest.strides[operand];
  int64_t at[LoopNest::kMaxDims];
  int64_t rest = begin;
  int64_t offset = 0;
  for (int d = 0; d < nest.ndim; ++d) {
    at[d] = rest % nest.sizes[d];
    rest /= nest.sizes[d];
    offset += at[d] * strides[d];
  }
  int64_t left = end - begin;
  for (;;) {
    const int64_t run = nest.sizes[0] - at[0] < left ? nest.sizes[0] - at[0] : left;
    row(offset, run);
    left -= run;
    if (left == 0) return;
    offset -= at[0] * strides[0];
    at[0] = 0;
    for (int d = 1;; ++d) {
      offset += strides[d];
      if (++at[d] < nest.sizes[d]) break;
      offset -= at[d] * strides[d];
      at[d] = 0;
    }
  }
}

/// The same for all operands at once: `row(offsets, count)` with one offset per operand.
template <typename Row>
void for_each_row(const LoopNest& nest, int64_t begin, int64_t end, const Row& row) {
  if (begin >= end) return;
  int64_t offsets[LoopNest::kMaxOperands] = {};
  int64_t at[LoopNest::kMaxDims] = {};
  int64_t rest = begin;
  for (int d = 0; d < nest.ndim; ++d) {
    at[d] = rest % nest.sizes[d];
    rest /= nest.sizes[d];
    for (int k = 0; k < nest.operands; ++k) offsets[k] += at[d] * nest.strides[k][d];
  }
  int64_t left = end - begin;
  for (;;) {
    const int64_t inner_left = nest.inner_size() - at[0];
    const int64_t run = inner_left < left ? inner_left : left;
    row(static_cast<const int64_t*>(offsets), run);
    left -= run;
    if (left == 0) return;
    for (int k = 0; k < nest.operands; ++k) offsets[k] -= at[0] * nest.strides[k][0];
    at[0] = 0;
    for (int d = 1;; ++d) {
      for (int k = 0; k < nest.operands; ++k) offsets[k] += nest.strides[k][d];
      if (++at[d] < nest.sizes[d]) break;
      for (int k = 0; k < nest.operands; ++k) offsets[k] -= at[d] * nest.strides[k][d];
      at[d] = 0;
    }
  }
}

}  // namespace muster::kernels::cpu
