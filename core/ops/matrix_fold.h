#pragma once
/// Tensors seen as matrices by kernels that know two dims only. For core/ops; records nothing.

#include "core/ops/op_support.h"

namespace muster::ops {

/// A tensor [.., N] as rows [R, N]: its own memory where its strides allow, else a copy. A 0-dim
/// tensor is one row of one element.
class Rows {
 public:
  explicit Rows(const Tensor& tensor) : kept_(tensor) {
    const int64_t n = tensor.ndim() == 0 ? 1 : tensor.sizes().back();
    int64_t rows = 1;
    for (int64_t d = 0; d + 1 < tensor.ndim(); ++d) rows *= tensor.size(d);
    sizes_ = {rows, n};
    const std::optional<DimVector> strides = view_strides(tensor.sizes(), tensor.strides(), sizes_);
    if (strides) {
      strides_ = *strides;
    } else {
      kept_ = dense(tensor);
      strides_ = contiguous_strides(sizes_);
    }
    view_ = TensorView(kept_.data_ptr(), kept_.dtype(), sizes_, strides_);
  }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;
  operator const TensorView&() const noexcept { return view_; }  // NOLINT
  [[nodiscard]] const TensorView& view() const noexcept { return view_; }

 private:
  Tensor kept_;
  DimVector sizes_;
  DimVector strides_;
  TensorView view_;
};

/// A contiguous tensor's memory as a vector.
class Flat {
 public:
  explicit Flat(const Tensor& tensor)
      : sizes_{tensor.numel()},
        strides_{1},
        view_(tensor.data_ptr(), tensor.dtype(), sizes_, strides_) {}
  Flat(const Flat&) = delete;
  Flat& operator=(const Flat&) = delete;
  operator const TensorView&() const noexcept { return view_; }  // NOLINT

 private:
  DimVector sizes_;
  DimVector strides_;
  TensorView view_;
};

/// The view of an optional tensor argument.
inline std::optional<TensorView> optional_view(const Value& value) {
  if (value.is_none()) return std::nullopt;
  return TensorView(value.tensor());
}

/// The dtype of row statistics: f64 for f64, else f32.
inline DType statistics_dtype(DType dtype) noexcept {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

/// A gradient that nobody asked for: no memory, dropped by the derivative.
inline TensorSpec no_gradient(DType dtype, Device device) {
  return TensorSpec::contiguous({0}, dtype, device);
}

}  // namespace muster::ops
