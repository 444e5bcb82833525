// The f32 unary formulas that training runs on, as SIMD loops compiled once per target.
#include "core/kernels/cpu/pointwise_tables.h"
#include "core/kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/unary_vec.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "core/kernels/cpu/vec_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace muster::kernels::cpu::HWY_NAMESPACE {

HWY_INLINE VF clamp_keeping_nan(VF x, float lower, float upper) {
  const VF raised = hn::IfThenElse(hn::Lt(x, K(lower)), K(lower), x);
  return hn::IfThenElse(hn::Gt(raised, K(upper)), K(upper), raised);
}
HWY_INLINE VF softplus_of_magnitude(VF x) { return vlog1p(vexp(hn::Neg(hn::Abs(x)))); }

// One struct per formula; p holds the kind's numbers.
#define MUSTER_UNARY(name, formula)                          \
  struct name {                                              \
    const Numbers<float> p;                                  \
    HWY_INLINE VF operator()(VF x) const { return formula; } \
  }

MUSTER_UNARY(Negate, hn::Neg(x));
MUSTER_UNARY(Magnitude, hn::Abs(x));
MUSTER_UNARY(Square, x* x);
MUSTER_UNARY(Relu, hn::IfThenZeroElse(hn::Lt(x, hn::Zero(F32())), x));
MUSTER_UNARY(Reciprocal, K(1.0f) / x);
MUSTER_UNARY(SquareRoot, hn::Sqrt(x));
MUSTER_UNARY(ReciprocalRoot, K(1.0f) / hn::Sqrt(x));
MUSTER_UNARY(Clamp, clamp_keeping_nan(x, p.a, p.b));
MUSTER_UNARY(Threshold, hn::IfThenElse(hn::Le(x, K(p.a)), K(p.b), x));
MUSTER_UNARY(Exp, vexp(x));
MUSTER_UNARY(Expm1, vexpm1(x));
MUSTER_UNARY(Log, vlog(x));
MUSTER_UNARY(Log1p, vlog1p(x));
MUSTER_UNARY(Tanh, vtanh(x));
MUSTER_UNARY(Sigmoid, vsigmoid(x));
MUSTER_UNARY(Erf, verf(x));
MUSTER_UNARY(Erfc, verfc(x));
MUSTER_UNARY(Silu, x / (K(1.0f) + vexp(hn::Neg(x))));
MUSTER_UNARY(LeakyRelu, hn::IfThenElse(hn::Gt(x, hn::Zero(F32())), x, x* K(p.a)));
MUSTER_UNARY(Hardsigmoid, clamp_keeping_nan(x + K(3.0f), 0.0f, 6.0f) / K(6.0f));
MUSTER_UNARY(Hardswish, x* clamp_keeping_nan(x + K(3.0f), 0.0f, 6.0f) / K(6.0f));
MUSTER_UNARY(Softsign, x / (K(1.0f) + hn::Abs(x)));
MUSTER_UNARY(Elu, hn::IfThenElse(hn::Le(x, hn::Zero(F32())), vexpm1(x* K(p.c)) * K(p.a) * K(p.b),
                                 x* K(p.b)));
MUSTER_UNARY(Logsigmoid,
             hn::IfThenElseZero(hn::Lt(x, hn::Zero(F32())), x) - softplus_of_magnitude(x));
#undef MUSTER_UNARY

struct Gelu {
  const Numbers<float> p;
  HWY_INLINE VF operator()(VF x) const {
    VF density;
    const VF bounded = clamp_keeping_nan(x, -20.0f, 20.0f);
    return x * keep_nan(x, normal_cdf(bounded, &density));
  }
};

// 0.5 (1 + tanh(z)) is sigmoid(2 z).
struct GeluTanh {
  const Numbers<float> p;
  HWY_INLINE VF operator()(VF x) const {
    const VF cubic = hn::MulAdd(x * x, K(0.044715f * 1.5957691216f), K(1.5957691216f));
    return x / (K(1.0f) + vexp(hn::Neg(x * cubic)));
  }
};

struct Softplus {
  const Numbers<float> p;
  HWY_INLINE VF operator()(VF x) const {
    const VF z = x * K(p.a);
    const VF positive = hn::IfThenElseZero(hn::Gt(z, hn::Zero(F32())), z);
    const VF y = (positive + softplus_of_magnitude(z)) / K(p.a);
    return hn::IfThenElse(hn::Gt(z, K(p.b)), x, y);
  }
};

// tanh(log(1 + e)) = n / (n + 2) with n = e (e + 2), e = exp(x).
struct Mish {
  const Numbers<float> p;
  HWY_INLINE VF operator()(VF x) const {
    const VF e = vexp(hn::IfThenElse(hn::Gt(x, K(20.0f)), K(20.0f), x));
    const VF n = e * (e + K(2.0f));
    return x * (n / (n + K(2.0f)));
  }
};

template <class Op>
void Loop(void* out, const void* const* in, int64_t count, const PointwiseParams& params) {
  const F32 d;
  const Op op{Numbers<float>(params)};
  const float* x = static_cast<const float*>(in[0]);
  float* y = static_cast<float*>(out);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(op(hn::LoadU(d, x + i)), d, y + i);
  if (i < count) store_some(op(load_some(x + i, count - i)), y + i, count - i);
}

void FillUnary(PointwiseTables& tables) {
  using Kind = UnaryKind;
  const auto set = [&](Kind kind, BlockFn fn) {
    tables.unary[static_cast<int>(ComputeType::kF32)][static_cast<int>(kind)] = fn;
  };
  set(Kind::kNeg, &Loop<Negate>);
  set(Kind::kAbs, &Loop<Magnitude>);
  set(Kind::kSquare, &Loop<Square>);
  set(Kind::kRelu, &Loop<Relu>);
  set(Kind::kReciprocal, &Loop<Reciprocal>);
  set(Kind::kSqrt, &Loop<SquareRoot>);
  set(Kind::kRsqrt, &Loop<ReciprocalRoot>);
  set(Kind::kClamp, &Loop<Clamp>);
  set(Kind::kHardtanh, &Loop<Clamp>);
  set(Kind::kThreshold, &Loop<Threshold>);
  set(Kind::kExp, &Loop<Exp>);
  set(Kind::kExpm1, &Loop<Expm1>);
  set(Kind::kLog, &Loop<Log>);
  set(Kind::kLog1p, &Loop<Log1p>);
  set(Kind::kTanh, &Loop<Tanh>);
  set(Kind::kSigmoid, &Loop<Sigmoid>);
  set(Kind::kErf, &Loop<Erf>);
  set(Kind::kErfc, &Loop<Erfc>);
  set(Kind::kSilu, &Loop<Silu>);
  set(Kind::kLeakyRelu, &Loop<LeakyRelu>);
  set(Kind::kHardsigmoid, &Loop<Hardsigmoid>);
  set(Kind::kHardswish, &Loop<Hardswish>);
  set(Kind::kSoftsign, &Loop<Softsign>);
  set(Kind::kElu, &Loop<Elu>);
  set(Kind::kLogsigmoid, &Loop<Logsigmoid>);
  set(Kind::kGelu, &Loop<Gelu>);
  set(Kind::kGeluTanh, &Loop<GeluTanh>);
  set(Kind::kSoftplus, &Loop<Softplus>);
  set(Kind::kMish, &Loop<Mish>);
}

}  // namespace muster::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace muster::kernels::cpu {
namespace {
HWY_EXPORT(FillUnary);
}  // namespace
void fill_vector_unary(PointwiseTables& tables) { HWY_DYNAMIC_DISPATCH(FillUnary)(tables); }
}  // namespace muster::kernels::cpu
#endif  // HWY_ONCE
