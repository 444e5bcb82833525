#include "core/kernels/cpu/reduce.h"

#include <cmath>
#include <functional>
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
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

DimVector kept(Dims sizes, Dims dims) {
  DimVector out(sizes);
  for (const int64_t dim : dims) {
    const auto d = static_cast<size_t>(dim < 0 ? dim + static_cast<int64_t>(sizes.size()) : dim);
    if (!out.empty()) out[d] = 1;
  }
  return out;
}

// The elements of each slice, slices and elements in row-major order.
std::vector<Values> slices_of(const TestView& in, Dims dims) {
  const DimVector out_sizes = kept(in.sizes(), dims);
  const DimVector out_strides = contiguous_strides(out_sizes.span());
  std::vector<Values> slices(static_cast<size_t>(numel_of(out_sizes.span())));
  for (int64_t i = 0; i < in.numel(); ++i) {
    int64_t rest = i;
    int64_t slice = 0;
    for (size_t d = in.sizes().size(); d-- > 0;) {
      if (out_sizes[d] != 1) slice += rest % in.sizes()[d] * out_strides[d];
      rest /= in.sizes()[d];
    }
    slices[static_cast<size_t>(slice)].push_back(in.get(i));
  }
  return slices;
}

struct Formula {
  ReduceKind kind;
  std::function<double(const Values&)> exact;
};

double fold(const Values& x, double start, const std::function<double(double, double)>& f) {
  for (const double value : x) start = f(start, value);
  return start;
}

std::vector<Formula> formulas() {
  const auto sum = [](const Values& x) {
    return fold(x, 0, [](double a, double b) { return a + b; });
  };
  const auto squares = [](const Values& x) {
    return fold(x, 0, [](double a, double b) { return a + b * b; });
  };
  return {
      {ReduceKind::kSum, sum},
      {ReduceKind::kNansum, sum},
      {ReduceKind::kMean, [=](const Values& x) { return sum(x) / static_cast<double>(x.size()); }},
      {ReduceKind::kProd,
       [](const Values& x) { return fold(x, 1, [](double a, double b) { return a * b; }); }},
      {ReduceKind::kAmax,
       [](const Values& x) {
         return fold(x, -kInf, [](double a, double b) { return std::max(a, b); });
       }},
      {ReduceKind::kAmin,
       [](const Values& x) {
         return fold(x, kInf, [](double a, double b) { return std::min(a, b); });
       }},
      {ReduceKind::kAny,
       [](const Values& x) {
         return fold(x, 0, [](double a, double b) { return b != 0 ? 1 : a; });
       }},
      {ReduceKind::kAll,
       [](const Values& x) {
         return fold(x, 1, [](double a, double b) { return b == 0 ? 0 : a; });
       }},
      {ReduceKind::kCountNonzero,
       [](const Values& x) {
         return fold(x, 0, [](double a, double b) { return a + (b != 0 ? 1 : 0); });
       }},
      {ReduceKind::kSumOfSquares, squares},
      {ReduceKind::kNorm1,
       [](const Values& x) {
         return fold(x, 0, [](double a, double b) { return a + std::abs(b); });
       }},
      {ReduceKind::kNorm2, [=](const Values& x) { return std::sqrt(squares(x)); }},
      {ReduceKind::kNormInf,
       [](const Values& x) {
         return fold(x, 0, [](double a, double b) { return std::max(a, std::abs(b)); });
       }},
      {ReduceKind::kLogsumexp,
       [](const Values& x) {
         return std::log(fold(x, 0, [](double a, double b) { return a + std::exp(b); }));
       }},
  };
}

TEST(Reduce, EveryKindFollowsItsFormulaOverDimsDtypesAndLayouts) {
  const std::vector<DimVector> dim_sets = {{0},    {1},       {2},  {0, 1}, {1, 2},
                                           {0, 2}, {0, 1, 2}, {-1}, {}};
  for (const Formula& formula : formulas()) {
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
      for (const Arrangement arrangement : kOwnArrangements) {
        for (const DimVector& dims : dim_sets) {
          TestView in({5, 3, 17}, dtype, arrangement);
          in.fill_from(scattered_values(in.numel(), 1.2));
          in.set(4, 0);
          const TestView out(kept(in.sizes(), dims.span()).span(), dtype);
          reduce(formula.kind, out, in, dims.span());
          const std::vector<Values> slices = slices_of(in, dims.span());
          const double tolerance = dtype == DType::kF64   ? 1e-13
                                   : dtype == DType::kF32 ? 5e-7
                                                          : 8e-3;
          for (int64_t i = 0; i < out.numel(); ++i) {
            const double expected = formula.exact(slices[static_cast<size_t>(i)]);
            ASSERT_NEAR(out.get(i), expected, tolerance * std::max(1.0, std::abs(expected)))
                << "kind " << static_cast<int>(formula.kind) << " dims " << to_string(dims.span())
                << " of " << to_string(dtype);
          }
        }
      }
    }
  }
}

TEST(Reduce, LongSlicesAndWideColumnsGiveTheSameBitsOnAnyNumberOfThreads) {
  struct Case {
    DimVector sizes;
    DimVector dims;
  };
  const Case cases[] = {{{300000}, {0}},      {{7, 20001}, {1}}, {{1000, 700}, {0}},
                        {{40, 300, 65}, {1}}, {{70000, 9}, {0}}, {{70000, 3}, {0}}};
  for (const Case& c : cases) {
    TestView in(c.sizes.span(), DType::kF32);
    in.fill_from(scattered_values(1 << 16, 1));
    for (const ReduceKind kind : {ReduceKind::kSum, ReduceKind::kProd, ReduceKind::kAmax,
                                  ReduceKind::kNorm2, ReduceKind::kLogsumexp}) {
      testing::expect_same_on_any_threads([&] {
        const TestView out(kept(c.sizes.span(), c.dims.span()).span(), DType::kF32);
        reduce(kind, out, in, c.dims.span());
        return out.bits();
      });
    }
  }
}

TEST(Reduce, ASliceDoesNotDependOnItsNeighbours) {
  TestView in({6, 9001}, DType::kF32);
  in.fill_from(scattered_values(in.numel(), 1));
  const TestView all({6, 1}, DType::kF32);
  reduce(ReduceKind::kSum, all, in, {1});
  for (int64_t row = 0; row < 6; ++row) {
    TestView alone({1, 9001}, DType::kF32);
    alone.fill_with([&](int64_t i) { return in.get(row * 9001 + i); });
    const TestView sum({1, 1}, DType::kF32);
    reduce(ReduceKind::kSum, sum, alone, {1});
    EXPECT_EQ(sum.bits(), all.bits().substr(static_cast<size_t>(row) * 4, 4));
  }
}

TEST(Reduce, SumsOfF32AreRoundedOnce) {
  TestView in({1 << 20}, DType::kF32);
  double exact = 0;
  in.fill_with([](int64_t i) { return i % 2 == 0 ? 1e7 : 0.1; });
  for (int64_t i = 0; i < in.numel(); ++i) exact += in.get(i);
  const TestView out({1}, DType::kF32);
  reduce(ReduceKind::kSum, out, in, {0});
  EXPECT_EQ(static_cast<float>(out.get(0)), static_cast<float>(exact));
}

TEST(Reduce, IntegersSumInI64AndBoolCounts) {
  TestView in({3, 4}, DType::kI32);
  in.fill_with([](int64_t i) { return static_cast<double>(2000000000 - i); });
  const TestView out({1, 4}, DType::kI64);
  reduce(ReduceKind::kSum, out, in, {0});
  for (int64_t c = 0; c < 4; ++c) {
    EXPECT_EQ(out.get(c), 6000000000.0 - 3.0 * static_cast<double>(c) - 12);
  }
  TestView flags({5}, DType::kBool);
  flags.fill_from({1, 0, 1, 1, 0});
  const TestView count({1}, DType::kI64);
  reduce(ReduceKind::kSum, count, flags, {0});
  EXPECT_EQ(count.get(0), 3);
  const TestView any({1}, DType::kBool);
  reduce(ReduceKind::kAny, any, flags, {0});
  EXPECT_EQ(any.get(0), 1);
  reduce(ReduceKind::kAll, any, flags, {0});
  EXPECT_EQ(any.get(0), 0);
  TestView wide({2}, DType::kI64);
  wide.view().as<int64_t>()[0] = (int64_t{1} << 60) + 1;
  const TestView largest({1}, DType::kI64);
  reduce(ReduceKind::kAmax, largest, wide, {0});
  EXPECT_EQ(largest.view().as<int64_t>()[0], (int64_t{1} << 60) + 1);
}

TEST(Reduce, EmptySlicesHaveTheirIdentities) {
  const TestView in({3, 0}, DType::kF32);
  const TestView out({3, 1}, DType::kF32);
  const auto value = [&](ReduceKind kind) {
    reduce(kind, out, in, {1});
    return out.get(2);
  };
  EXPECT_EQ(value(ReduceKind::kSum), 0);
  EXPECT_EQ(value(ReduceKind::kProd), 1);
  EXPECT_TRUE(std::isnan(value(ReduceKind::kMean)));
  EXPECT_EQ(value(ReduceKind::kLogsumexp), -kInf);
  EXPECT_EQ(value(ReduceKind::kAny), 0);
  EXPECT_EQ(value(ReduceKind::kAll), 1);
  EXPECT_EQ(value(ReduceKind::kNormInf), 0);
  EXPECT_ERROR(reduce(ReduceKind::kAmax, out, in, {1}), ErrorCode::kInvalidArgument,
               HasSubstr("must not be empty"));
  const TestView nothing({1, 0}, DType::kF32);
  reduce(ReduceKind::kAmax, nothing, in, {0});
}

TEST(Reduce, NanWinsAndInfinityIsKept) {
  for (const Arrangement arrangement : {Arrangement::kContiguous, Arrangement::kTransposed}) {
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
      for (int64_t at = 0; at < 70; at += 23) {
        TestView in({70, 40}, dtype, arrangement);
        in.fill_from(scattered_values(in.numel(), 1));
        in.set(at * 40 + 5, kNan);
        for (const int64_t dim : {0, 1}) {
          const TestView out(kept({70, 40}, {dim}).span(), dtype);
          for (const ReduceKind kind : {ReduceKind::kAmax, ReduceKind::kAmin, ReduceKind::kSum,
                                        ReduceKind::kNormInf, ReduceKind::kLogsumexp}) {
            reduce(kind, out, in, {dim});
            EXPECT_TRUE(std::isnan(out.get(dim == 0 ? 5 : at)));
            EXPECT_FALSE(std::isnan(out.get(dim == 0 ? 6 : (at + 1) % 70)));
          }
          reduce(ReduceKind::kNansum, out, in, {dim});
          EXPECT_FALSE(std::isnan(out.get(dim == 0 ? 5 : at)));
        }
      }
    }
  }
  TestView minus({3}, DType::kF32);
  minus.fill_from({-kInf, -kInf, -kInf});
  const TestView out({1}, DType::kF32);
  reduce(ReduceKind::kLogsumexp, out, minus, {0});
  EXPECT_EQ(out.get(0), -kInf);
}

TEST(Reduce, BadDimsAndOutputsAreNamed) {
  const TestView in({2, 3}, DType::kF32);
  const TestView out({2, 1}, DType::kF32);
  EXPECT_ERROR(reduce(ReduceKind::kSum, out, in, {2}), ErrorCode::kOutOfRange,
               HasSubstr("[-2, 1]"));
  EXPECT_ERROR(reduce(ReduceKind::kSum, out, in, {1, -1}), ErrorCode::kInvalidArgument,
               HasSubstr("[1, -1]"));
  EXPECT_ERROR(reduce(ReduceKind::kSum, out, in, {0}), ErrorCode::kInvalidArgument,
               HasSubstr("[2, 1] for an input of [2, 3]"));
}

TEST(VectorNorm, HoldsForEveryOrder) {
  TestView in({4, 6}, DType::kF32);
  in.fill_from(scattered_values(24, 2));
  in.set(3, 0);
  for (const double p : {0.0, 0.5, 1.0, 2.0, 3.0, kInf, -kInf}) {
    const TestView out({4, 1}, DType::kF32);
    vector_norm(out, in, p, {1});
    for (int64_t row = 0; row < 4; ++row) {
      double sum = 0;
      double least = kInf;
      double most = 0;
      for (int64_t c = 0; c < 6; ++c) {
        const double size = std::abs(in.get(row * 6 + c));
        sum += p == 0 ? (size != 0 ? 1 : 0) : std::pow(size, p);
        least = std::min(least, size);
        most = std::max(most, size);
      }
      const double expected = p == kInf    ? most
                              : p == -kInf ? least
                              : p == 0     ? sum
                                           : std::pow(sum, 1 / p);
      EXPECT_NEAR(out.get(row), expected, 1e-5) << "p " << p;
    }
  }
}

TEST(ReduceWithIndex, NamesTheFirstExtremeInRowMajorOrder) {
  const std::vector<DimVector> dim_sets = {{0}, {1}, {2}, {0, 1, 2}, {0, 1}};
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kI64, DType::kI8}) {
    for (const Arrangement arrangement : kOwnArrangements) {
      for (const DimVector& dims : dim_sets) {
        TestView in({9, 5, 20}, dtype, arrangement);
        in.fill_with([](int64_t i) { return static_cast<double>(i * 37 % 11); });
        const DimVector out_sizes = kept(in.sizes(), dims.span());
        const TestView values(out_sizes.span(), dtype);
        const TestView indices(out_sizes.span(), DType::kI64);
        const std::vector<Values> slices = slices_of(in, dims.span());
        for (const bool largest : {true, false}) {
          reduce_with_index(largest, values, indices, in, dims.span());
          for (int64_t i = 0; i < values.numel(); ++i) {
            const Values& slice = slices[static_cast<size_t>(i)];
            const auto at = largest ? std::max_element(slice.begin(), slice.end())
                                    : std::min_element(slice.begin(), slice.end());
            ASSERT_EQ(values.get(i), *at);
            ASSERT_EQ(indices.get(i), at - slice.begin()) << to_string(dims.span());
          }
        }
      }
    }
  }
}

TEST(ReduceWithIndex, TheFirstNanWinsInRowsAndColumns) {
  for (const int64_t dim : {0, 1}) {
    TestView in({50, 60}, DType::kF32);
    in.fill_from(scattered_values(3000, 1));
    in.set(20 * 60 + 30, kNan);
    in.set(dim == 0 ? 40 * 60 + 30 : 20 * 60 + 50, kNan);
    const TestView indices(kept({50, 60}, {dim}).span(), DType::kI64);
    const TensorView none(nullptr, DType::kF32, {}, {});
    for (const bool largest : {true, false}) {
      reduce_with_index(largest, none, indices, in, {dim});
      EXPECT_EQ(indices.get(dim == 0 ? 30 : 20), dim == 0 ? 20 : 30);
    }
  }
}

TEST(ReduceWithIndex, LongSlicesGiveTheSamePlaceOnAnyNumberOfThreads) {
  TestView in({200000}, DType::kF32);
  in.fill_from(scattered_values(50000, 1));  // repeats: four equal maxima
  testing::expect_same_on_any_threads([&] {
    const TestView values({1}, DType::kF32);
    const TestView indices({1}, DType::kI64);
    reduce_with_index(true, values, indices, in, {0});
    EXPECT_LT(indices.get(0), 50000);
    return indices.bits();
  });
}

TEST(VarMean, FollowsTheTwoPassFormula) {
  const std::vector<DimVector> dim_sets = {{0}, {1}, {2}, {0, 1, 2}, {0, 2}};
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const Arrangement arrangement : kOwnArrangements) {
      for (const DimVector& dims : dim_sets) {
        TestView in({20, 7, 30}, dtype, arrangement);
        in.fill_from(scattered_values(in.numel(), 1));
        for (int64_t i = 0; i < in.numel(); ++i) in.set(i, in.get(i) + 1000);
        const DimVector out_sizes = kept(in.sizes(), dims.span());
        const TestView var(out_sizes.span(), dtype);
        const TestView mean(out_sizes.span(), dtype);
        var_mean(var, mean, in, dims.span(), 1.0);
        const std::vector<Values> slices = slices_of(in, dims.span());
        for (int64_t i = 0; i < var.numel(); ++i) {
          const Values& x = slices[static_cast<size_t>(i)];
          const double center =
              fold(x, 0, [](double a, double b) { return a + b; }) / static_cast<double>(x.size());
          const double squares =
              fold(x, 0, [&](double a, double b) { return a + (b - center) * (b - center); });
          const double expected = squares / static_cast<double>(x.size() - 1);
          const double tolerance = dtype == DType::kF64 ? 1e-10 : 2e-7;
          ASSERT_NEAR(var.get(i), expected, tolerance * expected);
          ASSERT_NEAR(mean.get(i), center, tolerance * center);
        }
      }
    }
  }
}

TEST(VarMean, CorrectionAndRootFollowPyTorch) {
  TestView in({3}, DType::kF32);
  in.fill_from({1, 2, 4});
  const TestView var({1}, DType::kF32);
  const TensorView none(nullptr, DType::kF32, {}, {});
  var_mean(var, none, in, {0}, 0.0, true);
  EXPECT_NEAR(var.get(0), std::sqrt(14.0 / 9), 1e-6);
  var_mean(var, none, in, {0}, 3.0);
  EXPECT_EQ(var.get(0), kInf);
  TestView one({1}, DType::kF32);
  one.set(0, 5);
  var_mean(var, none, one, {0}, 1.0);
  EXPECT_TRUE(std::isnan(var.get(0)));
}

TEST(VarMean, GivesTheSameBitsOnAnyNumberOfThreads) {
  for (const int64_t dim : {0, 1}) {
    TestView in({700, 901}, DType::kF32);
    in.fill_from(scattered_values(in.numel(), 1));
    testing::expect_same_on_any_threads([&] {
      const TestView var(kept({700, 901}, {dim}).span(), DType::kF32);
      const TestView mean(kept({700, 901}, {dim}).span(), DType::kF32);
      var_mean(var, mean, in, {dim}, 1.0);
      return var.bits() + mean.bits();
    });
  }
}
}  // namespace
}  // namespace muster::kernels::cpu
