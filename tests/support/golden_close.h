#pragma once
/// Comparison of a result with a golden one, by the rules that come with the golden files.
///
/// |a - b| <= rel*|b| + floor*max|b| + abs, where the largest magnitude counts finite elements;
/// infinities must be equal, nan meets nan. Integers, bools, dtypes and shapes are compared
/// exactly.

#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"

namespace muster::testing {

struct GoldenTolerance {
  double rel = 0;
  double floor = 0;  ///< times the largest finite magnitude of the expected tensor
  double abs = 0;
  bool zero_sign_counts = false;
  std::vector<int64_t> skip = {};  ///< flat indexes (row-major) that are not compared
};

/// The default of a dtype: f64 1e-12 + 1e-12 of the largest, f32 1e-5 + 1e-6, bf16 1.6e-2, f16
/// 2e-3; exact for the rest.
GoldenTolerance default_tolerance(DType dtype);
/// The rule of a case for its results of this dtype: its own `tol` (a number T means rel = floor =
/// T, or {rel, floor, abs}), `cmp`, `any`; else the default.
GoldenTolerance out_tolerance(const nlohmann::json& golden_case, DType dtype);
/// The same for the gradient of the argument at `path`: `any_grads` instead of `any`.
GoldenTolerance grad_tolerance(const nlohmann::json& golden_case, DType dtype,
                               const std::string& path);

/// Success, or dtype, shape, the number of bad elements, the first one with both values and its
/// distance in ulp, and the worst one. Undefined tensors equal each other only.
::testing::AssertionResult is_close(const Tensor& actual, const Tensor& expected,
                                    const GoldenTolerance& tolerance);
/// With the default tolerance of the expected dtype.
::testing::AssertionResult is_close(const Tensor& actual, const Tensor& expected);

/// EXPECT_TRUE(is_close(..)), with `what` in front.
void expect_close(const Tensor& actual, const Tensor& expected, const GoldenTolerance& tolerance,
                  const std::string& what = "");

}  // namespace muster::testing
