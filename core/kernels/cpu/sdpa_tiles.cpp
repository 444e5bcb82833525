#include "core/kernels/cpu/sdpa_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/sdpa_tiles.cpp"
#include "core/kernels/cpu/simd_targets.h"
//
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include <cmath>
#include <limits>

#include "core/kernels/cpu/simd_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace muster::kernels::cpu::internal::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// scores + bias where the bias is not -inf; hidden scores may be nan and are not read.
HWY_INLINE void add_bias(float* scores, const float* bias, int64_t n) {
  for_row<float>(n, [&](auto d, int64_t j) HWY_ATTR {
    const auto hidden = hn::Set(d, kHidden);
    const auto b = hn::LoadU(d, bias + j);
    const auto sum = hn::Add(hn::LoadU(d, scores + j), b);
    hn::StoreU(hn::IfThenElse(hn::Eq(b, hidden), hidden, sum), d, scores + j);
  });
}

HWY_INLINE void fill_zero(float* to, int64_t n) {
  for_row<float>(n, [&](auto d, int64_t j) HWY_ATTR { hn::StoreU(hn::Zero(d), d, to + j); });
}

void softmax_rows(const ForwardTile& tile) {
  for (int64_t i = 0; i < tile.rows; ++i) {
    float* scores = tile.scores + i * tile.ld;
    const int64_t limit = tile.first_visible + i;
    const int64_t visible = limit < 0 ? 0 : HWY_MIN(limit, tile.cols);
    if (tile.bias != nullptr) add_bias(scores, tile.bias + i * tile.ld, visible);
    fill_zero(scores + visible, tile.cols - visible);
    const float max = HWY_MAX(max_row(scores, visible), tile.max[i]);
    if (max == kHidden && !has_nan(scores, visible)) {
      fill_zero(scores, visible);
      continue;
    }
    const float sum = sum_row<float>(visible, [&](auto d, int64_t j) HWY_ATTR {
      const auto p = exp_fast(d, hn::Sub(hn::LoadU(d, scores + j), hn::Set(d, max)));
      hn::StoreU(p, d, scores + j);
      return p;
    });
    const float shrink = max == tile.max[i] ? 1.0f : std::exp(tile.max[i] - max);
    if (!tile.is_first && shrink != 1.0f) {
      float* out = tile.out + i * tile.out_ld;
      for_row<float>(tile.out_cols, [&](auto d, int64_t e) HWY_ATTR {
        hn::StoreU(hn::Mul(hn::LoadU(d, out + e), hn::Set(d, shrink)), d, out + e);
      });
    }
    tile.sum[i] = tile.sum[i] * shrink + sum;
    tile.max[i] = max;
  }
}

void gradient_rows(const BackwardTile& tile) {
  for (int64_t j = 0; j < tile.rows; ++j) {
    float* scores = tile.scores + j * tile.ld;
    float* dp = tile.dp + j * tile.ld;
    const int64_t first = tile.first_visible + j;
    const int64_t hidden = first < 0 ? 0 : HWY_MIN(first, tile.cols);
    fill_zero(scores, hidden);
    fill_zero(dp, hidden);
    scores += hidden;
    dp += hidden;
    if (tile.bias != nullptr)
      add_bias(scores, tile.bias + j * tile.ld + hidden, tile.cols - hidden);
    const float* lse = tile.lse + hidden;
    const float* delta = tile.delta + hidden;
    for_row<float>(tile.cols - hidden, [&](auto d, int64_t i) HWY_ATTR {
      const auto s = hn::LoadU(d, scores + i);
      const auto p = exp_fast(d, hn::Sub(s, hn::LoadU(d, lse + i)));
      const auto ds = hn::Mul(p, hn::Sub(hn::LoadU(d, dp + i), hn::LoadU(d, delta + i)));
      hn::StoreU(p, d, scores + i);
      if (tile.bias == nullptr) {
        hn::StoreU(ds, d, dp + i);
      } else {  // dp of a hidden key may be nan
        hn::StoreU(hn::IfThenZeroElse(hn::Eq(s, hn::Set(d, kHidden)), ds), d, dp + i);
      }
    });
  }
}

void dot_rows(const float* dout, const float* out, int64_t ld, int64_t rows, int64_t cols,
              float* delta) {
  for (int64_t i = 0; i < rows; ++i) {
    const float* a = dout + i * ld;
    const float* b = out + i * ld;
    delta[i] = sum_row<float>(cols, [&](auto d, int64_t e) HWY_ATTR {
      return hn::Mul(hn::LoadU(d, a + e), hn::LoadU(d, b + e));
    });
  }
}

// 0 * x is nan exactly when x is not finite; one sum runs over all rows.
bool finite_rows(const float* values, int64_t row_stride, int64_t rows, int64_t cols) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  float tail = 0.0f;
  for (int64_t i = 0; i < rows; ++i, values += row_stride) {
    int64_t j = 0;
    for (; j + lanes <= cols; j += lanes)
      sum = hn::MulAdd(hn::LoadU(d, values + j), hn::Zero(d), sum);
    for (; j < cols; ++j) tail += values[j] * 0.0f;
  }
  return hn::AllTrue(d, hn::Eq(sum, hn::Zero(d))) && tail == 0.0f;
}

}  // namespace muster::kernels::cpu::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace muster::kernels::cpu::internal {
HWY_EXPORT(softmax_rows);
HWY_EXPORT(gradient_rows);
HWY_EXPORT(dot_rows);
HWY_EXPORT(finite_rows);

void softmax_tile(const ForwardTile& tile) { HWY_DYNAMIC_DISPATCH(softmax_rows)(tile); }
void gradient_tile(const BackwardTile& tile) { HWY_DYNAMIC_DISPATCH(gradient_rows)(tile); }
void row_dots(const float* dout, const float* out, int64_t ld, int64_t rows, int64_t cols,
              float* delta) {
  HWY_DYNAMIC_DISPATCH(dot_rows)(dout, out, ld, rows, cols, delta);
}
bool all_finite(const float* values, int64_t row_stride, int64_t rows, int64_t cols) {
  return HWY_DYNAMIC_DISPATCH(finite_rows)(values, row_stride, rows, cols);
}
}  // namespace muster::kernels::cpu::internal
#endif
