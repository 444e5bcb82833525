#include "tests/support/golden_close.h"

#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/support/golden_case.h"
#include "tests/support/matchers.h"

// The comparison that every golden test trusts is tested itself: it must refuse what is wrong.
namespace muster {
namespace {
using testing::GoldenTolerance;
using ::testing::HasSubstr;
using testing::is_close;
using ::testing::Not;

template <typename T>
Tensor tensor_of(std::vector<T> values, Dims sizes = {}) {
  const int64_t n = static_cast<int64_t>(values.size());
  Tensor tensor = empty_from_spec(TensorSpec::contiguous(
      sizes.empty() ? Dims(std::span<const int64_t>(&n, 1)) : sizes, dtype_of<T>));
  std::copy(values.begin(), values.end(), tensor.data<T>());
  return tensor;
}

std::string why(const ::testing::AssertionResult& result) {
  EXPECT_FALSE(result);
  return result.message();
}

TEST(GoldenClose, AcceptsWhatIsWithinTheToleranceOnly) {
  const Tensor expected = tensor_of<float>({1, 2, 1000});
  EXPECT_TRUE(is_close(tensor_of<float>({1, 2, 1000}), expected));
  EXPECT_TRUE(is_close(tensor_of<float>({1.0005f, 2, 1000}), expected));  // floor 1e-6 * 1000
  EXPECT_FALSE(is_close(tensor_of<float>({1.002f, 2, 1000}), expected));
  EXPECT_FALSE(is_close(tensor_of<float>({1, 2, 1000.1f}), expected));
}

TEST(GoldenClose, NonFiniteValuesMustAgree) {
  const float nan = std::nanf(""), inf = HUGE_VALF;
  EXPECT_TRUE(is_close(tensor_of<float>({nan, inf, -inf}), tensor_of<float>({nan, inf, -inf})));
  EXPECT_FALSE(is_close(tensor_of<float>({0}), tensor_of<float>({nan})));
  EXPECT_FALSE(is_close(tensor_of<float>({nan}), tensor_of<float>({0})));
  EXPECT_FALSE(is_close(tensor_of<float>({inf}), tensor_of<float>({-inf})));
  EXPECT_FALSE(is_close(tensor_of<float>({3e38f}), tensor_of<float>({inf})));
}

TEST(GoldenClose, TellsDtypeAndShapeApart) {
  EXPECT_THAT(why(is_close(tensor_of<float>({1}), tensor_of<double>({1}))),
              HasSubstr("got f32[1], expected f64[1]"));
  EXPECT_THAT(why(is_close(tensor_of<float>({1, 2}), tensor_of<float>({1, 2}, {2, 1}))),
              HasSubstr("got f32[2], expected f32[2, 1]"));
  EXPECT_THAT(why(is_close(Tensor(), tensor_of<float>({1}))), HasSubstr("got undefined"));
  EXPECT_TRUE(is_close(Tensor(), Tensor()));
}

TEST(GoldenClose, IntegersAreExact) {
  EXPECT_TRUE(is_close(tensor_of<int64_t>({1 << 30}), tensor_of<int64_t>({1 << 30})));
  EXPECT_THAT(why(is_close(tensor_of<int64_t>({(int64_t{1} << 60) + 1}),
                           tensor_of<int64_t>({int64_t{1} << 60}))),
              HasSubstr("[0] is 1152921504606846977, expected 1152921504606846976"));
}

TEST(GoldenClose, NamesTheFirstAndTheWorstElement) {
  const std::string text = why(
      is_close(tensor_of<float>({1, 2.5f, 3, 8}, {2, 2}), tensor_of<float>({1, 2, 3, 4}, {2, 2})));
  EXPECT_THAT(text, HasSubstr("2 of 4 elements of f32[2, 2] differ"));
  EXPECT_THAT(text, HasSubstr("first: [0, 1] is 2.5, expected 2, 2.1e+06 ulp apart"));
  EXPECT_THAT(text, HasSubstr("worst: [1, 1] is 8, expected 4"));
}

TEST(GoldenClose, ReadsTheRulesOfACase) {
  const auto number = nlohmann::json::parse(R"({"tol": 0.1})");
  EXPECT_EQ(testing::out_tolerance(number, DType::kF32).rel, 0.1);
  EXPECT_EQ(testing::out_tolerance(number, DType::kF32).floor, 0.1);
  EXPECT_EQ(testing::out_tolerance(number, DType::kI64).rel, 0);
  const auto parts = nlohmann::json::parse(R"({"tol": {"rel": 0.1, "abs": 0.5}})");
  EXPECT_EQ(testing::out_tolerance(parts, DType::kF64).floor, 0);
  EXPECT_EQ(testing::out_tolerance(parts, DType::kF64).abs, 0.5);
}

TEST(GoldenClose, EachComparesElementsByThemselvesAndTheSignOfZero) {
  const auto each = nlohmann::json::parse(R"({"cmp": "each", "any_grads": {"0": [1]}})");
  const GoldenTolerance out = testing::out_tolerance(each, DType::kF32);
  const Tensor expected = tensor_of<float>({1e-8f, 1000, 0});
  EXPECT_FALSE(is_close(tensor_of<float>({2e-8f, 1000, 0}), expected, out));
  EXPECT_FALSE(is_close(tensor_of<float>({1e-8f, 1000, -0.0f}), expected, out));
  EXPECT_TRUE(is_close(tensor_of<float>({1e-8f, 1000, 0}), expected, out));
  const GoldenTolerance grad = testing::grad_tolerance(each, DType::kF32, "0");
  EXPECT_TRUE(is_close(tensor_of<float>({1e-8f, 5, -0.0f}), expected, grad));
  EXPECT_FALSE(is_close(tensor_of<float>({1e-8f, 5, 0}), expected,
                        testing::grad_tolerance(each, DType::kF32, "1")));
}

TEST(GoldenClose, ReadsStridedTensorsInRowMajorOrder) {
  const Tensor base = tensor_of<float>({1, 2, 3, 4, 5, 6});
  const Tensor view = alias_with_layout(base, {{3, 2}, {1, 3}, 0});  // [[1, 4], [2, 5], [3, 6]]
  EXPECT_TRUE(is_close(view, tensor_of<float>({1, 4, 2, 5, 3, 6}, {3, 2})));
  EXPECT_THAT(why(is_close(view, tensor_of<float>({1, 4, 2, 7, 3, 6}, {3, 2}))),
              HasSubstr("first: [1, 1] is 5, expected 7"));
}

TEST(GoldenFile, TensorsAreFreshAndKeepTheirLayout) {
  const auto& file = testing::GoldenFile::load("amp/convert");
  const auto& reference = file.find("widen")["args"][0];
  const Tensor a = file.tensor(reference);
  const Tensor b = file.tensor(reference);
  EXPECT_NE(a.data_ptr(), b.data_ptr());
  EXPECT_FALSE(a.is_view());
  auto strided = reference;
  strided["sizes"] = {2, 3};
  strided["strides"] = {1, 4};
  strided["offset"] = 5;
  const Tensor view = file.tensor(strided);
  EXPECT_EQ(to_string(view.strides()), "[1, 4]");
  EXPECT_EQ(view.data<int16_t>()[0], a.data<int16_t>()[5]);
  EXPECT_FALSE(view.is_view());
}

TEST(GoldenFile, MissingFilesAndCasesAreNamed) {
  EXPECT_ERROR(testing::GoldenFile::load("ops/none"), ErrorCode::kNotFound,
               HasSubstr("none.jsonl"));
  EXPECT_ERROR(static_cast<void>(testing::GoldenFile::load("ops/chunk").find("x")),
               ErrorCode::kNotFound, HasSubstr("ops/chunk has no case \"x\""));
}
}  // namespace
}  // namespace muster
