#pragma once
/// Contiguous conversions between f32 and the 16-bit floats at SIMD speed, nearest even; nan stays
/// nan.

#include <cstdint>

#include "core/tensor/dtype.h"

namespace muster::kernels::cpu {

void widen_bf16(float* to, const BFloat16* from, int64_t count);
void narrow_bf16(BFloat16* to, const float* from, int64_t count);
void widen_f16(float* to, const Half* from, int64_t count);
void narrow_f16(Half* to, const float* from, int64_t count);

}  // namespace muster::kernels::cpu
