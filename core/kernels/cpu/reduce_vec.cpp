// f32 reduction loops as SIMD, compiled once per target. 32 lanes of f64 on each, so all give the
// same bits as the plain loops.
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
  static HWY_INLINE V step(V sum, V x) { return sum + x; }
};
struct SumOfSquares {
  // The square of an f32 is exact in f64, so a fused step rounds the same.
  static HWY_INLINE V step(V sum, V x) { return hn::MulAdd(x, x, sum); }
};
// A nan, once there, stays: nothing compares greater. Ne would be false for nan on AVX.
struct Amax {
  static HWY_INLINE V step(V best, V x) {
    return hn::IfThenElse(hn::Or(hn::Gt(x, best), hn::Not(hn::Eq(x, x))), x, best);
  }
};
struct Amin {
  static HWY_INLINE V step(V best, V x) {
    return hn::IfThenElse(hn::Or(hn::Lt(x, best), hn::Not(hn::Eq(x, x))), x, best);
  }
};
struct LargestMagnitude {
  static HWY_INLINE V step(V best, V x) { return Amax::step(best, hn::Abs(x)); }
};

template <class Op>
void Rows(Partial* lanes, const void* in, int64_t count) {
  const F64 d;
  const float* x = static_cast<const float*>(in);
  double* partials = &lanes[0].real;
  V sums[kVectors];
  for (int64_t k = 0; k < kVectors; ++k) sums[k] = hn::LoadU(d, partials + k * kWidth);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t k = 0; k < kVectors; ++k) {
      sums[k] = Op::step(sums[k], load_wide(x + i + k * kWidth));
    }
  }
  for (int64_t k = 0; k < kVectors; ++k) hn::StoreU(sums[k], d, partials + k * kWidth);
  // The tail: the same step on a vector whose first lane counts.
  for (int64_t j = 0; i + j < count; ++j) {
    const V value = hn::Set(d, static_cast<double>(x[i + j]));
    partials[j] = hn::GetLane(Op::step(hn::Set(d, partials[j]), value));
  }
}

template <class Op>
void Columns(Partial* into, const void* in, int64_t count) {
  const F64 d;
  const float* x = static_cast<const float*>(in);
  double* partials = &into[0].real;
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    hn::StoreU(Op::step(hn::LoadU(d, partials + i), load_wide(x + i)), d, partials + i);
  }
  for (; i < count; ++i) {
    const V value = hn::Set(d, static_cast<double>(x[i]));
    partials[i] = hn::GetLane(Op::step(hn::Set(d, partials[i]), value));
  }
}

template <class Op>
void FillKind(ReduceTables& tables, ReduceKind kind) {
  ReduceOps& ops = tables.ops[static_cast<int>(kind)][static_cast<int>(ReduceInput::kF32)];
  ops.rows = &Rows<Op>;
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
