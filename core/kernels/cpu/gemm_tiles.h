#pragma once
/// What the oneDNN-backed GEMMs share: operands that BLAS can read, and the walk over tiles.
/// Internal to core/kernels.

#include <optional>

#include "core/kernels/cpu/gemm_internal.h"
#include "core/kernels/cpu/workspace.h"
#include "core/kernels/parallel.h"

namespace muster::kernels::cpu::internal {

/// An operand that oneDNN can read in place: itself, or a row-major copy that this object owns.
template <typename T>
class ReadableOperand {
 public:
  ReadableOperand(const BatchedMatrix<const T>& operand, int64_t batch) : operand_(operand) {
    if (blas_form(operand.first).kind != BlasForm::Kind::kNeither) return;
    const int64_t rows = operand.first.rows;
    const int64_t cols = operand.first.cols;
    const int64_t copies = operand.batch_stride == 0 ? 1 : batch;
    copy_.emplace(copies * rows * cols);
    const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 15) / std::max<int64_t>(1, cols));
    parallel_tiles(copies * rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const Matrix<const T> from = operand[row / rows];
        T* to = copy_->data() + row * cols;
        for (int64_t j = 0; j < cols; ++j) to[j] = *from.at(row % rows, j);
      }
    });
    operand_ = {{copy_->data(), rows, cols, cols, 1}, copies == 1 ? 0 : rows * cols};
  }
  [[nodiscard]] const BatchedMatrix<const T>& get() const { return operand_; }

 private:
  BatchedMatrix<const T> operand_;
  std::optional<Workspace<T>> copy_;
};

/// One tile of one product of a batch.
struct GemmTilePlace {
  int64_t batch, i, j, rows, cols;
};

/// Calls `make()` once for each run of tiles, with oneDNN on the calling thread alone, and what it
/// returns for each tile of the products [M, K] x [K, N].
template <typename Make>
void for_each_gemm_tile(int64_t batch, int64_t m, int64_t n, int64_t k, const Make& make) {
  constexpr int64_t kSerialFlops = int64_t{1} << 20;  // below, waking threads costs more
  const GemmTile tile = gemm_f32_tile(m, n, k);
  const int64_t tiles_down = num_tiles(m, tile.rows);
  const int64_t tiles_each = tiles_down * num_tiles(n, tile.cols);
  const int64_t tile_flops =
      std::max<int64_t>(1, 2 * tile.rows * tile.cols * std::max<int64_t>(k, 1));
  const int64_t grain = std::max<int64_t>(1, kSerialFlops / tile_flops);
  parallel_tiles(batch * tiles_each, grain, [&](int64_t begin, int64_t end) {
    const OneDnnSerialScope serial;
    auto run = make();
    for (int64_t t = begin; t < end; ++t) {
      const int64_t i = t % tiles_each % tiles_down * tile.rows;
      const int64_t j = t % tiles_each / tiles_down * tile.cols;
      run(GemmTilePlace{t / tiles_each, i, j, std::min(tile.rows, m - i),
                        std::min(tile.cols, n - j)});
    }
  });
}

}  // namespace muster::kernels::cpu::internal
