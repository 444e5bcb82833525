#pragma once
/// Thread-local modes: gradient recording, inference, default device, keys switched on or off.
///
/// Guards set a mode for a scope and restore it. Worker threads that continue a call take the state
/// with ThreadModes::capture() and apply it with ModeGuard.

#include "core/tensor/device.h"
#include "core/tensor/dtype.h"
#include "core/tensor/keys.h"

namespace muster {

/// Autocast of one device type; see core/dispatch/autocast.h.
struct AutocastSetting {
  bool enabled = false;
  DType dtype = DType::kBF16;
  bool operator==(const AutocastSetting&) const = default;
};

struct ThreadModes {
  bool grad = true;
  bool inference = false;
  bool autocast_cache = true;  ///< casts of weights are kept until the outermost region ends
  AutocastSetting autocast_cpu;
  AutocastSetting autocast_cuda{false, DType::kF16};
  Device default_device = kCpuDevice;
  DispatchKeySet included;
  DispatchKeySet excluded;

  /// A copy of this thread's modes.
  static ThreadModes capture() noexcept;
};

namespace internal {
inline thread_local constinit ThreadModes thread_modes{};
}

/// This thread's modes.
inline ThreadModes& thread_modes() noexcept { return internal::thread_modes; }
inline ThreadModes ThreadModes::capture() noexcept { return thread_modes(); }

/// True when calls are recorded: no no_grad and no inference mode around.
inline bool grad_enabled() noexcept { return thread_modes().grad && !thread_modes().inference; }

/// Applies a whole set of modes for a scope.
class ModeGuard {
 public:
  explicit ModeGuard(const ThreadModes& modes) noexcept : saved_(thread_modes()) {
    thread_modes() = modes;
  }
  ~ModeGuard() { thread_modes() = saved_; }
  ModeGuard(const ModeGuard&) = delete;
  ModeGuard& operator=(const ModeGuard&) = delete;

 private:
  ThreadModes saved_;
};

/// Records nothing in its scope.
class NoGradGuard {
 public:
  NoGradGuard() noexcept : saved_(thread_modes().grad) { thread_modes().grad = false; }
  ~NoGradGuard() { thread_modes().grad = saved_; }
  NoGradGuard(const NoGradGuard&) = delete;
  NoGradGuard& operator=(const NoGradGuard&) = delete;

 private:
  bool saved_;
};

/// Records again (or not) inside a no_grad scope. Has no effect inside inference mode.
class GradModeGuard {
 public:
  explicit GradModeGuard(bool enabled) noexcept : saved_(thread_modes().grad) {
    thread_modes().grad = enabled;
  }
  ~GradModeGuard() { thread_modes().grad = saved_; }
  GradModeGuard(const GradModeGuard&) = delete;
  GradModeGuard& operator=(const GradModeGuard&) = delete;

 private:
  bool saved_;
};

/// Records nothing and makes inference tensors: no version counter, never to re-enter a recorded
/// call.
class InferenceGuard {
 public:
  InferenceGuard() noexcept : saved_(thread_modes().inference) { thread_modes().inference = true; }
  ~InferenceGuard() { thread_modes().inference = saved_; }
  InferenceGuard(const InferenceGuard&) = delete;
  InferenceGuard& operator=(const InferenceGuard&) = delete;

 private:
  bool saved_;
};

/// Factories without a device argument make tensors here (kMetaDevice for deferred initialisation).
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device) noexcept : saved_(thread_modes().default_device) {
    thread_modes().default_device = device;
  }
  ~DeviceGuard() { thread_modes().default_device = saved_; }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  Device saved_;
};

/// Takes keys out of dispatch for a scope: how a handler continues below itself.
class ExcludeKeysGuard {
 public:
  explicit ExcludeKeysGuard(DispatchKeySet keys) noexcept : saved_(thread_modes().excluded) {
    thread_modes().excluded |= keys;
  }
  ~ExcludeKeysGuard() { thread_modes().excluded = saved_; }
  ExcludeKeysGuard(const ExcludeKeysGuard&) = delete;
  ExcludeKeysGuard& operator=(const ExcludeKeysGuard&) = delete;

 private:
  DispatchKeySet saved_;
};

}  // namespace muster
