#include "core/kernels/precision.h"

#include <oneapi/dnnl/dnnl.h>

#include <atomic>

namespace muster::kernels {
namespace {
std::atomic<MatmulPrecision> matmul_precision{MatmulPrecision::kHighest};
std::atomic<Bf16Products> bf16_products{Bf16Products::kAuto};
std::atomic<bool> split_everywhere{false};

// oneDNN's ISA values are sets of bits: a CPU has `wanted` when it has all of them.
bool cpu_has(dnnl_cpu_isa_t wanted) noexcept {
  const auto bits = static_cast<unsigned>(wanted);
  return (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & bits) == bits;
}
}  // namespace

void set_float32_matmul_precision(MatmulPrecision precision) noexcept {
  matmul_precision.store(precision, std::memory_order_relaxed);
}

MatmulPrecision float32_matmul_precision() noexcept {
  return matmul_precision.load(std::memory_order_relaxed);
}

Result<MatmulPrecision> parse_matmul_precision(std::string_view name) {
  if (name == "highest") return MatmulPrecision::kHighest;
  if (name == "high") return MatmulPrecision::kHigh;
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("float32_matmul_precision: it must be \"highest\" or \"high\"; got "
                           "\"{}\"",
                           name));
}

void set_bf16_products(Bf16Products way) noexcept {
  bf16_products.store(way, std::memory_order_relaxed);
}

bool uses_native_bf16_products() noexcept {
  switch (bf16_products.load(std::memory_order_relaxed)) {
    case Bf16Products::kNative:
      return cpu_has_avx512();
    case Bf16Products::kWiden:
      return false;
    case Bf16Products::kAuto:
      break;
  }
  return cpu_has_bf16_products();
}

void set_split_products_everywhere(bool everywhere) noexcept {
  split_everywhere.store(everywhere, std::memory_order_relaxed);
}

bool uses_split_products() noexcept {
  if (float32_matmul_precision() != MatmulPrecision::kHigh) return false;
  return cpu_has_amx() || (split_everywhere.load(std::memory_order_relaxed) && cpu_has_avx512());
}

bool cpu_has_avx512() noexcept {
  static const bool has = cpu_has(dnnl_cpu_isa_avx512_core);
  return has;
}

bool cpu_has_bf16_products() noexcept {
  static const bool has = cpu_has(dnnl_cpu_isa_avx512_core_bf16);
  return has;
}

bool cpu_has_amx() noexcept {
  static const bool has = cpu_has(dnnl_cpu_isa_avx512_core_amx);
  return has;
}
}  // namespace muster::kernels
