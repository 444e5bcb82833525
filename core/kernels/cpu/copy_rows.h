#pragma once
/// Conversion of one strided row between any two dtypes.

#include <cstdint>

#include "core/tensor/dtype.h"

namespace muster::kernels::cpu {

/// Strides are in elements of each side.
using ConvertRow = void (*)(void* to, int64_t to_stride, const void* from, int64_t from_stride,
                            int64_t count);
ConvertRow row_converter(DType from, DType to) noexcept;

}  // namespace muster::kernels::cpu
