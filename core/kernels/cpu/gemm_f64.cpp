#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/gemm_f64.cpp"
#include "core/kernels/cpu/simd_targets.h"
//
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "core/kernels/cpu/gemm_internal.h"
#include "core/kernels/cpu/workspace.h"
#include "core/kernels/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace muster::kernels::cpu::internal::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kDepth = 256;    // of one packed block: kRows x kDepth of `a` stays in L2
constexpr int64_t kPanelRows = 6;  // 6 x 2 accumulators and 3 operands fit 16 registers

// Columns of a packed panel of `b`.
int64_t panel_cols() { return 2 * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<double>())); }

// a[rows, depth] as panels of kPanelRows rows, depth-major inside, padded with zeros.
void pack_a(const Matrix<const double>& a, double* to) {
  for (int64_t i0 = 0; i0 < a.rows; i0 += kPanelRows) {
    for (int64_t k = 0; k < a.cols; ++k) {
      for (int64_t i = 0; i < kPanelRows; ++i) *to++ = i0 + i < a.rows ? *a.at(i0 + i, k) : 0.0;
    }
  }
}

void pack_b(const Matrix<const double>& b, int64_t width, double* to) {
  for (int64_t j0 = 0; j0 < b.cols; j0 += width) {
    for (int64_t k = 0; k < b.rows; ++k) {
      for (int64_t j = 0; j < width; ++j) *to++ = j0 + j < b.cols ? *b.at(k, j0 + j) : 0.0;
    }
  }
}

// product[kPanelRows, 2 vectors] = panel of a times panel of b over `depth`.
HWY_INLINE void multiply_panels(const double* HWY_RESTRICT a, const double* HWY_RESTRICT b,
                                int64_t depth, double* HWY_RESTRICT product) {
  const hn::ScalableTag<double> d;
  const size_t lanes = hn::Lanes(d);
  auto c00 = hn::Zero(d), c01 = hn::Zero(d), c10 = hn::Zero(d), c11 = hn::Zero(d);
  auto c20 = hn::Zero(d), c21 = hn::Zero(d), c30 = hn::Zero(d), c31 = hn::Zero(d);
  auto c40 = hn::Zero(d), c41 = hn::Zero(d), c50 = hn::Zero(d), c51 = hn::Zero(d);
  for (int64_t k = 0; k < depth; ++k, a += kPanelRows, b += 2 * lanes) {
    const auto b0 = hn::LoadU(d, b);
    const auto b1 = hn::LoadU(d, b + lanes);
    auto ai = hn::Set(d, a[0]);
    c00 = hn::MulAdd(ai, b0, c00), c01 = hn::MulAdd(ai, b1, c01);
    ai = hn::Set(d, a[1]);
    c10 = hn::MulAdd(ai, b0, c10), c11 = hn::MulAdd(ai, b1, c11);
    ai = hn::Set(d, a[2]);
    c20 = hn::MulAdd(ai, b0, c20), c21 = hn::MulAdd(ai, b1, c21);
    ai = hn::Set(d, a[3]);
    c30 = hn::MulAdd(ai, b0, c30), c31 = hn::MulAdd(ai, b1, c31);
    ai = hn::Set(d, a[4]);
    c40 = hn::MulAdd(ai, b0, c40), c41 = hn::MulAdd(ai, b1, c41);
    ai = hn::Set(d, a[5]);
    c50 = hn::MulAdd(ai, b0, c50), c51 = hn::MulAdd(ai, b1, c51);
  }
  double* row = product;
  hn::StoreU(c00, d, row), hn::StoreU(c01, d, row + lanes), row += 2 * lanes;
  hn::StoreU(c10, d, row), hn::StoreU(c11, d, row + lanes), row += 2 * lanes;
  hn::StoreU(c20, d, row), hn::StoreU(c21, d, row + lanes), row += 2 * lanes;
  hn::StoreU(c30, d, row), hn::StoreU(c31, d, row + lanes), row += 2 * lanes;
  hn::StoreU(c40, d, row), hn::StoreU(c41, d, row + lanes), row += 2 * lanes;
  hn::StoreU(c50, d, row), hn::StoreU(c51, d, row + lanes);
}

// out = alpha * packed_a * packed_b + beta * out.
void multiply_packed(const Matrix<double>& out, int64_t depth, double alpha, double beta,
                     const double* packed_a, const double* packed_b) {
  const int64_t width = panel_cols();
  HWY_ALIGN double product[kPanelRows * 2 * HWY_MAX_BYTES / sizeof(double)];
  for (int64_t j0 = 0; j0 < out.cols; j0 += width) {
    for (int64_t i0 = 0; i0 < out.rows; i0 += kPanelRows) {
      multiply_panels(packed_a + i0 * depth, packed_b + j0 * depth, depth, product);
      const int64_t rows = HWY_MIN(kPanelRows, out.rows - i0);
      const int64_t cols = HWY_MIN(width, out.cols - j0);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < cols; ++j) {
          double* value = out.at(i0 + i, j0 + j);
          const double scaled = alpha * product[i * width + j];
          *value = beta == 0.0 ? scaled : scaled + beta * *value;
        }
      }
    }
  }
}

// One tile of one product; `packed` has room for both packed blocks.
void multiply_tile(const Matrix<double>& out, const Matrix<const double>& a,
                   const Matrix<const double>& b, double alpha, double beta, double* packed_a,
                   double* packed_b) {
  for (int64_t k0 = 0; k0 < a.cols; k0 += kDepth) {
    const int64_t depth = HWY_MIN(kDepth, a.cols - k0);
    pack_a(a.block(0, k0, a.rows, depth), packed_a);
    pack_b(b.block(k0, 0, depth, b.cols), panel_cols(), packed_b);
    multiply_packed(out, depth, alpha, k0 == 0 ? beta : 1.0, packed_a, packed_b);
  }
}

}  // namespace muster::kernels::cpu::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace muster::kernels::cpu::internal {
namespace {
HWY_EXPORT(multiply_tile);

constexpr int64_t kTileRows = 96;
constexpr int64_t kTileCols = 192;
constexpr int64_t kMaxDepth = 256;
constexpr int64_t kPadding = 16;  // one panel more than the tile, in either direction
constexpr int64_t kGrainFlops = int64_t{1} << 19;
}  // namespace

void gemm_f64(const GemmProblem<double>& problem) {
  const Matrix<double>& shape = problem.out.first;
  if (problem.batch == 0 || shape.rows == 0 || shape.cols == 0) return;
  const int64_t depth = problem.a.first.cols;
  const int64_t tiles_down = num_tiles(shape.rows, kTileRows);
  const int64_t tiles_each = tiles_down * num_tiles(shape.cols, kTileCols);
  const int64_t tile_flops = 2 * std::min(shape.rows, kTileRows) * std::min(shape.cols, kTileCols) *
                             std::max<int64_t>(depth, 1);
  const int64_t grain = std::max<int64_t>(1, kGrainFlops / tile_flops);
  parallel_tiles(problem.batch * tiles_each, grain, [&](int64_t begin, int64_t end) {
    const int64_t packed_depth = std::min(depth, kMaxDepth);
    const Workspace<double> packed_a((std::min(shape.rows, kTileRows) + kPadding) * packed_depth);
    const Workspace<double> packed_b((std::min(shape.cols, kTileCols) + kPadding) * packed_depth);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t batch = t / tiles_each;
      const int64_t i = t % tiles_each % tiles_down * kTileRows;
      const int64_t j = t % tiles_each / tiles_down * kTileCols;
      const int64_t rows = std::min(kTileRows, shape.rows - i);
      const int64_t cols = std::min(kTileCols, shape.cols - j);
      const Matrix<double> out = problem.out[batch].block(i, j, rows, cols);
      const double* bias =
          problem.bias == nullptr ? nullptr : problem.bias + j * problem.bias_stride;
      if (depth == 0) {
        scale_and_add_bias(out, problem.beta, bias, problem.bias_stride);
        continue;
      }
      HWY_DYNAMIC_DISPATCH(multiply_tile)
      (out, problem.a[batch].block(i, 0, rows, depth), problem.b[batch].block(0, j, depth, cols),
       problem.alpha, problem.beta, packed_a.data(), packed_b.data());
      if (bias != nullptr) scale_and_add_bias(out, 1.0, bias, problem.bias_stride);
    }
  });
}

}  // namespace muster::kernels::cpu::internal
#endif
