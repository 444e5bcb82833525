#pragma once
/// The formulas behind pointwise.h as plain functions on contiguous blocks, by compute type and
/// kind.
///
/// Scalar C++ fills what no SIMD file does; SIMD entries (f32 only) replace the rest once, for the
/// CPU that runs. Internal to the pointwise kernels.

#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/kernels/cpu/copy_block.h"
#include "core/kernels/cpu/pointwise.h"

namespace muster::kernels::cpu {

/// out[i] = f(in[0][i], in[1][i], ..) for contiguous arrays of the compute type; out may be an in.
using BlockFn = void (*)(void* out, const void* const* in, int64_t count,
                         const PointwiseParams& params);

inline constexpr int kNumUnary = static_cast<int>(UnaryKind::kCount);
inline constexpr int kNumBinary = static_cast<int>(BinaryKind::kCount);
inline constexpr int kNumTernary = static_cast<int>(TernaryKind::kCount);

/// A null entry: the kind is not defined for that type.
struct PointwiseTables {
  BlockFn unary[kNumComputeTypes][kNumUnary] = {};
  BlockFn binary[kNumComputeTypes][kNumBinary] = {};
  BlockFn ternary[kNumComputeTypes][kNumTernary] = {};
};

void fill_scalar_unary(PointwiseTables& tables);
void fill_scalar_binary(PointwiseTables& tables);
void fill_scalar_ternary(PointwiseTables& tables);
void fill_vector_unary(PointwiseTables& tables);
void fill_vector_binary(PointwiseTables& tables);

/// PointwiseParams in the compute type; integers saturate.
template <typename T>
struct Numbers {
  T a;
  T b;
  T c;

  explicit Numbers(const PointwiseParams& params)
      : a(number(params.a)), b(number(params.b)), c(number(params.c)) {}

 private:
  static T number(const Scalar& scalar) {
    if constexpr (std::is_floating_point_v<T>) {
      return static_cast<T>(scalar.to_double());
    } else {
      const int64_t value = scalar.to_int();
      constexpr int64_t kLow = std::numeric_limits<T>::min();
      constexpr int64_t kHigh = std::numeric_limits<T>::max();
      return static_cast<T>(value < kLow ? kLow : value > kHigh ? kHigh : value);
    }
  }
};

template <typename T>
inline constexpr ComputeType kComputeTypeOf = ComputeType::kF32;
template <>
inline constexpr ComputeType kComputeTypeOf<double> = ComputeType::kF64;
template <>
inline constexpr ComputeType kComputeTypeOf<int64_t> = ComputeType::kI64;
template <>
inline constexpr ComputeType kComputeTypeOf<int32_t> = ComputeType::kI32;

/// Integer arithmetic that wraps instead of overflowing; plain arithmetic for floats.
template <typename T>
T wrapping_add(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return a + b;
  } else {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  }
}
template <typename T>
T wrapping_sub(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return a - b;
  } else {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) - static_cast<U>(b));
  }
}
template <typename T>
T wrapping_mul(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return a * b;
  } else {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
  }
}

}  // namespace muster::kernels::cpu
