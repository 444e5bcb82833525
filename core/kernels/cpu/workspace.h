#pragma once
/// Scratch memory of one kernel call, from the caching CPU allocator.
///
/// Uninitialised; freed at the end of the scope, and so without a system call in a steady step.

#include <cstdint>

#include "core/tensor/allocator.h"

namespace muster::kernels::cpu {

template <typename T>
class Workspace {
 public:
  explicit Workspace(int64_t numel)
      : nbytes_(numel * static_cast<int64_t>(sizeof(T))),
        data_(static_cast<T*>(cpu_allocator().allocate(nbytes_))) {}
  ~Workspace() {
    if (data_ != nullptr) cpu_allocator().deallocate(data_, nbytes_);
  }
  Workspace(Workspace&& other) noexcept : nbytes_(other.nbytes_), data_(other.data_) {
    other.data_ = nullptr;
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  [[nodiscard]] T* data() const noexcept { return data_; }
  T& operator[](int64_t i) const noexcept { return data_[i]; }

 private:
  int64_t nbytes_;
  T* data_;
};

}  // namespace muster::kernels::cpu
