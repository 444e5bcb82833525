#pragma once
/// What the GEMM kernels share: a strided matrix, the tiling rule, and the serial f32 product that
/// attention builds on. Internal to core/kernels.

#include <algorithm>
#include <cstdint>

#include "core/tensor/dtype.h"

namespace muster::kernels::cpu::internal {

/// A matrix by strides; owns nothing.
template <typename T>
struct Matrix {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;
  int64_t col_stride = 0;

  [[nodiscard]] T* at(int64_t i, int64_t j) const noexcept {
    return data + i * row_stride + j * col_stride;
  }
  [[nodiscard]] Matrix block(int64_t i, int64_t j, int64_t num_rows, int64_t num_cols) const {
    return {at(i, j), num_rows, num_cols, row_stride, col_stride};
  }
  [[nodiscard]] Matrix transposed() const { return {data, cols, rows, col_stride, row_stride}; }
};

/// B products of one shape; a batch stride of 0 repeats a matrix.
template <typename T>
struct BatchedMatrix {
  Matrix<T> first;
  int64_t batch_stride = 0;

  [[nodiscard]] Matrix<T> operator[](int64_t b) const {
    Matrix<T> m = first;
    m.data += b * batch_stride;
    return m;
  }
};

template <typename T>
struct GemmProblem {
  int64_t batch = 1;
  BatchedMatrix<T> out;
  BatchedMatrix<const T> a;
  BatchedMatrix<const T> b;
  T alpha{};
  T beta{};
  const T* bias = nullptr;  ///< one row, or null
  int64_t bias_stride = 1;
};

/// The part of `out` that one thread computes: a function of the shape alone.
struct GemmTile {
  int64_t rows;
  int64_t cols;
};

/// How a matrix is given to BLAS: unit stride along rows, along columns, or not at all.
struct BlasForm {
  enum class Kind : uint8_t { kRowMajor, kColumnMajor, kNeither } kind;
  int64_t leading_stride;  ///< in elements, >= 1
};

/// Strides of size-1 dims say nothing and are ignored.
template <typename T>
BlasForm blas_form(const Matrix<T>& m) noexcept {
  const int64_t min_row = std::max<int64_t>(1, m.cols);
  const int64_t min_col = std::max<int64_t>(1, m.rows);
  if ((m.col_stride == 1 || m.cols <= 1) && (m.rows <= 1 || m.row_stride >= min_row))
    return {BlasForm::Kind::kRowMajor, m.rows <= 1 ? min_row : m.row_stride};
  if ((m.row_stride == 1 || m.rows <= 1) && (m.cols <= 1 || m.col_stride >= min_col))
    return {BlasForm::Kind::kColumnMajor, m.cols <= 1 ? min_col : m.col_stride};
  return {BlasForm::Kind::kNeither, 0};
}

/// Tiles of the f32 kernel: enough for a few threads, large enough that packing costs little.
GemmTile gemm_f32_tile(int64_t m, int64_t n, int64_t k) noexcept;

/// Products of bf16 matrices with f32 sums: out = alpha * a @ b + beta * out + bias.
struct Bf16Product {
  int64_t batch = 1;
  BatchedMatrix<const BFloat16> a;
  BatchedMatrix<const BFloat16> b;
  float alpha = 1.0f;
  float beta = 0.0f;
  const float* bias = nullptr;  ///< one dense row, or null
};

/// By oneDNN's bf16 kernels, which need AVX-512. The depth must not be 0; T is float or BFloat16.
template <typename T>
void gemm_bf16(const Bf16Product& product, const BatchedMatrix<T>& out);

/// f32 products as three of bf16; false, and nothing written, when there is nothing to multiply or
/// an operand holds nan or inf (or rounds to it).
bool gemm_f32_split(const GemmProblem<float>& problem);

void gemm_f32(const GemmProblem<float>& problem);
void gemm_f64(const GemmProblem<double>& problem);

/// out = alpha * a @ b + beta * out on the calling thread. `out` row-major; a and b row-major or
/// column-major (not kNeither).
void sgemm_serial(const Matrix<float>& out, const Matrix<const float>& a,
                  const Matrix<const float>& b, float alpha, float beta);

/// While it lives, oneDNN runs on the calling thread alone. Cheap; nests.
class OneDnnSerialScope {
 public:
  OneDnnSerialScope() noexcept;
  ~OneDnnSerialScope();
  OneDnnSerialScope(const OneDnnSerialScope&) = delete;
  OneDnnSerialScope& operator=(const OneDnnSerialScope&) = delete;

 private:
  int previous_;
};

/// out *= beta (0 writes zeros), then += bias: what is left of a product with K = 0.
template <typename T>
void scale_and_add_bias(const Matrix<T>& out, T beta, const T* bias, int64_t bias_stride) {
  for (int64_t i = 0; i < out.rows; ++i) {
    for (int64_t j = 0; j < out.cols; ++j) {
      T* value = out.at(i, j);
      const T kept = beta == T(0) ? T(0) : static_cast<T>(beta * *value);
      *value = bias == nullptr ? kept : static_cast<T>(kept + bias[j * bias_stride]);
    }
  }
}

}  // namespace muster::kernels::cpu::internal
