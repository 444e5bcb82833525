#include "core/kernels/cpu/norm.h"

#include <cmath>

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

constexpr double kEps = 1e-5;

// What layer norm (centered) and RMS norm are, in double.
struct Reference {
  Values y, mean, rstd, dx, dweight, dbias;

  Reference(const Values& x, const Values& weight, const Values& bias, const Values& dy,
            int64_t rows, int64_t n, bool centered)
      : y(x.size()), mean(rows), rstd(rows), dx(x.size()), dweight(n), dbias(n) {
    for (int64_t i = 0; i < rows; ++i) {
      const double* row = x.data() + i * n;
      const double* grad = dy.data() + i * n;
      double square = 0.0;
      for (int64_t j = 0; j < n && centered; ++j) mean[i] += row[j] / static_cast<double>(n);
      for (int64_t j = 0; j < n; ++j) square += (row[j] - mean[i]) * (row[j] - mean[i]);
      rstd[i] = 1.0 / std::sqrt(square / static_cast<double>(n) + kEps);
      double g_mean = 0.0, gh_mean = 0.0;
      for (int64_t j = 0; j < n; ++j) {
        const double h = (row[j] - mean[i]) * rstd[i];
        y[i * n + j] = h * weight[j] + bias[j];
        g_mean += grad[j] * weight[j] / static_cast<double>(n);
        gh_mean += grad[j] * weight[j] * h / static_cast<double>(n);
        dweight[j] += grad[j] * h;
        dbias[j] += grad[j];
      }
      if (!centered) g_mean = 0.0;
      for (int64_t j = 0; j < n; ++j) {
        const double h = (row[j] - mean[i]) * rstd[i];
        dx[i * n + j] = rstd[i] * (grad[j] * weight[j] - g_mean - h * gh_mean);
      }
    }
  }
};

template <typename T, typename A>
void expect_matches(int64_t rows, int64_t n, Place place, bool centered, bool affine,
                    double tolerance) {
  StridedArray<T> x({rows, n}, place), dy({rows, n}, place), y({rows, n}, place),
      dx({rows, n}, place);
  StridedArray<T> weight({n}), bias({n}), dweight({n}), dbias({n});
  StridedArray<A> mean({rows}), rstd({rows});
  x.randomize(1, 3.0), dy.randomize(2), weight.randomize(3), bias.randomize(4);
  if (!affine) weight.fill(1.0), bias.fill(0.0);
  if (!centered) bias.fill(0.0);
  const Reference want(x.values(), weight.values(), bias.values(), dy.values(), rows, n, centered);
  std::optional<TensorView> w, b;
  if (affine) w.emplace(weight.view()), b.emplace(bias.view());
  NormGradients gradients{.dx = dx.view(), .dweight = dweight.view(), .dbias = {}};
  if (centered) {
    gradients.dbias.emplace(dbias.view());
    layer_norm(y.view(), mean.view(), rstd.view(), x.view(), w, b, kEps);
    layer_norm_backward(gradients, dy.view(), x.view(), mean.view(), rstd.view(), w);
    EXPECT_LE(scaled_difference(mean.values(), want.mean), tolerance);
    EXPECT_LE(scaled_difference(dbias.values(), want.dbias), tolerance);
  } else {
    rms_norm(y.view(), rstd.view(), x.view(), w, kEps);
    rms_norm_backward(gradients, dy.view(), x.view(), rstd.view(), w);
  }
  EXPECT_LE(scaled_difference(rstd.values(), want.rstd), tolerance);
  EXPECT_LE(scaled_difference(y.values(), want.y), tolerance);
  EXPECT_LE(scaled_difference(dx.values(), want.dx), tolerance);
  EXPECT_LE(scaled_difference(dweight.values(), want.dweight), tolerance);
}

TEST(Norm, MatchesTheReferenceForwardAndBackward) {
  for (const bool centered : {true, false}) {
    for (const bool affine : {true, false}) {
      for (const Place place : {Place::kDense, Place::kTransposed, Place::kGaps}) {
        for (const auto& [rows, n] : {std::pair{1, 1}, {3, 5}, {70, 33}, {5, 768}, {0, 4}}) {
          expect_matches<float, float>(rows, n, place, centered, affine, 2e-6);
          expect_matches<double, double>(rows, n, place, centered, affine, 1e-14);
          expect_matches<BFloat16, float>(rows, n, place, centered, affine, 8e-3);
        }
      }
    }
  }
}

TEST(LayerNorm, KeepsAccuracyFarFromZero) {
  StridedArray<float> x({1, 256}), y({1, 256}), mean({1}), rstd({1});
  x.randomize(1);
  for (int64_t j = 0; j < 256; ++j) x[j] += 10000.0f;
  const Values ones(256, 1.0), zeros(256, 0.0);
  const Reference want(x.values(), ones, zeros, zeros, 1, 256, true);
  layer_norm(y.view(), mean.view(), rstd.view(), x.view(), {}, {}, kEps);
  EXPECT_LE(scaled_difference(y.values(), want.y), 2e-3);
}

TEST(LayerNorm, GivesTheSameBitsOnAnyNumberOfThreads) {
  StridedArray<float> x({1000, 100}), dy({1000, 100}), mean({1000}), rstd({1000}), weight({100});
  x.randomize(1), dy.randomize(2), weight.randomize(3);
  EXPECT_TRUE(same_bits_on_any_threads([&] {
    StridedArray<float> y({1000, 100}), dx({1000, 100}), dweight({100}), dbias({100});
    layer_norm(y.view(), mean.view(), rstd.view(), x.view(), weight.view(), {}, kEps);
    layer_norm_backward({dx.view(), dweight.view(), dbias.view()}, dy.view(), x.view(), mean.view(),
                        rstd.view(), weight.view());
    Values all = y.values();
    for (const auto* part : {&dx, &dweight, &dbias}) {
      const Values more = part->values();
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }));
}

TEST(LayerNorm, RefusesAWeightOfAnotherLength) {
  StridedArray<float> x({2, 4}), y({2, 4}), mean({2}), rstd({2}), weight({3});
  EXPECT_ERROR(layer_norm(y.view(), mean.view(), rstd.view(), x.view(), weight.view(), {}, kEps),
               ErrorCode::kInvalidArgument, HasSubstr("weight must be f32 [4]; got f32 [3]"));
}

}  // namespace
}  // namespace muster::kernels::cpu
