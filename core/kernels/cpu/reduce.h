#pragma once
/// Reductions over any set of dims, on any strides, in a fixed order.
///
/// `out` has the sizes of `in` with 1 at each reduced dim, any dtype; the result is converted. Sums
/// of floats accumulate in f64 and round once, of integers in i64. The order of additions depends
/// on the sizes and strides of the reduced dims alone: neither threads nor the other dims change a
/// bit. No dims given means no reduction: each element is its own slice. Not softmax, not norm
/// layers.

#include "core/tensor/scalar.h"
#include "core/tensor/tensor_view.h"

namespace muster::kernels::cpu {

enum class ReduceKind : uint8_t {
  kSum,     ///< 0 for an empty slice
  kNansum,  ///< nan counts as 0
  kMean,    ///< nan for an empty slice
  kProd,    ///< 1 for an empty slice
  kAmax,    ///< nan wins; an empty slice is an error
  kAmin,
  kAny,  ///< 1 or 0; nan is true
  kAll,
  kCountNonzero,
  kSumOfSquares,
  kNorm1,      ///< sum of magnitudes
  kNorm2,      ///< square root of the sum of squares
  kNormInf,    ///< largest magnitude; 0 for an empty slice
  kLogsumexp,  ///< floating only; -inf for an empty slice
  kCount
};

/// @error kInvalidArgument  sizes of `out`, a dim twice, amax or amin of an empty slice
///        kOutOfRange       a dim
void reduce(ReduceKind kind, const TensorView& out, const TensorView& in, Dims dims);

/// (sum |x|^p)^(1/p); p = 0 counts nonzeros, inf and -inf take the extreme magnitude.
void vector_norm(const TensorView& out, const TensorView& in, double p, Dims dims);

/// Largest (or smallest) element of each slice and the place of the first such in row-major order
/// of the reduced dims; the first nan wins. `values` may have null data when only places are
/// wanted.
/// @shape values, indices (i64): as `out` above
/// @error kInvalidArgument  an empty slice
void reduce_with_index(bool largest, const TensorView& values, const TensorView& indices,
                       const TensorView& in, Dims dims);

/// Variance by (mean, M2) with divisor max(0, count - correction), or its root when `root`; nan
/// where the divisor is 0 and M2 is. `mean` may have null data.
void var_mean(const TensorView& var, const TensorView& mean, const TensorView& in, Dims dims,
              double correction, bool root = false);

}  // namespace muster::kernels::cpu
