#include "core/kernels/cpu/copy_rows.h"

#include "core/kernels/cpu/copy_convert.h"
#include "core/kernels/cpu/copy_vec.h"

namespace muster::kernels::cpu {
namespace {
// The pairs that have a SIMD loop.
template <typename S, typename D>
bool convert_contiguous(D* to, const S* from, int64_t count) {
  if constexpr (std::is_same_v<S, float> && std::is_same_v<D, BFloat16>) {
    narrow_bf16(to, from, count);
    return true;
  } else if constexpr (std::is_same_v<S, BFloat16> && std::is_same_v<D, float>) {
    widen_bf16(to, from, count);
    return true;
  } else if constexpr (std::is_same_v<S, float> && std::is_same_v<D, Half>) {
    narrow_f16(to, from, count);
    return true;
  } else if constexpr (std::is_same_v<S, Half> && std::is_same_v<D, float>) {
    widen_f16(to, from, count);
    return true;
  }
  return false;
}

template <typename S, typename D>
void convert_row(void* to, int64_t to_stride, const void* from, int64_t from_stride,
                 int64_t count) {
  D* dst = static_cast<D*>(to);
  const S* src = static_cast<const S*>(from);
  if (to_stride == 1 && from_stride == 1) {
    if (convert_contiguous(dst, src, count)) return;
    for (int64_t i = 0; i < count; ++i) dst[i] = convert<D>(src[i]);
    return;
  }
  for (int64_t i = 0; i < count; ++i) dst[i * to_stride] = convert<D>(src[i * from_stride]);
}
}  // namespace

ConvertRow row_converter(DType from, DType to) noexcept {
  return visit_dtype(from, [&](auto source) {
    return visit_dtype(to, [](auto target) -> ConvertRow {
      return &convert_row<decltype(source), decltype(target)>;
    });
  });
}
}  // namespace muster::kernels::cpu
