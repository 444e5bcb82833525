// Which dtypes the results have under autocast, operator by operator, and its rules.
#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "core/autograd/autocast.h"
#include "core/autograd/autograd.h"
#include "core/dispatch/op_table.h"
#include "core/ops/ops.h"
#include "tests/support/golden_case.h"
#include "tests/support/golden_close.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::muster::testing::GoldenFile;
using ::muster::testing::GoldenTolerance;
using ::muster::testing::is_close;
using ::muster::testing::out_tolerance;
using nlohmann::json;
using ::testing::HasSubstr;

// The operands of a case, by PyTorch's letters.
struct Inputs {
  Tensor m, n, h, v, w, b, c, s, q, k, u, p, one;  // floating
  Tensor idx, tgt, ii, mask;
};

Tensor numbers(Dims sizes) {
  const int64_t count = numel_of(sizes);
  Tensor values = reshape(linspace(0.1, 0.9, count), sizes);
  if (sizes.size() == 2 && sizes[0] == sizes[1]) values = add(values, mul(eye(sizes[0]), 2.0));
  return values;
}

// All operands in one dtype, or the first (the rest) of `order` in bf16 and the others in f32.
Inputs inputs_of(const std::string& variant, const std::vector<std::string>& order) {
  Inputs x;
  const std::map<std::string, std::pair<Tensor*, DimVector>> floating = {
      {"m", {&x.m, {4, 4}}},       {"n", {&x.n, {4, 4}}},       {"h", {&x.h, {4, 4}}},
      {"v", {&x.v, {4}}},          {"w", {&x.w, {4}}},          {"b", {&x.b, {2, 4, 4}}},
      {"c", {&x.c, {2, 4, 4}}},    {"s", {&x.s, {}}},           {"q", {&x.q, {1, 2, 4, 8}}},
      {"k", {&x.k, {1, 2, 4, 8}}}, {"u", {&x.u, {1, 2, 4, 8}}}, {"p", {&x.p, {4, 4}}},
      {"one", {&x.one, {1}}}};
  for (const auto& [name, place] : floating) {
    const bool is_first = !order.empty() && name == order[0];
    DType dtype = DType::kF32;
    if (variant == "low") dtype = DType::kBF16;
    if (variant == "f64") dtype = DType::kF64;
    if (variant == "first_low" && is_first) dtype = DType::kBF16;
    if (variant == "rest_low" && !is_first) dtype = DType::kBF16;
    *place.first = to(numbers(place.second), dtype);
  }
  x.idx = tensor({int64_t{0}, int64_t{2}, int64_t{1}, int64_t{3}});
  x.tgt = arange(4, DType::kI64);
  x.ii = clone(expand(arange(4, DType::kI64), {4, 4}));
  x.mask = tensor({true, false, true, false});
  return x;
}

using Call = std::function<Tensor(const Inputs& x)>;
#define CALL(id, expression)                                 \
  {                                                          \
    id, [](const Inputs& x) -> Tensor { return expression; } \
  }

const std::map<std::string, Call>& calls() {
  static const std::map<std::string, Call> all = {
      CALL("mm", matmul(x.m, x.n)),
      CALL("torch.mm(m, n)", mm(x.m, x.n)),
      CALL("torch.bmm(b, c)", bmm(x.b, x.c)),
      CALL("torch.matmul(b, m)", matmul(x.b, x.m)),
      CALL("torch.matmul(m, v)", matmul(x.m, x.v)),
      CALL("torch.mv(m, v)", mv(x.m, x.v)),
      CALL("torch.dot(v, w)", dot(x.v, x.w)),
      CALL("torch.outer(v, w)", outer(x.v, x.w)),
      CALL("torch.addmm(m, n, h)", addmm(x.m, x.n, x.h)),
      CALL("torch.baddbmm(b, b, c)", baddbmm(x.b, x.b, x.c)),
      CALL("F.linear(m, n)", linear(x.m, x.n)),
      CALL("F.linear(m, n, v)", linear(x.m, x.n, x.v)),
      CALL("torch.einsum('ij,jk->ik', m, n)", einsum("ij,jk->ik", std::vector<Tensor>{x.m, x.n})),
      CALL("F.prelu(m, one)", prelu(x.m, x.one)),
      CALL("F.scaled_dot_product_attention(q, k, u)", scaled_dot_product_attention(x.q, x.k, x.u)),
      CALL("torch.exp(m)", exp(x.m)),
      CALL("torch.exp2(m)", exp2(x.m)),
      CALL("torch.expm1(m)", expm1(x.m)),
      CALL("torch.log(m)", log(x.m)),
      CALL("torch.log2(m)", log2(x.m)),
      CALL("torch.log10(m)", log10(x.m)),
      CALL("torch.log1p(m)", log1p(x.m)),
      CALL("torch.sqrt(m)", sqrt(x.m)),
      CALL("torch.rsqrt(m)", rsqrt(x.m)),
      CALL("torch.reciprocal(m)", reciprocal(x.m)),
      CALL("torch.square(m)", square(x.m)),
      CALL("torch.sin(m)", sin(x.m)),
      CALL("torch.cos(m)", cos(x.m)),
      CALL("torch.tan(m)", tan(x.m)),
      CALL("torch.asin(m)", asin(x.m)),
      CALL("torch.acos(m)", acos(x.m)),
      CALL("torch.atan(m)", atan(x.m)),
      CALL("torch.sinh(m)", sinh(x.m)),
      CALL("torch.cosh(m)", cosh(x.m)),
      CALL("torch.tanh(m)", tanh(x.m)),
      CALL("torch.asinh(m)", asinh(x.m)),
      CALL("torch.atanh(m)", atanh(x.m)),
      CALL("torch.sigmoid(m)", sigmoid(x.m)),
      CALL("torch.erf(m)", erf(x.m)),
      CALL("torch.erfc(m)", erfc(x.m)),
      CALL("torch.erfinv(m)", erfinv(x.m)),
      CALL("torch.abs(m)", abs(x.m)),
      CALL("torch.neg(m)", neg(x.m)),
      CALL("torch.sign(m)", sign(x.m)),
      CALL("torch.floor(m)", floor(x.m)),
      CALL("torch.ceil(m)", ceil(x.m)),
      CALL("torch.round(m)", round(x.m)),
      CALL("torch.trunc(m)", trunc(x.m)),
      CALL("torch.frac(m)", frac(x.m)),
      CALL("torch.relu(m)", relu(x.m)),
      CALL("torch.isnan(m)", isnan(x.m)),
      CALL("torch.isfinite(m)", isfinite(x.m)),
      CALL("torch.logit(m)", logit(x.m)),
      CALL("torch.lgamma(m)", lgamma(x.m)),
      CALL("torch.digamma(m)", digamma(x.m)),
      CALL("torch.nan_to_num(m)", nan_to_num(x.m)),
      CALL("torch.acosh(m + 2)", acosh(add(x.m, 2))),
      CALL("torch.clamp(m, 0.2, 0.5)", clamp(x.m, 0.2, 0.5)),
      CALL("torch.pow(m, 2.0)", pow(x.m, 2.0)),
      CALL("torch.pow(2.0, m)", pow(2.0, x.m)),
      CALL("F.gelu(m)", gelu(x.m)),
      CALL("F.gelu(m, approximate='tanh')", gelu(x.m, "tanh")),
      CALL("F.silu(m)", silu(x.m)),
      CALL("F.softplus(m)", softplus(x.m)),
      CALL("F.elu(m)", elu(x.m)),
      CALL("F.selu(m)", selu(x.m)),
      CALL("F.celu(m)", celu(x.m)),
      CALL("F.leaky_relu(m)", leaky_relu(x.m)),
      CALL("F.hardtanh(m)", hardtanh(x.m)),
      CALL("F.hardswish(m)", hardswish(x.m)),
      CALL("F.hardsigmoid(m)", hardsigmoid(x.m)),
      CALL("F.mish(m)", mish(x.m)),
      CALL("F.relu6(m)", relu6(x.m)),
      CALL("F.logsigmoid(m)", logsigmoid(x.m)),
      CALL("F.softsign(m)", softsign(x.m)),
      CALL("F.tanhshrink(m)", tanhshrink(x.m)),
      CALL("F.threshold(m, 0.1, 0.0)", threshold(x.m, 0.1, 0.0)),
      CALL("F.glu(m)", glu(x.m)),
      CALL("F.dropout(m, 0.0)", dropout(x.m, 0.0)),
      CALL("m + n", add(x.m, x.n)),
      CALL("m - n", sub(x.m, x.n)),
      CALL("m * n", mul(x.m, x.n)),
      CALL("m / n", div(x.m, x.n)),
      CALL("m ** n", pow(x.m, x.n)),
      CALL("m % n", remainder(x.m, x.n)),
      CALL("m // n", floor_divide(x.m, x.n)),
      CALL("torch.fmod(m, n)", fmod(x.m, x.n)),
      CALL("torch.maximum(m, n)", maximum(x.m, x.n)),
      CALL("torch.minimum(m, n)", minimum(x.m, x.n)),
      CALL("torch.atan2(m, n)", atan2(x.m, x.n)),
      CALL("torch.hypot(m, n)", hypot(x.m, x.n)),
      CALL("torch.logaddexp(m, n)", logaddexp(x.m, x.n)),
      CALL("torch.xlogy(m, n)", xlogy(x.m, x.n)),
      CALL("torch.copysign(m, n)", copysign(x.m, x.n)),
      CALL("m < n", lt(x.m, x.n)),
      CALL("m == n", eq(x.m, x.n)),
      CALL("torch.where(m > 0.5, m, n)", where(gt(x.m, 0.5), x.m, x.n)),
      CALL("torch.lerp(m, n, 0.5)", lerp(x.m, x.n, 0.5)),
      CALL("torch.lerp(m, n, h)", lerp(x.m, x.n, x.h)),
      CALL("torch.addcmul(m, n, h)", addcmul(x.m, x.n, x.h)),
      CALL("torch.addcdiv(m, n, h)", addcdiv(x.m, x.n, x.h)),
      CALL("m + 1", add(x.m, 1)),
      CALL("m + 1.5", add(x.m, 1.5)),
      CALL("m * s", mul(x.m, x.s)),
      CALL("m + idx", add(x.m, x.idx)),
      CALL("torch.sum(m)", sum(x.m)),
      CALL("torch.sum(m, 1)", sum(x.m, 1)),
      CALL("torch.mean(m)", mean(x.m)),
      CALL("torch.mean(m, 1)", mean(x.m, 1)),
      CALL("torch.prod(m)", prod(x.m)),
      CALL("torch.prod(m, 1)", prod(x.m, 1)),
      CALL("torch.var(m)", var(x.m)),
      CALL("torch.std(m)", std(x.m)),
      CALL("torch.amax(m, 1)", amax(x.m, {1})),
      CALL("torch.amin(m, 1)", amin(x.m, {1})),
      CALL("torch.max(m)", max(x.m)),
      CALL("torch.min(m)", min(x.m)),
      CALL("torch.logsumexp(m, 1)", logsumexp(x.m, {1})),
      CALL("torch.cumsum(m, 1)", cumsum(x.m, 1)),
      CALL("torch.cumprod(m, 1)", cumprod(x.m, 1)),
      CALL("torch.logcumsumexp(m, 1)", logcumsumexp(x.m, 1)),
      CALL("torch.norm(m)", norm(x.m)),
      CALL("torch.linalg.vector_norm(m)", vector_norm(x.m)),
      CALL("torch.softmax(m, 1)", softmax(x.m, 1)),
      CALL("torch.log_softmax(m, 1)", log_softmax(x.m, 1)),
      CALL("torch.softmax(m, 1, dtype=torch.float32)", softmax(x.m, 1, DType::kF32)),
      CALL("torch.softmax(m, 1, dtype=torch.bfloat16)", softmax(x.m, 1, DType::kBF16)),
      CALL("torch.sum(m, dtype=torch.bfloat16)", sum(x.m, DType::kBF16)),
      CALL("torch.cumsum(m, 1, dtype=torch.bfloat16)", cumsum(x.m, 1, DType::kBF16)),
      CALL("torch.argmax(m)", argmax(x.m)),
      CALL("torch.count_nonzero(m)", count_nonzero(x.m)),
      CALL("torch.nansum(m)", nansum(x.m)),
      CALL("F.layer_norm(m, (4,), v, w)", layer_norm(x.m, {4}, x.v, x.w)),
      CALL("F.layer_norm(m, (4,))", layer_norm(x.m, {4})),
      CALL("F.rms_norm(m, (4,), v)", rms_norm(x.m, {4}, x.v)),
      CALL("F.mse_loss(m, n)", mse_loss(x.m, x.n)),
      CALL("F.l1_loss(m, n)", l1_loss(x.m, x.n)),
      CALL("F.smooth_l1_loss(m, n)", smooth_l1_loss(x.m, x.n)),
      CALL("F.huber_loss(m, n)", huber_loss(x.m, x.n)),
      CALL("F.kl_div(m, n)", kl_div(x.m, x.n)),
      CALL("F.nll_loss(m, tgt)", nll_loss(x.m, x.tgt)),
      CALL("F.cross_entropy(m, tgt)", cross_entropy(x.m, x.tgt)),
      CALL("F.cross_entropy(m, p)", cross_entropy(x.m, x.p)),
      CALL("F.cross_entropy(m, tgt, weight=v, label_smoothing=0.1)",
           cross_entropy(x.m, x.tgt, {.weight = x.v, .label_smoothing = 0.1})),
      CALL("F.binary_cross_entropy(torch.sigmoid(m), p / 4)",
           binary_cross_entropy(sigmoid(x.m), div(x.p, 4))),
      CALL("F.binary_cross_entropy_with_logits(m, p)", binary_cross_entropy_with_logits(x.m, x.p)),
      CALL("torch.cat([m, n])", cat(std::vector<Tensor>{x.m, x.n})),
      CALL("torch.stack([m, n])", stack(std::vector<Tensor>{x.m, x.n})),
      CALL("torch.index_select(m, 0, idx)", index_select(x.m, 0, x.idx)),
      CALL("torch.gather(m, 1, ii)", gather(x.m, 1, x.ii)),
      CALL("torch.scatter(m, 1, ii, n)", scatter(x.m, 1, x.ii, x.n)),
      CALL("torch.scatter_add(m, 1, ii, n)", scatter_add(x.m, 1, x.ii, x.n)),
      CALL("torch.index_add(m, 0, idx, n)", index_add(x.m, 0, x.idx, x.n)),
      CALL("torch.index_copy(m, 0, idx, n)", index_copy(x.m, 0, x.idx, x.n)),
      CALL("torch.masked_fill(m, mask, 0.0)", masked_fill(x.m, x.mask, 0.0)),
      CALL("torch.take_along_dim(m, ii, 1)", take_along_dim(x.m, x.ii, 1)),
      CALL("F.embedding(idx, m)", embedding(x.m, x.idx)),
      CALL("torch.tril(m)", tril(x.m)),
      CALL("torch.flip(m, [0])", flip(x.m, {0})),
      CALL("m.t()", t(x.m)),
      CALL("torch.clone(m)", clone(x.m)),
      CALL("torch.diagonal(m)", diagonal(x.m)),
      CALL("m.to(torch.float32)", to(x.m, DType::kF32)),
      CALL("torch.zeros_like(m)", zeros_like(x.m)),
      CALL("F.one_hot(idx)", one_hot(x.idx)),
      CALL("m.clone().add_(n)", add_(clone(x.m), x.n)),
      CALL("m.clone().mul_(n)", mul_(clone(x.m), x.n)),
      CALL("m.clone().copy_(n)", copy_(clone(x.m), x.n)),
      CALL("m.clone().exp_()", exp_(clone(x.m))),
  };
  return all;
}
#undef CALL

// Where muster is stricter or more exact than PyTorch; the reason is the value.
const std::map<std::string, std::string>& deviations() {
  static const std::map<std::string, std::string> all = {
      {"F.rms_norm(m, (4,), v) rest_low",
       "a weight narrower than its input is refused, as anywhere"}};
  return all;
}

TEST(AutocastGolden, EachOperatorsResultHasPyTorchsDtype) {
  const GoldenFile& file = GoldenFile::load("amp/autocast_cpu");
  int compared = 0;
  for (const json& entry : file.cases()) {
    if (entry["op"] != "autocast") continue;
    const std::string id = entry["id"];
    const Call& call = calls().at(id);
    for (const auto& [variant, wanted] : entry["out"].items()) {
      const std::string key = id + " " + variant;
      if (deviations().contains(key)) continue;
      SCOPED_TRACE(key);
      const Inputs x = inputs_of(variant, entry["tensors"].get<std::vector<std::string>>());
      const AutocastGuard autocast(DeviceType::kCpu);
      try {
        const Tensor out = call(x);
        ASSERT_FALSE(wanted.is_object()) << "PyTorch refuses it; got " << out.describe();
        EXPECT_EQ(to_string(out.dtype()), wanted.get<std::string>());
        ++compared;
      } catch (const Error& error) {
        EXPECT_TRUE(wanted.is_object()) << error.what();
      }
    }
  }
  EXPECT_GT(compared, 500);
}

// Runs `body` and counts the casts that it makes.
class CastCount {
 public:
  CastCount() : modes_(ThreadModes::capture()) {
    count_ = 0;
    set_key_handler(DispatchKey::kTracer, [](const Op& op, Args args, std::span<Tensor> outs) {
      if (op.name() == "_to_copy") ++count_;
      op.redispatch(DispatchKeySet::below(DispatchKey::kTracer), args, outs);
    });
    thread_modes().included |= DispatchKey::kTracer;
  }
  ~CastCount() {
    thread_modes() = modes_;
    set_key_handler(DispatchKey::kTracer, nullptr);
  }
  CastCount(const CastCount&) = delete;
  CastCount& operator=(const CastCount&) = delete;
  [[nodiscard]] int count() const { return count_; }

 private:
  ThreadModes modes_;
  static inline int count_ = 0;
};

Tensor low(const Tensor& x) { return to(x, DType::kBF16); }

int casts_of(const Tensor& weight, bool cached = true) {
  const Tensor x = low(ones({2, 4}));
  const CastCount casts;
  const AutocastGuard autocast(DeviceType::kCpu, DType::kBF16, true, cached);
  linear(x, weight);
  linear(x, weight);
  return casts.count();
}

TEST(AutocastGolden, CastsOfWeightsAreCountedAsInPyTorch) {
  const json& wanted = GoldenFile::load("amp/autocast_rules").find("cast_counts")["out"];
  const Tensor leaf = requires_grad_(ones({3, 4}));
  EXPECT_EQ(casts_of(leaf), wanted["leaf_with_grad"]);
  EXPECT_EQ(casts_of(ones({3, 4})), wanted["leaf_without_grad"]);
  EXPECT_EQ(casts_of(mul(leaf, 2.0)), wanted["non_leaf"]);
  EXPECT_EQ(casts_of(narrow(requires_grad_(ones({6, 4})), 0, 0, 3)), wanted["view_of_leaf"]);
  EXPECT_EQ(casts_of(requires_grad_(low(ones({3, 4})))), wanted["already_low"]);
  EXPECT_EQ(casts_of(leaf, false), wanted["cache_disabled"]);
  EXPECT_EQ(casts_of(leaf) + casts_of(leaf), wanted["two_outermost_regions"]);
  EXPECT_ERROR(casts_of(requires_grad_(ones({3, 4}, DType::kF64))), ErrorCode::kInvalidArgument,
               HasSubstr("one dtype"));
  const Tensor x = low(ones({2, 4}));
  const CastCount casts;
  const AutocastGuard outer(DeviceType::kCpu);
  linear(x, leaf);
  {
    const AutocastGuard inner(DeviceType::kCpu);
    linear(x, leaf);
  }
  linear(x, leaf);
  EXPECT_EQ(casts.count(), wanted["nested_region_keeps_cache"]);
}

// PyTorch serves the stale cast here.
TEST(Autocast, AWeightWrittenInsideTheRegionIsCastAnew) {
  const Tensor weight = requires_grad_(ones({3, 4})), x = low(ones({2, 4}));
  const AutocastGuard autocast(DeviceType::kCpu);
  linear(x, weight);
  {
    const NoGradGuard no_grad;
    mul_(weight, 2.0);
  }
  EXPECT_EQ(select(reshape(detach(linear(x, weight)), {-1}), 0, 0).item(), 8.0);
}

TEST(AutocastGolden, ACastMadeUnderNoGradDoesNotCutALaterGradient) {
  const GoldenFile& file = GoldenFile::load("amp/autocast_rules");
  const json& entry = file.find("no_grad_then_grad");
  const Tensor x = file.tensor(entry["args"][0]);
  for (const bool no_grad_first : {true, false}) {
    const Tensor weight = requires_grad_(file.tensor(entry["args"][1]));
    Tensor y;
    {
      const AutocastGuard autocast(DeviceType::kCpu);
      if (no_grad_first) {
        const NoGradGuard no_grad;
        EXPECT_FALSE(linear(x, weight).requires_grad());
      }
      y = linear(x, weight);
      const NoGradGuard no_grad;
      linear(x, weight);
    }
    ASSERT_TRUE(y.requires_grad());
    backward(sum(to(y, DType::kF32)));
    const json& wanted = entry["out"][no_grad_first ? "no_grad_first" : "grad_first"]["grad"];
    EXPECT_TRUE(equal(grad_of(weight), file.tensor(wanted)));
  }
}

TEST(AutocastGolden, ChainsNestedRegionsAndGradientsHavePyTorchsDtypes) {
  const GoldenFile& file = GoldenFile::load("amp/autocast_rules");
  const json& entry = file.find("chain_dtypes");
  const GoldenTolerance tolerance = out_tolerance(entry, DType::kF32);
  const Tensor x = file.tensor(entry["args"][0]);
  const Tensor p1 = requires_grad_(file.tensor(entry["args"][1]));
  const Tensor p2 = requires_grad_(file.tensor(entry["args"][2]));
  Tensor loss;
  {
    const AutocastGuard autocast(DeviceType::kCpu);
    const Tensor hidden = linear(x, p1), active = relu(hidden), out = linear(active, p2);
    loss = mse_loss(out, zeros({2, 2}));
    EXPECT_EQ(hidden.dtype(), DType::kBF16);
    EXPECT_EQ(softmax(out, -1).dtype(), DType::kBF16);
    EXPECT_EQ(loss.dtype(), DType::kF32);
    {
      const AutocastGuard off(DeviceType::kCpu, false);
      EXPECT_FALSE(autocast_setting(DeviceType::kCpu).enabled);
      EXPECT_EQ(linear(to(active, DType::kF32), p2).dtype(), DType::kF32);
      EXPECT_ERROR(linear(active, p2), ErrorCode::kInvalidArgument, HasSubstr("one dtype"));
    }
    {
      // The cast is kept by dtype: PyTorch would serve the bf16 one here, and refuse the product.
      const AutocastGuard half(DeviceType::kCpu, DType::kF16);
      EXPECT_EQ(linear(active, p2).dtype(), DType::kF16);
    }
    EXPECT_EQ(linear(active, p2).dtype(), DType::kBF16);
  }
  backward(loss);
  EXPECT_EQ(grad_of(p1).dtype(), DType::kF32);
  EXPECT_TRUE(is_close(detach(loss), file.tensor(entry["loss"]), tolerance));
  EXPECT_TRUE(is_close(grad_of(p1), file.tensor(entry["grads"]["1"]), tolerance));
  EXPECT_TRUE(is_close(grad_of(p2), file.tensor(entry["grads"]["2"]), tolerance));
}

TEST(AutocastGolden, ThreeStepsOfASmallNetFollowPyTorchs) {
  const GoldenFile& file = GoldenFile::load("amp/autocast_rules");
  const json& entry = file.find("train_mlp");
  const GoldenTolerance tolerance = out_tolerance(entry, DType::kF32);
  const Tensor x = file.tensor(entry["args"][0]), target = file.tensor(entry["args"][1]);
  std::vector<Tensor> parameters;
  for (size_t i = 2; i < 5; ++i)
    parameters.push_back(requires_grad_(file.tensor(entry["args"][i])));
  for (const json& step : entry["out"]) {
    Tensor loss;
    {
      const AutocastGuard autocast(DeviceType::kCpu);
      const Tensor logits = linear(tanh(linear(x, parameters[0], parameters[1])), parameters[2]);
      EXPECT_EQ(logits.dtype(), DType::kBF16);
      loss = cross_entropy(logits, target);
    }
    backward(loss);
    EXPECT_TRUE(is_close(detach(loss), file.tensor(step["loss"]), tolerance));
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Tensor grad = grad_of(parameters[i]);
      EXPECT_TRUE(is_close(grad, file.tensor(step["grads"][i]), tolerance));
      {
        const NoGradGuard no_grad;
        sub_(parameters[i], grad, 0.1);
      }
      set_grad(parameters[i], {});
      EXPECT_TRUE(is_close(detach(parameters[i]), file.tensor(step["params"][i]), tolerance));
    }
  }
}
}  // namespace
}  // namespace muster
