#pragma once
/// Reductions and scans: sums, extremes, norms, over all dims or some.
///
/// Names and argument order are PyTorch's. An empty list of dims means all of them. Order of
/// additions depends on sizes alone, so results do not depend on threads. Integers sum to i64.

#include <array>
#include <optional>

#include "core/ops/creation.h"
#include "core/tensor/scalar.h"
#include "core/tensor/tensor.h"

namespace muster {

Tensor sum(const Tensor& self, OptionalDType dtype = {});
Tensor sum(const Tensor& self, Dims dim, bool keepdim = false, OptionalDType dtype = {});
Tensor sum(const Tensor& self, int64_t dim, bool keepdim = false, OptionalDType dtype = {});
/// @error kInvalidArgument for integers without a floating `dtype`
Tensor mean(const Tensor& self, OptionalDType dtype = {});
Tensor mean(const Tensor& self, Dims dim, bool keepdim = false, OptionalDType dtype = {});
Tensor mean(const Tensor& self, int64_t dim, bool keepdim = false, OptionalDType dtype = {});
Tensor nansum(const Tensor& self, OptionalDType dtype = {});
Tensor prod(const Tensor& self, OptionalDType dtype = {});
Tensor prod(const Tensor& self, int64_t dim, bool keepdim = false, OptionalDType dtype = {});

/// Sum of squared deviations / max(0, count - correction).
Tensor var(const Tensor& self, double correction = 1);
Tensor var(const Tensor& self, Dims dim, double correction = 1, bool keepdim = false);
Tensor std(const Tensor& self, double correction = 1);
Tensor std(const Tensor& self, Dims dim, double correction = 1, bool keepdim = false);
/// {variance, mean}.
std::array<Tensor, 2> var_mean(const Tensor& self, Dims dim, double correction = 1,
                               bool keepdim = false);

/// Extremes; gradients are shared evenly among equals.
Tensor amax(const Tensor& self, Dims dim = {}, bool keepdim = false);
Tensor amin(const Tensor& self, Dims dim = {}, bool keepdim = false);
Tensor max(const Tensor& self);
Tensor min(const Tensor& self);
/// {values, indices}; the first of equals has the index and the gradient.
std::array<Tensor, 2> max(const Tensor& self, int64_t dim, bool keepdim = false);
std::array<Tensor, 2> min(const Tensor& self, int64_t dim, bool keepdim = false);
Tensor argmax(const Tensor& self, std::optional<int64_t> dim = {}, bool keepdim = false);
Tensor argmin(const Tensor& self, std::optional<int64_t> dim = {}, bool keepdim = false);

Tensor any(const Tensor& self, Dims dim = {}, bool keepdim = false);
Tensor all(const Tensor& self, Dims dim = {}, bool keepdim = false);
Tensor count_nonzero(const Tensor& self, Dims dim = {});

/// (sum |x|^ord)^(1/ord); ord may be 0, inf or -inf.
Tensor vector_norm(const Tensor& self, Scalar ord = 2, Dims dim = {}, bool keepdim = false,
                   OptionalDType dtype = {});
Tensor norm(const Tensor& self, Scalar p = 2, Dims dim = {}, bool keepdim = false);
Tensor logsumexp(const Tensor& self, Dims dim, bool keepdim = false);

Tensor cumsum(const Tensor& self, int64_t dim, OptionalDType dtype = {});
Tensor cumprod(const Tensor& self, int64_t dim, OptionalDType dtype = {});
Tensor logcumsumexp(const Tensor& self, int64_t dim);
/// {values, indices} of the running extreme.
std::array<Tensor, 2> cummax(const Tensor& self, int64_t dim);
std::array<Tensor, 2> cummin(const Tensor& self, int64_t dim);

/// Sums self down to `size`, which broadcasts to self's sizes: the inverse of expand.
Tensor sum_to_size(const Tensor& self, Dims size);

}  // namespace muster
