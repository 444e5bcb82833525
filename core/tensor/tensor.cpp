#include "core/tensor/tensor.h"

#include <fmt/format.h>

#include <utility>

#include "core/tensor/wrapper_hooks.h"

namespace muster {
namespace {
WrapperHooks wrapper_hooks;

DispatchKey backend_key(DeviceType type) {
  switch (type) {
    case DeviceType::kCpu:
      return DispatchKey::kCpu;
    case DeviceType::kCuda:
      return DispatchKey::kCuda;
    case DeviceType::kMeta:
      break;
  }
  return DispatchKey::kMeta;
}

std::string describe_parts(DType dtype, Dims sizes, Device device) {
  std::string text = fmt::format("{}{}", dtype, to_string(sizes));
  if (device.type != DeviceType::kCpu) text += " " + to_string(device);
  return text;
}
}  // namespace

std::string_view to_string(DispatchKey key) noexcept {
  constexpr std::string_view kNames[kNumDispatchKeys] = {
      "Cpu", "Cuda", "Meta", "Functionalize", "DTensor", "Autograd", "Autocast", "Vmap", "Tracer"};
  return kNames[static_cast<int>(key)];
}

TensorImpl::TensorImpl(Ref<Storage> storage_in, DType dtype_in, DispatchKey key, Layout layout)
    : storage(std::move(storage_in)), dtype(dtype_in), keys_own(key) {
  set_layout(std::move(layout));
}

void TensorImpl::set_layout(Layout layout) {
  sizes = std::move(layout.sizes);
  strides = std::move(layout.strides);
  offset = layout.offset;
  numel = numel_of(sizes);
  is_contiguous = muster::is_contiguous(sizes, strides);
}

int64_t Tensor::size(int64_t dim) const {
  MUSTER_CHECK(ndim() > 0, ErrorCode::kOutOfRange, "size: a 0-dim tensor has no dim {}", dim);
  return impl_->sizes[static_cast<size_t>(wrap_dim(dim, ndim(), "size"))];
}

int64_t Tensor::stride(int64_t dim) const {
  MUSTER_CHECK(ndim() > 0, ErrorCode::kOutOfRange, "stride: a 0-dim tensor has no dim {}", dim);
  return impl_->strides[static_cast<size_t>(wrap_dim(dim, ndim(), "stride"))];
}

void Tensor::check_dtype(DType wanted) const {
  MUSTER_CHECK(!impl_->keys_own.has(DispatchKey::kDTensor), ErrorCode::kFailedPrecondition,
               "data: a DTensor has only the memory of its piece; got {}\n"
               "  fix: full_tensor(x) or local_tensor(x)",
               *this);
  MUSTER_CHECK(wanted == impl_->dtype, ErrorCode::kInvalidArgument,
               "data: the tensor is {}; asked for {}", impl_->dtype, wanted);
}

namespace {
template <typename T>
T read_item(const Tensor& asked) {
  const Tensor tensor = readable_value(asked);
  MUSTER_CHECK(tensor.numel() == 1, ErrorCode::kInvalidArgument,
               "item: exactly one element; got {}", tensor);
  MUSTER_CHECK(tensor.data_ptr() != nullptr, ErrorCode::kFailedPrecondition,
               "item: the tensor must have data; got {}", tensor);
  return visit_dtype(tensor.dtype(), [&](auto type) {
    using Element = decltype(type);
    const auto value = *static_cast<const Element*>(tensor.data_ptr());
    if constexpr (std::is_same_v<Element, Half> || std::is_same_v<Element, BFloat16>) {
      return static_cast<T>(static_cast<float>(value));
    } else {
      return static_cast<T>(value);
    }
  });
}
}  // namespace

void set_wrapper_hooks(WrapperHooks hooks) noexcept { wrapper_hooks = hooks; }

double Tensor::item() const { return read_item<double>(*this); }
int64_t Tensor::item_int() const { return read_item<int64_t>(*this); }

std::string Tensor::describe() const {
  return defined() ? describe_parts(dtype(), sizes(), device()) : "undefined";
}

TensorSpec TensorSpec::contiguous(Dims sizes, DType dtype, Device device) {
  return {DimVector(sizes), contiguous_strides(sizes), dtype, device};
}

TensorSpec TensorSpec::of(const Tensor& tensor) {
  return {DimVector(tensor.sizes()), DimVector(tensor.strides()), tensor.dtype(), tensor.device()};
}

std::string TensorSpec::describe() const { return describe_parts(dtype, sizes, device); }

Tensor empty_from_spec(const TensorSpec& spec, Allocator* allocator) {
  Layout layout{spec.sizes, spec.strides, 0};
  const int64_t nbytes = storage_extent(layout) * item_nbytes(spec.dtype);
  Ref<Storage> storage;
  if (spec.device.type == DeviceType::kMeta) {
    storage = make_ref<Storage>(nbytes, spec.device);
  } else {
    MUSTER_CHECK(spec.device.type == DeviceType::kCpu || allocator != nullptr,
                 ErrorCode::kUnimplemented, "empty: this build has no allocator for {}",
                 to_string(spec.device));
    storage = make_ref<Storage>(nbytes, allocator != nullptr ? *allocator : cpu_allocator());
  }
  return Tensor(make_ref<TensorImpl>(std::move(storage), spec.dtype, backend_key(spec.device.type),
                                     std::move(layout)));
}

Tensor tensor_from_memory(void* data, Dims sizes, DType dtype, std::function<void()> release) {
  const int64_t nbytes = checked_numel(sizes) * item_nbytes(dtype);
  auto storage = make_ref<Storage>(data, nbytes, kCpuDevice, std::move(release));
  return Tensor(make_ref<TensorImpl>(std::move(storage), dtype, DispatchKey::kCpu,
                                     Layout{DimVector(sizes), contiguous_strides(sizes), 0}));
}

Tensor alias_with_layout(const Tensor& source, Layout layout) {
  TensorImpl* from = source.impl();
  MUSTER_CHECK(storage_extent(layout) * item_nbytes(from->dtype) <= from->storage->nbytes() &&
                   layout.offset >= 0,
               ErrorCode::kOutOfRange,
               "view: sizes {} strides {} offset {} need {} elements of storage; it has {}",
               to_string(layout.sizes), to_string(layout.strides), layout.offset,
               storage_extent(layout), from->storage->nbytes() / item_nbytes(from->dtype));
  auto impl = make_ref<TensorImpl>(from->storage, from->dtype,
                                   backend_key(from->storage->device().type), std::move(layout));
  impl->is_inference = from->is_inference;
  impl->base = from->base ? from->base : source.ref();
  return Tensor(std::move(impl));
}

Tensor readable_value(const Tensor& asked) {
  const bool is_wrapper = asked.impl()->keys_own.has(DispatchKey::kDTensor);
  return is_wrapper && wrapper_hooks.readable != nullptr ? wrapper_hooks.readable(asked) : asked;
}

Tensor as_constant_beside(const Tensor& plain, const Tensor& beside) {
  const bool is_wrapper = beside.impl()->keys_own.has(DispatchKey::kDTensor);
  return is_wrapper && wrapper_hooks.replicated != nullptr ? wrapper_hooks.replicated(plain, beside)
                                                           : plain;
}

Tensor shallow_detach(const Tensor& source) {
  TensorImpl* from = source.impl();
  if (from->keys_own.has(DispatchKey::kDTensor) && wrapper_hooks.detach != nullptr) {
    return wrapper_hooks.detach(source);
  }
  auto impl = make_ref<TensorImpl>(from->storage, from->dtype,
                                   backend_key(from->storage->device().type), source.layout());
  impl->is_inference = from->is_inference;
  return Tensor(std::move(impl));
}
}  // namespace muster
