#pragma once
/// Tensor: a handle to dtype + layout + storage. Views share storage; a handle is one pointer.
///
/// Copying a handle copies no data. Metadata is read here; everything that computes lives in
/// core/ops as free functions (`add(x, y)`, `view(x, {2, 3})`), gradients in core/autograd. Offsets
/// and strides count elements.

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "core/base/ref.h"
#include "core/tensor/dtype.h"
#include "core/tensor/keys.h"
#include "core/tensor/layout.h"
#include "core/tensor/storage.h"

namespace muster {

/// What autograd keeps of a tensor; defined in core/autograd, made on demand.
class AutogradMetaBase {
 public:
  virtual ~AutogradMetaBase() = default;
};

/// How a view came about; decides whether an in-place write to it may be recorded.
enum class ViewCreation : uint8_t {
  kDefault,
  kNoGrad,          ///< made under no_grad
  kMultiOutput,     ///< one of the outputs of unbind, split or chunk
  kCustomFunction,  ///< returned by a custom Function
};

/// The body of a tensor. Fields are public to the core layers; users hold a Tensor.
class TensorImpl : public RefCounted {
 public:
  TensorImpl(Ref<Storage> storage, DType dtype, DispatchKey backend_key, Layout layout);

  /// Keys that this tensor adds to a call. A view also requires a gradient when its base does.
  [[nodiscard]] DispatchKeySet keys() const noexcept {
    return base ? keys_own | (base->keys_own & DispatchKey::kAutograd) : keys_own;
  }
  void set_layout(Layout layout);

  Ref<Storage> storage;
  DimVector sizes;
  DimVector strides;
  int64_t offset = 0;
  int64_t numel = 0;
  DType dtype;
  DispatchKeySet
      keys_own;  ///< backend key, plus kAutograd when it requires a gradient, kDTensor, ...
  bool is_contiguous = true;
  bool is_inference = false;  ///< made in inference mode: no version counting, no recording
  ViewCreation creation = ViewCreation::kDefault;
  Ref<TensorImpl> base;  ///< the tensor that this one is a view of; never itself a view
  std::unique_ptr<AutogradMetaBase> autograd;
};

class Tensor {
 public:
  /// An undefined tensor: no impl; only defined() may be asked.
  Tensor() noexcept = default;
  explicit Tensor(Ref<TensorImpl> impl) noexcept : impl_(std::move(impl)) {}

  [[nodiscard]] bool defined() const noexcept { return static_cast<bool>(impl_); }
  [[nodiscard]] TensorImpl* impl() const noexcept { return impl_.get(); }
  [[nodiscard]] const Ref<TensorImpl>& ref() const noexcept { return impl_; }
  [[nodiscard]] bool is_same(const Tensor& other) const noexcept { return impl_ == other.impl_; }
  void reset() noexcept { impl_.reset(); }

  [[nodiscard]] Dims sizes() const noexcept { return impl_->sizes; }
  [[nodiscard]] Dims strides() const noexcept { return impl_->strides; }
  /// Size of one dim; negative counts from the end. @error kOutOfRange
  [[nodiscard]] int64_t size(int64_t dim) const;
  [[nodiscard]] int64_t stride(int64_t dim) const;
  [[nodiscard]] int64_t ndim() const noexcept { return static_cast<int64_t>(impl_->sizes.size()); }
  [[nodiscard]] int64_t numel() const noexcept { return impl_->numel; }
  [[nodiscard]] int64_t nbytes() const noexcept { return impl_->numel * item_nbytes(impl_->dtype); }
  [[nodiscard]] int64_t storage_offset() const noexcept { return impl_->offset; }
  [[nodiscard]] DType dtype() const noexcept { return impl_->dtype; }
  [[nodiscard]] Device device() const noexcept { return impl_->storage->device(); }
  [[nodiscard]] bool is_meta() const noexcept { return device().type == DeviceType::kMeta; }
  [[nodiscard]] bool is_contiguous() const noexcept { return impl_->is_contiguous; }
  [[nodiscard]] Layout layout() const { return {impl_->sizes, impl_->strides, impl_->offset}; }
  [[nodiscard]] const Ref<Storage>& storage() const noexcept { return impl_->storage; }
  [[nodiscard]] uint32_t version() const noexcept { return impl_->storage->version(); }
  [[nodiscard]] bool is_view() const noexcept { return static_cast<bool>(impl_->base); }
  /// True when an input of this tensor's history, or itself, requires a gradient.
  [[nodiscard]] bool requires_grad() const noexcept {
    return impl_->keys().has(DispatchKey::kAutograd);
  }

  /// Address of element (0, ..., 0). Null for meta tensors.
  [[nodiscard]] void* data_ptr() const noexcept {
    std::byte* start = impl_->storage->data();
    return start == nullptr ? nullptr : start + impl_->offset * item_nbytes(impl_->dtype);
  }
  /// The same, typed. @error kInvalidArgument when T is not the dtype
  template <typename T>
  [[nodiscard]] T* data() const {
    check_dtype(dtype_of<T>);
    return static_cast<T*>(data_ptr());
  }

  /// The value of a one-element CPU tensor as double or int64. Reads memory, records nothing.
  /// @error kInvalidArgument for another number of elements; kFailedPrecondition for a meta tensor
  [[nodiscard]] double item() const;
  [[nodiscard]] int64_t item_int() const;

  /// "f32[2, 3]"; "bf16[8] meta".
  [[nodiscard]] std::string describe() const;

 private:
  void check_dtype(DType wanted) const;
  Ref<TensorImpl> impl_;
};

/// Shape, strides, dtype and device of a tensor that need not exist.
struct TensorSpec {
  DimVector sizes;
  DimVector strides;
  DType dtype = kDefaultDType;
  Device device = kCpuDevice;

  /// Row-major.
  static TensorSpec contiguous(Dims sizes, DType dtype, Device device = kCpuDevice);
  static TensorSpec of(const Tensor& tensor);
  [[nodiscard]] std::string describe() const;
};

/// Uninitialised memory by `spec`, from `allocator` or the device's own. No autograd.
Tensor empty_from_spec(const TensorSpec& spec, Allocator* allocator = nullptr);
/// A tensor over bytes owned elsewhere; `release` runs when the last alias goes.
Tensor tensor_from_memory(void* data, Dims sizes, DType dtype, std::function<void()> release = {});
/// Another tensor on the storage of `source`, recorded as a view of its base. Pure metadata.
/// @error kOutOfRange when the layout leaves the storage
Tensor alias_with_layout(const Tensor& source, Layout layout);
/// The same storage and layout without history and without view relation: what detach() returns.
Tensor shallow_detach(const Tensor& source);

}  // namespace muster

template <>
struct fmt::formatter<muster::Tensor> : fmt::formatter<std::string> {
  auto format(const muster::Tensor& tensor, fmt::format_context& context) const {
    return fmt::formatter<std::string>::format(tensor.describe(), context);
  }
};
template <>
struct fmt::formatter<muster::TensorSpec> : fmt::formatter<std::string> {
  auto format(const muster::TensorSpec& spec, fmt::format_context& context) const {
    return fmt::formatter<std::string>::format(spec.describe(), context);
  }
};
