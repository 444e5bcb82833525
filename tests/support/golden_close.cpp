#include "tests/support/golden_close.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/support/golden_case.h"

namespace muster::testing {
namespace {
using Json = nlohmann::json;

// Storage index of element `flat` (row-major).
int64_t storage_index(Dims sizes, Dims strides, int64_t flat) {
  int64_t at = 0;
  for (size_t i = sizes.size(); i-- > 0;) {
    at += flat % sizes[i] * strides[i];
    flat /= sizes[i];
  }
  return at;
}

std::string position(Dims sizes, int64_t flat) {
  DimVector index(sizes.size());
  for (size_t i = sizes.size(); i-- > 0;) {
    index[i] = flat % sizes[i];
    flat /= sizes[i];
  }
  return to_string(index);
}

template <typename T>
double widen(T value) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
    return static_cast<double>(static_cast<float>(value));
  } else {
    return static_cast<double>(value);
  }
}

// Steps between two floats of the dtype's own width, as integers on the number line.
template <typename T>
std::string ulp_distance(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return "";
  } else {
    using Bits = std::conditional_t<sizeof(T) == 8, int64_t,
                                    std::conditional_t<sizeof(T) == 4, int32_t, int16_t>>;
    if (!std::isfinite(widen(a)) || !std::isfinite(widen(b))) return "";
    const auto on_line = [](T value) {
      const auto bits = std::bit_cast<Bits>(value);
      const auto magnitude = static_cast<double>(bits & std::numeric_limits<Bits>::max());
      return bits < 0 ? -magnitude : magnitude;
    };
    return fmt::format(", {:.3g} ulp apart", std::abs(on_line(a) - on_line(b)));
  }
}

template <typename T>
class Comparison {
 public:
  Comparison(const Tensor& actual, const Tensor& expected, const GoldenTolerance& tolerance)
      : actual_(actual), expected_(expected), tolerance_(tolerance) {
    for (int64_t i = 0; i < expected.numel(); ++i) {
      const double value = std::abs(widen(at(expected_, i)));
      if (std::isfinite(value)) largest_ = std::max(largest_, value);
    }
  }

  ::testing::AssertionResult run() {
    for (int64_t i = 0; i < expected_.numel(); ++i) {
      if (std::find(tolerance_.skip.begin(), tolerance_.skip.end(), i) != tolerance_.skip.end())
        continue;
      if (agrees(at(actual_, i), at(expected_, i))) continue;
      if (num_bad_++ == 0) first_bad_ = i;
      const double off = std::abs(widen(at(actual_, i)) - widen(at(expected_, i)));
      if (off > worst_off_) {
        worst_off_ = off;
        worst_ = i;
      }
    }
    if (num_bad_ == 0) return ::testing::AssertionSuccess();
    auto failure =
        ::testing::AssertionFailure() << fmt::format(
            "{} of {} elements of {} differ (rel {:g}, floor {:g} of {:g}, abs {:g})\n  first: {}",
            num_bad_, expected_.numel(), expected_, tolerance_.rel, tolerance_.floor, largest_,
            tolerance_.abs, describe(first_bad_));
    if (worst_ >= 0 && worst_ != first_bad_) failure << "\n  worst: " << describe(worst_);
    return failure;
  }

 private:
  static T at(const Tensor& tensor, int64_t flat) {
    return static_cast<const T*>(
        tensor.data_ptr())[storage_index(tensor.sizes(), tensor.strides(), flat)];
  }

  [[nodiscard]] bool agrees(T actual, T expected) const {
    if constexpr (std::is_integral_v<T>) {
      return actual == expected;
    } else {
      const double a = widen(actual);
      const double b = widen(expected);
      if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
      if (std::isinf(a) || std::isinf(b)) return a == b;
      if (tolerance_.zero_sign_counts && a == 0 && b == 0 && std::signbit(a) != std::signbit(b))
        return false;
      return std::abs(a - b) <=
             tolerance_.rel * std::abs(b) + tolerance_.floor * largest_ + tolerance_.abs;
    }
  }

  [[nodiscard]] std::string describe(int64_t flat) const {
    const T a = at(actual_, flat);
    const T b = at(expected_, flat);
    if constexpr (std::is_integral_v<T>) {
      return fmt::format("{} is {}, expected {}", position(expected_.sizes(), flat),
                         static_cast<int64_t>(a), static_cast<int64_t>(b));
    } else {
      return fmt::format("{} is {:.17g}, expected {:.17g}{}", position(expected_.sizes(), flat),
                         widen(a), widen(b), ulp_distance(a, b));
    }
  }

  const Tensor& actual_;
  const Tensor& expected_;
  const GoldenTolerance& tolerance_;
  double largest_ = 0;
  int64_t num_bad_ = 0;
  int64_t first_bad_ = -1;
  int64_t worst_ = -1;
  double worst_off_ = 0;
};

// `tol` and `cmp` of a case; where it has none, the default.
GoldenTolerance tolerance_of(const Json& golden_case, DType dtype) {
  GoldenTolerance tolerance = default_tolerance(dtype);
  if (!is_floating(dtype)) return tolerance;
  if (const auto tol = golden_case.find("tol"); tol != golden_case.end() && !tol->is_null()) {
    if (tol->is_number()) {
      tolerance.rel = tolerance.floor = tol->get<double>();
    } else {
      tolerance.rel = tol->value("rel", 0.0);
      tolerance.floor = tol->value("floor", 0.0);
      tolerance.abs = tol->value("abs", 0.0);
    }
  }
  if (golden_case.value("cmp", Json()) == "each") {
    tolerance.floor = 0;
    const double smallest = dtype == DType::kF64
                                ? std::numeric_limits<double>::denorm_min()
                                : static_cast<double>(std::numeric_limits<float>::denorm_min());
    tolerance.abs = 8 * smallest;
  }
  return tolerance;
}
}  // namespace

GoldenTolerance default_tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return {.rel = 1e-12, .floor = 1e-12};
    case DType::kF32:
      return {.rel = 1e-5, .floor = 1e-6};
    case DType::kBF16:
      return {.rel = 1.6e-2, .floor = 1.6e-2};
    case DType::kF16:
      return {.rel = 2e-3, .floor = 2e-3};
    default:
      return {};
  }
}

GoldenTolerance out_tolerance(const Json& golden_case, DType dtype) {
  GoldenTolerance tolerance = tolerance_of(golden_case, dtype);
  tolerance.zero_sign_counts = golden_case.value("cmp", Json()) == "each";
  if (golden_case.contains("any")) tolerance.skip = golden_ints(golden_case["any"]);
  return tolerance;
}

GoldenTolerance grad_tolerance(const Json& golden_case, DType dtype, const std::string& path) {
  GoldenTolerance tolerance = tolerance_of(golden_case, dtype);
  const auto any = golden_case.find("any_grads");
  if (any != golden_case.end() && any->contains(path)) tolerance.skip = golden_ints((*any)[path]);
  return tolerance;
}

::testing::AssertionResult is_close(const Tensor& actual, const Tensor& expected,
                                    const GoldenTolerance& tolerance) {
  if (!actual.defined() || !expected.defined()) {
    if (actual.defined() == expected.defined()) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << fmt::format("got {}, expected {}", actual, expected);
  }
  const Dims a = actual.sizes();
  const Dims b = expected.sizes();
  if (actual.dtype() != expected.dtype() || !std::equal(a.begin(), a.end(), b.begin(), b.end())) {
    return ::testing::AssertionFailure() << fmt::format("got {}, expected {}", actual, expected);
  }
  return visit_dtype(expected.dtype(), [&](auto type) {
    return Comparison<decltype(type)>(actual, expected, tolerance).run();
  });
}

::testing::AssertionResult is_close(const Tensor& actual, const Tensor& expected) {
  return is_close(actual, expected,
                  default_tolerance(expected.defined() ? expected.dtype() : kDefaultDType));
}

void expect_close(const Tensor& actual, const Tensor& expected, const GoldenTolerance& tolerance,
                  const std::string& what) {
  EXPECT_TRUE(is_close(actual, expected, tolerance)) << what;
}
}  // namespace muster::testing
