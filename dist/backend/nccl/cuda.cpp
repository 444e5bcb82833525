#include "dist/backend/nccl/cuda.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace muster::cuda {
namespace {
void check(cudaError_t status, const char* operation) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // else the next call would report it again
  throw_error(ErrorCode::kInternal, "nccl: {}: {}", operation, cudaGetErrorString(status));
}

class DeviceAllocator final : public Allocator {
 public:
  explicit DeviceAllocator(int device) : device_(device) {}
  ~DeviceAllocator() override { DeviceAllocator::trim(); }

  void* allocate(int64_t nbytes) override {
    if (nbytes <= 0) return nullptr;
    const int64_t rounded = rounded_nbytes(nbytes);
    const std::lock_guard lock(mutex_);
    std::vector<void*>& kept = kept_[rounded];
    void* block = nullptr;
    if (!kept.empty()) {
      block = kept.back();
      kept.pop_back();
    } else {
      block = obtain_locked(rounded);
      reserved_ += rounded;
      ++system_calls_;
    }
    ++allocations_;
    allocated_ += rounded;
    peak_ = std::max(peak_, allocated_);
    return block;
  }

  void deallocate(void* data, int64_t nbytes) noexcept override {
    if (data == nullptr) return;
    const int64_t rounded = rounded_nbytes(nbytes);
    const std::lock_guard lock(mutex_);
    kept_[rounded].push_back(data);
    allocated_ -= rounded;
  }

  [[nodiscard]] Device device() const noexcept override {
    return {DeviceType::kCuda, static_cast<int8_t>(device_)};
  }
  [[nodiscard]] AllocatorStats stats() const override {
    const std::lock_guard lock(mutex_);
    return {.allocated = Bytes{allocated_},
            .reserved = Bytes{reserved_},
            .peak_allocated = Bytes{peak_},
            .system_calls = system_calls_,
            .allocations = allocations_};
  }
  void reset_peak() override {
    const std::lock_guard lock(mutex_);
    peak_ = allocated_;
  }
  void trim() override {
    const std::lock_guard lock(mutex_);
    release_kept_locked();
  }

 private:
  // Powers of two up to 1 MiB, then multiples of 2 MiB.
  static int64_t rounded_nbytes(int64_t nbytes) {
    constexpr int64_t kLeast = 512, kSmall = 1 << 20, kLarge = 2 << 20;
    if (nbytes <= kLeast) return kLeast;
    if (nbytes <= kSmall) return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(nbytes)));
    return (nbytes + kLarge - 1) / kLarge * kLarge;
  }

  void* obtain_locked(int64_t nbytes) {
    const DeviceGuard guard(device_);
    void* block = nullptr;
    cudaError_t status = cudaMalloc(&block, static_cast<size_t>(nbytes));
    if (status == cudaErrorMemoryAllocation) {
      release_kept_locked();
      status = cudaMalloc(&block, static_cast<size_t>(nbytes));
    }
    if (status == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      throw_error(ErrorCode::kOutOfMemory, "cuda:{}: no memory for {} bytes; {} bytes are live",
                  device_, nbytes, allocated_);
    }
    check(status, "cudaMalloc");
    return block;
  }

  void release_kept_locked() noexcept {
    for (auto& [nbytes, blocks] : kept_) {
      for (void* block : blocks) {
        static_cast<void>(cudaFree(block));
        reserved_ -= nbytes;
      }
      blocks.clear();
    }
  }

  const int device_;
  mutable std::mutex mutex_;
  std::map<int64_t, std::vector<void*>> kept_;  // guarded by mutex_; by rounded size
  int64_t allocated_ = 0;                       // guarded by mutex_, as all below
  int64_t reserved_ = 0;
  int64_t peak_ = 0;
  int64_t system_calls_ = 0;
  int64_t allocations_ = 0;
};
}  // namespace

Result<int> count_devices() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return count;
  static_cast<void>(cudaGetLastError());
  return make_error(ErrorCode::kFailedPrecondition,
                    "nccl: no CUDA device: {}\n  fix: use dist.backend shm or gloo",
                    status == cudaSuccess ? "none is visible" : cudaGetErrorString(status));
}

DeviceGuard::DeviceGuard(int device) {
  check(cudaGetDevice(&before_), "cudaGetDevice");
  check(cudaSetDevice(device), "cudaSetDevice");
}

DeviceGuard::~DeviceGuard() { static_cast<void>(cudaSetDevice(before_)); }

Allocator& allocator(int device) {
  static std::mutex mutex;
  // Never destroyed: at the end of the process the driver may be gone before our memory.
  static auto* all = new std::map<int, std::unique_ptr<DeviceAllocator>>();
  const std::lock_guard lock(mutex);
  std::unique_ptr<DeviceAllocator>& own = (*all)[device];
  if (!own) own = std::make_unique<DeviceAllocator>(device);
  return *own;
}

void copy(const Tensor& to, const Tensor& from) {
  MUSTER_CHECK(to.dtype() == from.dtype() && to.numel() == from.numel() && to.is_contiguous() &&
                   from.is_contiguous(),
               ErrorCode::kInvalidArgument,
               "copy: both must be contiguous with the same dtype and number of elements; got {} "
               "and {}",
               to, from);
  if (to.nbytes() == 0) return;
  check(cudaMemcpyAsync(to.data_ptr(), from.data_ptr(), static_cast<size_t>(to.nbytes()),
                        cudaMemcpyDefault, cudaStreamLegacy),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(cudaStreamLegacy), "cudaStreamSynchronize");
}

Stream::Stream() {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

Stream::~Stream() { static_cast<void>(cudaStreamDestroy(stream_)); }

bool Stream::is_idle() const {
  const cudaError_t status = cudaStreamQuery(stream_);
  if (status == cudaErrorNotReady) return false;
  check(status, "cudaStreamQuery");
  return true;
}

Event::Event() {
  check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
}

Event::~Event() { static_cast<void>(cudaEventDestroy(event_)); }

void Event::record(const Stream* stream) {
  check(cudaEventRecord(event_, stream == nullptr ? cudaStreamLegacy : stream->get()),
        "cudaEventRecord");
}

void Event::order_before(const Stream& stream) const {
  check(cudaStreamWaitEvent(stream.get(), event_, 0), "cudaStreamWaitEvent");
}

bool Event::has_passed() const {
  const cudaError_t status = cudaEventQuery(event_);
  if (status == cudaErrorNotReady) return false;
  check(status, "cudaEventQuery");
  return true;
}
}  // namespace muster::cuda
