#pragma once
/// The elementwise part of flash attention, one tile of scores at a time. Internal to core/kernels.

#include <cstdint>

namespace muster::kernels::cpu::internal {

/// Forward: rows are queries, columns a block of keys. Scores come in, unnormalised probabilities
/// go out; running maxima, sums and outputs of the rows are brought up to date.
struct ForwardTile {
  float* scores;      ///< [rows, cols], scaled
  const float* bias;  ///< the same layout, added; -inf hides. Null: none
  int64_t ld;         ///< of scores and bias
  int64_t rows;
  int64_t cols;
  int64_t first_visible;  ///< columns [0, first_visible + row) are visible (causal), clamped
  float* max;             ///< [rows]; -inf at the start
  float* sum;             ///< [rows]; 0 at the start
  float* out;             ///< [rows, out_cols]; scaled when the maximum grows
  int64_t out_ld;
  int64_t out_cols;
  bool is_first;  ///< `out` holds nothing yet
};
void softmax_tile(const ForwardTile& tile);

/// Backward: rows are keys, columns queries. Scores become probabilities, and dp = v . dout becomes
/// p * (dp - delta).
struct BackwardTile {
  float* scores;      ///< [rows, cols], scaled
  float* dp;          ///< the same layout
  const float* bias;  ///< the same layout; null: none
  int64_t ld;
  int64_t rows;
  int64_t cols;
  int64_t first_visible;  ///< columns from first_visible + row on are visible (causal), clamped
  const float* lse;       ///< [cols]; +inf for a query without a key
  const float* delta;     ///< [cols]
};
void gradient_tile(const BackwardTile& tile);

/// delta = sum(dout * out) of each of `rows` rows.
void row_dots(const float* dout, const float* out, int64_t ld, int64_t rows, int64_t cols,
              float* delta);

/// False when a value of the rows, `row_stride` apart, is nan or infinite.
bool all_finite(const float* values, int64_t row_stride, int64_t rows, int64_t cols);

}  // namespace muster::kernels::cpu::internal
