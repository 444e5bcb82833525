#pragma once
/// Rows of strided matrices of any floating dtype, as contiguous float or double.
///
/// Row kernels are written for contiguous f32 and f64 only. A row that is already so is used in
/// place; any other is widened into a scratch row of the caller and, for results, narrowed back.

#include <cstdint>
#include <type_traits>

#include "core/base/error.h"
#include "core/tensor/tensor_view.h"

namespace muster::kernels::cpu {

/// The arithmetic type of a floating dtype: f64 for f64, f32 for the rest.
constexpr DType arithmetic_dtype(DType dtype) noexcept {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

/// Calls `body(A{})` with A = double for f64, float for f32, bf16 and f16.
/// @error kInvalidArgument  the dtype is not floating
template <typename Body>
void visit_arithmetic(const char* operation, DType dtype, const Body& body) {
  MUSTER_CHECK(is_floating(dtype), ErrorCode::kInvalidArgument,
               "{}: the dtype must be floating; got {}", operation, dtype);
  if (dtype == DType::kF64) {
    body(double{});
  } else {
    body(float{});
  }
}

/// One row in memory: `cols` elements of `dtype`, `stride` apart.
struct RowRef {
  void* data = nullptr;
  DType dtype = kDefaultDType;
  int64_t cols = 0;
  int64_t stride = 1;
};

/// The matrix [rows, cols] of a 2-D view, or one row of a 1-D view.
class RowMatrix {
 public:
  explicit RowMatrix(const TensorView& view)
      : data_(static_cast<char*>(view.data)),
        dtype_(view.dtype),
        rows_(view.ndim() == 2 ? view.sizes[0] : 1),
        cols_(view.sizes[view.ndim() - 1]),
        row_nbytes_((view.ndim() == 2 ? view.strides[0] : 0) * item_nbytes(view.dtype)),
        col_stride_(cols_ == 1 ? 1 : view.strides[view.ndim() - 1]) {}

  [[nodiscard]] int64_t rows() const noexcept { return rows_; }
  [[nodiscard]] int64_t cols() const noexcept { return cols_; }
  [[nodiscard]] RowRef row(int64_t i) const noexcept {
    return {data_ + i * row_nbytes_, dtype_, cols_, col_stride_};
  }

 private:
  char* data_;
  DType dtype_;
  int64_t rows_;
  int64_t cols_;
  int64_t row_nbytes_;
  int64_t col_stride_;
};

namespace internal {
void widen_row(const RowRef& row, float* to);
void widen_row(const RowRef& row, double* to);
void narrow_row(const float* from, const RowRef& row);
void narrow_row(const double* from, const RowRef& row);
}  // namespace internal

template <typename A>
bool is_plain(const RowRef& row) noexcept {
  return row.dtype == dtype_of<A> && row.stride == 1;
}

/// The row as contiguous A: in place, or widened into `scratch`.
template <typename A>
const A* read_row(const RowRef& row, A* scratch) {
  if (is_plain<A>(row)) return static_cast<const A*>(row.data);
  internal::widen_row(row, scratch);
  return scratch;
}

/// Where to write a result row: in place, or `scratch`; then call finish_row.
template <typename A>
A* begin_row(const RowRef& row, A* scratch) noexcept {
  return is_plain<A>(row) ? static_cast<A*>(row.data) : scratch;
}
template <typename A>
void finish_row(const RowRef& row, const A* written) {
  if (!is_plain<A>(row)) internal::narrow_row(written, row);
}

}  // namespace muster::kernels::cpu
