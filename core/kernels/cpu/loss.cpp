#include "core/kernels/cpu/loss.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/loss.cpp"
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

#ifndef MUSTER_LOSS_ONCE
#define MUSTER_LOSS_ONCE
namespace muster::kernels::cpu::internal {

// What all rows share.
template <typename A>
struct CrossEntropyScalars {
  int64_t num_classes;
  const A* weight;  // null: all 1
  A target_part;    // 1 - smoothing
  A uniform_part;   // smoothing / num_classes
  A uniform_total;  // uniform_part * sum of weights
};

// Log-sum-exp in two parts, max + log_sum: their sum alone would round away small losses of large
// logits.
template <typename A>
struct LogSumExp {
  A max;
  A log_sum;
};

}  // namespace muster::kernels::cpu::internal
#endif

HWY_BEFORE_NAMESPACE();
namespace muster::kernels::cpu::internal::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename A>
LogSumExp<A> cross_entropy_lse(const A* x, int64_t n) {
  const A max = max_row(x, n);
  const A sum = sum_row<A>(n, [&](auto d, int64_t i) HWY_ATTR {
    return exp_fast(d, hn::Sub(hn::LoadU(d, x + i), hn::Set(d, max)));
  });
  return {max, std::log(sum)};
}

template <typename A>
A cross_entropy_loss(const A* x, int64_t target, const LogSumExp<A>& lse,
                     const CrossEntropyScalars<A>& s) {
  const A target_weight = s.weight == nullptr ? A(1) : s.weight[target];
  A loss = s.target_part * target_weight * ((lse.max - x[target]) + lse.log_sum);
  if (s.uniform_part != A(0)) {
    const A uniform = sum_row<A>(s.num_classes, [&](auto d, int64_t i) HWY_ATTR {
      const auto below = hn::Sub(hn::Set(d, lse.max), hn::LoadU(d, x + i));
      const auto nll = hn::Add(below, hn::Set(d, lse.log_sum));
      return s.weight == nullptr ? nll : hn::Mul(nll, hn::LoadU(d, s.weight + i));
    });
    loss += s.uniform_part * uniform;
  }
  return loss;
}

// dx = g * (p * (target_part * w[t] + uniform_total) - uniform_part * w), and at the target
// g * target_part * w[t] less. `dx` may be `x`.
template <typename A>
void cross_entropy_gradient(const A* x, int64_t target, const LogSumExp<A>& lse, A g,
                            const CrossEntropyScalars<A>& s, A* dx) {
  const A target_weight = s.weight == nullptr ? A(1) : s.weight[target];
  const A on_probability = g * (s.target_part * target_weight + s.uniform_total);
  const A on_every = g * s.uniform_part;
  for_row<A>(s.num_classes, [&](auto d, int64_t i) HWY_ATTR {
    const auto log_p =
        hn::Sub(hn::Sub(hn::LoadU(d, x + i), hn::Set(d, lse.max)), hn::Set(d, lse.log_sum));
    auto out = hn::Mul(exp_fast(d, log_p), hn::Set(d, on_probability));
    if (s.uniform_part != A(0)) {
      const auto share = hn::Set(d, on_every);
      out = hn::Sub(out, s.weight == nullptr ? share : hn::Mul(share, hn::LoadU(d, s.weight + i)));
    }
    hn::StoreU(out, d, dx + i);
  });
  dx[target] -= g * s.target_part * target_weight;
}

LogSumExp<float> lse_f32(const float* x, int64_t n) { return cross_entropy_lse(x, n); }
LogSumExp<double> lse_f64(const double* x, int64_t n) { return cross_entropy_lse(x, n); }
float loss_f32(const float* x, int64_t target, const LogSumExp<float>& lse,
               const CrossEntropyScalars<float>& s) {
  return cross_entropy_loss(x, target, lse, s);
}
double loss_f64(const double* x, int64_t target, const LogSumExp<double>& lse,
                const CrossEntropyScalars<double>& s) {
  return cross_entropy_loss(x, target, lse, s);
}
void gradient_f32(const float* x, int64_t target, const LogSumExp<float>& lse, float g,
                  const CrossEntropyScalars<float>& s, float* dx) {
  cross_entropy_gradient(x, target, lse, g, s, dx);
}
void gradient_f64(const double* x, int64_t target, const LogSumExp<double>& lse, double g,
                  const CrossEntropyScalars<double>& s, double* dx) {
  cross_entropy_gradient(x, target, lse, g, s, dx);
}

}  // namespace muster::kernels::cpu::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace muster::kernels::cpu {
namespace internal {
HWY_EXPORT(lse_f32);
HWY_EXPORT(lse_f64);
HWY_EXPORT(loss_f32);
HWY_EXPORT(loss_f64);
HWY_EXPORT(gradient_f32);
HWY_EXPORT(gradient_f64);

auto lse_kernel(float) { return HWY_DYNAMIC_DISPATCH(lse_f32); }
auto lse_kernel(double) { return HWY_DYNAMIC_DISPATCH(lse_f64); }
auto loss_kernel(float) { return HWY_DYNAMIC_DISPATCH(loss_f32); }
auto loss_kernel(double) { return HWY_DYNAMIC_DISPATCH(loss_f64); }
auto gradient_kernel(float) { return HWY_DYNAMIC_DISPATCH(gradient_f32); }
auto gradient_kernel(double) { return HWY_DYNAMIC_DISPATCH(gradient_f64); }
}  // namespace internal

namespace {
constexpr int64_t kGrainElements = int64_t{1} << 16;
constexpr double kPreciseLse = 32.0;  // beyond, the rounding of a stored lse shows in exp(x - lse)

int64_t target_at(const TensorView& targets, int64_t row) {
  return targets.as<int64_t>()[row * targets.strides[0]];
}

void check_logits(const char* operation, const TensorView& logits, const TensorView& targets,
                  const CrossEntropyOptions& options) {
  MUSTER_CHECK(logits.ndim() == 2 && targets.ndim() == 1 && targets.sizes[0] == logits.sizes[0] &&
                   targets.dtype == DType::kI64,
               ErrorCode::kInvalidArgument,
               "{}: logits must be [N, C] and targets i64 [N]; got logits {}, targets {} {}",
               operation, to_string(logits.sizes), targets.dtype, to_string(targets.sizes));
  MUSTER_CHECK(options.label_smoothing >= 0.0 && options.label_smoothing <= 1.0,
               ErrorCode::kInvalidArgument, "{}: label_smoothing must be in [0, 1]; got {}",
               operation, options.label_smoothing);
  if (!options.weight) return;
  MUSTER_CHECK(options.weight->numel() == logits.sizes[1] && options.weight->is_contiguous() &&
                   options.weight->dtype == logits.dtype,
               ErrorCode::kInvalidArgument, "{}: weight must be contiguous {} [{}]; got {} {}",
               operation, logits.dtype, logits.sizes[1], options.weight->dtype,
               to_string(options.weight->sizes));
}

void check_per_row(const char* operation, const char* name, const std::optional<TensorView>& view,
                   const TensorView& logits) {
  if (!view) return;
  MUSTER_CHECK(view->numel() == logits.sizes[0] && view->is_contiguous() &&
                   view->dtype == arithmetic_dtype(logits.dtype),
               ErrorCode::kInvalidArgument, "{}: {} must be contiguous {} [{}]; got {} {}",
               operation, name, arithmetic_dtype(logits.dtype), logits.sizes[0], view->dtype,
               to_string(view->sizes));
}

double weight_at(const TensorView& weight, int64_t c) {
  double value = 0.0;
  internal::widen_row({weight.as<char>() + c * item_nbytes(weight.dtype), weight.dtype, 1, 1},
                      &value);
  return value;
}

// The scalars of a call, with the weights as contiguous A.
template <typename A>
class Scalars {
 public:
  Scalars(const CrossEntropyOptions& options, int64_t num_classes)
      : scratch_(options.weight ? num_classes : 0) {
    double total = static_cast<double>(num_classes);
    values_.num_classes = num_classes;
    values_.weight = nullptr;
    if (options.weight) {
      values_.weight = read_row<A>({options.weight->data, options.weight->dtype, num_classes, 1},
                                   scratch_.data());
      total = 0.0;
      for (int64_t c = 0; c < num_classes; ++c) total += static_cast<double>(values_.weight[c]);
    }
    const double each = options.label_smoothing / static_cast<double>(num_classes);
    values_.target_part = static_cast<A>(1.0 - options.label_smoothing);
    values_.uniform_part = static_cast<A>(each);
    values_.uniform_total = static_cast<A>(each * total);
  }
  [[nodiscard]] const internal::CrossEntropyScalars<A>& get() const { return values_; }

 private:
  Workspace<A> scratch_;
  internal::CrossEntropyScalars<A> values_{};
};

// What the forward pass writes besides the sums.
template <typename A>
struct Outputs {
  A* row_loss = nullptr;
  A* lse = nullptr;
  bool overwrite_logits = false;  // with scale * gradient
  A scale = A(1);
};

// Returns the sum of losses.
template <typename A>
double forward(const TensorView& logits, const TensorView& targets,
               const CrossEntropyOptions& options, const Outputs<A>& outputs) {
  const RowMatrix rows(logits);
  const int64_t n = rows.cols();
  const Scalars<A> scalars(options, n);
  const auto lse_of = internal::lse_kernel(A{});
  const auto loss_of = internal::loss_kernel(A{});
  const auto write_gradient = internal::gradient_kernel(A{});
  const auto tile = [&](int64_t begin, int64_t end) {
    const Workspace<A> scratch(n);
    double sum = 0.0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t target = target_at(targets, i);
      const bool kept = target != options.ignore_index;
      internal::LogSumExp<A> lse{A(0), A(0)};
      A loss = A(0);
      if (kept) {
        const A* x = read_row(rows.row(i), scratch.data());
        lse = lse_of(x, n);
        loss = loss_of(x, target, lse, scalars.get());
        if (outputs.overwrite_logits) {
          A* dx = begin_row(rows.row(i), scratch.data());
          write_gradient(x, target, lse, outputs.scale, scalars.get(), dx);
          finish_row(rows.row(i), dx);
        }
      } else if (outputs.overwrite_logits) {
        A* dx = begin_row(rows.row(i), scratch.data());
        std::fill(dx, dx + n, A(0));
        finish_row(rows.row(i), dx);
      }
      if (outputs.row_loss != nullptr) outputs.row_loss[i] = loss;
      if (outputs.lse != nullptr) outputs.lse[i] = lse.max + lse.log_sum;
      sum += static_cast<double>(loss);
    }
    return sum;
  };
  return reduce_tiles(rows.rows(), std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, n)),
                      0.0, tile, [](double& a, double b) { a += b; });
}

template <typename A>
void backward(const TensorView& dlogits, const TensorView& logits, const TensorView& targets,
              const A* lse, const std::optional<TensorView>& row_grad, double scale,
              const CrossEntropyOptions& options) {
  const RowMatrix in(logits), out(dlogits);
  const int64_t n = in.cols();
  const Scalars<A> scalars(options, n);
  const auto lse_of = internal::lse_kernel(A{});
  const auto write_gradient = internal::gradient_kernel(A{});
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, n));
  parallel_tiles(in.rows(), grain, [&](int64_t begin, int64_t end) {
    const Workspace<A> in_scratch(n), out_scratch(n);
    for (int64_t i = begin; i < end; ++i) {
      A* dx = begin_row(out.row(i), out_scratch.data());
      const int64_t target = target_at(targets, i);
      if (target == options.ignore_index) {
        std::fill(dx, dx + n, A(0));
      } else {
        const A g = row_grad ? row_grad->as<A>()[i * row_grad->strides[0]] : A(1);
        const A* x = read_row(in.row(i), in_scratch.data());
        internal::LogSumExp<A> parts{lse[i], A(0)};
        if (!(std::abs(lse[i]) <= static_cast<A>(kPreciseLse))) parts = lse_of(x, n);
        write_gradient(x, target, parts, g * static_cast<A>(scale), scalars.get(), dx);
      }
      finish_row(out.row(i), dx);
    }
  });
}

template <typename A>
A* data_or_null(const std::optional<TensorView>& view) {
  return view ? view->as<A>() : nullptr;
}

}  // namespace

CrossEntropySums cross_entropy_count(const TensorView& targets, int64_t num_classes,
                                     const CrossEntropyOptions& options) {
  CrossEntropySums sums;
  for (int64_t i = 0; i < targets.sizes[0]; ++i) {
    const int64_t target = target_at(targets, i);
    if (target == options.ignore_index) continue;
    MUSTER_CHECK(target >= 0 && target < num_classes, ErrorCode::kOutOfRange,
                 "cross_entropy: a target must be in [0, {}) or ignore_index {}; got {} in row {}",
                 num_classes, options.ignore_index, target, i);
    ++sums.count;
    if (options.weight) sums.weight += weight_at(*options.weight, target);
  }
  if (!options.weight) sums.weight = static_cast<double>(sums.count);
  return sums;
}

CrossEntropySums cross_entropy(const std::optional<TensorView>& row_loss, const TensorView& lse,
                               const TensorView& logits, const TensorView& targets,
                               const CrossEntropyOptions& options) {
  check_logits("cross_entropy", logits, targets, options);
  check_per_row("cross_entropy", "row_loss", row_loss, logits);
  check_per_row("cross_entropy", "lse", lse, logits);
  CrossEntropySums sums = cross_entropy_count(targets, logits.sizes[1], options);
  visit_arithmetic("cross_entropy", logits.dtype, [&](auto zero) {
    using A = decltype(zero);
    sums.loss = forward<A>(logits, targets, options,
                           {.row_loss = data_or_null<A>(row_loss), .lse = lse.as<A>()});
  });
  return sums;
}

void cross_entropy_backward(const TensorView& dlogits, const TensorView& logits,
                            const TensorView& targets, const TensorView& lse,
                            const std::optional<TensorView>& row_grad, double scale,
                            const CrossEntropyOptions& options) {
  constexpr const char* kOperation = "cross_entropy_backward";
  check_logits(kOperation, logits, targets, options);
  check_logits(kOperation, dlogits, targets, options);
  check_per_row(kOperation, "lse", lse, logits);
  MUSTER_CHECK(dlogits.sizes[1] == logits.sizes[1] && dlogits.dtype == logits.dtype,
               ErrorCode::kInvalidArgument, "{}: dlogits must be {} {}; got {} {}", kOperation,
               logits.dtype, to_string(logits.sizes), dlogits.dtype, to_string(dlogits.sizes));
  MUSTER_CHECK(!row_grad || (row_grad->ndim() == 1 && row_grad->sizes[0] == logits.sizes[0] &&
                             row_grad->dtype == arithmetic_dtype(logits.dtype)),
               ErrorCode::kInvalidArgument, "{}: row_grad must be {} [{}]; got {} {}", kOperation,
               arithmetic_dtype(logits.dtype), logits.sizes[0], row_grad->dtype,
               to_string(row_grad->sizes));
  cross_entropy_count(targets, logits.sizes[1], options);
  visit_arithmetic(kOperation, logits.dtype, [&](auto zero) {
    using A = decltype(zero);
    backward<A>(dlogits, logits, targets, lse.as<A>(), row_grad, scale, options);
  });
}

CrossEntropySums cross_entropy_in_place(const TensorView& logits, const TensorView& targets,
                                        double scale, const std::optional<TensorView>& row_loss,
                                        const std::optional<TensorView>& lse,
                                        const CrossEntropyOptions& options) {
  constexpr const char* kOperation = "cross_entropy_in_place";
  check_logits(kOperation, logits, targets, options);
  check_per_row(kOperation, "row_loss", row_loss, logits);
  check_per_row(kOperation, "lse", lse, logits);
  CrossEntropySums sums = cross_entropy_count(targets, logits.sizes[1], options);
  visit_arithmetic(kOperation, logits.dtype, [&](auto zero) {
    using A = decltype(zero);
    sums.loss = forward<A>(logits, targets, options,
                           {.row_loss = data_or_null<A>(row_loss),
                            .lse = data_or_null<A>(lse),
                            .overwrite_logits = true,
                            .scale = static_cast<A>(scale)});
  });
  return sums;
}

}  // namespace muster::kernels::cpu
#endif
