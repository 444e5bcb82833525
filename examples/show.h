#pragma once
/// What the examples share: values as text, and the comparison of two results.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "core/ops/ops.h"

namespace muster::examples {

/// A number as Python writes it: integers plain, floats with a point.
inline std::string show_number(const Tensor& value) {
  if (!is_floating(value.dtype())) return fmt::format("{}", value.item_int());
  const double number = value.item();
  const bool is_whole = std::isfinite(number) && number == std::floor(number);
  return is_whole ? fmt::format("{:.1f}", number) : fmt::format("{}", number);
}

/// The values as nested lists: "[[0, 1, 2], [3, 4, 5]]".
inline std::string show(const Tensor& values) {
  if (values.ndim() == 0) return show_number(values);
  std::string text = "[";
  for (int64_t i = 0; i < values.size(0); ++i) {
    if (i > 0) text += ", ";
    text += show(select(values, 0, i));
  }
  return text + "]";
}

/// Sizes or strides: "(3, 1)".
inline std::string show(Dims numbers) { return fmt::format("({})", fmt::join(numbers, ", ")); }

/// True when both have the same sizes and no element differs by more than 1e-12.
inline bool is_close(const Tensor& a, const Tensor& b) {
  return std::ranges::equal(a.sizes(), b.sizes()) && amax(abs(a - b)).item() <= 1e-12;
}

}  // namespace muster::examples
