// Ternary formulas in plain C++.
#include <cmath>

#include "core/kernels/cpu/pointwise_tables.h"

namespace muster::kernels::cpu {
namespace {
using K = TernaryKind;

template <TernaryKind kind, typename T>
T formula(T a, T b, T c, const Numbers<T>& p) {
  if constexpr (kind == K::kWhere) return a != 0 ? b : c;
  if constexpr (kind == K::kClamp) {
    if (a != a) return a;
    const T raised = b != b ? b : a < b ? b : a;
    return raised != raised ? raised : c != c ? c : c < raised ? c : raised;
  }
  if constexpr (kind == K::kAddcmul) return wrapping_add(a, wrapping_mul(wrapping_mul(p.a, b), c));
  if constexpr (kind == K::kAddcdiv) return a + p.a * b / c;
  if constexpr (kind == K::kLerp) {
    return std::abs(c) < T(0.5) ? a + c * (b - a) : b - (b - a) * (T(1) - c);
  }
  if constexpr (kind == K::kSwigluBackward) {
    const T s = T(1) / (T(1) + std::exp(-b));
    return a * c * s * (T(1) + b * (T(1) - s));
  }
}

template <TernaryKind kind, typename T>
void loop(void* out, const void* const* in, int64_t count, const PointwiseParams& params) {
  const Numbers<T> numbers(params);
  const T* a = static_cast<const T*>(in[0]);
  const T* b = static_cast<const T*>(in[1]);
  const T* c = static_cast<const T*>(in[2]);
  T* y = static_cast<T*>(out);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) y[i] = formula<kind, T>(a[i], b[i], c[i], numbers);
}

template <typename T>
void fill_type(PointwiseTables& tables) {
  BlockFn* row = tables.ternary[static_cast<int>(kComputeTypeOf<T>)];
  row[static_cast<int>(K::kWhere)] = &loop<K::kWhere, T>;
  row[static_cast<int>(K::kClamp)] = &loop<K::kClamp, T>;
  row[static_cast<int>(K::kAddcmul)] = &loop<K::kAddcmul, T>;
  if constexpr (std::is_floating_point_v<T>) {
    row[static_cast<int>(K::kAddcdiv)] = &loop<K::kAddcdiv, T>;
    row[static_cast<int>(K::kLerp)] = &loop<K::kLerp, T>;
    row[static_cast<int>(K::kSwigluBackward)] = &loop<K::kSwigluBackward, T>;
  }
}
}  // namespace

void fill_scalar_ternary(PointwiseTables& tables) {
  fill_type<float>(tables);
  fill_type<double>(tables);
  fill_type<int64_t>(tables);
  fill_type<int32_t>(tables);
}
}  // namespace muster::kernels::cpu
