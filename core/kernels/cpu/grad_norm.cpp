#include "core/kernels/cpu/grad_norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/grad_norm.cpp"
#include "core/kernels/cpu/simd_targets.h"
//
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include <type_traits>

#include "core/base/error.h"
#include "core/kernels/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace muster::kernels::cpu::internal::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Squares are formed and added in double: 16 running sums, combined in a fixed order whatever the
// vector width, so the tail can be scalar.
double sum_of_squares_f32(const float* x, int64_t numel) {
  constexpr int64_t kSums = 16;
  HWY_ALIGN double sums[kSums] = {};
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> d32;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  if (lanes == 8) {
    auto sum0 = hn::Zero(d), sum1 = hn::Zero(d);
    for (; i + kSums <= numel; i += kSums) {
      const auto a = hn::PromoteTo(d, hn::LoadU(d32, x + i));
      const auto b = hn::PromoteTo(d, hn::LoadU(d32, x + i + lanes));
      sum0 = hn::Add(sum0, hn::Mul(a, a));
      sum1 = hn::Add(sum1, hn::Mul(b, b));
    }
    hn::StoreU(sum0, d, sums);
    hn::StoreU(sum1, d, sums + lanes);
  } else {
    for (; i + kSums <= numel; i += kSums) {
      for (int64_t k = 0; k < kSums; k += lanes) {
        const auto a = hn::PromoteTo(d, hn::LoadU(d32, x + i + k));
        hn::StoreU(hn::Add(hn::LoadU(d, sums + k), hn::Mul(a, a)), d, sums + k);
      }
    }
  }
  for (; i < numel; ++i) {
    const double value = static_cast<double>(x[i]);
    sums[i % kSums] += value * value;
  }
  combine_in_tree(sums, kSums, [](double& a, double b) { a += b; });
  return sums[0];
}

void scale_f32(float* x, float factor, int64_t numel) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto f = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + lanes <= numel; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, x + i), f), d, x + i);
  for (; i < numel; ++i) x[i] *= factor;
}

}  // namespace muster::kernels::cpu::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace muster::kernels::cpu {
namespace internal {
HWY_EXPORT(sum_of_squares_f32);
HWY_EXPORT(scale_f32);
}  // namespace internal
namespace {
constexpr int64_t kGrain = int64_t{1} << 16;
constexpr int64_t kSums = 16;  // as in the SIMD kernel: any layout gives the same bits
static_assert(kGrain % kSums == 0);

// The element at row-major position `flat`.
template <typename T>
T* element(const TensorView& x, int64_t flat) {
  T* at = x.as<T>();
  for (size_t d = x.ndim(); d-- > 0;) {
    at += flat % x.sizes[d] * x.strides[d];
    flat /= x.sizes[d];
  }
  return at;
}

template <typename Body>
void visit_floating(const char* operation, const TensorView& x, const Body& body) {
  MUSTER_CHECK(is_floating(x.dtype), ErrorCode::kInvalidArgument,
               "{}: the dtype must be floating; got {}", operation, x.dtype);
  visit_dtype(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (!std::is_integral_v<T>) body(zero);
  });
}

template <typename T>
double sum_range(const TensorView& x, bool contiguous, int64_t begin, int64_t end) {
  if constexpr (std::is_same_v<T, float>) {
    if (contiguous)
      return HWY_DYNAMIC_DISPATCH(internal::sum_of_squares_f32)(x.as<float>() + begin, end - begin);
  }
  double sums[kSums] = {};
  for (int64_t i = begin; i < end; ++i) {
    const T stored = contiguous ? x.as<T>()[i] : *element<T>(x, i);
    double value = 0.0;
    if constexpr (std::is_same_v<T, double>) {
      value = stored;
    } else {
      value = static_cast<double>(static_cast<float>(stored));
    }
    sums[(i - begin) % kSums] += value * value;
  }
  combine_in_tree(sums, kSums, [](double& into, double from) { into += from; });
  return sums[0];
}

template <typename T>
void scale_range(const TensorView& x, bool contiguous, double factor, int64_t begin, int64_t end) {
  if constexpr (std::is_same_v<T, float>) {
    if (contiguous) {
      HWY_DYNAMIC_DISPATCH(internal::scale_f32)
      (x.as<float>() + begin, static_cast<float>(factor), end - begin);
      return;
    }
  }
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const Wide f = static_cast<Wide>(factor);
  for (int64_t i = begin; i < end; ++i) {
    T* value = contiguous ? x.as<T>() + i : element<T>(x, i);
    *value = T(static_cast<Wide>(*value) * f);
  }
}

}  // namespace

double sum_of_squares(const TensorView& x) {
  double sum = 0.0;
  const bool contiguous = x.is_contiguous();
  visit_floating("sum_of_squares", x, [&](auto zero) {
    using T = decltype(zero);
    sum = reduce_tiles(
        x.numel(), kGrain, 0.0,
        [&](int64_t begin, int64_t end) { return sum_range<T>(x, contiguous, begin, end); },
        [](double& a, double b) { a += b; });
  });
  return sum;
}

void scale_inplace(const TensorView& x, double factor) {
  const bool contiguous = x.is_contiguous();
  visit_floating("scale_inplace", x, [&](auto zero) {
    using T = decltype(zero);
    parallel_tiles(x.numel(), kGrain, [&](int64_t begin, int64_t end) {
      scale_range<T>(x, contiguous, factor, begin, end);
    });
  });
}

}  // namespace muster::kernels::cpu
#endif
