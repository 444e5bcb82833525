// Philox4x32-10 with a counter per lane, and Box-Muller on its words; compiled once per target.
#include "core/kernels/cpu/random_vec.h"

#include <algorithm>

#include "core/kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/random_vec.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "core/kernels/cpu/vec_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace muster::kernels::cpu::HWY_NAMESPACE {

using U32 = hn::ScalableTag<uint32_t>;
using U64 = hn::Repartition<uint64_t, U32>;
using VU = hn::Vec<U32>;
inline constexpr int64_t kLaneCount = hn::MaxLanes(U32());

// The halves of the 64-bit products of every lane with a constant.
HWY_INLINE void multiply(VU a, uint32_t factor, VU* high, VU* low) {
  const U32 d;
  const U64 d64;
  const VU b = hn::Set(d, factor);
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d64, a))), b);
  *high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
  *low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
}

struct Words {
  VU word[4];
};

// The four words of counters first .. first + lanes - 1.
HWY_INLINE Words philox(uint64_t seed, uint64_t offset, uint64_t first) {
  const U32 d;
  HWY_ALIGN uint32_t low_lanes[kLaneCount];
  HWY_ALIGN uint32_t high_lanes[kLaneCount];
  for (int64_t i = 0; i < kLaneCount; ++i) {
    const uint64_t counter = first + static_cast<uint64_t>(i);
    low_lanes[i] = static_cast<uint32_t>(counter);
    high_lanes[i] = static_cast<uint32_t>(counter >> 32);
  }
  VU c0 = hn::Load(d, low_lanes);
  VU c1 = hn::Load(d, high_lanes);
  VU c2 = hn::Set(d, static_cast<uint32_t>(offset));
  VU c3 = hn::Set(d, static_cast<uint32_t>(offset >> 32));
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    VU high0;
    VU low0;
    VU high1;
    VU low1;
    multiply(c0, 0xD2511F53u, &high0, &low0);
    multiply(c2, 0xCD9E8D57u, &high1, &low1);
    c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(d, key0));
    c1 = low1;
    c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(d, key1));
    c3 = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Fills aligned groups of 4 * lanes elements and copies the wanted part of each.
template <typename T, typename Group>
HWY_INLINE void for_each_group(uint64_t index, T* out, int64_t count, const Group& group) {
  constexpr int64_t kGroup = 4 * kLaneCount;
  HWY_ALIGN T values[kGroup];
  int64_t done = 0;
  while (done < count) {
    const uint64_t at = index + static_cast<uint64_t>(done);
    const auto skip = static_cast<int64_t>(at % 4);
    const int64_t run = std::min(count - done, kGroup - skip);
    if (run == kGroup) {
      group(at / 4, out + done);
    } else {
      group(at / 4, values);
      std::copy_n(values + skip, run, out + done);
    }
    done += run;
  }
}

struct WordGroup {
  uint64_t seed;
  uint64_t offset;
  HWY_INLINE void operator()(uint64_t counter, uint32_t* out) const {
    const Words w = philox(seed, offset, counter);
    hn::StoreInterleaved4(w.word[0], w.word[1], w.word[2], w.word[3], U32(), out);
  }
};

void RandomWords(uint64_t seed, uint64_t offset, uint64_t index, uint32_t* words, int64_t count) {
  for_each_group(index, words, count, WordGroup{seed, offset});
}

// The upper 24 bits as a float in [0, 1).
HWY_INLINE VF unit_float(VU word) {
  const auto bits = hn::BitCast(I32(), hn::ShiftRight<8>(word));
  return hn::ConvertTo(F32(), bits) * K(0x1p-24f);
}

// cos and sin of 2 pi u for u in [0, 1): a quarter turn is split off, the rest is in [-1/8, 1/8].
HWY_INLINE void turn(VF u, VF* cosine, VF* sine) {
  const auto quarter = hn::NearestInt(u * K(4.0f));
  const VF x = hn::NegMulAdd(hn::ConvertTo(F32(), quarter), K(0.25f), u);
  const VF s = x * x;
  // Chebyshev fits of sin(2 pi x) / x and cos(2 pi x) in x^2; relative errors 4e-8 and 1e-8.
  const VF sin_x =
      x * poly(s, -7.540161133e+01f, 8.159254456e+01f, -4.134166336e+01f, 6.283185482e+00f);
  const VF cos_x =
      poly(s, 5.922016907e+01f, -8.544284821e+01f, 6.493931580e+01f, -1.973920822e+01f, 1.0f);
  const I32 di;
  const auto odd = hn::Eq(hn::And(quarter, hn::Set(di, 1)), hn::Set(di, 1));
  const auto swap = hn::RebindMask(F32(), odd);
  const VF c = hn::IfThenElse(swap, sin_x, cos_x);
  const VF s2 = hn::IfThenElse(swap, cos_x, sin_x);
  // Quarters 1 and 2 have a negative cosine, 2 and 3 a negative sine.
  const auto flip_c = hn::ShiftLeft<30>(hn::And(quarter + hn::Set(di, 1), hn::Set(di, 2)));
  const auto flip_s = hn::ShiftLeft<30>(hn::And(quarter, hn::Set(di, 2)));
  *cosine = hn::Xor(c, hn::BitCast(F32(), flip_c));
  *sine = hn::Xor(s2, hn::BitCast(F32(), flip_s));
}

struct NormalGroup {
  uint64_t seed;
  uint64_t offset;
  float mean;
  float std;

  HWY_INLINE void pair(VU radius_word, VU angle_word, VF* even, VF* odd) const {
    const VF u = unit_float(radius_word) + K(0x1p-24f);  // never 0
    const VF radius = hn::Sqrt(K(-2.0f) * vlog(u));
    VF cosine;
    VF sine;
    turn(unit_float(angle_word), &cosine, &sine);
    *even = hn::MulAdd(K(std), radius * cosine, K(mean));
    *odd = hn::MulAdd(K(std), radius * sine, K(mean));
  }
  HWY_INLINE void operator()(uint64_t counter, float* out) const {
    const Words w = philox(seed, offset, counter);
    VF z[4];
    pair(w.word[0], w.word[1], &z[0], &z[1]);
    pair(w.word[2], w.word[3], &z[2], &z[3]);
    hn::StoreInterleaved4(z[0], z[1], z[2], z[3], F32(), out);
  }
};

void RandomNormals(uint64_t seed, uint64_t offset, uint64_t index, float* out, int64_t count,
                   float mean, float std) {
  for_each_group(index, out, count, NormalGroup{seed, offset, mean, std});
}

template <typename T>
void DropTyped(T* values, const uint32_t* words, int64_t count, double threshold, double scale) {
  const T factor = static_cast<T>(scale);
  for (int64_t i = 0; i < count; ++i) {
    const bool dropped = static_cast<double>(words[i]) < threshold;
    values[i] = dropped ? T(0) : values[i] * factor;
  }
}

void Drop(void* values, bool is_f64, const uint32_t* words, int64_t count, double threshold,
          double scale) {
  if (is_f64) {
    DropTyped(static_cast<double*>(values), words, count, threshold, scale);
  } else {
    DropTyped(static_cast<float*>(values), words, count, threshold, scale);
  }
}

}  // namespace muster::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace muster::kernels::cpu {
namespace {
HWY_EXPORT(RandomWords);
HWY_EXPORT(RandomNormals);
HWY_EXPORT(Drop);
}  // namespace

void random_words(uint64_t seed, uint64_t offset, uint64_t index, uint32_t* words, int64_t count) {
  HWY_DYNAMIC_DISPATCH(RandomWords)(seed, offset, index, words, count);
}
void random_normals(uint64_t seed, uint64_t offset, uint64_t index, float* out, int64_t count,
                    float mean, float std) {
  HWY_DYNAMIC_DISPATCH(RandomNormals)(seed, offset, index, out, count, mean, std);
}
void drop(void* values, bool is_f64, const uint32_t* words, int64_t count, double threshold,
          double scale) {
  HWY_DYNAMIC_DISPATCH(Drop)(values, is_f64, words, count, threshold, scale);
}
}  // namespace muster::kernels::cpu
#endif  // HWY_ONCE
