#pragma once
/// Elementwise kernels: one function per arity, a kind per formula, any strides, any dtype.
///
/// Inputs have the sizes of `out` (stride 0 where broadcast; negative strides are fine); `out` may
/// be an input itself, but must not overlap one partially. Arithmetic runs in the compute dtype and
/// is stored into whatever dtype `out` has; bf16 and f16 compute in f32 and round once, small
/// integers compute in i32. An element's value depends on neither layout, nor place, nor threads.
/// nan, inf and -0 as in PyTorch.

#include <cstdint>

#include "core/tensor/scalar.h"
#include "core/tensor/tensor_view.h"

namespace muster::kernels::cpu {

/// f(x). Numbers in brackets are what `PointwiseParams` holds for the kind, in order a, b, c.
enum class UnaryKind : uint8_t {
  // Any dtype.
  kNeg,
  kAbs,
  kSign,
  kSquare,
  kRelu,
  kFloor,
  kCeil,
  kTrunc,
  kRound,       ///< half to even
  kLogicalNot,  ///< 1 or 0
  kBitwiseNot,  ///< integers and bool
  kClamp,       ///< [lower, upper]; nan stays
  kThreshold,   ///< [threshold, value]: x > threshold ? x : value
  kIsnan,       ///< this and the next five: 1 or 0
  kIsinf,
  kIsfinite,
  kIsposinf,
  kIsneginf,
  kSignbit,
  kNanToNum,  ///< [for nan, for inf, for -inf]
  // Floating only.
  kReciprocal,
  kSqrt,
  kRsqrt,
  kExp,
  kExp2,
  kExpm1,
  kLog,
  kLog2,
  kLog10,
  kLog1p,
  kSin,
  kCos,
  kTan,
  kTanh,
  kSinh,
  kCosh,
  kAsin,
  kAcos,
  kAtan,
  kAsinh,
  kAcosh,
  kAtanh,
  kSigmoid,
  kErf,
  kErfc,
  kErfinv,
  kLgamma,
  kDigamma,
  kFrac,
  kLogit,  ///< [eps]: clamped to [eps, 1 - eps] first; eps < 0 for none
  kSinc,
  kGelu,
  kGeluTanh,
  kSilu,
  kSoftplus,  ///< [beta, threshold]
  kLogsigmoid,
  kElu,        ///< [alpha, scale, input scale]; serves celu and selu
  kLeakyRelu,  ///< [slope]
  kHardtanh,   ///< [lower, upper]
  kHardsigmoid,
  kHardswish,
  kMish,
  kSoftsign,
  kTanhshrink,
  kSoftshrink,  ///< [lambda]
  kHardshrink,  ///< [lambda]
  kCount
};

/// f(a, b). The `...Backward` kinds take (gradient, saved tensor).
enum class BinaryKind : uint8_t {
  // Any dtype.
  kAdd,  ///< [alpha] a + alpha * b
  kSub,  ///< [alpha] a - alpha * b
  kMul,
  kDiv,          ///< floating only; convert integers first
  kFloorDivide,  ///< rounds to -inf; the next rounds to 0. Integers refuse a zero divisor
  kTruncDivide,
  kRemainder,  ///< sign of the divisor; the next has the sign of the dividend
  kFmod,
  kPow,      ///< integers wrap; a negative exponent gives 0 unless the base is 1 or -1
  kMaximum,  ///< nan wins; in fmax and fmin the number wins
  kMinimum,
  kFmax,
  kFmin,
  kEq,  ///< this and the next five: 1 or 0
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kLogicalAnd,
  kLogicalOr,
  kLogicalXor,
  kHeaviside,
  kThresholdBackward,  ///< [threshold] x > threshold or nan ? g : 0; relu_backward with 0
  kClampBackward,      ///< [lower, upper] lower <= x <= upper ? g : 0
  // Integers and bool.
  kBitwiseAnd,
  kBitwiseOr,
  kBitwiseXor,
  kLeftShift,
  kRightShift,
  // Floating only.
  kAtan2,
  kCopysign,
  kHypot,
  kLogaddexp,
  kLogaddexp2,
  kXlogy,
  kNextafter,
  kLerp,              ///< [weight]
  kSwiglu,            ///< silu(a) * b
  kReluBackward,      ///< x <= 0 ? 0 : g
  kHardtanhBackward,  ///< [lower, upper] lower < x < upper ? g : 0
  kGeluBackward,
  kGeluTanhBackward,
  kSiluBackward,
  kSigmoidBackward,   ///< of the output y: g * y * (1 - y)
  kTanhBackward,      ///< of the output y: g * (1 - y * y)
  kSoftplusBackward,  ///< [beta, threshold]
  kLogsigmoidBackward,
  kEluBackward,        ///< [alpha, scale, input scale], of the input
  kLeakyReluBackward,  ///< [slope]
  kMishBackward,
  kHardswishBackward,
  kHardsigmoidBackward,
  kSoftshrinkBackward,  ///< [lambda]; serves hardshrink
  kCount
};

/// f(a, b, c).
enum class TernaryKind : uint8_t {
  kWhere,           ///< a != 0 ? b : c; a is usually bool
  kClamp,           ///< a between b and c; nan in any gives nan
  kAddcmul,         ///< [value] a + value * b * c
  kAddcdiv,         ///< [value] a + value * b / c; floating only
  kLerp,            ///< a + c * (b - a); floating only
  kSwigluBackward,  ///< a * c * silu'(b): gradient of the gate b; floating only
  kCount
};

/// Numbers of a formula; what each means stands at its kind.
struct PointwiseParams {
  Scalar a = 1;
  Scalar b = 0;
  Scalar c = 0;
};

/// out = f(in), computed in the dtype of `in`.
/// @error kUnimplemented  the kind has no formula for that dtype: convert first
void unary(UnaryKind kind, const TensorView& out, const TensorView& in,
           const PointwiseParams& params = {});

/// out = f(a, b), computed in the smallest dtype that holds both.
/// @error kUnimplemented; kInvalidArgument for an integer division by zero
void binary(BinaryKind kind, const TensorView& out, const TensorView& a, const TensorView& b,
            const PointwiseParams& params = {});

/// The same in a given compute dtype, e.g. that of the dimensioned operand beside a 0-dim one.
void binary_as(DType compute, BinaryKind kind, const TensorView& out, const TensorView& a,
               const TensorView& b, const PointwiseParams& params = {});

/// out = f(in, number), or f(number, in). A floating number beside integers computes in f32; else
/// in the dtype of `in`.
void binary_scalar(BinaryKind kind, const TensorView& out, const TensorView& in, Scalar number,
                   bool number_first = false, const PointwiseParams& params = {});

/// out = a + alpha * b.
inline void add_scaled(const TensorView& out, const TensorView& a, const TensorView& b,
                       Scalar alpha) {
  binary(BinaryKind::kAdd, out, a, b, {.a = alpha});
}

/// out = f(a, b, c). where computes in the smallest dtype that holds b and c, the others in that of
/// all three.
void ternary(TernaryKind kind, const TensorView& out, const TensorView& a, const TensorView& b,
             const TensorView& c, const PointwiseParams& params = {});

/// out = mask ? value : in. In integers a floating value is truncated.
void masked_fill(const TensorView& out, const TensorView& in, const TensorView& mask, Scalar value);

}  // namespace muster::kernels::cpu
