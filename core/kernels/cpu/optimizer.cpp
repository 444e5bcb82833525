#include "core/kernels/cpu/optimizer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/optimizer.cpp"
#include "core/kernels/cpu/simd_targets.h"
//
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include <cmath>

#include "core/base/error.h"
#include "core/kernels/parallel.h"

#ifndef MUSTER_OPTIMIZER_ONCE
#define MUSTER_OPTIMIZER_ONCE
namespace muster::kernels::cpu::internal {

// Scalars of one Adam step, rounded once.
template <typename T>
struct AdamScalars {
  T grad_factor;  // sign and scale
  T l2;           // added decay, 0 for AdamW
  T keep;         // 1 - lr * decay for AdamW, else 1
  T beta2;
  T one_minus_beta1;
  T one_minus_beta2;
  T root_bc2;  // sqrt(1 - beta2^step)
  T eps;
  T step_size;  // lr / (1 - beta1^step)
  bool zero_grad;
};

template <typename T>
struct AdamArrays {
  T* param;
  T* grad;
  T* exp_avg;
  T* exp_avg_sq;
  T* max_exp_avg_sq;  // null without AMSGrad
};

template <typename T>
struct SgdScalars {
  T grad_factor;
  T l2;
  T momentum;
  T one_minus_dampening;
  T lr;
  bool nesterov;
  bool first_momentum;
  bool zero_grad;
};

template <typename T>
struct SgdArrays {
  T* param;
  T* grad;
  T* momentum_buffer;  // null without momentum
};

}  // namespace muster::kernels::cpu::internal
#endif

HWY_BEFORE_NAMESPACE();
namespace muster::kernels::cpu::internal::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Calls `update(a)` on whole vectors; the tail goes through padded copies, so that an element sees
// the same instructions wherever the array is cut.
template <typename T, size_t kArrays, typename Update>
HWY_INLINE void for_each_vector(T* (&arrays)[kArrays], int64_t numel, const Update& update) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  int64_t i = 0;
  for (; i + lanes <= numel; i += lanes) {
    T* at[kArrays];
    for (size_t k = 0; k < kArrays; ++k) at[k] = arrays[k] == nullptr ? nullptr : arrays[k] + i;
    update(at);
  }
  if (i == numel) return;
  HWY_ALIGN T padded[kArrays][HWY_MAX_BYTES / sizeof(T)] = {};
  T* at[kArrays];
  for (size_t k = 0; k < kArrays; ++k) {
    at[k] = arrays[k] == nullptr ? nullptr : padded[k];
    for (int64_t j = i; at[k] != nullptr && j < numel; ++j) padded[k][j - i] = arrays[k][j];
  }
  update(at);
  for (size_t k = 0; k < kArrays; ++k) {
    for (int64_t j = i; at[k] != nullptr && j < numel; ++j) arrays[k][j] = padded[k][j - i];
  }
}

template <typename T, bool kL2, bool kAmsgrad>
void adam_loop(const AdamArrays<T>& arrays, const AdamScalars<T>& s, int64_t numel) {
  const hn::ScalableTag<T> d;
  const auto grad_factor = hn::Set(d, s.grad_factor), l2 = hn::Set(d, s.l2);
  const auto keep = hn::Set(d, s.keep), beta2 = hn::Set(d, s.beta2);
  const auto one_minus_beta1 = hn::Set(d, s.one_minus_beta1);
  const auto one_minus_beta2 = hn::Set(d, s.one_minus_beta2);
  const auto root_bc2 = hn::Set(d, s.root_bc2), eps = hn::Set(d, s.eps);
  const auto step_size = hn::Set(d, s.step_size);
  T* all[] = {arrays.param, arrays.grad, arrays.exp_avg, arrays.exp_avg_sq, arrays.max_exp_avg_sq};
  for_each_vector(all, numel, [&](T* const(&at)[5]) HWY_ATTR {
    auto p = hn::LoadU(d, at[0]);
    auto g = hn::Mul(hn::LoadU(d, at[1]), grad_factor);
    if constexpr (kL2) g = hn::MulAdd(l2, p, g);
    auto m = hn::LoadU(d, at[2]);
    m = hn::MulAdd(hn::Sub(g, m), one_minus_beta1, m);
    auto v = hn::Mul(hn::LoadU(d, at[3]), beta2);
    v = hn::MulAdd(hn::Mul(g, one_minus_beta2), g, v);
    auto second = v;
    if constexpr (kAmsgrad) {
      second = hn::Max(hn::LoadU(d, at[4]), v);
      hn::StoreU(second, d, at[4]);
    }
    const auto denominator = hn::Add(hn::Div(hn::Sqrt(second), root_bc2), eps);
    p = hn::NegMulAdd(step_size, hn::Div(m, denominator), hn::Mul(p, keep));
    hn::StoreU(p, d, at[0]);
    if (s.zero_grad) hn::StoreU(hn::Zero(d), d, at[1]);
    hn::StoreU(m, d, at[2]);
    hn::StoreU(v, d, at[3]);
  });
}

template <typename T>
void adam_range(const AdamArrays<T>& arrays, const AdamScalars<T>& s, int64_t numel) {
  const bool amsgrad = arrays.max_exp_avg_sq != nullptr;
  if (s.l2 != T(0)) {
    amsgrad ? adam_loop<T, true, true>(arrays, s, numel)
            : adam_loop<T, true, false>(arrays, s, numel);
  } else {
    amsgrad ? adam_loop<T, false, true>(arrays, s, numel)
            : adam_loop<T, false, false>(arrays, s, numel);
  }
}
void adam_f32(const AdamArrays<float>& arrays, const AdamScalars<float>& s, int64_t numel) {
  adam_range(arrays, s, numel);
}
void adam_f64(const AdamArrays<double>& arrays, const AdamScalars<double>& s, int64_t numel) {
  adam_range(arrays, s, numel);
}

template <typename T>
void sgd_range(const SgdArrays<T>& arrays, const SgdScalars<T>& s, int64_t numel) {
  const hn::ScalableTag<T> d;
  const auto grad_factor = hn::Set(d, s.grad_factor), l2 = hn::Set(d, s.l2);
  const auto momentum = hn::Set(d, s.momentum), lr = hn::Set(d, s.lr);
  const auto one_minus_dampening = hn::Set(d, s.one_minus_dampening);
  T* all[] = {arrays.param, arrays.grad, arrays.momentum_buffer};
  for_each_vector(all, numel, [&](T* const(&at)[3]) HWY_ATTR {
    const auto p = hn::LoadU(d, at[0]);
    auto g = hn::Mul(hn::LoadU(d, at[1]), grad_factor);
    if (s.l2 != T(0)) g = hn::MulAdd(l2, p, g);
    if (at[2] != nullptr) {
      auto buffer = g;
      if (!s.first_momentum)
        buffer = hn::MulAdd(hn::LoadU(d, at[2]), momentum, hn::Mul(g, one_minus_dampening));
      hn::StoreU(buffer, d, at[2]);
      g = s.nesterov ? hn::MulAdd(buffer, momentum, g) : buffer;
    }
    hn::StoreU(hn::NegMulAdd(lr, g, p), d, at[0]);
    if (s.zero_grad) hn::StoreU(hn::Zero(d), d, at[1]);
  });
}
void sgd_f32(const SgdArrays<float>& arrays, const SgdScalars<float>& s, int64_t numel) {
  sgd_range(arrays, s, numel);
}
void sgd_f64(const SgdArrays<double>& arrays, const SgdScalars<double>& s, int64_t numel) {
  sgd_range(arrays, s, numel);
}

}  // namespace muster::kernels::cpu::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace muster::kernels::cpu {
namespace internal {
HWY_EXPORT(adam_f32);
HWY_EXPORT(adam_f64);
HWY_EXPORT(sgd_f32);
HWY_EXPORT(sgd_f64);
}  // namespace internal
namespace {
constexpr int64_t kGrain = int64_t{1} << 15;

void check_array(const char* operation, const char* name, const TensorView& array,
                 const TensorView& param) {
  MUSTER_CHECK(array.dtype == param.dtype && array.numel() == param.numel() &&
                   array.is_contiguous() &&
                   (param.dtype == DType::kF32 || param.dtype == DType::kF64),
               ErrorCode::kInvalidArgument,
               "{}: {} must be contiguous f32 or f64, like param {} {}; got {} {} strides {}",
               operation, name, param.dtype, to_string(param.sizes), array.dtype,
               to_string(array.sizes), to_string(array.strides));
}

template <typename T>
T* advance(const TensorView& array, int64_t by) {
  return array.as<T>() + by;
}

template <typename T, typename Kernel>
void adam_tiles(const TensorView& param, const TensorView& grad, const AdamState& state,
                int64_t step, const AdamOptions& options, const Kernel& kernel) {
  const double bc1 = 1.0 - std::pow(options.beta1, static_cast<double>(step));
  const double bc2 = 1.0 - std::pow(options.beta2, static_cast<double>(step));
  const double decay = options.weight_decay;
  const internal::AdamScalars<T> scalars{
      .grad_factor = static_cast<T>(options.maximize ? -options.grad_scale : options.grad_scale),
      .l2 = static_cast<T>(options.decoupled_decay ? 0.0 : decay),
      .keep = static_cast<T>(options.decoupled_decay ? 1.0 - options.lr * decay : 1.0),
      .beta2 = static_cast<T>(options.beta2),
      .one_minus_beta1 = static_cast<T>(1.0 - options.beta1),
      .one_minus_beta2 = static_cast<T>(1.0 - options.beta2),
      .root_bc2 = static_cast<T>(std::sqrt(bc2)),
      .eps = static_cast<T>(options.eps),
      .step_size = static_cast<T>(options.lr / bc1),
      .zero_grad = options.zero_grad};
  parallel_tiles(param.numel(), kGrain, [&](int64_t begin, int64_t end) {
    const internal::AdamArrays<T> arrays{
        advance<T>(param, begin), advance<T>(grad, begin), advance<T>(state.exp_avg, begin),
        advance<T>(state.exp_avg_sq, begin),
        state.max_exp_avg_sq ? advance<T>(*state.max_exp_avg_sq, begin) : nullptr};
    kernel(arrays, scalars, end - begin);
  });
}

template <typename T, typename Kernel>
void sgd_tiles(const TensorView& param, const TensorView& grad,
               const std::optional<TensorView>& momentum_buffer, const SgdOptions& options,
               const Kernel& kernel) {
  const internal::SgdScalars<T> scalars{
      .grad_factor = static_cast<T>(options.maximize ? -options.grad_scale : options.grad_scale),
      .l2 = static_cast<T>(options.weight_decay),
      .momentum = static_cast<T>(options.momentum),
      .one_minus_dampening = static_cast<T>(1.0 - options.dampening),
      .lr = static_cast<T>(options.lr),
      .nesterov = options.nesterov,
      .first_momentum = options.first_momentum,
      .zero_grad = options.zero_grad};
  parallel_tiles(param.numel(), kGrain, [&](int64_t begin, int64_t end) {
    kernel(internal::SgdArrays<T>{advance<T>(param, begin), advance<T>(grad, begin),
                                  momentum_buffer ? advance<T>(*momentum_buffer, begin) : nullptr},
           scalars, end - begin);
  });
}

}  // namespace

void adam_step(const TensorView& param, const TensorView& grad, const AdamState& state,
               int64_t step, const AdamOptions& options) {
  check_array("adam_step", "param", param, param);
  check_array("adam_step", "grad", grad, param);
  check_array("adam_step", "exp_avg", state.exp_avg, param);
  check_array("adam_step", "exp_avg_sq", state.exp_avg_sq, param);
  if (state.max_exp_avg_sq)
    check_array("adam_step", "max_exp_avg_sq", *state.max_exp_avg_sq, param);
  MUSTER_CHECK(step >= 1, ErrorCode::kInvalidArgument, "adam_step: step counts from 1; got {}",
               step);
  if (param.dtype == DType::kF32) {
    adam_tiles<float>(param, grad, state, step, options, HWY_DYNAMIC_DISPATCH(internal::adam_f32));
  } else {
    adam_tiles<double>(param, grad, state, step, options, HWY_DYNAMIC_DISPATCH(internal::adam_f64));
  }
}

void sgd_step(const TensorView& param, const TensorView& grad,
              const std::optional<TensorView>& momentum_buffer, const SgdOptions& options) {
  check_array("sgd_step", "param", param, param);
  check_array("sgd_step", "grad", grad, param);
  MUSTER_CHECK(momentum_buffer.has_value() == (options.momentum != 0.0),
               ErrorCode::kInvalidArgument,
               "sgd_step: a momentum buffer goes with momentum != 0; got momentum {} and {} buffer",
               options.momentum, momentum_buffer ? "a" : "no");
  if (momentum_buffer) check_array("sgd_step", "momentum_buffer", *momentum_buffer, param);
  if (param.dtype == DType::kF32) {
    sgd_tiles<float>(param, grad, momentum_buffer, options,
                     HWY_DYNAMIC_DISPATCH(internal::sgd_f32));
  } else {
    sgd_tiles<double>(param, grad, momentum_buffer, options,
                      HWY_DYNAMIC_DISPATCH(internal::sgd_f64));
  }
}

}  // namespace muster::kernels::cpu
#endif
