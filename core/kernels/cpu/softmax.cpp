#include "core/kernels/cpu/softmax.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/softmax.cpp"
#include "core/kernels/cpu/simd_targets.h"
//
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/kernels/cpu/rows.h"
#include "core/kernels/cpu/simd_rows-inl.h"
#include "core/kernels/cpu/workspace.h"
#include "core/kernels/parallel.h"

#ifndef MUSTER_SOFTMAX_ONCE
#define MUSTER_SOFTMAX_ONCE
namespace muster::kernels::cpu::internal {
enum class SoftmaxKind : uint8_t { kPlain, kSafe, kLog };
}  // namespace muster::kernels::cpu::internal
#endif

HWY_BEFORE_NAMESPACE();
namespace muster::kernels::cpu::internal::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// `y` may be `x`.
template <typename A>
void softmax_row(const A* x, int64_t n, SoftmaxKind kind, A* y) {
  const A max = max_row(x, n);
  if (max == -std::numeric_limits<A>::infinity()) {
    const bool is_zero = kind == SoftmaxKind::kSafe && !has_nan(x, n);
    const A fill = is_zero ? A(0) : std::numeric_limits<A>::quiet_NaN();
    for (int64_t i = 0; i < n; ++i) y[i] = fill;
    return;
  }
  const auto shifted = [&](auto d, int64_t i)
                           HWY_ATTR { return hn::Sub(hn::LoadU(d, x + i), hn::Set(d, max)); };
  if (kind == SoftmaxKind::kLog) {
    const A log_sum = std::log(
        sum_row<A>(n, [&](auto d, int64_t i) HWY_ATTR { return exp_fast(d, shifted(d, i)); }));
    for_row<A>(n, [&](auto d, int64_t i) HWY_ATTR {
      hn::StoreU(hn::Sub(shifted(d, i), hn::Set(d, log_sum)), d, y + i);
    });
    return;
  }
  const A sum = sum_row<A>(n, [&](auto d, int64_t i) HWY_ATTR {
    const auto e = exp_fast(d, shifted(d, i));
    hn::StoreU(e, d, y + i);
    return e;
  });
  for_row<A>(n, [&](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::LoadU(d, y + i), hn::Set(d, A(1) / sum)), d, y + i);
  });
}

// `dx` may be `dy` or `y`.
template <typename A>
void softmax_row_backward(const A* dy, const A* y, int64_t n, SoftmaxKind kind, A* dx) {
  if (kind == SoftmaxKind::kLog) {
    const A sum = sum_row<A>(n, [&](auto d, int64_t i) HWY_ATTR { return hn::LoadU(d, dy + i); });
    for_row<A>(n, [&](auto d, int64_t i) HWY_ATTR {
      const auto p = exp_fast(d, hn::LoadU(d, y + i));
      hn::StoreU(hn::NegMulAdd(p, hn::Set(d, sum), hn::LoadU(d, dy + i)), d, dx + i);
    });
    return;
  }
  const A sum = sum_row<A>(n, [&](auto d, int64_t i) HWY_ATTR {
    return hn::Mul(hn::LoadU(d, dy + i), hn::LoadU(d, y + i));
  });
  for_row<A>(n, [&](auto d, int64_t i) HWY_ATTR {
    const auto centered = hn::Sub(hn::LoadU(d, dy + i), hn::Set(d, sum));
    hn::StoreU(hn::Mul(hn::LoadU(d, y + i), centered), d, dx + i);
  });
}

void softmax_row_f32(const float* x, int64_t n, SoftmaxKind kind, float* y) {
  softmax_row(x, n, kind, y);
}
void softmax_row_f64(const double* x, int64_t n, SoftmaxKind kind, double* y) {
  softmax_row(x, n, kind, y);
}
void softmax_row_backward_f32(const float* dy, const float* y, int64_t n, SoftmaxKind kind,
                              float* dx) {
  softmax_row_backward(dy, y, n, kind, dx);
}
void softmax_row_backward_f64(const double* dy, const double* y, int64_t n, SoftmaxKind kind,
                              double* dx) {
  softmax_row_backward(dy, y, n, kind, dx);
}

}  // namespace muster::kernels::cpu::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace muster::kernels::cpu {
namespace internal {
HWY_EXPORT(softmax_row_f32);
HWY_EXPORT(softmax_row_f64);
HWY_EXPORT(softmax_row_backward_f32);
HWY_EXPORT(softmax_row_backward_f64);

auto softmax_kernel(float) { return HWY_DYNAMIC_DISPATCH(softmax_row_f32); }
auto softmax_kernel(double) { return HWY_DYNAMIC_DISPATCH(softmax_row_f64); }
auto softmax_backward_kernel(float) { return HWY_DYNAMIC_DISPATCH(softmax_row_backward_f32); }
auto softmax_backward_kernel(double) { return HWY_DYNAMIC_DISPATCH(softmax_row_backward_f64); }
}  // namespace internal

namespace {
using internal::SoftmaxKind;
constexpr int64_t kGrainElements = int64_t{1} << 14;

// All slices of a view along one dim; slice `k` counts row-major over the other dims.
class Slices {
 public:
  Slices(const TensorView& view, size_t dim) : view_(view), dim_(dim) {}
  [[nodiscard]] RowRef slice(int64_t k) const {
    int64_t offset = 0;
    for (size_t d = view_.ndim(); d-- > 0;) {
      if (d == dim_) continue;
      offset += k % view_.sizes[d] * view_.strides[d];
      k /= view_.sizes[d];
    }
    if (view_.ndim() == 0) return {view_.data, view_.dtype, 1, 1};
    const int64_t cols = view_.sizes[dim_];
    return {view_.as<char>() + offset * item_nbytes(view_.dtype), view_.dtype, cols,
            cols == 1 ? 1 : view_.strides[dim_]};
  }

 private:
  const TensorView& view_;
  size_t dim_;
};

bool same_spec(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype &&
         std::equal(a.sizes.begin(), a.sizes.end(), b.sizes.begin(), b.sizes.end());
}

void check_same(const char* operation, const char* name, const TensorView& view,
                const TensorView& like) {
  MUSTER_CHECK(same_spec(view, like), ErrorCode::kInvalidArgument,
               "{}: {} must be {} {}; got {} {}", operation, name, like.dtype,
               to_string(like.sizes), view.dtype, to_string(view.sizes));
}

// Calls `body(A{}, dim, length, begin, end)` for tiles of slices along `dim`.
template <typename Body>
void for_slices(const char* operation, const TensorView& x, int64_t dim, const Body& body) {
  const size_t at = static_cast<size_t>(
      wrap_dim(dim, std::max<int64_t>(1, static_cast<int64_t>(x.ndim())), operation));
  const int64_t length = x.ndim() == 0 ? 1 : x.sizes[at];
  if (x.numel() == 0) return;
  const int64_t slices = x.numel() / length;
  visit_arithmetic(operation, x.dtype, [&](auto zero) {
    parallel_tiles(slices, std::max<int64_t>(1, kGrainElements / length),
                   [&](int64_t begin, int64_t end) { body(zero, at, length, begin, end); });
  });
}

void forward(const char* operation, const TensorView& y, const TensorView& x, int64_t dim,
             SoftmaxKind kind) {
  check_same(operation, "y", y, x);
  for_slices(operation, x, dim,
             [&](auto zero, size_t at, int64_t length, int64_t begin, int64_t end) {
               using A = decltype(zero);
               const Slices in(x, at), out(y, at);
               const auto kernel = internal::softmax_kernel(zero);
               const Workspace<A> in_scratch(length), out_scratch(length);
               for (int64_t k = begin; k < end; ++k) {
                 const RowRef target = out.slice(k);
                 const A* from = read_row(in.slice(k), in_scratch.data());
                 A* to = begin_row(target, out_scratch.data());
                 kernel(from, length, kind, to);
                 finish_row(target, to);
               }
             });
}

void backward(const char* operation, const TensorView& dx, const TensorView& dy,
              const TensorView& y, int64_t dim, SoftmaxKind kind) {
  check_same(operation, "dy", dy, y);
  check_same(operation, "dx", dx, y);
  for_slices(operation, y, dim,
             [&](auto zero, size_t at, int64_t length, int64_t begin, int64_t end) {
               using A = decltype(zero);
               const Slices dy_slices(dy, at), y_slices(y, at), dx_slices(dx, at);
               const auto kernel = internal::softmax_backward_kernel(zero);
               const Workspace<A> scratch(3 * length);
               for (int64_t k = begin; k < end; ++k) {
                 const RowRef target = dx_slices.slice(k);
                 const A* dy_row = read_row(dy_slices.slice(k), scratch.data());
                 const A* y_row = read_row(y_slices.slice(k), scratch.data() + length);
                 A* to = begin_row(target, scratch.data() + 2 * length);
                 kernel(dy_row, y_row, length, kind, to);
                 finish_row(target, to);
               }
             });
}

}  // namespace

void softmax(const TensorView& y, const TensorView& x, int64_t dim) {
  forward("softmax", y, x, dim, SoftmaxKind::kPlain);
}

void safe_softmax(const TensorView& y, const TensorView& x, int64_t dim) {
  forward("safe_softmax", y, x, dim, SoftmaxKind::kSafe);
}

void log_softmax(const TensorView& y, const TensorView& x, int64_t dim) {
  forward("log_softmax", y, x, dim, SoftmaxKind::kLog);
}

void softmax_backward(const TensorView& dx, const TensorView& dy, const TensorView& y,
                      int64_t dim) {
  backward("softmax_backward", dx, dy, y, dim, SoftmaxKind::kPlain);
}

void log_softmax_backward(const TensorView& dx, const TensorView& dy, const TensorView& y,
                          int64_t dim) {
  backward("log_softmax_backward", dx, dy, y, dim, SoftmaxKind::kLog);
}

}  // namespace muster::kernels::cpu
#endif
