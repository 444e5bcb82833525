#include "core/ops/op_support.h"

#include <numeric>

#include "core/dispatch/mode.h"
#include "core/kernels/cpu/copy.h"

namespace muster::ops {
namespace {
// A dim as PyTorch's iterator sees it: stride 0 where the operand is broadcast.
int64_t broadcast_stride(const StridedShape& operand, size_t dim, Dims shape) {
  const size_t lead = shape.size() - operand.sizes.size();
  if (dim < lead) return 0;
  const size_t own = dim - lead;
  return operand.sizes[own] == 1 && shape[dim] != 1 ? 0 : operand.strides[own];
}

// 1: dim `inner` must lie outside `outer`; -1: they are in order; 0: no operand can tell.
int compare_dims(std::span<const StridedShape> operands, Dims shape, size_t inner, size_t outer) {
  for (const StridedShape& operand : operands) {
    const int64_t a = broadcast_stride(operand, inner, shape);
    const int64_t b = broadcast_stride(operand, outer, shape);
    if (a == 0 || b == 0) continue;
    if (a != b) return a < b ? -1 : 1;
    if (shape[inner] > shape[outer]) return 1;
  }
  return 0;
}

TensorSpec general_spec(std::span<const Value> operands, DType dtype, const char* operation) {
  DimVector shape;
  for (const Value& value : operands) {
    if (value.is_tensor()) shape = broadcast_sizes(shape, value.tensor().sizes(), operation);
  }
  SmallVector<const TensorImpl*, 4> tensors;
  bool all_same = true;
  for (const Value& value : operands) {
    if (!value.is_tensor()) continue;
    tensors.push_back(value.tensor().impl());
    all_same = all_same && same_sizes(value.tensor().sizes(), shape);
  }
  TensorSpec spec{shape, {}, dtype, common_device(operands)};
  if (all_same) {
    const TensorImpl& first = *tensors[0];
    bool all_contiguous = true, all_like_first = true;
    for (const TensorImpl* impl : tensors) {
      all_contiguous = all_contiguous && impl->is_contiguous;
      all_like_first = all_like_first && impl->strides == first.strides;
    }
    if (all_contiguous) return TensorSpec::contiguous(shape, dtype, spec.device);
    if (all_like_first && is_non_overlapping_and_dense(first.sizes, first.strides)) {
      spec.strides = first.strides;
      return spec;
    }
  }
  std::vector<StridedShape> shapes;
  for (const TensorImpl* impl : tensors) shapes.push_back({impl->sizes, impl->strides});
  spec.strides = result_strides(shapes, shape);
  return spec;
}

void store_number(std::byte* data, Scalar value, DType dtype) {
  kernels::cpu::fill(TensorView(data, dtype, Dims(), Dims()), value);
}
}  // namespace

DimVector result_strides(std::span<const StridedShape> operands, Dims shape) {
  const size_t n = shape.size();
  DimVector order(n);  // from the innermost dim to the outermost
  for (size_t i = 0; i < n; ++i) order[i] = static_cast<int64_t>(n - 1 - i);
  for (size_t i = 1; i < n; ++i) {
    size_t moving = i;
    for (size_t j = i; j-- > 0;) {
      const int verdict = compare_dims(operands, shape, static_cast<size_t>(order[j]),
                                       static_cast<size_t>(order[moving]));
      if (verdict < 0) break;
      if (verdict > 0) {
        std::swap(order[j], order[moving]);
        moving = j;
      }
    }
  }
  DimVector strides(n);
  int64_t step = 1;
  for (const int64_t dim : order) {
    strides[static_cast<size_t>(dim)] = step;
    step *= std::max<int64_t>(shape[static_cast<size_t>(dim)], 1);
  }
  return strides;
}

TensorSpec pointwise_spec(std::span<const Value> operands, DType dtype, const char* operation) {
  const Tensor* first = nullptr;
  bool simple = true;
  for (const Value& value : operands) {
    if (!value.is_tensor()) continue;
    const Tensor& tensor = value.tensor();
    simple = simple && tensor.is_contiguous();
    if (first == nullptr) {
      first = &tensor;
    } else {
      simple = simple && same_sizes(first->sizes(), tensor.sizes()) &&
               first->device() == tensor.device();
    }
  }
  MUSTER_CHECK(first != nullptr, ErrorCode::kInvalidArgument,
               "{}: at least one operand must be a tensor", operation);
  if (!simple) return general_spec(operands, dtype, operation);
  return TensorSpec::contiguous(first->sizes(), dtype, first->device());
}

Device common_device(std::span<const Value> values) noexcept {
  std::optional<Device> device;
  for (const Value& value : values) {
    if (value.is_tensor()) {
      if (!device || device->type == DeviceType::kCpu) device = value.tensor().device();
    } else if (value.is_tensor_list()) {
      for (const Tensor& tensor : value.tensors()) {
        if (tensor.defined() && (!device || device->type == DeviceType::kCpu)) {
          device = tensor.device();
        }
      }
    }
  }
  return device.value_or(thread_modes().default_device);
}

void KernelOperand::adapt(const Value& value, DType number_dtype, Dims sizes) {
  strides_.resize(sizes.size(), 0);
  if (!value.is_tensor()) {
    store_number(number_.data(), value.scalar(), number_dtype);
    view_ = TensorView(number_.data(), number_dtype, sizes, strides_);
    return;
  }
  const size_t lead = sizes.size() - view_.sizes.size();
  for (size_t i = 0; i < view_.sizes.size(); ++i) {
    if (view_.sizes[i] == sizes[lead + i]) strides_[lead + i] = view_.strides[i];
  }
  view_ = TensorView(view_.data, view_.dtype, sizes, strides_);
}

Tensor cast_to(const Tensor& tensor, DType dtype) {
  if (tensor.dtype() == dtype) return tensor;
  Tensor out = empty_from_spec({DimVector(tensor.sizes()),
                                preserved_strides(tensor.sizes(), tensor.strides()), dtype,
                                tensor.device()});
  kernels::cpu::copy(out, tensor);
  return out;
}

Tensor scratch(Dims sizes, DType dtype) {
  return empty_from_spec(TensorSpec::contiguous(sizes, dtype));
}

Tensor dense(const Tensor& tensor) {
  if (tensor.is_contiguous()) return tensor;
  Tensor out = scratch(tensor.sizes(), tensor.dtype());
  kernels::cpu::copy(out, tensor);
  return out;
}

TensorView view_with(const Tensor& tensor, const Layout& layout) {
  std::byte* start = tensor.storage()->data();
  return TensorView(
      start == nullptr ? nullptr : start + layout.offset * item_nbytes(tensor.dtype()),
      tensor.dtype(), layout.sizes, layout.strides);
}

DimVector normalized_dims(const Value& dims, int64_t ndim, const char* operation) {
  DimVector out;
  if (dims.is_none() || (dims.tag() == ValueTag::kIntList && dims.ints().empty())) {
    for (int64_t d = 0; d < ndim; ++d) out.push_back(d);
    return out;
  }
  const int64_t one = dims.tag() == ValueTag::kInt ? dims.integer() : 0;
  const Dims given = dims.tag() == ValueTag::kInt ? Dims(&one, 1) : dims.ints();
  for (const int64_t dim : given) out.push_back(wrap_dim(dim, ndim, operation));
  std::sort(out.begin(), out.end());
  for (size_t i = 1; i < out.size(); ++i) {
    MUSTER_CHECK(out[i] != out[i - 1], ErrorCode::kInvalidArgument,
                 "{}: dim {} appears multiple times in the list of dims {}", operation, out[i],
                 to_string(given));
  }
  if (ndim == 0) out.clear();
  return out;
}

DimVector reduced_sizes(Dims sizes, Dims dims, bool keepdim) {
  DimVector out;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const bool reduced = std::find(dims.begin(), dims.end(), static_cast<int64_t>(i)) != dims.end();
    if (!reduced) out.push_back(sizes[i]);
    if (reduced && keepdim) out.push_back(1);
  }
  return out;
}
}  // namespace muster::ops
