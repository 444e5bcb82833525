#pragma once
/// Element types, their sizes and names, and the rules by which they meet.
///
/// bf16 and f16 are storage types here: kernels widen them to f32. Type promotion follows PyTorch:
/// dimensioned tensors outrank 0-dim tensors, which outrank scalars; a lower-ranked operand counts
/// only when its category (bool < integer < floating) is higher.

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/result.h"

namespace muster {

enum class DType : uint8_t { kBool, kU8, kI8, kI16, kI32, kI64, kF16, kBF16, kF32, kF64 };
inline constexpr int kNumDTypes = 10;

/// Bytes of one element.
constexpr int64_t item_nbytes(DType dtype) noexcept {
  constexpr int64_t kSizes[kNumDTypes] = {1, 1, 1, 2, 4, 8, 2, 2, 4, 8};
  return kSizes[static_cast<int>(dtype)];
}
constexpr bool is_floating(DType dtype) noexcept { return dtype >= DType::kF16; }
constexpr bool is_integral(DType dtype) noexcept {
  return dtype >= DType::kU8 && dtype <= DType::kI64;
}
constexpr bool is_signed(DType dtype) noexcept { return dtype >= DType::kI8; }

/// "f32", "bf16", "i64", "bool", ...
std::string_view to_string(DType dtype) noexcept;
/// @error kInvalidArgument for an unknown name; lists the known ones
Result<DType> parse_dtype(std::string_view name);
/// "F32", "BF16", "I64", "BOOL": the names of the safetensors format.
std::string_view safetensors_name(DType dtype) noexcept;

/// The type of float tensors made from Python-like literals: f32.
inline constexpr DType kDefaultDType = DType::kF32;

/// The smallest type that holds both, as torch.promote_types.
DType promote_types(DType a, DType b) noexcept;

/// IEEE half as storage.
struct Half {
  uint16_t bits = 0;
  Half() = default;
  explicit Half(float value) noexcept;
  explicit operator float() const noexcept;
};

/// bfloat16 as storage; rounds to nearest even, keeps nan.
struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  explicit BFloat16(float value) noexcept {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    const bool is_nan = (word & 0x7FFFFFFFu) > 0x7F800000u;
    bits = is_nan ? static_cast<uint16_t>((word >> 16) | 0x40u)
                  : static_cast<uint16_t>((word + 0x7FFFu + ((word >> 16) & 1u)) >> 16);
  }
  explicit operator float() const noexcept {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

/// The DType of a C++ type: dtype_of<float> is kF32.
template <typename T>
inline constexpr DType dtype_of = DType::kF32;
template <>
inline constexpr DType dtype_of<bool> = DType::kBool;
template <>
inline constexpr DType dtype_of<uint8_t> = DType::kU8;
template <>
inline constexpr DType dtype_of<int8_t> = DType::kI8;
template <>
inline constexpr DType dtype_of<int16_t> = DType::kI16;
template <>
inline constexpr DType dtype_of<int32_t> = DType::kI32;
template <>
inline constexpr DType dtype_of<int64_t> = DType::kI64;
template <>
inline constexpr DType dtype_of<Half> = DType::kF16;
template <>
inline constexpr DType dtype_of<BFloat16> = DType::kBF16;
template <>
inline constexpr DType dtype_of<double> = DType::kF64;

/// Calls `body(T{})` with the C++ type of `dtype`.
template <typename Body>
decltype(auto) visit_dtype(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kBool:
      return body(bool{});
    case DType::kU8:
      return body(uint8_t{});
    case DType::kI8:
      return body(int8_t{});
    case DType::kI16:
      return body(int16_t{});
    case DType::kI32:
      return body(int32_t{});
    case DType::kI64:
      return body(int64_t{});
    case DType::kF16:
      return body(Half{});
    case DType::kBF16:
      return body(BFloat16{});
    case DType::kF32:
      return body(float{});
    case DType::kF64:
      break;
  }
  return body(double{});
}

}  // namespace muster

template <>
struct fmt::formatter<muster::DType> : fmt::formatter<std::string_view> {
  auto format(muster::DType dtype, fmt::format_context& context) const {
    return fmt::formatter<std::string_view>::format(muster::to_string(dtype), context);
  }
};
