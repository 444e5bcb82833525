#include "core/kernels/cpu/random.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/kernels/cpu/random_vec.h"
#include "tests/core/kernels/test_view.h"
#include "tests/support/matchers.h"

namespace muster::kernels::cpu {
namespace {
using ::muster::testing::Arrangement;
using ::muster::testing::kOwnArrangements;
using ::muster::testing::scattered_values;
using ::muster::testing::TestView;
using ::testing::HasSubstr;

// @source Random123 1.14, kat_vectors, philox4x32 10
TEST(Philox, MatchesThePublishedVectors) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomWords, TheVectorFormEqualsTheDefinitionAtEveryStartAndLength) {
  const uint64_t starts[] = {0, 1, 2, 3, 17, (uint64_t{1} << 34) - 5, (uint64_t{1} << 40) + 1};
  for (const uint64_t start : starts) {
    for (const int64_t count : {1, 3, 4, 63, 64, 65, 200}) {
      std::vector<uint32_t> words(static_cast<size_t>(count));
      random_words(0x1234567890abcdef, 77, start, words.data(), count);
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(words[static_cast<size_t>(i)],
                  random_word(0x1234567890abcdef, 77, start + static_cast<uint64_t>(i)))
            << start << " + " << i;
      }
    }
  }
}

struct Fill {
  const char* name;
  DType dtype;
  std::function<void(const TensorView&, const RandomStream&)> run;
};
std::vector<Fill> fills() {
  std::vector<Fill> all;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    all.push_back({"uniform", dtype, [](const TensorView& out, const RandomStream& stream) {
                     uniform(out, -1, 3, stream);
                   }});
    all.push_back({"normal", dtype, [](const TensorView& out, const RandomStream& stream) {
                     normal(out, 0.5, 2, stream);
                   }});
    all.push_back({"dropout", dtype, [](const TensorView& out, const RandomStream& stream) {
                     const double one = 1;
                     const DimVector zeros(out.ndim(), 0);
                     const TensorView ones(const_cast<double*>(&one), DType::kF64, out.sizes,
                                           zeros.span());
                     dropout(out, ones, 0.3, stream);
                   }});
  }
  all.push_back({"bernoulli", DType::kBool, [](const TensorView& out, const RandomStream& stream) {
                   bernoulli(out, 0.4, stream);
                 }});
  all.push_back({"randint", DType::kI64, [](const TensorView& out, const RandomStream& stream) {
                   randint(out, -10, 1000, stream);
                 }});
  all.push_back({"exponential", DType::kF32, [](const TensorView& out, const RandomStream& stream) {
                   exponential(out, 2, stream);
                 }});
  return all;
}

TEST(Random, AShardDrawsWhatTheWholeTensorHasAtItsPlace) {
  const DimVector whole_sizes = {6, 10, 37};
  struct Box {
    DimVector start;
    DimVector sizes;
  };
  const Box boxes[] = {{{0, 0, 0}, {6, 10, 37}}, {{2, 0, 0}, {3, 10, 37}}, {{0, 3, 0}, {6, 4, 37}},
                       {{1, 2, 5}, {4, 7, 21}},  {{0, 0, 36}, {6, 10, 1}}, {{5, 9, 36}, {1, 1, 1}},
                       {{3, 0, 0}, {0, 10, 37}}};
  const DimVector strides = contiguous_strides(whole_sizes.span());
  for (const Fill& fill : fills()) {
    const TestView whole(whole_sizes.span(), fill.dtype);
    fill.run(whole, {.seed = 42, .offset = 9});
    for (const Box& box : boxes) {
      for (const Arrangement arrangement : kOwnArrangements) {
        const TestView piece(box.sizes.span(), fill.dtype, arrangement);
        fill.run(piece, {.seed = 42,
                         .offset = 9,
                         .global_sizes = whole_sizes.span(),
                         .box_start = box.start.span()});
        for (int64_t i = 0; i < piece.numel(); ++i) {
          int64_t rest = i;
          int64_t at = 0;
          for (size_t d = 3; d-- > 0;) {
            at += (box.start[d] + rest % box.sizes[d]) * strides[d];
            rest /= box.sizes[d];
          }
          ASSERT_EQ(piece.get(i), whole.get(at)) << fill.name << " in " << to_string(fill.dtype);
        }
      }
    }
  }
}

TEST(Random, ThreadsSeedsAndOffsetsMatterAsTheyShould) {
  for (const Fill& fill : fills()) {
    testing::expect_same_on_any_threads([&] {
      const TestView out({300, 333}, fill.dtype);
      fill.run(out, {.seed = 1, .offset = 2});
      return out.bits();
    });
    const auto bits = [&](uint64_t seed, uint64_t offset) {
      const TestView out({1000}, fill.dtype);
      fill.run(out, {.seed = seed, .offset = offset});
      return out.bits();
    };
    EXPECT_FALSE(bits(1, 2) == bits(1, 3)) << fill.name;
    EXPECT_FALSE(bits(1, 2) == bits(2, 2)) << fill.name;
  }
}

struct Moments {
  double mean = 0;
  double variance = 0;
  double fourth = 0;
};
Moments moments_of(const std::vector<double>& x) {
  Moments m;
  const auto count = static_cast<double>(x.size());
  for (const double value : x) m.mean += value / count;
  for (const double value : x) m.variance += (value - m.mean) * (value - m.mean) / count;
  for (const double value : x) m.fourth += std::pow(value - m.mean, 4) / count;
  return m;
}

TEST(Random, DistributionsHaveTheirMoments) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const TestView x({400000}, dtype);
    uniform(x, 2, 5, {.seed = 3});
    Moments m = moments_of(x.values());
    EXPECT_NEAR(m.mean, 3.5, 0.01);
    EXPECT_NEAR(m.variance, 0.75, 0.01);
    const std::vector<double> values = x.values();
    EXPECT_GE(*std::min_element(values.begin(), values.end()), 2);
    EXPECT_LT(*std::max_element(values.begin(), values.end()), 5);

    normal(x, -1, 2, {.seed = 3});
    m = moments_of(x.values());
    EXPECT_NEAR(m.mean, -1, 0.015);
    EXPECT_NEAR(m.variance, 4, 0.05);
    EXPECT_NEAR(m.fourth / (m.variance * m.variance), 3, 0.05);

    exponential(x, 2, {.seed = 3});
    m = moments_of(x.values());
    EXPECT_NEAR(m.mean, 0.5, 0.01);
    EXPECT_NEAR(m.variance, 0.25, 0.01);
  }
  const TestView n({200000}, DType::kI64);
  randint(n, -3, 4, {.seed = 8});
  std::vector<int> counts(7);
  for (const double value : n.values()) ++counts[static_cast<size_t>(value + 3)];
  for (const int count : counts) EXPECT_NEAR(count, 200000 / 7.0, 900);
  const TestView coin({100000}, DType::kF32);
  bernoulli(coin, 0.25, {.seed = 5});
  EXPECT_NEAR(moments_of(coin.values()).mean, 0.25, 0.01);
}

TEST(Random, NeighbouringNormalsAreUncorrelated) {
  const TestView x({200000}, DType::kF32);
  normal(x, 0, 1, {.seed = 6});
  const std::vector<double> z = x.values();
  for (const size_t lag : {1, 2, 3, 4}) {
    double product = 0;
    for (size_t i = 0; i + lag < z.size(); ++i) product += z[i] * z[i + lag];
    EXPECT_NEAR(product / static_cast<double>(z.size()), 0, 0.01) << lag;
  }
}

TEST(Dropout, KeepsExactlyWhereBernoulliGivesZero) {
  TestView x({5000}, DType::kF32);
  x.fill_from(scattered_values(5000, 1));
  const TestView out({5000}, DType::kF32);
  const TestView mask({5000}, DType::kBool);
  const RandomStream stream{.seed = 11, .offset = 4};
  dropout(out, x, 0.2, stream);
  bernoulli(mask, 0.2, stream);
  for (int64_t i = 0; i < 5000; ++i) {
    const float kept = static_cast<float>(x.get(i)) * 1.25f;
    ASSERT_EQ(static_cast<float>(out.get(i)), mask.get(i) != 0 ? 0.0f : kept);
    ASSERT_EQ(mask.get(i) != 0, bernoulli_from_word(random_word(11, 4, uint64_t(i)), 0.2));
  }
}

TEST(Dropout, TheEndsOfTheRangeAreExactAndNanIsDropped) {
  TestView x({100}, DType::kBF16);
  x.fill_from({NAN, 1, 2});
  const TestView out({100}, DType::kBF16);
  dropout(out, x, 1, {.seed = 1});
  for (const double value : out.values()) EXPECT_EQ(value, 0);
  x.fill_from({3, 1, 2});
  dropout(out, x, 0, {.seed = 1});
  EXPECT_EQ(out.values(), x.values());
  dropout(x, x, 0, {.seed = 1});
  EXPECT_EQ(out.values(), x.values());
  EXPECT_ERROR(dropout(out, x, 1.5, {.seed = 1}), ErrorCode::kInvalidArgument,
               HasSubstr("got 1.5"));
  EXPECT_ERROR(bernoulli(out, -0.1, {.seed = 1}), ErrorCode::kInvalidArgument, HasSubstr("-0.1"));
}

TEST(Bernoulli, TakesAProbabilityPerElement) {
  TestView p({1000}, DType::kF32);
  p.fill_with([](int64_t i) { return static_cast<double>(i % 3) / 2; });
  const TestView out({1000}, DType::kF32);
  bernoulli(out, p, {.seed = 2});
  for (int64_t i = 0; i < 1000; ++i) {
    if (i % 3 == 1) continue;
    ASSERT_EQ(out.get(i), static_cast<double>(i % 3) / 2);
  }
  p.set(5, 2);
  EXPECT_ERROR(bernoulli(out, p, {.seed = 2}), ErrorCode::kInvalidArgument, HasSubstr("got 2"));
}

TEST(Randperm, IsAPermutationThatTheSeedDecides) {
  const TestView a({1000}, DType::kI64);
  const TestView b({1000}, DType::kI64);
  randperm(a, 1, 0);
  std::vector<double> sorted = a.values();
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < 1000; ++i) ASSERT_EQ(sorted[i], static_cast<double>(i));
  randperm(b, 1, 0);
  EXPECT_EQ(a.values(), b.values());
  randperm(b, 1, 1);
  EXPECT_NE(a.values(), b.values());
}

TEST(Random, PiecesOutsideTheWholeAndEmptyRangesAreRefused) {
  const TestView out({3}, DType::kF32);
  const DimVector sizes = {10};
  const DimVector start = {8};
  EXPECT_ERROR(uniform(out, 0, 1, {.global_sizes = sizes.span(), .box_start = start.span()}),
               ErrorCode::kInvalidArgument, HasSubstr("[3] at [8] in [10]"));
  EXPECT_ERROR(randint(out, 5, 5, {}), ErrorCode::kInvalidArgument, HasSubstr("low 5 and high 5"));
}
}  // namespace
}  // namespace muster::kernels::cpu
