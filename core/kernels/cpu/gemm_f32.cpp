#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include "core/base/error.h"
#include "core/kernels/cpu/gemm_tiles.h"
#include "core/kernels/cpu/workspace.h"
#include "core/kernels/parallel.h"

namespace muster::kernels::cpu::internal {
namespace {
constexpr int64_t kMinTileFlops = int64_t{1} << 21;  // ~20 us of one core
constexpr int64_t kMaxTileArea = int64_t{512} * 768;
constexpr int64_t kMinTileDim = 128;
constexpr int64_t kWantedTiles = 8;
constexpr int64_t kColStep = 48;  // columns of oneDNN's micro-kernel on AVX-512, 2 of them on AVX2
constexpr int64_t kRowStep = 8;

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// Rows of `m` copied to a fresh row-major matrix, in parallel.
Matrix<const float> copy_rows(const Matrix<const float>& m, float* to) {
  const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 15) / std::max<int64_t>(1, m.cols));
  parallel_tiles(m.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < m.cols; ++j) to[i * m.cols + j] = *m.at(i, j);
    }
  });
  return {to, m.rows, m.cols, m.cols, 1};
}

void add_bias(const Matrix<float>& out, const float* bias, int64_t stride) {
  for (int64_t r = 0; r < out.rows; ++r) {
    float* row = out.at(r, 0);
    if (stride == 1) {
      for (int64_t c = 0; c < out.cols; ++c) row[c] += bias[c];
    } else {
      for (int64_t c = 0; c < out.cols; ++c) row[c] += bias[c * stride];
    }
  }
}

void run_tiles(const GemmProblem<float>& problem, const BatchedMatrix<const float>& a,
               const BatchedMatrix<const float>& b) {
  const int64_t k = a.first.cols;
  for_each_gemm_tile(problem.batch, problem.out.first.rows, problem.out.first.cols, k, [&] {
    return [&](const GemmTilePlace& at) {
      const Matrix<float> out = problem.out[at.batch].block(at.i, at.j, at.rows, at.cols);
      sgemm_serial(out, a[at.batch].block(at.i, 0, at.rows, k),
                   b[at.batch].block(0, at.j, k, at.cols), problem.alpha, problem.beta);
      if (problem.bias == nullptr) return;
      add_bias(out, problem.bias + at.j * problem.bias_stride, problem.bias_stride);
    };
  });
}

}  // namespace

OneDnnSerialScope::OneDnnSerialScope() noexcept : previous_(omp_get_max_threads()) {
  if (previous_ != 1) omp_set_num_threads(1);
}

OneDnnSerialScope::~OneDnnSerialScope() {
  if (previous_ != 1) omp_set_num_threads(previous_);
}

GemmTile gemm_f32_tile(int64_t m, int64_t n, int64_t k) noexcept {
  GemmTile tile{std::max<int64_t>(m, 1), std::max<int64_t>(n, 1)};
  int64_t tiles = 1;
  while (true) {
    const bool too_large = tile.rows * tile.cols > kMaxTileArea;
    const bool may_shrink = 2 * tile.rows * tile.cols * k >= 2 * kMinTileFlops;
    if (!too_large && (tiles >= kWantedTiles || !may_shrink)) return tile;
    // Halve the longer side, so that tiles tend to squares, which pack least.
    const bool cut_rows = tile.rows > tile.cols;
    int64_t& side = cut_rows ? tile.rows : tile.cols;
    if (side < 2 * kMinTileDim) return tile;
    side = round_up((side + 1) / 2, cut_rows ? kRowStep : kColStep);
    tiles = num_tiles(m, tile.rows) * num_tiles(n, tile.cols);
  }
}

void sgemm_serial(const Matrix<float>& out, const Matrix<const float>& a,
                  const Matrix<const float>& b, float alpha, float beta) {
  if (out.rows == 0 || out.cols == 0) return;
  if (a.cols == 0) {
    scale_and_add_bias<float>(out, beta, nullptr, 0);
    return;
  }
  const BlasForm out_form = blas_form(out);
  const BlasForm a_form = blas_form(a);
  const BlasForm b_form = blas_form(b);
  const dnnl_status_t status =
      dnnl_sgemm(a_form.kind == BlasForm::Kind::kRowMajor ? 'N' : 'T',
                 b_form.kind == BlasForm::Kind::kRowMajor ? 'N' : 'T', out.rows, out.cols, a.cols,
                 alpha, a.data, a_form.leading_stride, b.data, b_form.leading_stride, beta,
                 out.data, out_form.leading_stride);
  MUSTER_ASSERT(status == dnnl_success, "gemm: oneDNN returned {} for {} x {} x {}",
                static_cast<int>(status), out.rows, out.cols, a.cols);
}

void gemm_f32(const GemmProblem<float>& problem) {
  if (problem.batch == 0 || problem.out.first.rows == 0 || problem.out.first.cols == 0) return;
  const BlasForm::Kind form = blas_form(problem.out.first).kind;
  if (form == BlasForm::Kind::kRowMajor) {
    const ReadableOperand<float> a(problem.a, problem.batch);
    const ReadableOperand<float> b(problem.b, problem.batch);
    run_tiles(problem, a.get(), b.get());
    return;
  }
  // out^T = b^T a^T is row-major; a bias along rows is then no longer a row, so it goes last.
  if (form == BlasForm::Kind::kColumnMajor && problem.bias == nullptr) {
    GemmProblem<float> swapped = problem;
    swapped.out.first = problem.out.first.transposed();
    swapped.a = {problem.b.first.transposed(), problem.b.batch_stride};
    swapped.b = {problem.a.first.transposed(), problem.a.batch_stride};
    gemm_f32(swapped);
    return;
  }
  const Matrix<float>& out = problem.out.first;
  const int64_t numel = out.rows * out.cols;
  const Workspace<float> scratch(problem.batch * numel);
  GemmProblem<float> dense = problem;
  dense.out = {{scratch.data(), out.rows, out.cols, out.cols, 1}, numel};
  if (problem.beta != 0.0f) {
    for (int64_t batch = 0; batch < problem.batch; ++batch) {
      const Matrix<float> from = problem.out[batch];
      copy_rows({from.data, from.rows, from.cols, from.row_stride, from.col_stride},
                scratch.data() + batch * numel);
    }
  }
  gemm_f32(dense);
  for (int64_t batch = 0; batch < problem.batch; ++batch) {
    const Matrix<float> to = problem.out[batch];
    const Matrix<float> from = dense.out[batch];
    for (int64_t i = 0; i < out.rows; ++i) {
      for (int64_t j = 0; j < out.cols; ++j) *to.at(i, j) = *from.at(i, j);
    }
  }
}

}  // namespace muster::kernels::cpu::internal
