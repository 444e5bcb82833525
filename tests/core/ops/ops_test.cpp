#include "core/ops/ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/autograd/autograd.h"
#include "core/dispatch/mode.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::ElementsAre;

std::vector<float> values(const Tensor& tensor) { return to_vector<float>(tensor); }
std::vector<int64_t> integers(const Tensor& tensor) { return to_vector<int64_t>(tensor); }

TEST(Creation, LiteralsGiveF32AndIntegersI64) {
  EXPECT_EQ(tensor({1.0, 2.5}).dtype(), DType::kF32);
  EXPECT_EQ(tensor({1, 2}).dtype(), DType::kI64);
  EXPECT_EQ(tensor(3.0).ndim(), 0);
  EXPECT_THAT(integers(arange(2, 10, 3)), ElementsAre(2, 5, 8));
  EXPECT_THAT(values(full({3}, 1.5)), ElementsAre(1.5f, 1.5f, 1.5f));
}

TEST(Creation, FactoriesUseTheThreadsDevice) {
  const DeviceGuard meta(kMetaDevice);
  const Tensor x = zeros({2, 3});
  EXPECT_TRUE(x.is_meta());
  EXPECT_TRUE(add(x, x).is_meta());
  EXPECT_FALSE(zeros({2}, {}, kCpuDevice).is_meta());
}

TEST(Pointwise, OperandsAreBroadcastAndPromoted) {
  const Tensor x = reshape(arange(0, 6), {2, 3}), y = tensor({0.5, 1.0, 1.5});
  const Tensor z = x * y;
  EXPECT_EQ(z.dtype(), DType::kF32);
  EXPECT_THAT(values(z), ElementsAre(0, 1, 3, 1.5f, 4, 7.5f));
  EXPECT_THAT(values(2.0 - y), ElementsAre(1.5f, 1.0f, 0.5f));
  EXPECT_THAT(values(add(y, y, 2)), ElementsAre(1.5f, 3.0f, 4.5f));
  EXPECT_THAT(values(pow(2, y)), ElementsAre(std::sqrt(2.0f), 2.0f, std::pow(2.0f, 1.5f)));
  EXPECT_EQ(add(x, 1).dtype(), DType::kI64);
  EXPECT_EQ(add(x, 1.5).dtype(), DType::kF32);
  EXPECT_EQ(div(x, 2).dtype(), DType::kF32);
}

TEST(Pointwise, TheResultKeepsTheOrderOfDims) {
  const Tensor x = transpose(ones({2, 3}), 0, 1);
  EXPECT_THAT(neg(x).strides(), ElementsAre(1, 3));
  EXPECT_THAT(add(x, ones({3, 2})).strides(), ElementsAre(1, 3));
  EXPECT_THAT(add(ones({3, 2}), x).strides(), ElementsAre(2, 1));
}

TEST(Pointwise, InPlaceRefusesWhatSelfCannotHold) {
  const Tensor x = arange(0, 3);
  EXPECT_THAT([&] { add_(x, 0.5); }, ::testing::Throws<Error>());
  EXPECT_THAT([&] { add_(x, ones({2, 3}, DType::kI64)); }, ::testing::Throws<Error>());
  EXPECT_THAT(integers(add_(x, 1)), ElementsAre(1, 2, 3));
  EXPECT_EQ(x.version(), 1u);
}

TEST(Views, ShareStorageAndSeeWrites) {
  const Tensor x = zeros({2, 3});
  fill_(select(x, 0, 1), 2.0);
  fill_(slice(x, 1, 0, 1), 7.0);
  EXPECT_THAT(values(x), ElementsAre(7, 0, 0, 7, 2, 2));
  EXPECT_THAT(values(diagonal(x)), ElementsAre(7, 2));
  const std::vector<Tensor> rows = unbind(x, 0);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].storage(), x.storage());
}

TEST(Views, DetachSharesDataAndVersionButIsNoView) {
  const Tensor x = requires_grad_(ones({2}));
  const Tensor y = detach(x);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_FALSE(y.is_view());
  add_(y, 1);
  EXPECT_THAT(values(detach(x)), ElementsAre(2, 2));
  EXPECT_EQ(x.version(), 1u);
}

TEST(Views, AViewThatNeedsACopyIsRefused) {
  const Tensor x = transpose(ones({2, 3}), 0, 1);
  EXPECT_THAT([&] { view(x, {6}); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("use reshape")));
  EXPECT_THAT(reshape(x, {6}).sizes(), ElementsAre(6));
}

TEST(Reduction, SumsOverSomeDimsAndAll) {
  const Tensor x = reshape(arange(0.0, 6.0), {2, 3});
  EXPECT_EQ(sum(x).item(), 15.0);
  EXPECT_THAT(values(sum(x, 0)), ElementsAre(3, 5, 7));
  EXPECT_THAT(values(mean(x, {1}, true)), ElementsAre(1, 4));
  EXPECT_THAT(mean(x, {1}, true).sizes(), ElementsAre(2, 1));
  const auto [largest, places] = max(x, 1);
  EXPECT_THAT(integers(places), ElementsAre(2, 2));
  EXPECT_THAT(values(sum_to_size(x, {1, 3})), ElementsAre(3, 5, 7));
}

TEST(Indexing, MasksAndIndexTensors) {
  const Tensor x = reshape(arange(0.0, 6.0), {2, 3});
  EXPECT_THAT(values(masked_select(x, gt(x, 3))), ElementsAre(4, 5));
  EXPECT_THAT(values(index(x, {tensor({1, 0}), tensor({0, -1})})), ElementsAre(3, 2));
  EXPECT_THAT(values(index_select(x, 1, tensor({2}))), ElementsAre(2, 5));
  EXPECT_THAT([&] { index_select(x, 0, tensor({5})); }, ::testing::Throws<Error>());
  index_put_(x, {tensor({0, 0})}, tensor({1.0, 2.0, 3.0}), false);
  EXPECT_THAT(values(select(x, 0, 0)), ElementsAre(1, 2, 3));
}

TEST(Indexing, TheLastOfSeveralWritesHasTheGradient) {
  const Tensor x = zeros({2});
  const Tensor y = requires_grad_(tensor({1.0, 2.0, 3.0}));
  const Tensor z = index_put(x, std::vector<Tensor>{tensor({1, 1, 0})}, y);
  EXPECT_THAT(values(detach(z)), ElementsAre(3, 2));
  backward(sum(z));
  EXPECT_THAT(values(grad_of(y)), ElementsAre(0, 1, 1));
}

TEST(Derivative, GradientsOfBroadcastOperandsAreSummed) {
  const Tensor x = requires_grad_(ones({2, 3})), y = requires_grad_(tensor({1.0, 2.0, 3.0}));
  backward(sum(x * y + 2.0 * y));
  EXPECT_THAT(values(grad_of(x)), ElementsAre(1, 2, 3, 1, 2, 3));
  EXPECT_THAT(values(grad_of(y)), ElementsAre(6, 6, 6));
}

TEST(Derivative, UnusedPiecesOfASplitCountAsZero) {
  const Tensor x = requires_grad_(ones({5}));
  const std::vector<Tensor> pieces = split(x, 2);
  backward(sum(pieces[1]));
  EXPECT_THAT(values(grad_of(x)), ElementsAre(0, 0, 1, 1, 0));
}
}  // namespace
}  // namespace muster
