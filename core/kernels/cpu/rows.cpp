#include "core/kernels/cpu/rows.h"

#include <cstring>

#include "core/kernels/cpu/copy_vec.h"

namespace muster::kernels::cpu::internal {
namespace {
template <typename A>
void widen(const RowRef& row, A* to) {
  if (is_plain<A>(row)) {
    if (row.cols > 0) std::memcpy(to, row.data, static_cast<size_t>(row.cols) * sizeof(A));
    return;
  }
  if constexpr (std::is_same_v<A, float>) {
    if (row.stride == 1 && row.dtype == DType::kBF16)
      return widen_bf16(to, static_cast<const BFloat16*>(row.data), row.cols);
    if (row.stride == 1 && row.dtype == DType::kF16)
      return widen_f16(to, static_cast<const Half*>(row.data), row.cols);
  }
  visit_dtype(row.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* from = static_cast<const T*>(row.data);
    if constexpr (std::is_floating_point_v<T>) {
      for (int64_t j = 0; j < row.cols; ++j) to[j] = static_cast<A>(from[j * row.stride]);
    } else if constexpr (!std::is_integral_v<T>) {
      for (int64_t j = 0; j < row.cols; ++j) to[j] = static_cast<float>(from[j * row.stride]);
    }
  });
}

template <typename A>
void narrow(const A* from, const RowRef& row) {
  if (is_plain<A>(row)) {
    if (row.cols > 0) std::memcpy(row.data, from, static_cast<size_t>(row.cols) * sizeof(A));
    return;
  }
  if constexpr (std::is_same_v<A, float>) {
    if (row.stride == 1 && row.dtype == DType::kBF16)
      return narrow_bf16(static_cast<BFloat16*>(row.data), from, row.cols);
    if (row.stride == 1 && row.dtype == DType::kF16)
      return narrow_f16(static_cast<Half*>(row.data), from, row.cols);
  }
  visit_dtype(row.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_floating_point_v<T>) {
      T* to = static_cast<T*>(row.data);
      for (int64_t j = 0; j < row.cols; ++j) to[j * row.stride] = static_cast<T>(from[j]);
    } else if constexpr (!std::is_integral_v<T>) {
      T* to = static_cast<T*>(row.data);
      for (int64_t j = 0; j < row.cols; ++j) to[j * row.stride] = T(static_cast<float>(from[j]));
    }
  });
}
}  // namespace

void widen_row(const RowRef& row, float* to) { widen(row, to); }
void widen_row(const RowRef& row, double* to) { widen(row, to); }
void narrow_row(const float* from, const RowRef& row) { narrow(from, row); }
void narrow_row(const double* from, const RowRef& row) { narrow(from, row); }

}  // namespace muster::kernels::cpu::internal
