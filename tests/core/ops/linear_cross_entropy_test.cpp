// The loss of a linear layer in chunks of rows: PyTorch's numbers whatever the chunk, exact
// derivatives, and no more than a chunk of logits in memory.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "core/autograd/gradcheck.h"
#include "core/ops/ops.h"
#include "core/tensor/caching_allocator.h"
#include "tests/support/golden_case.h"
#include "tests/support/golden_close.h"
#include "tests/support/matchers.h"

namespace muster::testing {
namespace {
using nlohmann::json;
using ::testing::HasSubstr;

Reduction reduction_of(const json& kwargs) {
  const std::string text = kwargs.value("reduction", "mean");
  return text == "none" ? Reduction::kNone : text == "sum" ? Reduction::kSum : Reduction::kMean;
}

void check(const GoldenFile& file, const json& c, int64_t chunk) {
  const json& kw = c["kwargs"];
  const std::string what = fmt::format("{} chunk {}", c["id"].get<std::string>(), chunk);
  const Tensor input = requires_grad_(file.tensor(c["args"][0]));
  const Tensor weight = requires_grad_(file.tensor(c["args"][1]));
  LinearCrossEntropyOptions options{.chunk = chunk};
  if (kw.contains("linear_bias"))
    options.linear_bias = requires_grad_(file.tensor(kw["linear_bias"]));
  if (kw.contains("weight")) options.loss.weight = file.tensor(kw["weight"]);
  options.loss.ignore_index = kw.value("ignore_index", int64_t{-100});
  options.loss.label_smoothing = kw.value("label_smoothing", 0.0);
  const Tensor out =
      linear_cross_entropy(input, weight, file.tensor(c["args"][2]), options, reduction_of(kw));
  const Tensor wanted = file.tensor(c["out"]), grad_out = file.tensor(c["grad_out"]);
  expect_close(out, wanted, out_tolerance(c, wanted.dtype()), what);
  std::vector<Tensor> leaves = {input, weight};
  if (options.linear_bias.defined()) leaves.push_back(options.linear_bias);
  const std::vector<Tensor> got = grad({&out, 1}, leaves, {&grad_out, 1});
  const char* names[] = {"0", "1", "linear_bias"};
  for (size_t i = 0; i < got.size(); ++i) {
    const Tensor wanted_grad = file.tensor(c["grads"][names[i]]);
    expect_close(got[i], wanted_grad, grad_tolerance(c, wanted_grad.dtype(), names[i]),
                 what + " grad " + names[i]);
  }
}

TEST(LinearCrossEntropy, EqualsPyTorchWhateverTheChunk) {
  const GoldenFile& file = GoldenFile::load("losses/linear_cross_entropy");
  int ran = 0;
  for (const json& c : file.cases()) {
    if (c["op"] != "linear_cross_entropy") continue;
    for (const int64_t chunk : {0, 1, 2, 3, 7, 1024}) check(file, c, chunk);
    ++ran;
  }
  EXPECT_EQ(ran, 20);
}

TEST(LinearCrossEntropy, MicrobatchesAddUpToTheWholeBatch) {
  const GoldenFile& file = GoldenFile::load("losses/linear_cross_entropy");
  const json& c = file.find("microbatches/f64");
  const Tensor input = file.tensor(c["args"][0]), target = file.tensor(c["args"][2]);
  const Tensor weight = requires_grad_(file.tensor(c["args"][1]));
  const double kept = c["kept"];
  double total = 0;
  int64_t first = 0;
  for (const json& rows : c["split"]) {
    const int64_t count = rows;
    const Tensor part =
        linear_cross_entropy(narrow(input, 0, first, count), weight,
                             narrow(target, 0, first, count), {.chunk = 2}, Reduction::kSum);
    total += detach(part).item() / kept;
    backward(div(part, kept));
    first += count;
  }
  EXPECT_NEAR(total, file.tensor(c["out"]["full"]).item(), 1e-12);
  expect_close(grad_of(weight), file.tensor(c["grads"]["1"]), {1e-12, 1e-12, 0}, "weight");
}

TEST(LinearCrossEntropy, FirstAndSecondDerivativesAgreeWithFiniteDifferences) {
  Generator generator(3);
  const auto leaf = [&](Dims sizes) {
    return requires_grad_(randn(sizes, DType::kF64, {}, &generator));
  };
  const std::vector<Tensor> inputs = {leaf({5, 3}), leaf({4, 3}), leaf({4})};
  const Tensor target = from_vector<int64_t>({3, 0, -100, 2, 2});
  for (const Reduction reduction : {Reduction::kMean, Reduction::kSum, Reduction::kNone}) {
    const auto function = [&](std::span<const Tensor> in) {
      LinearCrossEntropyOptions options{.linear_bias = in[2], .chunk = 2};
      options.loss.label_smoothing = 0.1;
      return std::vector<Tensor>{linear_cross_entropy(in[0], in[1], target, options, reduction)};
    };
    EXPECT_TRUE(gradcheck(function, inputs));
    EXPECT_TRUE(gradgradcheck(function, inputs));
  }
}

// 4096 positions of 8192 classes are 128 MiB of logits, and as much for their gradient.
TEST(LinearCrossEntropy, HoldsNoMoreThanAChunkOfLogits) {
  constexpr int64_t kRows = 4096, kClasses = 8192, kWidth = 16, kChunk = 256;
  Generator generator(5);
  const Tensor input = randn({kRows, kWidth}, DType::kF32, {}, &generator);
  const Tensor weight = requires_grad_(randn({kClasses, kWidth}, DType::kF32, {}, &generator));
  const Tensor target = remainder(arange(kRows) * 7, kClasses);
  const auto peak = [&](int64_t chunk) {
    set_grad(weight, {});
    const int64_t before = cpu_allocator().stats().allocated.count;
    cpu_allocator().reset_peak();
    backward(linear_cross_entropy(input, weight, target, {.chunk = chunk}));
    return cpu_allocator().stats().peak_allocated.count - before;
  };
  const int64_t whole = kRows * kClasses * 4, part = kChunk * kClasses * 4;
  EXPECT_GT(peak(0), whole);
  // Logits, their gradient, and three of the weight's: new, sum so far and their sum.
  EXPECT_LT(peak(kChunk), 3 * part + 4 * kClasses * kWidth * 4);
}

TEST(LinearCrossEntropy, RefusesWhatDoesNotFit) {
  const Tensor input = ones({4, 3}), weight = ones({5, 3}), target = zeros({4}, DType::kI64);
  EXPECT_ERROR(linear_cross_entropy(input, weight, zeros({3}, DType::kI64)),
               ErrorCode::kInvalidArgument, HasSubstr("needs i64 targets"));
  EXPECT_ERROR(linear_cross_entropy(input, ones({5, 2}), target), ErrorCode::kInvalidArgument,
               HasSubstr("linear"));
  EXPECT_ERROR(linear_cross_entropy(input, weight, target, {.chunk = -1}),
               ErrorCode::kInvalidArgument, HasSubstr("chunk"));
  EXPECT_ERROR(linear_cross_entropy(input, weight, full({4}, int64_t{5})), ErrorCode::kOutOfRange,
               HasSubstr("5"));
}
}  // namespace
}  // namespace muster::testing
