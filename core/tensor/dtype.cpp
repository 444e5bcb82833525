#include "core/tensor/dtype.h"

#include <cmath>
#include <cstring>

namespace muster {
namespace {
constexpr std::string_view kNames[kNumDTypes] = {"bool", "u8",  "i8",   "i16", "i32",
                                                 "i64",  "f16", "bf16", "f32", "f64"};
constexpr std::string_view kSafetensorsNames[kNumDTypes] = {"BOOL", "U8",  "I8",   "I16", "I32",
                                                            "I64",  "F16", "BF16", "F32", "F64"};
}  // namespace

std::string_view to_string(DType dtype) noexcept { return kNames[static_cast<int>(dtype)]; }
std::string_view safetensors_name(DType dtype) noexcept {
  return kSafetensorsNames[static_cast<int>(dtype)];
}

Result<DType> parse_dtype(std::string_view name) {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (name == kNames[i] || name == kSafetensorsNames[i]) return static_cast<DType>(i);
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "dtype: one of bool, u8, i8, i16, i32, i64, f16, bf16, f32, f64; got \"{}\"",
                    name);
}

DType promote_types(DType a, DType b) noexcept {
  if (a == b) return a;
  const DType low = a < b ? a : b;
  const DType high = a < b ? b : a;
  if (low == DType::kF16 && high == DType::kBF16) return DType::kF32;
  if (low == DType::kU8 && high == DType::kI8) return DType::kI16;
  return high;
}

// Conversions by hand: GCC 12 has no portable _Float16 without F16C flags.
Half::Half(float value) noexcept {
  const uint32_t word = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (word >> 16) & 0x8000u;
  const uint32_t magnitude = word & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    bits = static_cast<uint16_t>(sign | 0x7E00u);
  } else if (magnitude >= 0x477FF000u) {
    bits = static_cast<uint16_t>(sign | 0x7C00u);
  } else if (magnitude < 0x38800000u) {
    // Subnormal: let the FPU round by adding a number whose ulp is the half's.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    bits = static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
  } else {
    const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
    bits = static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
}

Half::operator float() const noexcept {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1Fu;
  const uint32_t mantissa = bits & 0x3FFu;
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}
}  // namespace muster
