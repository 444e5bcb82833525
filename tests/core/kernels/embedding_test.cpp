#include "core/kernels/cpu/embedding.h"

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
constexpr Place kPlaces[] = {Place::kDense, Place::kTransposed, Place::kGaps};

StridedArray<int64_t> make_indices(int64_t n, int64_t rows) {
  StridedArray<int64_t> indices({n});
  for (int64_t i = 0; i < n; ++i) indices[i] = i * i % rows;
  return indices;
}

TEST(Embedding, GathersRowsOfEveryLayout) {
  for (const Place place : kPlaces) {
    StridedArray<double> weight({7, 5}, place), out({11, 5}, place);
    weight.randomize(1);
    const StridedArray<int64_t> indices = make_indices(11, 7);
    embedding(out.view(), weight.view(), indices.view());
    for (int64_t i = 0; i < 11; ++i) {
      for (int64_t j = 0; j < 5; ++j) EXPECT_EQ(out[i * 5 + j], weight[indices[i] * 5 + j]);
    }
  }
}

TEST(Embedding, TakesNarrowIndicesAndNone) {
  StridedArray<float> weight({3, 2}), out({2, 2}), none({0, 2});
  weight.randomize(1);
  StridedArray<int32_t> indices({2}), no_indices({0});
  indices[0] = 2, indices[1] = 0;
  embedding(out.view(), weight.view(), indices.view());
  EXPECT_EQ(out[0], weight[4]);
  EXPECT_EQ(out[2], weight[0]);
  embedding(none.view(), weight.view(), no_indices.view());
}

TEST(Embedding, NamesAnIndexOutOfRangeAndItsPosition) {
  StridedArray<float> weight({3, 2}), out({4, 2});
  StridedArray<int64_t> indices({4});
  indices[2] = 3;
  EXPECT_ERROR(embedding(out.view(), weight.view(), indices.view()), ErrorCode::kOutOfRange,
               AllOf(HasSubstr("[0, 3)"), HasSubstr("got 3 at position 2")));
  indices[2] = -1;
  EXPECT_ERROR(embedding_backward(weight.view(), out.view(), indices.view()),
               ErrorCode::kOutOfRange, HasSubstr("got -1 at position 2"));
}

// The gradient by its definition; `start` is what the buffer held.
template <typename T>
Values reference(const Values& start, const StridedArray<T>& dout,
                 const StridedArray<int64_t>& indices, const EmbeddingBackwardOptions& options) {
  Values want = options.accumulate ? start : Values(start.size());
  const int64_t d = dout.sizes()[1];
  for (int64_t i = 0; i < indices.numel(); ++i) {
    if (indices[i] == options.padding_idx) continue;
    double frequency = 0.0;
    for (int64_t k = 0; k < indices.numel(); ++k) frequency += indices[k] == indices[i] ? 1.0 : 0.0;
    const double factor = options.scale_grad_by_freq ? 1.0 / frequency : 1.0;
    for (int64_t j = 0; j < d; ++j) want[indices[i] * d + j] += factor * dout.values()[i * d + j];
  }
  return want;
}

template <typename T>
void expect_gradient(Place place, const EmbeddingBackwardOptions& options, double tolerance) {
  StridedArray<T> dweight({9, 6}, place), dout({23, 6}, place);
  dweight.randomize(1), dout.randomize(2);
  const StridedArray<int64_t> indices = make_indices(23, 9);
  const Values want = reference(dweight.values(), dout, indices, options);
  embedding_backward(dweight.view(), dout.view(), indices.view(), options);
  EXPECT_LE(scaled_difference(dweight.values(), want), tolerance);
}

TEST(EmbeddingBackward, MatchesTheReferenceForEveryOption) {
  for (const Place place : kPlaces) {
    for (const int64_t padding_idx : {-1, 4}) {
      for (const bool by_frequency : {false, true}) {
        for (const bool accumulate : {false, true}) {
          const EmbeddingBackwardOptions options{padding_idx, by_frequency, accumulate};
          expect_gradient<float>(place, options, 1e-6);
          expect_gradient<double>(place, options, 1e-14);
          expect_gradient<BFloat16>(place, options, 8e-3);
        }
      }
    }
  }
}

TEST(EmbeddingBackward, WithoutIndicesClearsTheGradient) {
  StridedArray<float> dweight({3, 2}), dout({0, 2});
  StridedArray<int64_t> indices({0});
  dweight.fill(1.0);
  embedding_backward(dweight.view(), dout.view(), indices.view());
  EXPECT_EQ(dweight.values(), Values(6));
}

TEST(EmbeddingBackward, GivesTheSameBitsOnAnyNumberOfThreads) {
  StridedArray<float> dout({2000, 64});
  dout.randomize(1);
  const StridedArray<int64_t> indices = make_indices(2000, 301);
  EXPECT_TRUE(same_bits_on_any_threads([&] {
    StridedArray<float> dweight({1301, 64});
    embedding_backward(dweight.view(), dout.view(), indices.view());
    return dweight.values();
  }));
}

}  // namespace
}  // namespace muster::kernels::cpu
