#pragma once
/// How products of matrices trade speed for accuracy: settings of the process, and what the CPU
/// has.
///
/// Nothing here changes the dtype of a result. A setting may be changed at any time between calls;
/// results depend on it and on the CPU, never on the number of threads.

#include <cstdint>
#include <string_view>

#include "core/base/result.h"

namespace muster::kernels {

enum class MatmulPrecision : uint8_t {
  kHighest,  ///< f32 products in f32
  kHigh,     ///< may use three bf16 products with f32 sums: about 4e-6 of the largest value
};

/// Of f32 products; `high` changes something only where it is faster, on CPUs with AMX.
/// @source torch.set_float32_matmul_precision
void set_float32_matmul_precision(MatmulPrecision precision) noexcept;
[[nodiscard]] MatmulPrecision float32_matmul_precision() noexcept;
/// "highest" or "high". @error kInvalidArgument
Result<MatmulPrecision> parse_matmul_precision(std::string_view name);

/// How bf16 matrices are multiplied; both ways sum in f32 and round once.
enum class Bf16Products : uint8_t {
  kAuto,    ///< by the CPU's own bf16 instructions where it has them, else widened
  kNative,  ///< for tests: by oneDNN's bf16 kernels, which need AVX-512
  kWiden,   ///< widened to f32 while packing
};
void set_bf16_products(Bf16Products way) noexcept;
/// True when the next bf16 product runs on bf16 kernels.
[[nodiscard]] bool uses_native_bf16_products() noexcept;

/// For tests: `high` precision uses three bf16 products also where that is slower.
void set_split_products_everywhere(bool everywhere) noexcept;
/// True when the next f32 product is made of bf16 products.
[[nodiscard]] bool uses_split_products() noexcept;

/// What the CPU, and oneDNN's ISA limit, offer.
[[nodiscard]] bool cpu_has_avx512() noexcept;
[[nodiscard]] bool cpu_has_bf16_products() noexcept;
[[nodiscard]] bool cpu_has_amx() noexcept;

}  // namespace muster::kernels
