// f32 reduction loops as SIMD, compiled once per target. 32 lanes of f64 on each, so all give the
// same bits as the plain loops.
#include <limits>

#include "core/kernels/cpu/reduce_ops.h"
#include "core/kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/reduce_vec.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace muster::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F64 = hn::ScalableTag<double>;
using HalfF32 = hn::Rebind<float, F64>;
using V = hn::Vec<F64>;
inline constexpr int64_t kWidth = hn::MaxLanes(F64());
inline constexpr int64_t kVectors = kLanes / kWidth;

HWY_INLINE V load_wide(const float* x) { return hn::PromoteTo(F64(), hn::LoadU(HalfF32(), x)); }

struct Sum {
  static constexpr double kIdentity = 0;
  static HWY_INLINE V join(V a, V b) { return a + b; }
  static HWY_INLINE V step(V sum, V x) { return sum + x; }
};
struct SumOfSquares {
  static constexpr double kIdentity = 0;
  static HWY_INLINE V join(V a, V b) { return a + b; }
  // The square of an f32 is exact in f64, so a fused step rounds the same.
  static HWY_INLINE V step(V sum, V x) { return hn::MulAdd(x, x, sum); }
};
// A nan, once there, stays: nothing compares greater. Ne would be false for nan on AVX.
struct Amax {
  static constexpr double kIdentity = -std::numeric_limits<double>::infinity();
  static HWY_INLINE V join(V a, V b) { return step(a, b); }
  static HWY_INLINE V step(V best, V x) {
    return hn::IfThenElse(hn::Or(hn::Gt(x, best), hn::Not(hn::Eq(x, x))), x, best);
  }
};
struct Amin {
  static constexpr double kIdentity = std::numeric_limits<double>::infinity();
  static HWY_INLINE V join(V a, V b) { return step(a, b); }
  static HWY_INLINE V step(V best, V x) {
    return hn::IfThenElse(hn::Or(hn::Lt(x, best), hn::Not(hn::Eq(x, x))), x, best);
  }
};
struct LargestMagnitude {
  static constexpr double kIdentity = 0;
  static HWY_INLINE V join(V a, V b) { return Amax::step(a, b); }
  static HWY_INLINE V step(V best, V x) { return Amax::step(best, hn::Abs(x)); }
};

// Element i into lane i mod 32; a tail by vectors whose missing lanes keep their sums.
template <class Op>
HWY_INLINE void accumulate(V* sums, const float* x, int64_t count) {
  const F64 d;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t k = 0; k < kVectors; ++k) {
      sums[k] = Op::step(sums[k], load_wide(x + i + k * kWidth));
    }
  }
  if (i == count) return;
  HWY_ALIGN float tail[kLanes] = {};
  const int64_t left = count - i;
  for (int64_t j = 0; j < left; ++j) tail[j] = x[i + j];
  for (int64_t k = 0; k * kWidth < left; ++k) {
    const int64_t used = left - k * kWidth;
    const auto mask = hn::FirstN(d, static_cast<size_t>(used < kWidth ? used : kWidth));
    sums[k] = hn::IfThenElse(mask, Op::step(sums[k], load_wide(tail + k * kWidth)), sums[k]);
  }
}

template <class Op>
void Rows(Partial* lanes, const void* in, int64_t count) {
  const F64 d;
  double* partials = &lanes[0].real;
  V sums[kVectors];
  for (int64_t k = 0; k < kVectors; ++k) sums[k] = hn::LoadU(d, partials + k * kWidth);
  accumulate<Op>(sums, static_cast<const float*>(in), count);
  for (int64_t k = 0; k < kVectors; ++k) hn::StoreU(sums[k], d, partials + k * kWidth);
}

// The tree of combine_lanes: lane j with lane j + 16, then j + 8, .., by whole vectors while it
// can.
template <class Op>
HWY_INLINE Partial combine(V* sums) {
  const F64 d;
  for (int64_t step = kVectors / 2; step > 0; step /= 2) {
    for (int64_t k = 0; k < step; ++k) sums[k] = Op::join(sums[k], sums[k + step]);
  }
  HWY_ALIGN double lanes[kWidth];
  hn::Store(sums[0], d, lanes);
  for (int64_t step = kWidth / 2; step > 0; step /= 2) {
    for (int64_t j = 0; j < step; ++j) {
      lanes[j] = hn::GetLane(Op::join(hn::Set(d, lanes[j]), hn::Set(d, lanes[j + step])));
    }
  }
  return Partial{.real = lanes[0]};
}

template <class Op>
Partial Run(const void* in, int64_t count) {
  const float* x = static_cast<const float*>(in);
  V sums[kVectors];
  for (int64_t k = 0; k < kVectors; ++k) sums[k] = hn::Set(F64(), Op::kIdentity);
  accumulate<Op>(sums, x, count);
  return combine<Op>(sums);
}

// Eight rows at a time, so that partial results travel less often.
template <class Op>
void Columns(Partial* into, const void* in, int64_t count, int64_t rows, int64_t pitch) {
  const F64 d;
  double* partials = &into[0].real;
  for (int64_t first = 0; first < rows; first += 8) {
    const float* x = static_cast<const float*>(in) + first * pitch;
    const int64_t some = rows - first < 8 ? rows - first : 8;
    int64_t i = 0;
    for (; i + kWidth <= count; i += kWidth) {
      V sum = hn::LoadU(d, partials + i);
      for (int64_t r = 0; r < some; ++r) sum = Op::step(sum, load_wide(x + r * pitch + i));
      hn::StoreU(sum, d, partials + i);
    }
    for (; i < count; ++i) {
      V sum = hn::Set(d, partials[i]);
      for (int64_t r = 0; r < some; ++r) {
        sum = Op::step(sum, hn::Set(d, static_cast<double>(x[r * pitch + i])));
      }
      partials[i] = hn::GetLane(sum);
    }
  }
}

template <class Op>
void FillKind(ReduceTables& tables, ReduceKind kind) {
  ReduceOps& ops = tables.ops[static_cast<int>(kind)][static_cast<int>(ReduceInput::kF32)];
  ops.rows = &Rows<Op>;
  ops.run = &Run<Op>;
  ops.columns = &Columns<Op>;
}

void FillReduce(ReduceTables& tables) {
  FillKind<Sum>(tables, ReduceKind::kSum);
  FillKind<Sum>(tables, ReduceKind::kMean);
  FillKind<Amax>(tables, ReduceKind::kAmax);
  FillKind<Amin>(tables, ReduceKind::kAmin);
  FillKind<SumOfSquares>(tables, ReduceKind::kSumOfSquares);
  FillKind<SumOfSquares>(tables, ReduceKind::kNorm2);
  FillKind<LargestMagnitude>(tables, ReduceKind::kNormInf);
}

}  // namespace muster::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace muster::kernels::cpu {
namespace {
HWY_EXPORT(FillReduce);
}  // namespace

const ReduceTables& reduce_tables() {
  static const ReduceTables filled = [] {
    ReduceTables fresh{};
    fill_scalar_reductions(fresh);
    HWY_DYNAMIC_DISPATCH(FillReduce)(fresh);
    return fresh;
  }();
  return filled;
}

const ReduceOps& reduce_ops(ReduceKind kind, ReduceInput input) {
  return reduce_tables().ops[static_cast<int>(kind)][static_cast<int>(input)];
}

Partial combine_lanes(const ReduceOps& ops, Partial* lanes) {
  for (int64_t step = kLanes / 2; step > 0; step /= 2) ops.combine(lanes, lanes + step, step);
  return lanes[0];
}
}  // namespace muster::kernels::cpu
#endif  // HWY_ONCE
