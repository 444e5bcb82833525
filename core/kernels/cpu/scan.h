#pragma once
/// Running sums, products, extremes and log-sum-exps along one dim.
///
/// Each line is walked from its start, floats in f64, so results depend on that line only. `out`
/// has the sizes of `in` and may be it; its dtype is free.

#include "core/tensor/tensor_view.h"

namespace muster::kernels::cpu {

enum class ScanKind : uint8_t { kSum, kProd, kLogsumexp };

/// @error kOutOfRange  dim
void scan(ScanKind kind, const TensorView& out, const TensorView& in, int64_t dim);

/// Running maximum (or minimum) and the place of its last occurrence; nan wins from its place on.
/// @shape values, indices (i64) as in
void scan_extreme(bool largest, const TensorView& values, const TensorView& indices,
                  const TensorView& in, int64_t dim);

}  // namespace muster::kernels::cpu
