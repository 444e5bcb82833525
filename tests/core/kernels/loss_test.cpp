#include "core/kernels/cpu/loss.h"

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
using ::testing::AllOf;
using ::testing::HasSubstr;
using Values = std::vector<double>;

struct Expected {
  Values row_loss, lse, dlogits;
  double sum = 0.0, weight = 0.0;
  int64_t count = 0;
};

Expected reference(const Values& x, const std::vector<int64_t>& targets, int64_t c,
                   double smoothing, const Values& weight, const Values& row_grad) {
  const int64_t n = static_cast<int64_t>(targets.size());
  Expected want{Values(n), Values(n), Values(n * c)};
  double total = 0.0;
  for (const double w : weight) total += w;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t t = targets[i];
    if (t < 0) continue;
    const double* row = x.data() + i * c;
    const double max = *std::max_element(row, row + c);
    double sum = 0.0;
    for (int64_t j = 0; j < c; ++j) sum += std::exp(row[j] - max);
    const double lse = want.lse[i] = max + std::log(sum);
    const double each = smoothing / static_cast<double>(c);
    want.row_loss[i] = (1.0 - smoothing) * weight[t] * (lse - row[t]);
    for (int64_t j = 0; j < c; ++j) {
      want.row_loss[i] += each * weight[j] * (lse - row[j]);
      const double p = std::exp(row[j] - lse);
      double d = p * ((1.0 - smoothing) * weight[t] + each * total) - each * weight[j];
      if (j == t) d -= (1.0 - smoothing) * weight[t];
      want.dlogits[i * c + j] = row_grad[i] * d;
    }
    want.sum += want.row_loss[i];
    want.weight += weight[t];
    ++want.count;
  }
  return want;
}

StridedArray<int64_t> make_targets(int64_t n, int64_t c) {
  StridedArray<int64_t> targets({n});
  for (int64_t i = 0; i < n; ++i) targets[i] = i % 5 == 3 ? -100 : i * 7 % c;
  return targets;
}

std::vector<int64_t> integers(const StridedArray<int64_t>& array) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < array.numel(); ++i) out.push_back(array[i]);
  return out;
}

template <typename T, typename A>
void expect_matches(int64_t n, int64_t c, Place place, double smoothing, bool weighted,
                    double tolerance) {
  StridedArray<T> logits({n, c}, place), dlogits({n, c}, place), weight({c});
  StridedArray<A> row_loss({n}), lse({n}), row_grad({n});
  logits.randomize(1, 5.0), weight.randomize(2), row_grad.randomize(3);
  if (!weighted) weight.fill(1.0);
  const StridedArray<int64_t> targets = make_targets(n, c);
  const Expected want = reference(logits.values(), integers(targets), c, smoothing, weight.values(),
                                  row_grad.values());
  CrossEntropyOptions options{.label_smoothing = smoothing, .weight = {}};
  if (weighted) options.weight.emplace(weight.view());

  const CrossEntropySums sums =
      cross_entropy(row_loss.view(), lse.view(), logits.view(), targets.view(), options);
  EXPECT_NEAR(sums.loss, want.sum, tolerance * std::max(1.0, std::abs(want.sum)));
  EXPECT_NEAR(sums.weight, want.weight, 1e-6);
  EXPECT_EQ(sums.count, want.count);
  EXPECT_LE(scaled_difference(row_loss.values(), want.row_loss), tolerance);
  EXPECT_LE(scaled_difference(lse.values(), want.lse), tolerance);

  cross_entropy_backward(dlogits.view(), logits.view(), targets.view(), lse.view(), row_grad.view(),
                         0.5, options);
  Values half = want.dlogits;
  for (double& value : half) value *= 0.5;
  EXPECT_LE(scaled_difference(dlogits.values(), half), tolerance);

  const Values ones(n, 1.0);
  const Expected unit =
      reference(logits.values(), integers(targets), c, smoothing, weight.values(), ones);
  const CrossEntropySums again =
      cross_entropy_in_place(logits.view(), targets.view(), 1.0, {}, {}, options);
  EXPECT_EQ(again.loss, sums.loss);
  EXPECT_EQ(again.count, sums.count);
  EXPECT_LE(scaled_difference(logits.values(), unit.dlogits), tolerance);
}

TEST(CrossEntropy, MatchesTheReferenceForwardBackwardAndInPlace) {
  for (const Place place : {Place::kDense, Place::kTransposed, Place::kGaps}) {
    for (const double smoothing : {0.0, 0.1, 1.0}) {
      for (const bool weighted : {false, true}) {
        for (const auto& [n, c] : {std::pair{1, 1}, {7, 3}, {12, 1031}}) {
          expect_matches<float, float>(n, c, place, smoothing, weighted, 2e-6);
          expect_matches<double, double>(n, c, place, smoothing, weighted, 1e-14);
          expect_matches<BFloat16, float>(n, c, place, smoothing, weighted, 8e-3);
        }
      }
    }
  }
}

TEST(CrossEntropy, AnIgnoredRowIsNeverRead) {
  StridedArray<float> logits({2, 3}), dlogits({2, 3}), lse({2});
  StridedArray<int64_t> targets({2});
  logits[0] = logits[1] = logits[2] = std::nanf("");
  targets[0] = -100, targets[1] = 2;
  const CrossEntropySums sums = cross_entropy({}, lse.view(), logits.view(), targets.view(), {});
  EXPECT_NEAR(sums.loss, std::log(3.0), 1e-6);
  EXPECT_EQ(sums.count, 1);
  cross_entropy_backward(dlogits.view(), logits.view(), targets.view(), lse.view(), {}, 1.0, {});
  EXPECT_EQ(dlogits[0], 0.0f);
  EXPECT_NEAR(dlogits[5], -2.0 / 3.0, 1e-6);
  cross_entropy_in_place(logits.view(), targets.view(), 1.0, {}, {}, {});
  EXPECT_EQ(logits[1], 0.0f);
}

TEST(CrossEntropy, AllIgnoredCountsNothing) {
  StridedArray<float> logits({2, 3}), lse({2});
  StridedArray<int64_t> targets({2});
  targets[0] = targets[1] = 7;
  const CrossEntropySums sums = cross_entropy({}, lse.view(), logits.view(), targets.view(),
                                              {.ignore_index = 7, .weight = {}});
  EXPECT_EQ(sums.loss, 0.0);
  EXPECT_EQ(sums.weight, 0.0);
  EXPECT_EQ(sums.count, 0);
}

TEST(CrossEntropy, SmallLossesOfLargeLogitsSurvive) {
  StridedArray<float> logits({1, 2}), lse({1}), row_loss({1});
  StridedArray<int64_t> targets({1});
  logits[0] = 100000.0f, logits[1] = 99995.0f;
  cross_entropy(row_loss.view(), lse.view(), logits.view(), targets.view(), {});
  EXPECT_NEAR(static_cast<double>(row_loss[0]), std::log1p(std::exp(-5.0)), 1e-7);
}

TEST(CrossEntropy, GradientsOfLargeLogitsAreNotRoundedAway) {
  StridedArray<float> logits({1, 3}), lse({1}), dlogits({1, 3});
  StridedArray<int64_t> targets({1});
  for (int64_t j = 0; j < 3; ++j) logits[j] = 12345.0f;
  cross_entropy({}, lse.view(), logits.view(), targets.view(), {});
  cross_entropy_backward(dlogits.view(), logits.view(), targets.view(), lse.view(), {}, 1.0, {});
  EXPECT_NEAR(static_cast<double>(dlogits[0]), -2.0 / 3.0, 1e-7);
  EXPECT_NEAR(static_cast<double>(dlogits[2]), 1.0 / 3.0, 1e-7);
}

TEST(CrossEntropy, SmoothingOverAMinusInfiniteLogitIsInfinite) {
  StridedArray<float> logits({1, 3}), lse({1});
  StridedArray<int64_t> targets({1});
  logits[2] = -std::numeric_limits<float>::infinity();
  const CrossEntropySums plain = cross_entropy({}, lse.view(), logits.view(), targets.view(), {});
  EXPECT_NEAR(plain.loss, std::log(2.0), 1e-6);
  const CrossEntropySums smooth = cross_entropy({}, lse.view(), logits.view(), targets.view(),
                                                {.label_smoothing = 0.1, .weight = {}});
  EXPECT_EQ(smooth.loss, std::numeric_limits<double>::infinity());
}

TEST(CrossEntropy, AScalarGradientMayBeExpandedByStrideZero) {
  StridedArray<float> logits({3, 4}), lse({3}), a({3, 4}), b({3, 4}), g({1});
  const StridedArray<int64_t> targets = make_targets(3, 4);
  logits.randomize(1);
  g[0] = 0.25f;
  cross_entropy({}, lse.view(), logits.view(), targets.view(), {});
  const DimVector sizes = {3}, strides = {0};
  cross_entropy_backward(a.view(), logits.view(), targets.view(), lse.view(),
                         TensorView(g.view().data, DType::kF32, sizes.span(), strides.span()), 1.0,
                         {});
  cross_entropy_backward(b.view(), logits.view(), targets.view(), lse.view(), {}, 0.25, {});
  EXPECT_EQ(a.values(), b.values());
}

TEST(CrossEntropy, NamesTheRowOfATargetOutOfRange) {
  StridedArray<float> logits({2, 3}), lse({2});
  StridedArray<int64_t> targets({2});
  targets[1] = -4;
  EXPECT_ERROR(cross_entropy({}, lse.view(), logits.view(), targets.view(), {}),
               ErrorCode::kOutOfRange, AllOf(HasSubstr("[0, 3)"), HasSubstr("got -4 in row 1")));
  targets[1] = 3;
  EXPECT_ERROR(cross_entropy_in_place(logits.view(), targets.view(), 1.0, {}, {}, {}),
               ErrorCode::kOutOfRange, HasSubstr("got 3 in row 1"));
}

TEST(CrossEntropy, GivesTheSameBitsOnAnyNumberOfThreads) {
  StridedArray<float> logits({200, 1031}), lse({200});
  const StridedArray<int64_t> targets = make_targets(200, 1031);
  EXPECT_TRUE(same_bits_on_any_threads([&] {
    logits.randomize(1, 5.0);
    const double loss = cross_entropy_in_place(logits.view(), targets.view(), 1.0, {}, {}, {}).loss;
    Values all = logits.values();
    all.push_back(loss);
    return all;
  }));
}

}  // namespace
}  // namespace muster::kernels::cpu
