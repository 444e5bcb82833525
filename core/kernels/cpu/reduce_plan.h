#pragma once
/// How a reduction walks its input: which dims make a slice, and whether slices lie side by side.
///
/// Internal to reduce*.cpp. Row mode reads one slice after the other; column mode, for slices that
/// interleave in memory (a sum over dim 0), walks rows of many slices at once.

#include "core/kernels/cpu/copy_block.h"
#include "core/kernels/cpu/iterate.h"

namespace muster::kernels::cpu {

inline constexpr int64_t kReduceChunk = 4096;  ///< elements of a slice that are one partial result
inline constexpr int64_t kColumnRows = 128;    ///< the same in column mode
inline constexpr int64_t kReduceGrain = 1 << 16;  ///< elements that a thread takes at least

struct ReducePlan {
  LoopNest slices;    ///< operands: in, out, second out
  LoopNest elements;  ///< operand: in
  int64_t num_slices = 0;
  int64_t slice_numel = 0;
  bool by_columns = false;
};

/// `outs` have the sizes of `in` with 1 at `dims`; one with null data is left out of the checks.
/// With `row_major` the elements of a slice are numbered in row-major order.
/// @error kInvalidArgument, kOutOfRange as in reduce.h
ReducePlan plan_reduction(const char* operation, const TensorView& in, Dims dims,
                          std::span<const TensorView* const> outs, bool row_major);

}  // namespace muster::kernels::cpu
