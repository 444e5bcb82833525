#pragma once
/// Rows of parameters, as memory.

#include <cstddef>
#include <cstring>

#include "core/tensor/tensor.h"

namespace muster::fsdp {

inline int64_t row_numel(Dims sizes) {
  int64_t n = 1;
  for (size_t i = 1; i < sizes.size(); ++i) n *= sizes[i];
  return n;
}

inline void copy_rows(std::byte* to, const Tensor& from) {
  if (from.numel() > 0) std::memcpy(to, from.data_ptr(), static_cast<size_t>(from.nbytes()));
}

}  // namespace muster::fsdp
