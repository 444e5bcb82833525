// Products of bf16 matrices, both ways, and f32 products made of bf16 ones.
#include <cmath>
#include <limits>

#include "core/kernels/cpu/gemm.h"
#include "core/kernels/precision.h"
#include "tests/core/kernels/strided_array.h"
#include "tests/support/matchers.h"

namespace muster::kernels::cpu {
namespace {
using ::muster::testing::Place;
using ::muster::testing::same_bits_on_any_threads;
using ::muster::testing::scaled_difference;
using ::muster::testing::StridedArray;
using ::testing::HasSubstr;

class WayScope {
 public:
  explicit WayScope(Bf16Products way) { set_bf16_products(way); }
  ~WayScope() { set_bf16_products(Bf16Products::kAuto); }
  WayScope(const WayScope&) = delete;
  WayScope& operator=(const WayScope&) = delete;
};

class HighScope {
 public:
  HighScope() {
    set_float32_matmul_precision(MatmulPrecision::kHigh);
    set_split_products_everywhere(true);
  }
  ~HighScope() {
    set_float32_matmul_precision(MatmulPrecision::kHighest);
    set_split_products_everywhere(false);
  }
  HighScope(const HighScope&) = delete;
  HighScope& operator=(const HighScope&) = delete;
};

// The ways that this machine can run.
std::vector<Bf16Products> ways() {
  std::vector<Bf16Products> all = {Bf16Products::kWiden};
  if (cpu_has_avx512()) all.push_back(Bf16Products::kNative);
  return all;
}

struct Product {
  double alpha = 1.0, beta = 0.0;
  bool bias = false;
};

// One product of random matrices, and the same in double.
template <typename T>
double error_of(int64_t m, int64_t n, int64_t k, Place out_place, Place a_place, Place b_place,
                const Product& product) {
  StridedArray<T> a({m, k}, a_place), b({k, n}, b_place), out({m, n}, out_place), bias({n});
  a.randomize(1), b.randomize(2), out.randomize(3), bias.randomize(4);
  const auto av = a.values(), bv = b.values(), biases = bias.values();
  std::vector<double> expected = out.values();
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0.0;
      for (int64_t l = 0; l < k; ++l) sum += av[i * k + l] * bv[l * n + j];
      double& value = expected[i * n + j];
      value = product.alpha * sum + (product.beta == 0.0 ? 0.0 : product.beta * value);
      if (product.bias) value += biases[j];
    }
  }
  GemmOptions options{.alpha = product.alpha, .beta = product.beta, .bias = {}};
  if (product.bias) options.bias.emplace(bias.view());
  gemm(out.view(), a.view(), b.view(), options);
  return scaled_difference(out.values(), expected);
}

TEST(GemmBf16, BothWaysMatchTheReferenceForEveryLayout) {
  constexpr Place kPlaces[] = {Place::kDense, Place::kTransposed, Place::kGaps};
  constexpr Product kProducts[] = {{}, {.bias = true}, {1.5, 0.5, true}, {2.0, 0.0, false}};
  for (const Bf16Products way : ways()) {
    const WayScope scope(way);
    for (const Place out : kPlaces) {
      for (const Place a : kPlaces) {
        for (const Place b : kPlaces) {
          for (const Product& product : kProducts) {
            for (const auto& [m, n, k] : {std::tuple{1, 1, 1},
                                          {3, 5, 7},
                                          {1, 33, 17},
                                          {65, 1, 64},
                                          {2, 3, 0},
                                          {70, 130, 129}}) {
              ASSERT_LE(error_of<BFloat16>(m, n, k, out, a, b, product), 4.2e-3)
                  << int(way) << ": " << m << "x" << n << "x" << k << " places " << int(out)
                  << int(a) << int(b) << " alpha " << product.alpha;
            }
          }
        }
      }
    }
  }
}

// One rounding at the end: sums of 4096 ones are exact although bf16 cannot count past 256.
TEST(GemmBf16, SumsInF32) {
  for (const Bf16Products way : ways()) {
    const WayScope scope(way);
    StridedArray<BFloat16> a({2, 4096}), b({4096, 3}, Place::kTransposed), out({2, 3});
    a.fill(1), b.fill(1);
    gemm(out.view(), a.view(), b.view());
    for (const double value : out.values()) EXPECT_EQ(value, 4096.0) << int(way);
  }
}

TEST(GemmBf16, BothWaysAgreeUpToTheLastRounding) {
  if (!cpu_has_avx512()) GTEST_SKIP() << "this CPU has no AVX-512";
  StridedArray<BFloat16> a({130, 700}), b({700, 260}, Place::kTransposed), x({130, 260}),
      y({130, 260});
  a.randomize(1), b.randomize(2);
  const auto run = [&](Bf16Products way, StridedArray<BFloat16>& out) {
    const WayScope scope(way);
    gemm(out.view(), a.view(), b.view());
  };
  run(Bf16Products::kNative, x);
  run(Bf16Products::kWiden, y);
  const auto xs = x.values(), ys = y.values();
  double largest = 0;
  for (const double value : ys) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < xs.size(); ++i) {
    EXPECT_LE(std::abs(xs[i] - ys[i]), std::max(std::abs(ys[i]), 1e-3 * largest) / 128) << i;
  }
}

TEST(GemmBf16, GivesTheSameBitsOnAnyNumberOfThreads) {
  for (const Bf16Products way : ways()) {
    const WayScope scope(way);
    for (const auto& [m, n, k] : {std::tuple{256, 2304, 768}, {2304, 768, 256}, {37, 1031, 515}}) {
      StridedArray<BFloat16> a({m, k}), b({k, n}, Place::kTransposed);
      a.randomize(1), b.randomize(2);
      EXPECT_TRUE(same_bits_on_any_threads([&] {
        StridedArray<BFloat16> out({m, n});
        gemm(out.view(), a.view(), b.view());
        return out.values();
      })) << int(way);
    }
  }
}

TEST(GemmBf16, BatchesAndRepeatedMatrices) {
  for (const Bf16Products way : ways()) {
    const WayScope scope(way);
    StridedArray<BFloat16> a({3, 4, 5}), b({5, 2}), out({3, 4, 2}), single({4, 2});
    a.randomize(1), b.randomize(2);
    const DimVector sizes = {3, 5, 2}, strides = {0, 2, 1};
    batched_gemm(out.view(), a.view(), {b.view().data, DType::kBF16, sizes.span(), strides.span()});
    for (int64_t batch = 0; batch < 3; ++batch) {
      const DimVector one_sizes = {4, 5}, one_strides = {5, 1};
      gemm(single.view(),
           {a.view().as<BFloat16>() + batch * 20, DType::kBF16, one_sizes.span(),
            one_strides.span()},
           b.view());
      for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(out[batch * 8 + i].bits, single[i].bits);
    }
  }
}

TEST(GemmBf16, ChoosesByWhatTheCpuHas) {
  EXPECT_EQ(uses_native_bf16_products(), cpu_has_bf16_products());
  {
    const WayScope scope(Bf16Products::kWiden);
    EXPECT_FALSE(uses_native_bf16_products());
  }
  const WayScope scope(Bf16Products::kNative);
  EXPECT_EQ(uses_native_bf16_products(), cpu_has_avx512());
}

TEST(MatmulPrecision, HighIsThreeBf16ProductsOfFullAccuracyBut17Bits) {
  if (!cpu_has_avx512()) GTEST_SKIP() << "this CPU has no AVX-512";
  const HighScope high;
  ASSERT_TRUE(uses_split_products());
  for (const Place a : {Place::kDense, Place::kTransposed, Place::kGaps}) {
    for (const Place b : {Place::kDense, Place::kTransposed, Place::kGaps}) {
      const double error = error_of<float>(130, 260, 700, Place::kDense, a, b, {1.5, 0.5, true});
      EXPECT_LE(error, 4e-6);
      EXPECT_GT(error, 0.0);
    }
  }
  // Short sums average less of it away; one bf16 product alone would be off by 2e-3.
  EXPECT_LE(error_of<float>(64, 64, 64, Place::kTransposed, Place::kDense, Place::kDense, {}),
            6e-6);
}

TEST(MatmulPrecision, HighDiffersFromHighestWhereItIsUsed) {
  if (!cpu_has_avx512()) GTEST_SKIP() << "this CPU has no AVX-512";
  StridedArray<float> a({32, 96}), b({96, 40}), highest({32, 40}), high({32, 40});
  a.randomize(1), b.randomize(2);
  gemm(highest.view(), a.view(), b.view());
  {
    const HighScope scope;
    gemm(high.view(), a.view(), b.view());
  }
  EXPECT_NE(high.values(), highest.values());
  EXPECT_LE(scaled_difference(high.values(), highest.values()), 4e-6);
}

TEST(MatmulPrecision, HighKeepsInfinitiesAndLargeNumbers) {
  const HighScope high;
  StridedArray<float> a({1, 2}), b({2, 1}), out({1, 1});
  a[0] = std::numeric_limits<float>::infinity(), a[1] = 1;
  b.fill(1);
  gemm(out.view(), a.view(), b.view());
  EXPECT_EQ(out[0], std::numeric_limits<float>::infinity());
  a[0] = std::numeric_limits<float>::max(), b[0] = 0.5f, b[1] = 0;
  gemm(out.view(), a.view(), b.view());
  EXPECT_EQ(out[0], 0.5f * std::numeric_limits<float>::max());
}

TEST(MatmulPrecision, HighestIsTheDefaultAndHighNeedsAmxUnlessForced) {
  EXPECT_EQ(float32_matmul_precision(), MatmulPrecision::kHighest);
  EXPECT_FALSE(uses_split_products());
  set_float32_matmul_precision(MatmulPrecision::kHigh);
  EXPECT_EQ(uses_split_products(), cpu_has_amx());
  set_float32_matmul_precision(MatmulPrecision::kHighest);
}

TEST(MatmulPrecision, NamesAreParsed) {
  EXPECT_EQ(parse_matmul_precision("high").value(), MatmulPrecision::kHigh);
  EXPECT_EQ(parse_matmul_precision("highest").value(), MatmulPrecision::kHighest);
  EXPECT_THAT(parse_matmul_precision("medium"),
              ::muster::testing::FailsWith(ErrorCode::kInvalidArgument, HasSubstr("medium")));
}
}  // namespace
}  // namespace muster::kernels::cpu
