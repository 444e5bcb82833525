#include "core/kernels/cpu/softmax.h"

#include <cmath>
#include <limits>

#include "tests/core/kernels/strided_array.h"
#include "tests/support/matchers.h"

namespace muster::kernels::cpu {
namespace {
using ::muster::testing::Place;
using ::muster::testing::same_bits_on_any_threads;
using ::muster::testing::scaled_difference;
using ::muster::testing::StridedArray;
using ::testing::HasSubstr;
using Values = std::vector<double>;
constexpr double kInf = std::numeric_limits<double>::infinity();

// Calls `body(indices)` with the flat positions of each slice of [a, b, c] along `dim`.
template <typename Body>
void for_each_slice(Dims sizes, size_t dim, const Body& body) {
  const DimVector strides = contiguous_strides(sizes);
  for (int64_t flat = 0; flat < numel_of(sizes); ++flat) {
    if (flat / strides[dim] % sizes[dim] != 0) continue;
    std::vector<size_t> indices;
    for (int64_t j = 0; j < sizes[dim]; ++j)
      indices.push_back(static_cast<size_t>(flat + j * strides[dim]));
    body(indices);
  }
}

Values softmax_reference(const Values& x, Dims sizes, size_t dim, bool log) {
  Values y(x.size());
  for_each_slice(sizes, dim, [&](const std::vector<size_t>& at) {
    double max = -kInf, sum = 0.0;
    for (const size_t i : at) max = std::max(max, x[i]);
    for (const size_t i : at) sum += std::exp(x[i] - max);
    for (const size_t i : at) y[i] = log ? x[i] - max - std::log(sum) : std::exp(x[i] - max) / sum;
  });
  return y;
}

Values backward_reference(const Values& dy, const Values& y, Dims sizes, size_t dim, bool log) {
  Values dx(y.size());
  for_each_slice(sizes, dim, [&](const std::vector<size_t>& at) {
    double sum = 0.0;
    for (const size_t i : at) sum += log ? dy[i] : dy[i] * y[i];
    for (const size_t i : at) dx[i] = log ? dy[i] - std::exp(y[i]) * sum : y[i] * (dy[i] - sum);
  });
  return dx;
}

template <typename T>
void expect_matches(Dims sizes, size_t dim, Place place, double tolerance) {
  StridedArray<T> x(sizes, place), y(sizes, place), dy(sizes, place), dx(sizes, place);
  x.randomize(1, 10.0), dy.randomize(2);
  const int64_t d = static_cast<int64_t>(dim);
  for (const bool log : {false, true}) {
    log ? log_softmax(y.view(), x.view(), d) : softmax(y.view(), x.view(), d);
    const Values want = softmax_reference(x.values(), sizes, dim, log);
    ASSERT_LE(scaled_difference(y.values(), want), tolerance);
    log ? log_softmax_backward(dx.view(), dy.view(), y.view(), d - 3)
        : softmax_backward(dx.view(), dy.view(), y.view(), d - 3);
    ASSERT_LE(scaled_difference(dx.values(),
                                backward_reference(dy.values(), y.values(), sizes, dim, log)),
              tolerance);
  }
}

TEST(Softmax, MatchesTheReferenceAlongEveryDim) {
  for (const size_t dim : {0, 1, 2}) {
    for (const Place place : {Place::kDense, Place::kTransposed, Place::kGaps}) {
      for (const DimVector& sizes : {DimVector{1, 1, 1}, {4, 7, 5}, {3, 130, 33}}) {
        expect_matches<float>(sizes.span(), dim, place, 1e-6);
        expect_matches<double>(sizes.span(), dim, place, 1e-14);
        expect_matches<BFloat16>(sizes.span(), dim, place, 8e-3);
      }
    }
  }
}

TEST(Softmax, ExpIsAccurateOverTheWholeRange) {
  // With one element at 0 and one at x, log_softmax gives x - log(1 + e^x), softmax e^x / (1 +
  // e^x).
  for (double x = 0.0; x > -87.0; x -= 0.0371) {
    StridedArray<float> in({2}), out({2});
    in[1] = static_cast<float>(x);
    softmax(out.view(), in.view(), 0);
    const double e = std::exp(static_cast<double>(in[1]));
    EXPECT_NEAR(static_cast<double>(out[1]), e / (1 + e), 4e-7 * e / (1 + e)) << x;
    StridedArray<double> in64({2}), out64({2});
    in64[1] = 8.0 * x;
    softmax(out64.view(), in64.view(), 0);
    const double e64 = std::exp(8.0 * x);
    EXPECT_NEAR(out64[1], e64 / (1 + e64), 1e-15 * e64 / (1 + e64)) << x;
  }
}

TEST(Softmax, ASliceOfMinusInfinityIsNanUnlessSafe) {
  StridedArray<float> x({2, 3}), y({2, 3});
  x.fill(-kInf);
  x[3] = 1.0f, x[4] = 1.0f;
  softmax(y.view(), x.view(), -1);
  EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[2]));
  EXPECT_EQ(y[3], 0.5f);
  EXPECT_EQ(y[5], 0.0f);
  safe_softmax(y.view(), x.view(), -1);
  EXPECT_EQ(y.values(), (Values{0, 0, 0, 0.5, 0.5, 0}));
}

TEST(Softmax, NanSpreadsOverItsSliceOnly) {
  StridedArray<float> x({2, 40}), y({2, 40});
  x.randomize(1);
  x[37] = std::nanf("");
  softmax(y.view(), x.view(), -1);
  for (int64_t j = 0; j < 40; ++j) {
    EXPECT_TRUE(std::isnan(y[j]));
    EXPECT_FALSE(std::isnan(y[40 + j]));
  }
}

TEST(Softmax, WorksInPlaceAndOnEmptyAndZeroDimTensors) {
  StridedArray<float> x({5, 9}), y({5, 9}), empty({0, 3}), none({3, 0}), scalar(DimVector{}.span());
  x.randomize(1);
  softmax(y.view(), x.view(), 1);
  softmax(x.view(), x.view(), 1);
  EXPECT_EQ(x.values(), y.values());
  softmax(empty.view(), empty.view(), 1);
  softmax(none.view(), none.view(), 1);
  softmax(scalar.view(), scalar.view(), 0);
  EXPECT_EQ(scalar[0], 1.0f);
}

TEST(Softmax, GivesTheSameBitsOnAnyNumberOfThreads) {
  StridedArray<float> x({300, 401});
  x.randomize(1);
  EXPECT_TRUE(same_bits_on_any_threads([&] {
    StridedArray<float> y({300, 401});
    softmax(y.view(), x.view(), 1);
    return y.values();
  }));
}

TEST(Softmax, RefusesABadDimAndIntegers) {
  StridedArray<float> x({2, 3});
  EXPECT_ERROR(softmax(x.view(), x.view(), 2), ErrorCode::kOutOfRange, HasSubstr("softmax"));
  StridedArray<int64_t> i({2, 3});
  EXPECT_ERROR(softmax(i.view(), i.view(), 1), ErrorCode::kInvalidArgument, HasSubstr("i64"));
}

}  // namespace
}  // namespace muster::kernels::cpu
