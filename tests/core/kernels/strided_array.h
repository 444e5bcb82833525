#pragma once
/// A small owning array with chosen strides, and deterministic values, for tests of kernels.

#include <bit>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/kernels/parallel.h"
#include "core/tensor/tensor_view.h"

namespace muster::testing {

/// How the elements of a StridedArray lie in memory.
enum class Place : uint8_t {
  kDense,       ///< row-major
  kTransposed,  ///< the last two dims swapped: column-major matrices
  kGaps,        ///< every stride doubled: no unit stride
};

template <typename T>
class StridedArray {
 public:
  explicit StridedArray(Dims sizes, Place place = Place::kDense) : sizes_(sizes) {
    DimVector memory_sizes = sizes_;
    const size_t ndim = sizes_.size();
    const bool swaps = place == Place::kTransposed && ndim >= 2;
    if (swaps) std::swap(memory_sizes[ndim - 1], memory_sizes[ndim - 2]);
    strides_ = contiguous_strides(memory_sizes.span());
    if (swaps) std::swap(strides_[ndim - 1], strides_[ndim - 2]);
    const int64_t step = place == Place::kGaps ? 2 : 1;
    for (int64_t& stride : strides_) stride *= step;
    data_.resize(static_cast<size_t>(numel() * step) + 1);
  }

  [[nodiscard]] TensorView view() const {
    return {const_cast<T*>(&data_[0].value), dtype_of<T>, sizes_.span(), strides_.span()};
  }
  [[nodiscard]] int64_t numel() const { return numel_of(sizes_.span()); }
  [[nodiscard]] const DimVector& sizes() const { return sizes_; }

  /// The element at a row-major position, whatever the strides.
  T& operator[](int64_t flat) { return data_[static_cast<size_t>(offset(flat))].value; }
  const T& operator[](int64_t flat) const { return data_[static_cast<size_t>(offset(flat))].value; }

  /// Row-major copy as double.
  [[nodiscard]] std::vector<double> values() const {
    std::vector<double> out(static_cast<size_t>(numel()));
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<double>(widen((*this)[static_cast<int64_t>(i)]));
    return out;
  }

  StridedArray& fill(double value) {
    for (int64_t i = 0; i < numel(); ++i) (*this)[i] = narrow(value);
    return *this;
  }
  /// Values in [-scale, scale), the same for a seed whatever the strides.
  StridedArray& randomize(uint64_t seed, double scale = 1.0) {
    uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
    for (int64_t i = 0; i < numel(); ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const double unit = static_cast<double>(state >> 33) / 2147483648.0;
      (*this)[i] = narrow((2.0 * unit - 1.0) * scale);
    }
    return *this;
  }

 private:
  struct Slot {  // keeps a vector of bool one of bytes
    T value{};
  };

  static T narrow(double value) {
    if constexpr (std::is_arithmetic_v<T>) {
      return static_cast<T>(value);
    } else {
      return T(static_cast<float>(value));
    }
  }
  static auto widen(T value) {
    if constexpr (std::is_arithmetic_v<T>) {
      return value;
    } else {
      return static_cast<float>(value);
    }
  }
  [[nodiscard]] int64_t offset(int64_t flat) const {
    int64_t at = 0;
    for (size_t d = sizes_.size(); d-- > 0;) {
      at += flat % sizes_[d] * strides_[d];
      flat /= sizes_[d];
    }
    return at;
  }

  DimVector sizes_;
  DimVector strides_;
  std::vector<Slot> data_;
};

/// Restores the number of threads at the end of a scope.
class ThreadScope {
 public:
  explicit ThreadScope(int count) : previous_(kernels::num_threads()) {
    kernels::set_num_threads(count);
  }
  ~ThreadScope() { kernels::set_num_threads(previous_); }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int previous_;
};

/// Runs `body()`, which returns values, on 1, 2 and 4 threads; true when all bits agree.
template <typename Body>
bool same_bits_on_any_threads(const Body& body) {
  const auto run = [&](int threads) {
    const ThreadScope scope(threads);
    return body();
  };
  const auto same = [](const std::vector<double>& a, const std::vector<double>& b) {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i)
      if (std::bit_cast<uint64_t>(a[i]) != std::bit_cast<uint64_t>(b[i])) return false;
    return true;
  };
  const auto one = run(1);
  return same(one, run(2)) && same(one, run(4));
}

/// Largest |a - b| over the largest |b| (at least 1); infinite when a nan or inf does not match.
inline double scaled_difference(const std::vector<double>& a, const std::vector<double>& b) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  if (a.size() != b.size()) return kInf;
  double largest = 1.0;
  double difference = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool both_nan = a[i] != a[i] && b[i] != b[i];
    if (both_nan || a[i] == b[i]) continue;
    const double d = a[i] > b[i] ? a[i] - b[i] : b[i] - a[i];
    if (!(d < kInf)) return kInf;
    difference = d > difference ? d : difference;
    const double magnitude = b[i] < 0 ? -b[i] : b[i];
    largest = magnitude > largest ? magnitude : largest;
  }
  return difference / largest;
}

}  // namespace muster::testing
