#pragma once
/// A tensor's memory as bytes, and copies that may be empty or onto themselves.

#include <cstring>

#include "core/base/stream_copy.h"
#include "core/tensor/tensor.h"

namespace muster::shm {

inline std::byte* bytes_of(const Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

inline void copy_bytes(std::byte* to, const std::byte* from, int64_t nbytes) {
  if (nbytes <= 0 || to == from) return;
  if (nbytes < kStreamNbytes) {
    std::memcpy(to, from, static_cast<size_t>(nbytes));
  } else {
    stream_bytes(to, from, nbytes);
    stream_fence();
  }
}

}  // namespace muster::shm
