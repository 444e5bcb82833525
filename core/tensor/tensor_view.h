#pragma once
/// TensorView: what a kernel sees of a tensor: pointer, dtype, sizes, strides. Owns nothing.
///
/// Kernels take these by value; they know neither dispatcher nor autograd. An input view must stay
/// unwritten during the call; an output view is allocated by the caller.

#include "core/tensor/tensor.h"

namespace muster {

struct TensorView {
  void* data = nullptr;
  DType dtype = kDefaultDType;
  Dims sizes;
  Dims strides;  ///< in elements

  TensorView() = default;
  TensorView(void* data_in, DType dtype_in, Dims sizes_in, Dims strides_in)
      : data(data_in), dtype(dtype_in), sizes(sizes_in), strides(strides_in) {}
  /// The tensor must outlive the view.
  TensorView(const Tensor& tensor)  // NOLINT(google-explicit-constructor)
      : data(tensor.data_ptr()),
        dtype(tensor.dtype()),
        sizes(tensor.sizes()),
        strides(tensor.strides()) {}

  template <typename T>
  [[nodiscard]] T* as() const noexcept {
    return static_cast<T*>(data);
  }
  [[nodiscard]] int64_t numel() const noexcept { return numel_of(sizes); }
  [[nodiscard]] size_t ndim() const noexcept { return sizes.size(); }
  [[nodiscard]] bool is_contiguous() const noexcept {
    return muster::is_contiguous(sizes, strides);
  }
};

}  // namespace muster
