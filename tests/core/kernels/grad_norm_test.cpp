#include "core/kernels/cpu/grad_norm.h"

#include <cmath>
#include <limits>

#include "tests/core/kernels/strided_array.h"
#include "tests/support/matchers.h"

namespace muster::kernels::cpu {
namespace {
using ::muster::testing::Place;
using ::muster::testing::same_bits_on_any_threads;
using ::muster::testing::StridedArray;

TEST(SumOfSquares, IsExactToDoubleAndTheSameForEveryLayout) {
  for (const int64_t numel : {0, 1, 15, 33, 70000, 200003}) {
    StridedArray<float> x({1, numel}), gaps({1, numel}, Place::kGaps);
    x.randomize(1), gaps.randomize(1);
    double expected = 0.0;
    for (const double value : x.values()) expected += value * value;
    EXPECT_NEAR(sum_of_squares(x.view()), expected, 1e-12 * expected);
    EXPECT_EQ(sum_of_squares(x.view()), sum_of_squares(gaps.view()));
  }
  StridedArray<float> square({40, 50}), transposed({40, 50}, Place::kTransposed);
  square.randomize(1), transposed.randomize(1);
  EXPECT_EQ(sum_of_squares(square.view()), sum_of_squares(transposed.view()));
}

TEST(SumOfSquares, DoesNotOverflowWhereF32SquaresDo) {
  StridedArray<float> x({2});
  x.fill(1e30);
  EXPECT_NEAR(sum_of_squares(x.view()), 2e60, 1e54);
}

TEST(SumOfSquares, KeepsNanAndInf) {
  StridedArray<float> x({100});
  x[70] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sum_of_squares(x.view()), std::numeric_limits<double>::infinity());
  x[3] = std::nanf("");
  EXPECT_TRUE(std::isnan(sum_of_squares(x.view())));
}

TEST(SumOfSquares, GivesTheSameBitsOnAnyNumberOfThreads) {
  StridedArray<float> x({1000003});
  x.randomize(1);
  EXPECT_TRUE(same_bits_on_any_threads([&] { return std::vector{sum_of_squares(x.view())}; }));
}

TEST(ScaleInplace, MultipliesEveryLayoutAndDtype) {
  for (const Place place : {Place::kDense, Place::kTransposed, Place::kGaps}) {
    StridedArray<float> x({5, 7}, place);
    x.randomize(1);
    auto expected = x.values();
    for (double& value : expected) value *= 0.5;
    scale_inplace(x.view(), 0.5);
    EXPECT_EQ(x.values(), expected);
  }
  StridedArray<BFloat16> half({3});
  half.fill(2.0);
  scale_inplace(half.view(), 0.25);
  EXPECT_EQ(half.values(), (std::vector<double>{0.5, 0.5, 0.5}));
  StridedArray<double> wide({3});
  wide.fill(3.0);
  scale_inplace(wide.view(), 1.0 / 3.0);
  EXPECT_EQ(wide.values(), (std::vector<double>{1, 1, 1}));
}

}  // namespace
}  // namespace muster::kernels::cpu
