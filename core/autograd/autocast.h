#pragma once
/// Autocast: runs matrix products in a low-precision type and losses in f32, by operator.
///
/// Each operator states its AutocastClass; the handler of the Autocast key casts floating arguments
/// before the call is recorded, so that casts are differentiated and low-precision values are what
/// is saved. f64 and integers are left alone, in-place calls are not cast, and backward runs in the
/// dtypes of the forward pass outside of autocast. Casts of f32 leaves that want a gradient are
/// kept until the outermost region of the thread ends, by dtype and version: unlike PyTorch's, a
/// weight written inside the region is cast anew, and a nested region of another dtype gets its
/// own cast. @source torch.amp.autocast of PyTorch 2.13

#include "core/dispatch/mode.h"
#include "core/tensor/tensor.h"

namespace muster {

/// Turns autocast on (or off, inside another region) for one device type and a scope.
class AutocastGuard {
 public:
  /// @error kInvalidArgument a dtype that is neither bf16 nor f16; a device type without autocast
  AutocastGuard(DeviceType device, DType dtype, bool enabled = true, bool cache_enabled = true);
  /// With the device's usual type: bf16 on the CPU, f16 on CUDA.
  explicit AutocastGuard(DeviceType device, bool enabled = true)
      : AutocastGuard(device, device == DeviceType::kCuda ? DType::kF16 : DType::kBF16, enabled) {}
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  ThreadModes saved_;
};

/// The setting of a device type on this thread.
AutocastSetting autocast_setting(DeviceType device) noexcept;

/// True when a call on this thread may be cast.
inline bool autocast_is_active() noexcept {
  return (thread_modes().included - thread_modes().excluded).has(DispatchKey::kAutocast);
}
/// `tensor` as an operator of class kLowPrecision gets it: for code that looks at dtypes before it
/// calls operators. Undefined tensors pass.
Tensor autocast_low_precision(const Tensor& tensor);

/// Drops the casts kept on this thread; leaving the outermost region does it.
void clear_autocast_cache() noexcept;

/// Installs the handler of DispatchKey::kAutocast. core/ops calls it once.
void install_autocast();

}  // namespace muster
