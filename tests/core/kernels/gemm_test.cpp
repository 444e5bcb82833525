#include "core/kernels/cpu/gemm.h"

#include <cmath>
#include <limits>

#include "core/kernels/cpu/gemm_internal.h"
#include "tests/core/kernels/strided_array.h"
#include "tests/support/matchers.h"

namespace muster::kernels::cpu {
namespace {
using ::muster::testing::Place;
using ::muster::testing::same_bits_on_any_threads;
using ::muster::testing::scaled_difference;
using ::muster::testing::StridedArray;
using ::testing::HasSubstr;

constexpr Place kPlaces[] = {Place::kDense, Place::kTransposed, Place::kGaps};

// alpha * a @ b + beta * out + bias in double.
template <typename T>
std::vector<double> reference(const StridedArray<T>& out, const StridedArray<T>& a,
                              const StridedArray<T>& b, double alpha, double beta,
                              const std::vector<double>& bias = {}) {
  const int64_t m = a.sizes()[0], k = a.sizes()[1], n = b.sizes()[1];
  const auto av = a.values(), bv = b.values();
  auto result = out.values();
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0.0;
      for (int64_t l = 0; l < k; ++l) sum += av[i * k + l] * bv[l * n + j];
      double& value = result[i * n + j];
      value = alpha * sum + (beta == 0.0 ? 0.0 : beta * value);
      if (!bias.empty()) value += bias[j];
    }
  }
  return result;
}

struct Case {
  int64_t m, n, k;
};

template <typename T>
void expect_matches_reference(const Case& c, double tolerance) {
  for (const Place out_place : kPlaces) {
    for (const Place a_place : kPlaces) {
      for (const Place b_place : kPlaces) {
        for (const double beta : {0.0, 0.5}) {
          for (const bool with_bias : {false, true}) {
            StridedArray<T> a({c.m, c.k}, a_place), b({c.k, c.n}, b_place),
                out({c.m, c.n}, out_place);
            StridedArray<T> bias({c.n}, a_place == Place::kGaps ? Place::kGaps : Place::kDense);
            a.randomize(1), b.randomize(2), out.randomize(3), bias.randomize(4);
            const auto expected =
                reference(out, a, b, 1.5, beta, with_bias ? bias.values() : std::vector<double>{});
            GemmOptions options{.alpha = 1.5, .beta = beta, .bias = {}};
            if (with_bias) options.bias.emplace(bias.view());
            gemm(out.view(), a.view(), b.view(), options);
            ASSERT_LE(scaled_difference(out.values(), expected), tolerance)
                << c.m << "x" << c.n << "x" << c.k << " places " << int(out_place) << int(a_place)
                << int(b_place) << " beta " << beta << " bias " << with_bias;
          }
        }
      }
    }
  }
}

TEST(Gemm, MatchesTheReferenceForEveryLayoutAndSize) {
  for (const Case& c : {Case{1, 1, 1},
                        {3, 5, 7},
                        {1, 33, 17},
                        {65, 1, 64},
                        {2, 3, 0},
                        {0, 4, 5},
                        {4, 0, 5},
                        {70, 130, 129}}) {
    expect_matches_reference<float>(c, 2e-6);
    expect_matches_reference<double>(c, 1e-14);
    expect_matches_reference<BFloat16>(c, 8e-3);
    expect_matches_reference<Half>(c, 1e-3);
  }
}

TEST(Gemm, MatchesTheReferenceAcrossTilesAndDepthBlocks) {
  StridedArray<float> a({300, 600}), b({600, 410}, Place::kTransposed), out({300, 410});
  a.randomize(1), b.randomize(2), out.fill(0);
  gemm(out.view(), a.view(), b.view());
  EXPECT_LE(scaled_difference(out.values(), reference(out, a, b, 1, 0)), 2e-6);
  StridedArray<double> a64({200, 300}), b64({300, 401}), out64({200, 401});
  a64.randomize(1), b64.randomize(2);
  gemm(out64.view(), a64.view(), b64.view());
  EXPECT_LE(scaled_difference(out64.values(), reference(out64, a64, b64, 1, 0)), 1e-14);
}

TEST(Gemm, IntegersAreExactAndWrap) {
  StridedArray<int64_t> a({2, 2}), b({2, 1}), out({2, 1});
  a[0] = 3, a[1] = -4, a[2] = std::numeric_limits<int64_t>::max(), a[3] = 1;
  b[0] = 1, b[1] = 1;
  gemm(out.view(), a.view(), b.view());
  EXPECT_EQ(out[0], -1);
  EXPECT_EQ(out[1], std::numeric_limits<int64_t>::min());
}

TEST(Gemm, BetaZeroNeverReadsTheOutput) {
  StridedArray<float> a({2, 3}), b({3, 2}), out({2, 2});
  a.fill(1), b.fill(1), out.fill(std::nan(""));
  gemm(out.view(), a.view(), b.view());
  EXPECT_EQ(out.values(), (std::vector<double>{3, 3, 3, 3}));
  StridedArray<float> empty_a({2, 0}), empty_b({0, 2});
  out.fill(std::nan(""));
  gemm(out.view(), empty_a.view(), empty_b.view());
  EXPECT_EQ(out.values(), (std::vector<double>{0, 0, 0, 0}));
}

TEST(Gemm, StrangeStridesOnSizeOneDimsDoNotMatter) {
  StridedArray<float> a({1, 4}), b({4, 1}), out({1, 1});
  a.randomize(1), b.randomize(2);
  const auto expected = reference(out, a, b, 1, 0);
  const DimVector odd_a = {999, 1}, odd_b = {1, 0}, odd_out = {0, 77};
  gemm({out.view().data, DType::kF32, out.view().sizes, odd_out.span()},
       {a.view().data, DType::kF32, a.view().sizes, odd_a.span()},
       {b.view().data, DType::kF32, b.view().sizes, odd_b.span()});
  EXPECT_LE(scaled_difference(out.values(), expected), 1e-6);
}

TEST(Gemm, ExpandedRowsAreRead) {
  StridedArray<float> row({1, 4}), b({4, 3}), out({5, 3});
  row.randomize(1), b.randomize(2);
  const DimVector sizes = {5, 4}, strides = {0, 1};
  gemm(out.view(), {row.view().data, DType::kF32, sizes.span(), strides.span()}, b.view());
  StridedArray<float> one({1, 3});
  const auto expected = reference(one, row, b, 1, 0);
  for (int64_t i = 0; i < 15; ++i) EXPECT_NEAR(out[i], expected[i % 3], 1e-6);
}

TEST(Gemm, GivesTheSameBitsOnAnyNumberOfThreads) {
  for (const Case& c :
       {Case{256, 2304, 768}, {256, 768, 2304}, {2304, 768, 256}, {37, 1031, 515}}) {
    StridedArray<float> a({c.m, c.k}), b({c.k, c.n}, Place::kTransposed);
    a.randomize(1), b.randomize(2);
    EXPECT_TRUE(same_bits_on_any_threads([&] {
      StridedArray<float> out({c.m, c.n});
      gemm(out.view(), a.view(), b.view());
      return out.values();
    })) << c.m
        << "x" << c.n << "x" << c.k;
  }
  StridedArray<double> a({203, 301}), b({301, 409});
  a.randomize(1), b.randomize(2);
  EXPECT_TRUE(same_bits_on_any_threads([&] {
    StridedArray<double> out({203, 409});
    gemm(out.view(), a.view(), b.view());
    return out.values();
  }));
}

TEST(Gemm, TilesDependOnTheShapeAndCoverLargeOnesWell) {
  const auto tiles = [](int64_t m, int64_t n, int64_t k) {
    const internal::GemmTile tile = internal::gemm_f32_tile(m, n, k);
    return num_tiles(m, tile.rows) * num_tiles(n, tile.cols);
  };
  EXPECT_EQ(tiles(32, 32, 32), 1);
  EXPECT_GE(tiles(256, 2304, 768), 8);
  EXPECT_GE(tiles(1024, 3072, 768), 8);
  EXPECT_GE(tiles(256, 768, 50257), 8);
}

TEST(BatchedGemm, MatchesOneProductPerBatch) {
  for (const Place place : kPlaces) {
    StridedArray<float> a({6, 9, 20}, place), b({6, 20, 13}, place), out({6, 9, 13}, place);
    a.randomize(1), b.randomize(2), out.randomize(3);
    auto expected = out.values();
    for (int64_t batch = 0; batch < 6; ++batch) {
      for (int64_t i = 0; i < 9; ++i) {
        for (int64_t j = 0; j < 13; ++j) {
          double sum = 0.0;
          for (int64_t k = 0; k < 20; ++k)
            sum += double(a[(batch * 9 + i) * 20 + k]) * b[(batch * 20 + k) * 13 + j];
          double& value = expected[(batch * 9 + i) * 13 + j];
          value = sum + 2.0 * value;
        }
      }
    }
    batched_gemm(out.view(), a.view(), b.view(), {.alpha = 1.0, .beta = 2.0, .bias = {}});
    EXPECT_LE(scaled_difference(out.values(), expected), 1e-6);
  }
}

TEST(BatchedGemm, StrideZeroRepeatsOneMatrix) {
  StridedArray<float> a({3, 4, 5}), b({5, 2}), out({3, 4, 2}), single({4, 2});
  a.randomize(1), b.randomize(2);
  const DimVector sizes = {3, 5, 2}, strides = {0, 2, 1};
  batched_gemm(out.view(), a.view(), {b.view().data, DType::kF32, sizes.span(), strides.span()});
  for (int64_t batch = 0; batch < 3; ++batch) {
    const DimVector one_sizes = {4, 5}, one_strides = {5, 1};
    gemm(single.view(),
         {a.view().as<float>() + batch * 20, DType::kF32, one_sizes.span(), one_strides.span()},
         b.view());
    for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(out[batch * 8 + i], single[i]);
  }
}

TEST(Gemm, RefusesWhatDoesNotFit) {
  StridedArray<float> a({2, 3}), b({4, 2}), out({2, 2});
  EXPECT_ERROR(gemm(out.view(), a.view(), b.view()), ErrorCode::kInvalidArgument,
               HasSubstr("a [2, 3], b [4, 2]"));
  StridedArray<double> c({3, 2});
  EXPECT_ERROR(gemm(out.view(), a.view(), c.view()), ErrorCode::kInvalidArgument,
               HasSubstr("b f64"));
}

}  // namespace
}  // namespace muster::kernels::cpu
