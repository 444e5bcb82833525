#pragma once
/// The little of CUDA that the nccl backend needs: devices, device memory, streams, events.
///
/// CUDA's own headers stay out of ours. Functions throw; the message carries CUDA's text.

#include <string>

#include "core/base/result.h"
#include "core/tensor/allocator.h"
#include "core/tensor/tensor.h"

struct CUstream_st;
struct CUevent_st;

namespace muster::cuda {

/// Devices that this process may use, at least 1.
/// @error kFailedPrecondition with CUDA's reason, and what to use instead
Result<int> count_devices();

/// Makes `device` current for this thread, and what was current before at its end.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
};

/// Memory of a device. Freed blocks are kept and handed out again, since cudaFree waits for the
/// whole device, and with it for peers. Lives as long as the process. @thread any
Allocator& allocator(int device);

/// Copies a contiguous tensor's bytes between host and device, either way, and waits for it.
/// @error kInvalidArgument the tensors differ in dtype or number of elements
void copy(const Tensor& to, const Tensor& from);

/// A stream that does not wait for the default stream. Belongs to the device current at its making.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  [[nodiscard]] CUstream_st* get() const noexcept { return stream_; }
  /// True when all its work has ended. @error throws kInternal when some failed
  [[nodiscard]] bool is_idle() const;

 private:
  CUstream_st* stream_ = nullptr;
};

/// A point in the work of a stream.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  /// Null: the default stream.
  void record(const Stream* stream);
  /// Later work of `stream` starts after this point.
  void order_before(const Stream& stream) const;
  [[nodiscard]] bool has_passed() const;

 private:
  CUevent_st* event_ = nullptr;
};

}  // namespace muster::cuda
