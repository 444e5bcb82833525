#pragma once
/// TestView: an owning array of any dtype in one of several layouts, read and written as double.
///
/// The same values in every layout: tests compare kernels across layouts with one reference.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "core/kernels/parallel.h"
#include "core/tensor/tensor_view.h"

namespace muster::testing {

enum class Arrangement { kContiguous, kTransposed, kGaps, kReversed, kExpanded };
inline constexpr Arrangement kOwnArrangements[] = {
    Arrangement::kContiguous, Arrangement::kTransposed, Arrangement::kGaps, Arrangement::kReversed};

inline double element_as_double(const void* data, DType dtype, int64_t offset) {
  return visit_dtype(dtype, [&](auto type) {
    using T = decltype(type);
    const T value = static_cast<const T*>(data)[offset];
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
      return static_cast<double>(static_cast<float>(value));
    } else {
      return static_cast<double>(value);
    }
  });
}
inline void set_element(void* data, DType dtype, int64_t offset, double value) {
  visit_dtype(dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
      static_cast<T*>(data)[offset] = T(static_cast<float>(value));
    } else {
      static_cast<T*>(data)[offset] = static_cast<T>(value);
    }
  });
}

/// Row-major values of any view.
inline std::vector<double> values_of(const TensorView& view) {
  std::vector<double> out;
  for (int64_t i = 0; i < view.numel(); ++i) {
    int64_t rest = i;
    int64_t offset = 0;
    for (size_t d = view.ndim(); d-- > 0;) {
      offset += rest % view.sizes[d] * view.strides[d];
      rest /= view.sizes[d];
    }
    out.push_back(element_as_double(view.data, view.dtype, offset));
  }
  return out;
}

class TestView {
 public:
  TestView(Dims sizes, DType dtype, Arrangement arrangement = Arrangement::kContiguous)
      : dtype_(dtype), sizes_(sizes) {
    strides_ = contiguous_strides(sizes);
    const size_t n = sizes.size();
    if (arrangement == Arrangement::kTransposed && n >= 2) {
      // Dims in reverse order in memory.
      int64_t step = 1;
      for (size_t d = 0; d < n; ++d) {
        strides_[d] = step;
        step *= std::max<int64_t>(1, sizes[d]);
      }
    }
    if (arrangement == Arrangement::kGaps) {
      for (int64_t& stride : strides_) stride *= 3;
    }
    if (arrangement == Arrangement::kReversed) {
      for (size_t d = 0; d < n; ++d) {
        offset_ += std::max<int64_t>(0, sizes[d] - 1) * strides_[d];
        strides_[d] = -strides_[d];
      }
    }
    if (arrangement == Arrangement::kExpanded && n > 0) strides_[0] = 0;
    bytes_.resize(static_cast<size_t>((numel() * 3 + 3) * item_nbytes(dtype)), std::byte{0});
  }

  [[nodiscard]] TensorView view() const {
    auto* data = const_cast<std::byte*>(bytes_.data()) + offset_ * item_nbytes(dtype_);
    return {data, dtype_, sizes_.span(), strides_.span()};
  }
  operator TensorView() const { return view(); }  // NOLINT(google-explicit-constructor)

  [[nodiscard]] int64_t numel() const { return numel_of(sizes_.span()); }
  [[nodiscard]] Dims sizes() const { return sizes_.span(); }
  [[nodiscard]] double get(int64_t flat) const {
    return element_as_double(view().data, dtype_, offset_of(flat));
  }
  void set(int64_t flat, double value) { set_element(view().data, dtype_, offset_of(flat), value); }
  [[nodiscard]] std::vector<double> values() const { return values_of(view()); }
  /// f(flat index) everywhere; with kExpanded the last write to a place stays.
  template <typename Value>
  TestView& fill_with(const Value& value) {
    for (int64_t i = 0; i < numel(); ++i) set(i, value(i));
    return *this;
  }
  TestView& fill_from(const std::vector<double>& values) {
    return fill_with([&](int64_t i) { return values[static_cast<size_t>(i) % values.size()]; });
  }
  /// The bytes of the elements, in row-major order.
  [[nodiscard]] std::string bits() const {
    std::string out;
    const auto item = static_cast<size_t>(item_nbytes(dtype_));
    for (int64_t i = 0; i < numel(); ++i) {
      const char* at =
          static_cast<const char*>(view().data) + offset_of(i) * static_cast<int64_t>(item);
      out.append(at, item);
    }
    return out;
  }

 private:
  [[nodiscard]] int64_t offset_of(int64_t flat) const {
    int64_t offset = 0;
    for (size_t d = sizes_.size(); d-- > 0;) {
      offset += flat % sizes_[d] * strides_[d];
      flat /= sizes_[d];
    }
    return offset;
  }

  DType dtype_;
  DimVector sizes_;
  DimVector strides_;
  int64_t offset_ = 0;
  std::vector<std::byte> bytes_;
};

/// Deterministic values in [-scale, scale).
inline std::vector<double> scattered_values(int64_t count, double scale, uint64_t seed = 1) {
  std::vector<double> out;
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    out.push_back((static_cast<double>(state >> 33) / 1073741824.0 - 1.0) * scale);
  }
  return out;
}

/// Distance in units of the last place of the expected value as f32.
inline double ulps_f32(double got, double expected) {
  if (std::isnan(expected)) return std::isnan(got) ? 0 : 1e30;
  const auto rounded = static_cast<float>(expected);
  if (std::isinf(rounded)) return got == static_cast<double>(rounded) ? 0 : 1e30;
  if (std::isnan(got)) return 1e30;
  const float magnitude = std::max(std::fabs(rounded), 1.17549435e-38f);
  const double ulp = static_cast<double>(std::nextafter(magnitude, INFINITY)) - magnitude;
  return std::fabs(got - expected) / ulp;
}

/// Runs `body()` on 1, 2 and 4 threads and expects equal results.
template <typename Body>
void expect_same_on_any_threads(const Body& body) {
  const int before = kernels::num_threads();
  kernels::set_num_threads(1);
  const auto one = body();
  for (const int threads : {2, 4}) {
    kernels::set_num_threads(threads);
    EXPECT_TRUE(one == body()) << threads << " threads";
  }
  kernels::set_num_threads(before);
}

}  // namespace muster::testing
