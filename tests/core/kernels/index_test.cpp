#include "core/kernels/cpu/index.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

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

TestView i64s(const Values& values) {
  TestView out({static_cast<int64_t>(values.size())}, DType::kI64);
  out.fill_from(values);
  return out;
}

TEST(IndexSelect, TakesSlicesAlongEveryDimAndLayout) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI64, DType::kBool}) {
    for (const Arrangement arrangement : kOwnArrangements) {
      for (const int64_t dim : {0, 1, 2}) {
        TestView in({4, 3, 40}, dtype, arrangement);
        in.fill_with([](int64_t i) { return static_cast<double>(i % 2); });
        const TestView index = i64s({2, 0, 2, 1});
        DimVector sizes(in.sizes());
        sizes[static_cast<size_t>(dim)] = 4;
        const TestView out(sizes.span(), dtype);
        index_select(out, in, dim, index);
        const DimVector in_strides = contiguous_strides(in.sizes());
        const DimVector out_strides = contiguous_strides(sizes.span());
        for (int64_t i = 0; i < out.numel(); ++i) {
          int64_t from = 0;
          for (size_t d = 0; d < 3; ++d) {
            int64_t at = i / out_strides[d] % sizes[d];
            if (static_cast<int64_t>(d) == dim) at = static_cast<int64_t>(index.get(at));
            from += at * in_strides[d];
          }
          ASSERT_EQ(out.get(i), in.get(from));
        }
      }
    }
  }
}

TEST(IndexSelect, BadIndicesAreNamedWithRangeDimAndPlace) {
  const TestView in({2, 5}, DType::kF32);
  const TestView out({2, 3}, DType::kF32);
  EXPECT_ERROR(index_select(out, in, 1, i64s({0, 5, 1})), ErrorCode::kOutOfRange,
               HasSubstr("index_select: index must be in [0, 5) for dim 1; got 5 at [1]"));
  EXPECT_ERROR(index_select(out, in, 1, i64s({0, -1, 1})), ErrorCode::kOutOfRange,
               HasSubstr("got -1"));
  EXPECT_ERROR(index_select(out, in, 2, i64s({0, 1, 1})), ErrorCode::kOutOfRange,
               HasSubstr("dim must be in [-2, 1]"));
  const TestView floats({3}, DType::kF32);
  EXPECT_ERROR(index_select(out, in, 1, floats), ErrorCode::kInvalidArgument, HasSubstr("f32"));
}

TEST(IndexSelect, I32IndicesAndZeroDimInputsWork) {
  TestView in({3}, DType::kF32);
  in.fill_from({10, 20, 30});
  TestView index({2}, DType::kI32);
  index.fill_from({2, 0});
  const TestView out({2}, DType::kF32);
  index_select(out, in, 0, index);
  EXPECT_EQ(out.values(), (Values{30, 10}));
  TestView scalar(Dims{}, DType::kF32);
  scalar.set(0, 7);
  TestView zero(Dims{}, DType::kI64);
  const TestView copy(Dims{}, DType::kF32);
  index_select(copy, scalar, 0, zero);
  EXPECT_EQ(copy.get(0), 7);
}

TEST(IndexAdd, AddsInIndexOrderScaledOnAnyNumberOfThreads) {
  TestView source({5000, 37}, DType::kF32);
  source.fill_from(scattered_values(source.numel(), 1));
  TestView index({5000}, DType::kI64);
  index.fill_with([](int64_t i) { return static_cast<double>(i * 31 % 11); });
  std::vector<float> expected(11 * 37, 1.0f);
  for (int64_t i = 0; i < source.numel(); ++i) {
    float& place =
        expected[static_cast<size_t>(index.get(i / 37)) * 37 + static_cast<size_t>(i % 37)];
    place += 0.5f * static_cast<float>(source.get(i));
  }
  testing::expect_same_on_any_threads([&] {
    TestView out({11, 37}, DType::kF32);
    out.fill_from({1});
    index_add(out, 0, index, source, 0.5);
    for (int64_t i = 0; i < out.numel(); ++i) {
      EXPECT_EQ(static_cast<float>(out.get(i)), expected[static_cast<size_t>(i)]);
    }
    return out.bits();
  });
}

TEST(IndexCopy, TheLastOfSeveralWritesWins) {
  TestView out({3, 2}, DType::kI64);
  TestView source({3, 2}, DType::kI64);
  source.fill_from({1, 2, 3, 4, 5, 6});
  index_copy(out, 0, i64s({2, 0, 2}), source);
  EXPECT_EQ(out.values(), (Values{3, 4, 0, 0, 5, 6}));
  index_fill(out, 1, i64s({1}), -1);
  EXPECT_EQ(out.values(), (Values{3, -1, 0, -1, 5, -1}));
}

TEST(Gather, FollowsItsDefinitionInEveryLayout) {
  for (const Arrangement arrangement : kOwnArrangements) {
    for (const int64_t dim : {0, 1}) {
      TestView in({6, 50}, DType::kF32, arrangement);
      in.fill_with([](int64_t i) { return static_cast<double>(i); });
      TestView index({5, 40}, DType::kI64, arrangement);
      index.fill_with([&](int64_t i) { return static_cast<double>(i * 7 % (dim == 0 ? 6 : 50)); });
      const TestView out({5, 40}, DType::kF32);
      gather(out, in, dim, index);
      for (int64_t i = 0; i < out.numel(); ++i) {
        const auto at = static_cast<int64_t>(index.get(i));
        ASSERT_EQ(out.get(i), dim == 0 ? at * 50 + i % 40 : i / 40 * 50 + at);
      }
    }
  }
}

TEST(Gather, RefusesNegativeIndicesAndWrongShapes) {
  const TestView in({2, 3}, DType::kF32);
  const TestView out({1, 2}, DType::kF32);
  TestView index({1, 2}, DType::kI64);
  index.fill_from({0, -1});
  EXPECT_ERROR(gather(out, in, 1, index), ErrorCode::kOutOfRange,
               HasSubstr("[0, 3) for dim 1; got -1 at [0, 1]"));
  const TestView tall({3, 2}, DType::kI64);
  const TestView tall_out({3, 2}, DType::kF32);
  EXPECT_ERROR(gather(tall_out, in, 1, tall), ErrorCode::kInvalidArgument, HasSubstr("[3, 2]"));
}

// The definition, element by element in row-major order.
Values scattered(ScatterKind kind, const TestView& self, int64_t dim, const TestView& index,
                 const TestView& src, bool include_self) {
  Values out = self.values();
  std::map<int64_t, int64_t> writes;
  const int64_t columns = self.sizes()[1];
  const int64_t index_columns = index.sizes()[1];
  // Along the dim first, so that the order within a line is that of the dim.
  for (int64_t i = 0; i < index.numel(); ++i) {
    const auto at = static_cast<int64_t>(index.get(i));
    const int64_t target =
        dim == 0 ? at * columns + i % index_columns : i / index_columns * columns + at;
    const double value = src.get(i / index_columns * src.sizes()[1] + i % index_columns);
    double& place = out[static_cast<size_t>(target)];
    const bool first = writes[target]++ == 0 && !include_self;
    if (first || kind == ScatterKind::kAssign) {
      place = value;
    } else if (kind == ScatterKind::kSum || kind == ScatterKind::kMean) {
      place += value;
    } else if (kind == ScatterKind::kProd) {
      place *= value;
    } else {
      place = kind == ScatterKind::kAmax ? std::max(place, value) : std::min(place, value);
    }
  }
  for (const auto& [target, count] : writes) {
    if (kind == ScatterKind::kMean) {
      out[static_cast<size_t>(target)] /= static_cast<double>(count + (include_self ? 1 : 0));
    }
  }
  return out;
}

TEST(Scatter, EveryKindFollowsItsDefinition) {
  const ScatterKind kinds[] = {ScatterKind::kAssign, ScatterKind::kSum,  ScatterKind::kProd,
                               ScatterKind::kAmax,   ScatterKind::kAmin, ScatterKind::kMean};
  for (const ScatterKind kind : kinds) {
    for (const bool include_self : {true, false}) {
      for (const Arrangement arrangement : kOwnArrangements) {
        for (const int64_t dim : {0, 1}) {
          TestView self({9, 30}, DType::kF64, arrangement);
          self.fill_from(scattered_values(self.numel(), 1, 1));
          TestView src({8, 29}, DType::kF64, arrangement);
          src.fill_from(scattered_values(src.numel(), 1, 2));
          TestView index({8, 28}, DType::kI64);
          index.fill_with([](int64_t i) { return static_cast<double>(i * i % 7); });
          const Values expected = scattered(kind, self, dim, index, src, include_self);
          scatter(kind, self, dim, index, src, include_self);
          for (int64_t i = 0; i < self.numel(); ++i) {
            ASSERT_NEAR(self.get(i), expected[static_cast<size_t>(i)], 1e-13)
                << "kind " << static_cast<int>(kind) << " dim " << dim;
          }
        }
      }
    }
  }
}

TEST(Scatter, SumsHaveOneOrderOnAnyNumberOfThreads) {
  TestView src({3000, 64}, DType::kF32);
  src.fill_from(scattered_values(src.numel(), 1));
  TestView index({3000, 64}, DType::kI64);
  index.fill_with([](int64_t i) { return static_cast<double>(i * 13 % 5); });
  for (const int64_t dim : {0, 1}) {
    testing::expect_same_on_any_threads([&] {
      const TestView out({3000, 64}, DType::kF32);
      scatter(ScatterKind::kSum, out, dim, index, src);
      return out.bits();
    });
  }
}

TEST(Scatter, BadIndicesAreReportedAndIntegersMeanRoundsDown) {
  TestView out({3}, DType::kI64);
  TestView src({2}, DType::kI64);
  src.fill_from({-3, -4});
  EXPECT_ERROR(scatter(ScatterKind::kSum, out, 0, i64s({0, 3}), src), ErrorCode::kOutOfRange,
               HasSubstr("[0, 3) for dim 0; got 3 at [1]"));
  out.fill_from({0, 0, 0});
  scatter(ScatterKind::kMean, out, 0, i64s({1, 1}), src, false);
  EXPECT_EQ(out.values(), (Values{0, -4, 0}));
}

TEST(Index, LeadingDimsAreIndexedTogether) {
  TestView in({4, 5, 3}, DType::kF32, Arrangement::kTransposed);
  in.fill_with([](int64_t i) { return static_cast<double>(i); });
  TestView rows({2, 2}, DType::kI64);
  rows.fill_from({0, 3, -1, 2});
  TestView columns({2, 2}, DType::kI32);
  columns.fill_from({4, -5, 1, 1});
  const TestView out({2, 2, 3}, DType::kF32);
  const TensorView indices[] = {rows, columns};
  index(out, in, indices);
  EXPECT_EQ(out.values(), (Values{12, 13, 14, 45, 46, 47, 48, 49, 50, 33, 34, 35}));
  columns.set(2, 5);
  EXPECT_ERROR(index(out, in, indices), ErrorCode::kOutOfRange,
               HasSubstr("[-5, 5) for dim 1; got 5 at [1, 0]"));
}

TEST(IndexPut, LastWriteWinsOrSumsAccumulateOnAnyNumberOfThreads) {
  TestView place({4000}, DType::kI64);
  place.fill_with([](int64_t i) { return static_cast<double>(i * 17 % 10) - 5; });
  TestView values({4000, 33}, DType::kF32);
  values.fill_from(scattered_values(values.numel(), 1));
  const TensorView indices[] = {place};
  for (const bool accumulate : {false, true}) {
    std::vector<float> expected(10 * 33, 0.0f);
    for (int64_t i = 0; i < values.numel(); ++i) {
      auto row = static_cast<int64_t>(place.get(i / 33));
      if (row < 0) row += 10;
      float& at = expected[static_cast<size_t>(row * 33 + i % 33)];
      const auto value = static_cast<float>(values.get(i));
      at = accumulate ? at + value : value;
    }
    testing::expect_same_on_any_threads([&] {
      const TestView out({10, 33}, DType::kF32);
      index_put(out, indices, values, accumulate);
      for (int64_t i = 0; i < out.numel(); ++i) {
        EXPECT_EQ(static_cast<float>(out.get(i)), expected[static_cast<size_t>(i)]);
      }
      return out.bits();
    });
  }
}

TEST(Take, CountsInRowMajorOrderWhateverTheLayout) {
  TestView in({2, 3}, DType::kF32, Arrangement::kTransposed);
  in.fill_from({0, 1, 2, 3, 4, 5});
  const TestView out({4}, DType::kF32);
  take(out, in, i64s({5, 0, -1, 3}));
  EXPECT_EQ(out.values(), (Values{5, 0, 5, 3}));
  EXPECT_ERROR(take(out, in, i64s({0, 0, 6, 0})), ErrorCode::kOutOfRange,
               HasSubstr("got 6 at [2]"));
}

TEST(Mask, NonzeroSelectAndScatterAgreeAcrossTiles) {
  for (const Arrangement arrangement : kOwnArrangements) {
    TestView mask({130, 301}, DType::kBool, arrangement);
    mask.fill_with([](int64_t i) { return i * 7 % 5 == 0 ? 1.0 : 0.0; });
    TestView in({130, 301}, DType::kF32, arrangement);
    in.fill_with([](int64_t i) { return static_cast<double>(i); });
    Values expected;
    for (int64_t i = 0; i < mask.numel(); ++i) {
      if (mask.get(i) != 0) expected.push_back(static_cast<double>(i));
    }
    ASSERT_EQ(count_nonzero(mask), static_cast<int64_t>(expected.size()));
    const auto count = static_cast<int64_t>(expected.size());
    const TestView selected({count}, DType::kF32);
    masked_select(selected, in, mask);
    EXPECT_EQ(selected.values(), expected);
    const TestView places({count, 2}, DType::kI64);
    nonzero(places, mask);
    for (int64_t k = 0; k < count; ++k) {
      ASSERT_EQ(places.get(2 * k) * 301 + places.get(2 * k + 1), expected[static_cast<size_t>(k)]);
    }
    const TestView back({130, 301}, DType::kF32);
    masked_scatter(back, mask, selected);
    for (int64_t i = 0; i < mask.numel(); ++i) {
      ASSERT_EQ(back.get(i), mask.get(i) != 0 ? static_cast<double>(i) : 0);
    }
  }
}

TEST(Mask, NanIsTrueAndShortSourcesAreRefused) {
  TestView x({3}, DType::kF32);
  x.fill_from({NAN, 0, -0.0});
  EXPECT_EQ(count_nonzero(x), 1);
  TestView mask({3}, DType::kBool);
  mask.fill_from({1, 1, 0});
  const TestView one({1}, DType::kF32);
  EXPECT_ERROR(masked_scatter(x, mask, one), ErrorCode::kInvalidArgument, HasSubstr("2"));
  const TestView scalar_out({1, 0}, DType::kI64);
  TestView scalar(Dims{}, DType::kF32);
  scalar.set(0, 2);
  nonzero(scalar_out, scalar);
}

TEST(OneHot, MarksOneClassPerElement) {
  const TestView out({3, 4}, DType::kI64);
  one_hot(out, i64s({2, 0, 3}));
  EXPECT_EQ(out.values(), (Values{0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1}));
  EXPECT_ERROR(one_hot(out, i64s({2, 4, 3})), ErrorCode::kOutOfRange, HasSubstr("[0, 4)"));
}

TEST(Bincount, CountsOrSumsWeights) {
  const TensorView none(nullptr, DType::kF32, {}, {});
  const TestView counts({4}, DType::kI64);
  bincount(counts, i64s({1, 3, 1, 0}), none);
  EXPECT_EQ(counts.values(), (Values{1, 2, 0, 1}));
  TestView weights({4}, DType::kF64);
  weights.fill_from({0.5, 2, 0.25, 1});
  const TestView sums({4}, DType::kF64);
  bincount(sums, i64s({1, 3, 1, 0}), weights);
  EXPECT_EQ(sums.values(), (Values{1, 0.75, 0, 2}));
  EXPECT_ERROR(bincount(counts, i64s({4}), none), ErrorCode::kOutOfRange, HasSubstr("got 4"));
}
}  // namespace
}  // namespace muster::kernels::cpu
