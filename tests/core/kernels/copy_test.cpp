#include "core/kernels/cpu/copy.h"

#include <cmath>
#include <limits>

#include "tests/core/kernels/test_view.h"
#include "tests/support/matchers.h"

namespace muster::kernels::cpu {
namespace {
using ::muster::testing::Arrangement;
using ::muster::testing::kOwnArrangements;
using ::muster::testing::scattered_values;
using ::muster::testing::TestView;
using ::testing::HasSubstr;
using Values = std::vector<double>;
constexpr DType kAllDTypes[] = {DType::kBool, DType::kU8,  DType::kI8,   DType::kI16, DType::kI32,
                                DType::kI64,  DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

TEST(Copy, EveryPairOfDtypesAndLayoutsKeepsSmallIntegers) {
  for (const DType from : kAllDTypes) {
    for (const DType to : kAllDTypes) {
      for (const Arrangement arrangement : kOwnArrangements) {
        TestView in({3, 5, 4}, from, arrangement);
        in.fill_with([](int64_t i) { return static_cast<double>(i % 7); });
        const TestView out({3, 5, 4}, to);
        copy(out, in);
        for (int64_t i = 0; i < in.numel(); ++i) {
          const double expected = to == DType::kBool ? (in.get(i) != 0 ? 1.0 : 0.0) : in.get(i);
          ASSERT_EQ(out.get(i), expected) << to_string(from) << " to " << to_string(to);
        }
      }
    }
  }
}

TEST(Copy, LargeTransposesOfEveryItemSizeAreExact) {
  for (const DType dtype : {DType::kU8, DType::kBF16, DType::kF32, DType::kF64}) {
    TestView in({3, 70, 131}, dtype, Arrangement::kTransposed);
    in.fill_with([](int64_t i) { return static_cast<double>(i % 127); });
    for (const Arrangement arrangement : kOwnArrangements) {
      const TestView out({3, 70, 131}, dtype, arrangement);
      copy(out, in);
      ASSERT_EQ(out.values(), in.values()) << to_string(dtype);
    }
  }
}

TEST(Copy, ThreadsDoNotChangeLargeCopies) {
  TestView in({257, 513}, DType::kF32, Arrangement::kTransposed);
  in.fill_from(scattered_values(in.numel(), 10));
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    testing::expect_same_on_any_threads([&] {
      const TestView out({257, 513}, dtype);
      copy(out, in);
      return out.bits();
    });
  }
}

TEST(Copy, ExpandedInputsAreRepeated) {
  TestView in({4, 300}, DType::kF32, Arrangement::kExpanded);
  in.fill_from(scattered_values(300, 1));
  const TestView out({4, 300}, DType::kF32);
  copy(out, in);
  EXPECT_EQ(out.values(), in.values());
}

TEST(Copy, ConversionsTruncateWrapAndRoundToEven) {
  const auto converted = [](double value, DType from, DType to) {
    TestView in({1}, from);
    in.set(0, value);
    const TestView out({1}, to);
    copy(out, in);
    return out.get(0);
  };
  EXPECT_EQ(converted(-1.9, DType::kF32, DType::kI64), -1);
  EXPECT_EQ(converted(-1.0, DType::kF32, DType::kU8), 255);
  EXPECT_EQ(converted(300, DType::kI64, DType::kI8), 44);
  EXPECT_EQ(converted(1.00390625, DType::kF32, DType::kBF16), 1.0);       // a tie
  EXPECT_EQ(converted(1.01171875, DType::kF32, DType::kBF16), 1.015625);  // a tie, odd below
  EXPECT_EQ(converted(65520, DType::kF32, DType::kF16), INFINITY);
  EXPECT_EQ(converted(0x1p-24, DType::kF32, DType::kF16), 0x1p-24);
  EXPECT_EQ(converted(0.5, DType::kF32, DType::kBool), 1);
  EXPECT_EQ(converted(16777217, DType::kI64, DType::kF32), 16777216);
  EXPECT_TRUE(std::isnan(converted(NAN, DType::kF32, DType::kBF16)));
  EXPECT_TRUE(std::isnan(converted(NAN, DType::kF64, DType::kF16)));
}

TEST(Copy, VectorAndScalarRoundingTo16BitFloatsAgree) {
  std::vector<double> values = scattered_values(20000, 1);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::ldexp(values[i], static_cast<int>(i % 60) - 30);
  }
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    TestView in({20000}, DType::kF32);
    in.fill_from(values);
    const TestView out({20000}, dtype);
    copy(out, in);
    const TestView back({20000}, DType::kF32);
    copy(back, out);
    for (int64_t i = 0; i < in.numel(); ++i) {
      const auto x = static_cast<float>(in.get(i));
      const float expected =
          dtype == DType::kBF16 ? static_cast<float>(BFloat16(x)) : static_cast<float>(Half(x));
      ASSERT_EQ(static_cast<float>(back.get(i)), expected) << x;
    }
  }
}

TEST(Copy, SizesMustAgreeAndEmptyIsFine) {
  const TestView a({2, 3}, DType::kF32);
  const TestView b({3, 2}, DType::kF32);
  EXPECT_ERROR(copy(a, b), ErrorCode::kInvalidArgument, HasSubstr("[2, 3] and [3, 2]"));
  const TestView empty({0, 3}, DType::kF32);
  copy(empty, empty);
}

TEST(Fill, WritesTheConvertedNumberEverywhere) {
  for (const DType dtype : kAllDTypes) {
    for (const Arrangement arrangement : kOwnArrangements) {
      const TestView out({3, 4}, dtype, arrangement);
      fill(out, 1.75);
      const double expected = dtype == DType::kBool || is_integral(dtype) ? 1 : 1.75;
      EXPECT_EQ(out.values(), Values(12, expected)) << to_string(dtype);
    }
  }
  const TestView big({1}, DType::kI64);
  fill(big, (int64_t{1} << 53) + 1);
  EXPECT_EQ(big.view().as<int64_t>()[0], (int64_t{1} << 53) + 1);
}

TEST(Arange, CountsInIntegersOrInF64) {
  const TestView n({4}, DType::kI64);
  arange(n, 5, -2);
  EXPECT_EQ(n.values(), (Values{5, 3, 1, -1}));
  const TestView x({5}, DType::kF32);
  arange(x, 0.5, 0.1);
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(static_cast<float>(x.get(i)), static_cast<float>(0.5 + static_cast<double>(i) * 0.1));
  }
  const TestView flat({2, 2}, DType::kF32);
  EXPECT_ERROR(arange(flat, 0, 1), ErrorCode::kInvalidArgument, HasSubstr("one dim"));
}

TEST(Linspace, MeetsBothEndsExactly) {
  const TestView x({7}, DType::kF64);
  linspace(x, -1, 2);
  EXPECT_EQ(x.get(0), -1);
  EXPECT_EQ(x.get(6), 2);
  EXPECT_DOUBLE_EQ(x.get(2), 0);
  const TestView one({1}, DType::kF32);
  linspace(one, 3, 9);
  EXPECT_EQ(one.get(0), 3);
}

TEST(Eye, HasOnesOnTheDiagonalOnly) {
  const TestView x({2, 3}, DType::kF32, Arrangement::kTransposed);
  eye(x);
  EXPECT_EQ(x.values(), (Values{1, 0, 0, 0, 1, 0}));
}

TEST(Triangle, KeepsTheSideThatItNames) {
  for (const Arrangement arrangement : kOwnArrangements) {
    TestView in({2, 4, 5}, DType::kF32, arrangement);
    in.fill_with([](int64_t i) { return static_cast<double>(i + 1); });
    for (int64_t diagonal = -5; diagonal <= 6; ++diagonal) {
      const TestView lower({2, 4, 5}, DType::kF32);
      const TestView upper({2, 4, 5}, DType::kF32);
      tril(lower, in, diagonal);
      triu(upper, in, diagonal);
      for (int64_t i = 0; i < in.numel(); ++i) {
        const int64_t below = i % 5 - i / 5 % 4;
        ASSERT_EQ(lower.get(i), below <= diagonal ? in.get(i) : 0) << diagonal;
        ASSERT_EQ(upper.get(i), below >= diagonal ? in.get(i) : 0) << diagonal;
      }
    }
  }
  TestView x({2, 2}, DType::kI64);
  x.fill_from({1, 2, 3, 4});
  tril(x, x, 0);
  EXPECT_EQ(x.values(), (Values{1, 0, 3, 4}));
  const TestView line({3}, DType::kF32);
  EXPECT_ERROR(tril(line, line, 0), ErrorCode::kInvalidArgument, HasSubstr("two dims"));
}

TEST(Equal, ComparesAcrossLayoutsAndDtypes) {
  TestView a({40, 50}, DType::kF32, Arrangement::kTransposed);
  a.fill_with([](int64_t i) { return static_cast<double>(i); });
  TestView b({40, 50}, DType::kI64);
  copy(b, a);
  EXPECT_TRUE(equal(a, b));
  b.set(1999, 7);
  EXPECT_FALSE(equal(a, b));
  a.set(0, NAN);
  EXPECT_FALSE(equal(a, a));
}
}  // namespace
}  // namespace muster::kernels::cpu
