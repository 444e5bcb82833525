// The f32 binary and ternary formulas that training runs on, as SIMD loops compiled once per
// target.
#include "core/kernels/cpu/pointwise_tables.h"
#include "core/kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/binary_vec.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "core/kernels/cpu/vec_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace muster::kernels::cpu::HWY_NAMESPACE {

HWY_INLINE VF one_if(hn::Mask<F32> mask) { return hn::IfThenElseZero(mask, K(1.0f)); }
// The nan of either operand wins, else the chosen one.
HWY_INLINE VF or_nan(VF a, VF b, VF chosen) { return keep_nan(a, keep_nan(b, chosen)); }

HWY_INLINE VF lerp(VF a, VF b, VF weight) {
  const VF distance = b - a;
  const VF from_a = hn::MulAdd(weight, distance, a);
  const VF from_b = hn::NegMulAdd(distance, K(1.0f) - weight, b);
  return hn::IfThenElse(hn::Lt(hn::Abs(weight), K(0.5f)), from_a, from_b);
}

// One struct per formula; p holds the kind's numbers.
#define MUSTER_BINARY(name, formula)                               \
  struct name {                                                    \
    const Numbers<float> p;                                        \
    HWY_INLINE VF operator()(VF a, VF b) const { return formula; } \
  }

MUSTER_BINARY(Add, hn::MulAdd(K(p.a), b, a));
MUSTER_BINARY(Sub, hn::NegMulAdd(K(p.a), b, a));
MUSTER_BINARY(Mul, a* b);
MUSTER_BINARY(Div, a / b);
MUSTER_BINARY(Maximum, or_nan(a, b, hn::IfThenElse(hn::Lt(a, b), b, a)));
MUSTER_BINARY(Minimum, or_nan(a, b, hn::IfThenElse(hn::Lt(b, a), b, a)));
MUSTER_BINARY(Equal, one_if(hn::Eq(a, b)));
MUSTER_BINARY(NotEqual, one_if(hn::Not(hn::Eq(a, b))));
MUSTER_BINARY(Less, one_if(hn::Lt(a, b)));
MUSTER_BINARY(LessEqual, one_if(hn::Le(a, b)));
MUSTER_BINARY(Greater, one_if(hn::Gt(a, b)));
MUSTER_BINARY(GreaterEqual, one_if(hn::Ge(a, b)));
MUSTER_BINARY(Lerp, lerp(a, b, K(p.a)));
MUSTER_BINARY(Swiglu, a / (K(1.0f) + vexp(hn::Neg(a))) * b);
// a is the gradient, b the saved tensor.
MUSTER_BINARY(ThresholdBackward, hn::IfThenZeroElse(hn::Le(b, K(p.a)), a));
MUSTER_BINARY(ReluBackward, hn::IfThenZeroElse(hn::Le(b, hn::Zero(F32())), a));
MUSTER_BINARY(ClampBackward, hn::IfThenElseZero(hn::And(hn::Ge(b, K(p.a)), hn::Le(b, K(p.b))), a));
MUSTER_BINARY(HardtanhBackward,
              hn::IfThenZeroElse(hn::Or(hn::Le(b, K(p.a)), hn::Ge(b, K(p.b))), a));
MUSTER_BINARY(LeakyReluBackward, hn::IfThenElse(hn::Gt(b, hn::Zero(F32())), a, a* K(p.a)));
MUSTER_BINARY(SigmoidBackward, a*(K(1.0f) - b) * b);
MUSTER_BINARY(TanhBackward, a* hn::NegMulAdd(b, b, K(1.0f)));
MUSTER_BINARY(LogsigmoidBackward, a* vsigmoid(hn::Neg(b)));
MUSTER_BINARY(SoftplusBackward,
              hn::IfThenElse(hn::Gt(b* K(p.a), K(p.b)), a, a* vsigmoid(b* K(p.a))));
MUSTER_BINARY(EluBackward,
              hn::IfThenElse(hn::Le(b, hn::Zero(F32())),
                             a* K(p.c) * K(p.a) * K(p.b) * vexp(b * K(p.c)), a* K(p.b)));
#undef MUSTER_BINARY

struct SiluBackward {
  const Numbers<float> p;
  HWY_INLINE VF operator()(VF g, VF x) const {
    const VF s = vsigmoid(x);
    return g * s * hn::MulAdd(x, K(1.0f) - s, K(1.0f));
  }
};

struct GeluBackward {
  const Numbers<float> p;
  HWY_INLINE VF operator()(VF g, VF x) const {
    // Beyond 20 the derivative is exactly 0 or 1; nan at the infinities, as in PyTorch.
    const VF bounded = hn::IfThenElse(hn::Gt(hn::Abs(x), K(20.0f)), hn::CopySign(K(20.0f), x), x);
    VF density;
    const VF cdf = normal_cdf(bounded, &density);
    return g * keep_nan(x, hn::MulAdd(x, density, cdf));
  }
};

struct GeluTanhBackward {
  const Numbers<float> p;
  HWY_INLINE VF operator()(VF g, VF x) const {
    const VF bounded = hn::IfThenElse(hn::Gt(hn::Abs(x), K(20.0f)), hn::CopySign(K(20.0f), x), x);
    const VF square = bounded * bounded;
    const float scale = 1.5957691216f;
    const VF s = vsigmoid(bounded * hn::MulAdd(square, K(0.044715f * scale), K(scale)));
    const VF slope = hn::MulAdd(square, K(3.0f * 0.044715f * scale), K(scale));
    return g * s * hn::MulAdd(x * (K(1.0f) - s), slope, K(1.0f));
  }
};

struct MishBackward {
  const Numbers<float> p;
  HWY_INLINE VF operator()(VF g, VF x) const {
    const VF e = vexp(hn::IfThenElse(hn::Gt(x, K(20.0f)), K(20.0f), x));
    const VF n = e * (e + K(2.0f));
    const VF w = n / (n + K(2.0f));
    return g * hn::MulAdd(x * vsigmoid(x), hn::NegMulAdd(w, w, K(1.0f)), w);
  }
};

template <class Op>
void Loop(void* out, const void* const* in, int64_t count, const PointwiseParams& params) {
  const F32 d;
  const Op op{Numbers<float>(params)};
  const float* a = static_cast<const float*>(in[0]);
  const float* b = static_cast<const float*>(in[1]);
  float* y = static_cast<float*>(out);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(op(hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, y + i);
  }
  if (i < count) {
    const int64_t left = count - i;
    store_some(op(load_some(a + i, left), load_some(b + i, left)), y + i, left);
  }
}

struct Where {
  const Numbers<float> p;
  HWY_INLINE VF operator()(VF a, VF b, VF c) const {
    return hn::IfThenElse(hn::Eq(a, hn::Zero(F32())), c, b);
  }
};
struct Addcmul {
  const Numbers<float> p;
  HWY_INLINE VF operator()(VF a, VF b, VF c) const { return hn::MulAdd(K(p.a) * b, c, a); }
};
struct Addcdiv {
  const Numbers<float> p;
  HWY_INLINE VF operator()(VF a, VF b, VF c) const { return a + K(p.a) * b / c; }
};
struct LerpTensor {
  const Numbers<float> p;
  HWY_INLINE VF operator()(VF a, VF b, VF c) const { return lerp(a, b, c); }
};

struct SwigluBackward {
  const Numbers<float> p;
  HWY_INLINE VF operator()(VF g, VF x, VF up) const { return SiluBackward{p}(g * up, x); }
};

template <class Op>
void Loop3(void* out, const void* const* in, int64_t count, const PointwiseParams& params) {
  const F32 d;
  const Op op{Numbers<float>(params)};
  const float* a = static_cast<const float*>(in[0]);
  const float* b = static_cast<const float*>(in[1]);
  const float* c = static_cast<const float*>(in[2]);
  float* y = static_cast<float*>(out);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(op(hn::LoadU(d, a + i), hn::LoadU(d, b + i), hn::LoadU(d, c + i)), d, y + i);
  }
  if (i < count) {
    const int64_t left = count - i;
    store_some(op(load_some(a + i, left), load_some(b + i, left), load_some(c + i, left)), y + i,
               left);
  }
}

void FillBinary(PointwiseTables& tables) {
  using Kind = BinaryKind;
  const auto set = [&](Kind kind, BlockFn fn) {
    tables.binary[static_cast<int>(ComputeType::kF32)][static_cast<int>(kind)] = fn;
  };
  set(Kind::kAdd, &Loop<Add>);
  set(Kind::kSub, &Loop<Sub>);
  set(Kind::kMul, &Loop<Mul>);
  set(Kind::kDiv, &Loop<Div>);
  set(Kind::kMaximum, &Loop<Maximum>);
  set(Kind::kMinimum, &Loop<Minimum>);
  set(Kind::kEq, &Loop<Equal>);
  set(Kind::kNe, &Loop<NotEqual>);
  set(Kind::kLt, &Loop<Less>);
  set(Kind::kLe, &Loop<LessEqual>);
  set(Kind::kGt, &Loop<Greater>);
  set(Kind::kGe, &Loop<GreaterEqual>);
  set(Kind::kLerp, &Loop<Lerp>);
  set(Kind::kSwiglu, &Loop<Swiglu>);
  set(Kind::kThresholdBackward, &Loop<ThresholdBackward>);
  set(Kind::kReluBackward, &Loop<ReluBackward>);
  set(Kind::kClampBackward, &Loop<ClampBackward>);
  set(Kind::kHardtanhBackward, &Loop<HardtanhBackward>);
  set(Kind::kLeakyReluBackward, &Loop<LeakyReluBackward>);
  set(Kind::kSigmoidBackward, &Loop<SigmoidBackward>);
  set(Kind::kTanhBackward, &Loop<TanhBackward>);
  set(Kind::kLogsigmoidBackward, &Loop<LogsigmoidBackward>);
  set(Kind::kSoftplusBackward, &Loop<SoftplusBackward>);
  set(Kind::kEluBackward, &Loop<EluBackward>);
  set(Kind::kSiluBackward, &Loop<SiluBackward>);
  set(Kind::kGeluBackward, &Loop<GeluBackward>);
  set(Kind::kGeluTanhBackward, &Loop<GeluTanhBackward>);
  set(Kind::kMishBackward, &Loop<MishBackward>);

  BlockFn* ternary = tables.ternary[static_cast<int>(ComputeType::kF32)];
  ternary[static_cast<int>(TernaryKind::kWhere)] = &Loop3<Where>;
  ternary[static_cast<int>(TernaryKind::kAddcmul)] = &Loop3<Addcmul>;
  ternary[static_cast<int>(TernaryKind::kAddcdiv)] = &Loop3<Addcdiv>;
  ternary[static_cast<int>(TernaryKind::kLerp)] = &Loop3<LerpTensor>;
  ternary[static_cast<int>(TernaryKind::kSwigluBackward)] = &Loop3<SwigluBackward>;
}

}  // namespace muster::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace muster::kernels::cpu {
namespace {
HWY_EXPORT(FillBinary);
}  // namespace
void fill_vector_binary(PointwiseTables& tables) { HWY_DYNAMIC_DISPATCH(FillBinary)(tables); }
}  // namespace muster::kernels::cpu
#endif  // HWY_ONCE
