#include "core/kernels/cpu/norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/norm.cpp"
#include "core/kernels/cpu/simd_targets.h"
//
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include <cmath>

#include "core/base/error.h"
#include "core/kernels/cpu/rows.h"
#include "core/kernels/cpu/simd_rows-inl.h"
#include "core/kernels/cpu/workspace.h"
#include "core/kernels/parallel.h"

#ifndef MUSTER_NORM_ONCE
#define MUSTER_NORM_ONCE
namespace muster::kernels::cpu::internal {

template <typename A>
struct NormStatistics {
  A mean;  // 0 for rms_norm
  A rstd;
};

// One row of the backward pass; null where absent or not wanted.
template <typename A>
struct NormBackwardRow {
  const A* dy;
  const A* x;
  const A* weight;
  A* dx;
  A* dweight_sum;
  A* dbias_sum;
};

}  // namespace muster::kernels::cpu::internal
#endif

HWY_BEFORE_NAMESPACE();
namespace muster::kernels::cpu::internal::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename A>
NormStatistics<A> norm_row(const A* x, int64_t n, const A* weight, const A* bias, bool centered,
                           double eps, A* y) {
  const A count = static_cast<A>(n);
  A mean = A(0);
  if (centered)
    mean = sum_row<A>(n, [&](auto d, int64_t i) HWY_ATTR { return hn::LoadU(d, x + i); }) / count;
  const A square = sum_row<A>(n, [&](auto d, int64_t i) HWY_ATTR {
    const auto c = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean));
    return hn::Mul(c, c);
  });
  const A rstd = A(1) / std::sqrt(square / count + static_cast<A>(eps));
  for_row<A>(n, [&](auto d, int64_t i) HWY_ATTR {
    auto out = hn::Mul(hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean)), hn::Set(d, rstd));
    if (weight != nullptr) out = hn::Mul(out, hn::LoadU(d, weight + i));
    if (bias != nullptr) out = hn::Add(out, hn::LoadU(d, bias + i));
    hn::StoreU(out, d, y + i);
  });
  return {mean, rstd};
}

// With g = dy * weight and h = (x - mean) * rstd: dx = rstd * (g - mean(g) - h * mean(g * h)), the
// middle term for layer norm only. dweight and dbias collect dy * h and dy.
template <typename A>
void norm_row_backward(const NormBackwardRow<A>& row, const NormStatistics<A>& statistics,
                       bool centered, int64_t n) {
  const A mean = statistics.mean, rstd = statistics.rstd;
  const auto normalized = [&](auto d, int64_t i) HWY_ATTR {
    return hn::Mul(hn::Sub(hn::LoadU(d, row.x + i), hn::Set(d, mean)), hn::Set(d, rstd));
  };
  const auto weighted = [&](auto d, int64_t i) HWY_ATTR {
    const auto dy = hn::LoadU(d, row.dy + i);
    return row.weight == nullptr ? dy : hn::Mul(dy, hn::LoadU(d, row.weight + i));
  };
  A mean_g = A(0), mean_gh = A(0);
  if (row.dx != nullptr) {
    const A count = static_cast<A>(n);
    if (centered) mean_g = sum_row<A>(n, weighted) / count;
    mean_gh = sum_row<A>(n, [&](auto d, int64_t i)
                                HWY_ATTR { return hn::Mul(weighted(d, i), normalized(d, i)); }) /
              count;
  }
  for_row<A>(n, [&](auto d, int64_t i) HWY_ATTR {
    const auto h = normalized(d, i);
    if (row.dweight_sum != nullptr) {
      const auto sum = hn::LoadU(d, row.dweight_sum + i);
      hn::StoreU(hn::MulAdd(hn::LoadU(d, row.dy + i), h, sum), d, row.dweight_sum + i);
    }
    if (row.dbias_sum != nullptr) {
      const auto sum = hn::LoadU(d, row.dbias_sum + i);
      hn::StoreU(hn::Add(hn::LoadU(d, row.dy + i), sum), d, row.dbias_sum + i);
    }
    if (row.dx != nullptr) {
      auto dx = hn::Sub(weighted(d, i), hn::Set(d, mean_g));
      dx = hn::Mul(hn::NegMulAdd(h, hn::Set(d, mean_gh), dx), hn::Set(d, rstd));
      hn::StoreU(dx, d, row.dx + i);
    }
  });
}

NormStatistics<float> norm_row_f32(const float* x, int64_t n, const float* weight,
                                   const float* bias, bool centered, double eps, float* y) {
  return norm_row(x, n, weight, bias, centered, eps, y);
}
NormStatistics<double> norm_row_f64(const double* x, int64_t n, const double* weight,
                                    const double* bias, bool centered, double eps, double* y) {
  return norm_row(x, n, weight, bias, centered, eps, y);
}
void norm_row_backward_f32(const NormBackwardRow<float>& row,
                           const NormStatistics<float>& statistics, bool centered, int64_t n) {
  norm_row_backward(row, statistics, centered, n);
}
void norm_row_backward_f64(const NormBackwardRow<double>& row,
                           const NormStatistics<double>& statistics, bool centered, int64_t n) {
  norm_row_backward(row, statistics, centered, n);
}

}  // namespace muster::kernels::cpu::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace muster::kernels::cpu {
namespace internal {
HWY_EXPORT(norm_row_f32);
HWY_EXPORT(norm_row_f64);
HWY_EXPORT(norm_row_backward_f32);
HWY_EXPORT(norm_row_backward_f64);

auto norm_row_kernel(float) { return HWY_DYNAMIC_DISPATCH(norm_row_f32); }
auto norm_row_kernel(double) { return HWY_DYNAMIC_DISPATCH(norm_row_f64); }
auto norm_row_backward_kernel(float) { return HWY_DYNAMIC_DISPATCH(norm_row_backward_f32); }
auto norm_row_backward_kernel(double) { return HWY_DYNAMIC_DISPATCH(norm_row_backward_f64); }
}  // namespace internal

namespace {
constexpr int64_t kGrainElements = int64_t{1} << 15;
constexpr int64_t kMinPartialRows = 16;
constexpr int64_t kMaxPartials = 64;

void check_matrix(const char* operation, const char* name, const TensorView& view,
                  const TensorView& x) {
  MUSTER_CHECK(view.ndim() == 2 && x.ndim() == 2 && view.sizes[0] == x.sizes[0] &&
                   view.sizes[1] == x.sizes[1] && view.dtype == x.dtype,
               ErrorCode::kInvalidArgument, "{}: {} must be [R, N] like x, {} {}; got {} {}",
               operation, name, x.dtype, to_string(x.sizes), view.dtype, to_string(view.sizes));
}

void check_statistics(const char* operation, const char* name, const TensorView& view,
                      const TensorView& x) {
  MUSTER_CHECK(
      view.numel() == x.sizes[0] && view.is_contiguous() && view.dtype == arithmetic_dtype(x.dtype),
      ErrorCode::kInvalidArgument, "{}: {} must be contiguous {} [{}]; got {} {}", operation, name,
      arithmetic_dtype(x.dtype), x.sizes[0], view.dtype, to_string(view.sizes));
}

void check_weight(const char* operation, const char* name, const std::optional<TensorView>& view,
                  const TensorView& x) {
  if (!view) return;
  MUSTER_CHECK(view->ndim() == 1 && view->sizes[0] == x.sizes[1] &&
                   (view->dtype == x.dtype || view->dtype == arithmetic_dtype(x.dtype)),
               ErrorCode::kInvalidArgument, "{}: {} must be {} [{}]; got {} {}", operation, name,
               x.dtype, x.sizes[1], view->dtype, to_string(view->sizes));
}

// A weight vector as contiguous A; null when absent. Lives as long as `scratch`.
template <typename A>
const A* read_weight(const std::optional<TensorView>& weight, const Workspace<A>& scratch) {
  return weight ? read_row<A>(RowMatrix(*weight).row(0), scratch.data()) : nullptr;
}

int64_t row_grain(int64_t n) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(n, 1));
}

template <typename A>
void forward(const TensorView& y, A* mean, A* rstd, const TensorView& x,
             const std::optional<TensorView>& weight, const std::optional<TensorView>& bias,
             double eps) {
  const RowMatrix in(x), out(y);
  const int64_t n = in.cols();
  const Workspace<A> weight_scratch(n), bias_scratch(n);
  const A* w = read_weight(weight, weight_scratch);
  const A* b = read_weight(bias, bias_scratch);
  const auto kernel = internal::norm_row_kernel(A{});
  parallel_tiles(in.rows(), row_grain(n), [&](int64_t begin, int64_t end) {
    const Workspace<A> in_scratch(n), out_scratch(n);
    for (int64_t i = begin; i < end; ++i) {
      const A* from = read_row(in.row(i), in_scratch.data());
      A* to = begin_row(out.row(i), out_scratch.data());
      const auto statistics = kernel(from, n, w, b, mean != nullptr, eps, to);
      finish_row(out.row(i), to);
      if (mean != nullptr) mean[i] = statistics.mean;
      rstd[i] = statistics.rstd;
    }
  });
}

// Adds the partial sums of all tiles along the fixed tree and stores them.
template <typename A>
void finish_sums(const std::optional<TensorView>& to, A* partials, int64_t tiles, int64_t stride,
                 int64_t n) {
  if (!to) return;
  for (int64_t step = 1; step < tiles; step *= 2) {
    for (int64_t k = 0; k + step < tiles; k += 2 * step) {
      A* into = partials + k * stride;
      const A* from = partials + (k + step) * stride;
      for (int64_t j = 0; j < n; ++j) into[j] += from[j];
    }
  }
  const RowRef row = RowMatrix(*to).row(0);
  A* target = begin_row(row, partials);
  if (target != partials) std::copy(partials, partials + n, target);
  finish_row(row, target);
}

template <typename A>
void backward(const NormGradients& gradients, const TensorView& dy, const TensorView& x,
              const A* mean, const A* rstd, const std::optional<TensorView>& weight) {
  const RowMatrix x_rows(x), dy_rows(dy);
  const std::optional<RowMatrix> dx_rows =
      gradients.dx ? std::optional<RowMatrix>(*gradients.dx) : std::nullopt;
  const int64_t n = x_rows.cols();
  const bool sums = gradients.dweight || gradients.dbias;
  int64_t grain = row_grain(n);
  if (sums) grain = std::max({grain, kMinPartialRows, num_tiles(x_rows.rows(), kMaxPartials)});
  const int64_t tiles = std::max<int64_t>(1, num_tiles(x_rows.rows(), grain));
  const Workspace<A> weight_scratch(n);
  const A* w = read_weight(weight, weight_scratch);
  const Workspace<A> partials(sums ? 2 * tiles * n : 0);
  if (sums) std::fill(partials.data(), partials.data() + 2 * tiles * n, A(0));
  const auto kernel = internal::norm_row_backward_kernel(A{});
  parallel_tiles(x_rows.rows(), grain, [&](int64_t begin, int64_t end) {
    const Workspace<A> scratch(3 * n);
    A* tile_sums = partials.data() + 2 * n * (begin / grain);
    for (int64_t i = begin; i < end; ++i) {
      internal::NormBackwardRow<A> row{};
      row.dy = read_row(dy_rows.row(i), scratch.data());
      row.x = read_row(x_rows.row(i), scratch.data() + n);
      row.weight = w;
      row.dx = dx_rows ? begin_row(dx_rows->row(i), scratch.data() + 2 * n) : nullptr;
      row.dweight_sum = gradients.dweight ? tile_sums : nullptr;
      row.dbias_sum = gradients.dbias ? tile_sums + n : nullptr;
      kernel(row, {mean == nullptr ? A(0) : mean[i], rstd[i]}, mean != nullptr, n);
      if (dx_rows) finish_row(dx_rows->row(i), row.dx);
    }
  });
  finish_sums(gradients.dweight, partials.data(), tiles, 2 * n, n);
  finish_sums(gradients.dbias, partials.data() + n, tiles, 2 * n, n);
}

void check_backward(const char* operation, const NormGradients& gradients, const TensorView& dy,
                    const TensorView& x, const TensorView& rstd,
                    const std::optional<TensorView>& weight) {
  check_matrix(operation, "dy", dy, x);
  if (gradients.dx) check_matrix(operation, "dx", *gradients.dx, x);
  check_statistics(operation, "rstd", rstd, x);
  check_weight(operation, "weight", weight, x);
  check_weight(operation, "dweight", gradients.dweight, x);
  check_weight(operation, "dbias", gradients.dbias, x);
}

}  // namespace

void layer_norm(const TensorView& y, const TensorView& mean, const TensorView& rstd,
                const TensorView& x, const std::optional<TensorView>& weight,
                const std::optional<TensorView>& bias, double eps) {
  check_matrix("layer_norm", "y", y, x);
  check_statistics("layer_norm", "mean", mean, x);
  check_statistics("layer_norm", "rstd", rstd, x);
  check_weight("layer_norm", "weight", weight, x);
  check_weight("layer_norm", "bias", bias, x);
  visit_arithmetic("layer_norm", x.dtype, [&](auto zero) {
    using A = decltype(zero);
    forward<A>(y, mean.as<A>(), rstd.as<A>(), x, weight, bias, eps);
  });
}

void layer_norm_backward(const NormGradients& gradients, const TensorView& dy, const TensorView& x,
                         const TensorView& mean, const TensorView& rstd,
                         const std::optional<TensorView>& weight) {
  check_backward("layer_norm_backward", gradients, dy, x, rstd, weight);
  check_statistics("layer_norm_backward", "mean", mean, x);
  visit_arithmetic("layer_norm_backward", x.dtype, [&](auto zero) {
    using A = decltype(zero);
    backward<A>(gradients, dy, x, mean.as<A>(), rstd.as<A>(), weight);
  });
}

void rms_norm(const TensorView& y, const TensorView& rstd, const TensorView& x,
              const std::optional<TensorView>& weight, double eps) {
  check_matrix("rms_norm", "y", y, x);
  check_statistics("rms_norm", "rstd", rstd, x);
  check_weight("rms_norm", "weight", weight, x);
  visit_arithmetic("rms_norm", x.dtype, [&](auto zero) {
    using A = decltype(zero);
    forward<A>(y, nullptr, rstd.as<A>(), x, weight, {}, eps);
  });
}

void rms_norm_backward(const NormGradients& gradients, const TensorView& dy, const TensorView& x,
                       const TensorView& rstd, const std::optional<TensorView>& weight) {
  check_backward("rms_norm_backward", gradients, dy, x, rstd, weight);
  MUSTER_CHECK(!gradients.dbias, ErrorCode::kInvalidArgument,
               "rms_norm_backward: there is no bias; got a dbias {}",
               to_string(gradients.dbias->sizes));
  visit_arithmetic("rms_norm_backward", x.dtype, [&](auto zero) {
    using A = decltype(zero);
    backward<A>(gradients, dy, x, nullptr, rstd.as<A>(), weight);
  });
}

}  // namespace muster::kernels::cpu
#endif
