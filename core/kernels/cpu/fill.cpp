// fill, arange, linspace, eye: writes without an input.
#include <algorithm>
#include <cstring>

#include "core/kernels/cpu/copy.h"
#include "core/kernels/cpu/copy_convert.h"
#include "core/kernels/cpu/iterate.h"
#include "core/kernels/parallel.h"

namespace muster::kernels::cpu {
namespace {
constexpr int64_t kGrain = 65536;

template <typename T>
void fill_with(const TensorView& out, T value) {
  const LoopNest nest(out.sizes, std::span(&out.strides, 1), LoopNest::Order::kByStride);
  parallel_tiles(nest.numel, kGrain, [&](int64_t begin, int64_t end) {
    for_each_row(nest, 0, begin, end, [&](int64_t offset, int64_t count) {
      T* to = out.as<T>() + offset;
      const int64_t stride = nest.inner_stride(0);
      if (stride == 1) {
        std::fill_n(to, count, value);
      } else {
        for (int64_t i = 0; i < count; ++i) to[i * stride] = value;
      }
    });
  });
}

template <typename Value>
void fill_by_index(const TensorView& out, const char* operation, const Value& value) {
  MUSTER_CHECK(out.ndim() == 1, ErrorCode::kInvalidArgument,
               "{}: the output must have one dim; got sizes {}", operation, to_string(out.sizes));
  visit_dtype(out.dtype, [&](auto type) {
    using T = decltype(type);
    T* to = out.as<T>();
    const int64_t stride = out.strides[0];
    parallel_tiles(out.sizes[0], kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i * stride] = convert<T>(value(i));
    });
  });
}
}  // namespace

void fill(const TensorView& out, Scalar value) {
  visit_dtype(out.dtype, [&](auto type) {
    using T = decltype(type);
    fill_with<T>(out,
                 value.is_floating() ? convert<T>(value.to_double()) : convert<T>(value.to_int()));
  });
}

void arange(const TensorView& out, Scalar start, Scalar step) {
  if (!start.is_floating() && !step.is_floating()) {
    const auto first = static_cast<uint64_t>(start.to_int());
    const auto by = static_cast<uint64_t>(step.to_int());
    fill_by_index(out, "arange", [=](int64_t i) {
      return static_cast<int64_t>(first + static_cast<uint64_t>(i) * by);
    });
    return;
  }
  const double first = start.to_double();
  const double by = step.to_double();
  fill_by_index(out, "arange", [=](int64_t i) { return first + static_cast<double>(i) * by; });
}

void linspace(const TensorView& out, Scalar start, Scalar end) {
  const double first = start.to_double();
  const double last = end.to_double();
  const int64_t count = out.numel();
  const double by = count > 1 ? (last - first) / static_cast<double>(count - 1) : 0.0;
  fill_by_index(out, "linspace", [=](int64_t i) {
    return i < count / 2 || count == 1 ? first + static_cast<double>(i) * by
                                       : last - static_cast<double>(count - 1 - i) * by;
  });
}

void eye(const TensorView& out) {
  MUSTER_CHECK(out.ndim() == 2, ErrorCode::kInvalidArgument,
               "eye: the output must have two dims; got sizes {}", to_string(out.sizes));
  fill(out, 0);
  const int64_t length[] = {std::min(out.sizes[0], out.sizes[1])};
  const int64_t stride[] = {out.strides[0] + out.strides[1]};
  fill(TensorView(out.data, out.dtype, length, stride), 1);
}
}  // namespace muster::kernels::cpu
