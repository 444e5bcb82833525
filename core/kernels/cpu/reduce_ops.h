#pragma once
/// The inner loops of reductions, by kind and type of the input.
///
/// A partial result is a double (floats) or an int64_t (integers, loaded as i64). Rows accumulate
/// in 32 lanes, element i into lane i mod 32, on every instruction set, so all give the same bits.

#include <cstdint>

#include "core/kernels/cpu/reduce.h"

namespace muster::kernels::cpu {

union Partial {
  double real;
  int64_t integer;
};
inline constexpr int64_t kLanes = 32;

struct ReduceOps {
  Partial identity{};
  bool is_real = true;
  /// lanes[i % 32] = combine(lanes[i % 32], map(x[i])); a later call goes on at lane 0.
  void (*rows)(Partial* lanes, const void* x, int64_t count) = nullptr;
  /// rows from fresh lanes, then their tree: the result of one contiguous run.
  Partial (*run)(const void* x, int64_t count) = nullptr;
  /// into[i] = combine(into[i], map(x[i])) for each of `rows` rows, `pitch` elements apart, in
  /// order.
  void (*columns)(Partial* into, const void* x, int64_t count, int64_t rows,
                  int64_t pitch) = nullptr;
  /// into[i] = combine(into[i], other[i]).
  void (*combine)(Partial* into, const Partial* other, int64_t count) = nullptr;
};

/// What rows reads: f32, f64 or i64.
enum class ReduceInput : uint8_t { kF32, kF64, kI64 };
inline constexpr int kNumReduceInputs = 3;

/// Loops of the kinds that are one pass: all but kLogsumexp. Means and roots are taken afterwards.
const ReduceOps& reduce_ops(ReduceKind kind, ReduceInput input);

struct ReduceTables {
  ReduceOps ops[static_cast<int>(ReduceKind::kCount)][kNumReduceInputs];
  /// Sum of (x[i] - mean)^2 into 32 lanes.
  void (*squared_distances_f32)(double* lanes, const float* x, int64_t count, double mean);
  void (*squared_distances_f64)(double* lanes, const double* x, int64_t count, double mean);
  /// Welford's step for row number `row` (from 1) of many slices at once.
  void (*welford_f32)(double* mean, double* m2, const float* x, int64_t count, double row);
  void (*welford_f64)(double* mean, double* m2, const double* x, int64_t count, double row);
};
void fill_scalar_reductions(ReduceTables& tables);
const ReduceTables& reduce_tables();

/// All lanes combined in a fixed tree: lane j with lane j + 16, then j + 8, ..
Partial combine_lanes(const ReduceOps& ops, Partial* lanes);

}  // namespace muster::kernels::cpu
