#include "core/kernels/cpu/copy_vec.h"

#include "core/kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/copy_vec.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace muster::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void WidenBf16(float* to, const BFloat16* from, int64_t count) {
  const hn::ScalableTag<uint32_t> d32;
  const hn::Rebind<uint16_t, decltype(d32)> d16;
  const auto* bits = reinterpret_cast<const uint16_t*>(from);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d32));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto wide = hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, bits + i)));
    hn::StoreU(hn::BitCast(hn::ScalableTag<float>(), wide), hn::ScalableTag<float>(), to + i);
  }
  for (; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

void NarrowBf16(BFloat16* to, const float* from, int64_t count) {
  const hn::ScalableTag<float> df;
  const hn::RebindToUnsigned<decltype(df)> d32;
  const hn::Rebind<int32_t, decltype(df)> di32;
  const hn::Rebind<uint16_t, decltype(df)> d16;
  auto* bits = reinterpret_cast<uint16_t*>(to);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto value = hn::LoadU(df, from + i);
    const auto word = hn::BitCast(d32, value);
    const auto odd = hn::And(hn::ShiftRight<16>(word), hn::Set(d32, 1u));
    const auto rounded = hn::ShiftRight<16>(word + hn::Set(d32, 0x7FFFu) + odd);
    const auto quiet = hn::Or(hn::ShiftRight<16>(word), hn::Set(d32, 0x40u));
    const auto is_number = hn::RebindMask(d32, hn::Eq(value, value));
    const auto chosen = hn::IfThenElse(is_number, rounded, quiet);
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di32, chosen)), d16, bits + i);
  }
  for (; i < count; ++i) to[i] = BFloat16(from[i]);
}

void WidenF16(float* to, const Half* from, int64_t count) {
  int64_t i = 0;
#if HWY_TARGET <= HWY_AVX2  // F16C; the emulation of older targets flushes subnormals
  const hn::ScalableTag<float> df;
  const hn::Rebind<hwy::float16_t, decltype(df)> d16;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  const auto* source = reinterpret_cast<const hwy::float16_t*>(from);
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::PromoteTo(df, hn::LoadU(d16, source + i)), df, to + i);
  }
#endif
  for (; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

void NarrowF16(Half* to, const float* from, int64_t count) {
  int64_t i = 0;
#if HWY_TARGET <= HWY_AVX2
  const hn::ScalableTag<float> df;
  const hn::Rebind<hwy::float16_t, decltype(df)> d16;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  auto* target = reinterpret_cast<hwy::float16_t*>(to);
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::DemoteTo(d16, hn::LoadU(df, from + i)), d16, target + i);
  }
#endif
  for (; i < count; ++i) to[i] = Half(from[i]);
}

}  // namespace muster::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace muster::kernels::cpu {
namespace {
HWY_EXPORT(WidenBf16);
HWY_EXPORT(NarrowBf16);
HWY_EXPORT(WidenF16);
HWY_EXPORT(NarrowF16);
}  // namespace

void widen_bf16(float* to, const BFloat16* from, int64_t count) {
  HWY_DYNAMIC_DISPATCH(WidenBf16)(to, from, count);
}
void narrow_bf16(BFloat16* to, const float* from, int64_t count) {
  HWY_DYNAMIC_DISPATCH(NarrowBf16)(to, from, count);
}
void widen_f16(float* to, const Half* from, int64_t count) {
  HWY_DYNAMIC_DISPATCH(WidenF16)(to, from, count);
}
void narrow_f16(Half* to, const float* from, int64_t count) {
  HWY_DYNAMIC_DISPATCH(NarrowF16)(to, from, count);
}
}  // namespace muster::kernels::cpu
#endif  // HWY_ONCE
