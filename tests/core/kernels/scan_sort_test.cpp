#include <algorithm>
#include <cmath>
#include <limits>

#include "core/kernels/cpu/scan.h"
#include "core/kernels/cpu/sort.h"
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
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Flat positions of each line along a dim, in order.
std::vector<std::vector<int64_t>> lines_of(Dims sizes, int64_t dim) {
  const DimVector strides = contiguous_strides(sizes);
  const auto d = static_cast<size_t>(dim);
  std::vector<std::vector<int64_t>> lines;
  for (int64_t flat = 0; flat < numel_of(sizes); ++flat) {
    if (flat / strides[d] % sizes[d] != 0) continue;
    std::vector<int64_t> line;
    for (int64_t i = 0; i < sizes[d]; ++i) line.push_back(flat + i * strides[d]);
    lines.push_back(line);
  }
  return lines;
}

TEST(Scan, RunsAlongEveryDimInEveryLayout) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (const Arrangement arrangement : kOwnArrangements) {
      for (const int64_t dim : {0, 1, 2}) {
        TestView in({6, 5, 13}, dtype, arrangement);
        in.fill_from(scattered_values(in.numel(), 1.3));
        const TestView sum({6, 5, 13}, dtype);
        const TestView product({6, 5, 13}, dtype);
        const TestView logsum({6, 5, 13}, dtype);
        scan(ScanKind::kSum, sum, in, dim);
        scan(ScanKind::kProd, product, in, dim);
        scan(ScanKind::kLogsumexp, logsum, in, dim);
        const double tolerance = dtype == DType::kF64 ? 1e-13 : dtype == DType::kF32 ? 1e-6 : 2e-2;
        for (const auto& line : lines_of(in.sizes(), dim)) {
          double s = 0;
          double p = 1;
          double e = 0;
          for (const int64_t at : line) {
            s += in.get(at);
            p *= in.get(at);
            e += std::exp(in.get(at));
            ASSERT_NEAR(sum.get(at), s, tolerance * std::max(1.0, std::abs(s)));
            ASSERT_NEAR(product.get(at), p, tolerance * std::max(1.0, std::abs(p)));
            ASSERT_NEAR(logsum.get(at), std::log(e), tolerance * 4);
          }
        }
      }
    }
  }
}

TEST(Scan, SideBySideLinesGiveTheSameBitsAsSeparateOnesOnAnyNumberOfThreads) {
  TestView rows({600, 400}, DType::kF32);
  rows.fill_from(scattered_values(rows.numel(), 1));
  TestView columns({600, 400}, DType::kF32, Arrangement::kTransposed);
  columns.fill_with([&](int64_t i) { return rows.get(i); });
  testing::expect_same_on_any_threads([&] {
    const TestView a({600, 400}, DType::kF32);
    const TestView b({600, 400}, DType::kF32);
    scan(ScanKind::kSum, a, rows, 0);
    scan(ScanKind::kSum, b, columns, 0);
    EXPECT_TRUE(a.bits() == b.bits());
    return a.bits();
  });
}

TEST(Scan, IntegersAddUpInI64AndInPlaceWorks) {
  TestView in({3}, DType::kI32);
  in.fill_from({2000000000, 2000000000, 5});
  const TestView out({3}, DType::kI64);
  scan(ScanKind::kSum, out, in, 0);
  EXPECT_EQ(out.values(), (Values{2e9, 4e9, 4000000005.0}));
  TestView x({4}, DType::kF32);
  x.fill_from({1, 2, 3, 4});
  scan(ScanKind::kProd, x, x, -1);
  EXPECT_EQ(x.values(), (Values{1, 2, 6, 24}));
  TestView zero_dim(Dims{}, DType::kF32);
  zero_dim.set(0, 3);
  scan(ScanKind::kSum, zero_dim, zero_dim, 0);
  EXPECT_EQ(zero_dim.get(0), 3);
  EXPECT_ERROR(scan(ScanKind::kSum, x, x, 1), ErrorCode::kOutOfRange, HasSubstr("[-1, 0]"));
}

TEST(ScanExtreme, KeepsTheLastOfEqualsAndNan) {
  TestView in({6}, DType::kF32);
  in.fill_from({2, 2, 1, kNan, 5, kNan});
  const TestView values({6}, DType::kF32);
  const TestView indices({6}, DType::kI64);
  scan_extreme(true, values, indices, in, 0);
  EXPECT_EQ(indices.values(), (Values{0, 1, 1, 3, 3, 5}));
  EXPECT_EQ(values.get(2), 2);
  EXPECT_TRUE(std::isnan(values.get(4)));
  scan_extreme(false, values, indices, in, 0);
  EXPECT_EQ(indices.values(), (Values{0, 1, 2, 3, 3, 5}));
}

TEST(Sort, IsStableInBothDirectionsInEveryLayoutAndDtype) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kI64, DType::kU8}) {
    for (const Arrangement arrangement : kOwnArrangements) {
      for (const int64_t dim : {0, 1}) {
        TestView in({40, 30}, dtype, arrangement);
        in.fill_with([](int64_t i) { return static_cast<double>(i * 7919 % 13); });
        const TestView values({40, 30}, dtype);
        const TestView indices({40, 30}, DType::kI64);
        for (const bool descending : {false, true}) {
          sort(values, indices, in, dim, descending);
          for (const auto& line : lines_of(in.sizes(), dim)) {
            std::vector<int64_t> order(line.size());
            for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
            std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
              const double x = in.get(line[static_cast<size_t>(a)]);
              const double y = in.get(line[static_cast<size_t>(b)]);
              return descending ? x > y : x < y;
            });
            for (size_t i = 0; i < line.size(); ++i) {
              ASSERT_EQ(indices.get(line[i]), static_cast<double>(order[i]));
              ASSERT_EQ(values.get(line[i]), in.get(line[static_cast<size_t>(order[i])]));
            }
          }
        }
      }
    }
  }
}

TEST(Sort, NanIsLargestAndZerosAreEqual) {
  TestView in({6}, DType::kF32);
  in.fill_from({0.0, kNan, -kInf, -0.0, kInf, -1});
  const TestView values({6}, DType::kF32);
  const TestView indices({6}, DType::kI64);
  sort(values, indices, in, 0, false);
  EXPECT_EQ(indices.values(), (Values{2, 5, 0, 3, 4, 1}));
  EXPECT_TRUE(std::signbit(values.get(3)));
  sort(values, indices, in, 0, true);
  EXPECT_EQ(indices.values(), (Values{1, 4, 0, 3, 5, 2}));
}

TEST(Topk, GivesTheBestInOrderWithTheEarlierOfEquals) {
  TestView in({3, 50}, DType::kF32);
  in.fill_with([](int64_t i) { return static_cast<double>(i * 31 % 17); });
  const TestView sorted({3, 50}, DType::kF32);
  const TestView order({3, 50}, DType::kI64);
  const TestView values({3, 7}, DType::kF32);
  const TestView indices({3, 7}, DType::kI64);
  for (const bool largest : {true, false}) {
    sort(sorted, order, in, 1, largest);
    topk(values, indices, in, 1, largest);
    for (int64_t i = 0; i < 21; ++i) {
      EXPECT_EQ(values.get(i), sorted.get(i / 7 * 50 + i % 7));
      EXPECT_EQ(indices.get(i), order.get(i / 7 * 50 + i % 7));
    }
  }
  const TestView too_many({3, 51}, DType::kF32);
  const TensorView none(nullptr, DType::kI64, {}, {});
  EXPECT_ERROR(topk(too_many, none, in, 1, true), ErrorCode::kOutOfRange, HasSubstr("50; got 51"));
}

TEST(Kthvalue, AgreesWithSorting) {
  TestView in({4, 21}, DType::kF32, Arrangement::kTransposed);
  in.fill_from(scattered_values(in.numel(), 1));
  const TestView sorted({4, 21}, DType::kF32);
  const TensorView none(nullptr, DType::kI64, {}, {});
  sort(sorted, none, in, 1, false);
  const TestView values({4, 1}, DType::kF32);
  const TestView indices({4, 1}, DType::kI64);
  for (int64_t k = 1; k <= 21; ++k) {
    kthvalue(values, indices, in, 1, k);
    for (int64_t row = 0; row < 4; ++row) {
      ASSERT_EQ(values.get(row), sorted.get(row * 21 + k - 1));
      ASSERT_EQ(in.get(row * 21 + static_cast<int64_t>(indices.get(row))), values.get(row));
    }
  }
  EXPECT_ERROR(kthvalue(values, indices, in, 1, 22), ErrorCode::kOutOfRange, HasSubstr("[1, 21]"));
}

TEST(Searchsorted, FindsTheFirstPlaceOnTheAskedSide) {
  TestView line({5}, DType::kF32);
  line.fill_from({1, 2, 2, 4, kNan});
  TestView values({2, 3}, DType::kF64);
  values.fill_from({0, 2, 3, 4, 9, kNan});
  const TestView out({2, 3}, DType::kI64);
  searchsorted(out, line, values, false);
  EXPECT_EQ(out.values(), (Values{0, 1, 3, 3, 4, 4}));
  searchsorted(out, line, values, true);
  EXPECT_EQ(out.values(), (Values{0, 3, 3, 4, 4, 5}));

  TestView lines({2, 3}, DType::kI64);
  lines.fill_from({1, 3, 5, 10, 20, 30});
  TestView wanted({2, 2}, DType::kI64);
  wanted.fill_from({4, 5, 4, 30});
  const TestView places({2, 2}, DType::kI64);
  searchsorted(places, lines, wanted, false);
  EXPECT_EQ(places.values(), (Values{2, 2, 0, 2}));
}
}  // namespace
}  // namespace muster::kernels::cpu
