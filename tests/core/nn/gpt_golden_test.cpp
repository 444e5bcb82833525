// Gpt against Hugging Face's GPT-2: logits, all gradients, twenty steps of training.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "core/nn/gpt.h"
#include "core/nn/optim/clip_grad.h"
#include "core/nn/optim/lr_schedule.h"
#include "core/nn/optim/optimizer.h"
#include "core/ops/ops.h"
#include "tests/support/golden_case.h"
#include "tests/support/golden_close.h"

namespace muster::testing {
namespace {
using nlohmann::json;

constexpr const char* kPrefix = "transformer.";
const GoldenFile& golden() { return GoldenFile::load("models/gpt2"); }

// Published files hold [in, out].
bool is_projection(const std::string& name) {
  return name.ends_with(".weight") && (name.find(".c_") != std::string::npos);
}

std::unique_ptr<Gpt> load_model(DType dtype) {
  auto model = std::make_unique<Gpt>(
      GptConfig{.vocab_size = 257, .max_positions = 64, .dim = 48, .layers = 2, .heads = 3});
  std::map<std::string, Tensor> state;
  for (const auto& [name, tensor] :
       read_safetensors(golden_path("models/gpt2/model.safetensors"))) {
    state[name.substr(std::string(kPrefix).size())] =
        is_projection(name) ? contiguous(t(tensor)) : tensor;
  }
  model->load_state(state);
  model->to(dtype);
  return model;
}

// The loss of the next token: targets are the tokens moved to the left.
Tensor next_tokens(const Tensor& labels) {
  const Tensor none = full({labels.size(0), 1}, int64_t{-100});
  return cat({narrow(labels, 1, 1, labels.size(1) - 1), none}, 1);
}

// Without the key bias, whose gradient is 0 up to rounding.
Tensor without_key_bias(const std::string& name, const Tensor& tensor) {
  if (!name.ends_with("c_attn.bias")) return tensor;
  const std::vector<Tensor> parts = chunk(tensor, 3);
  return cat({parts[0], parts[2]});
}

TEST(GptGolden, LogitsAndLossEqualTransformers) {
  const json& c = golden().find("forward");
  const Tensor tokens = golden().tensor(c["args"][0]), labels = golden().tensor(c["labels"]);
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const auto model = load_model(dtype);
    const bool wide = dtype == DType::kF64;
    const Tensor wanted = golden().tensor(c[wide ? "logits_f64" : "logits_f32"]);
    const GoldenTolerance tolerance =
        wide ? GoldenTolerance{1e-12, 1e-12, 0} : GoldenTolerance{1e-5, 2e-6, 0};
    expect_close((*model)(tokens), wanted, tolerance, std::string(to_string(dtype)));
    const LossSum loss = model->loss(tokens, next_tokens(labels));
    EXPECT_NEAR(loss.sum.item() / loss.count.item(),
                c[wide ? "loss_f64" : "loss_f32"].get<double>(), wide ? 1e-12 : 2e-6);
  }
}

TEST(GptGolden, HiddenStatesEqualTransformers) {
  const json& c = golden().find("hidden_f64");
  const auto model = load_model(DType::kF64);
  Tensor embedded, first, last;
  const HookHandle before = model->module_at("h.0").register_forward_pre_hook(
      [&](Module&, const Tensor& in) { return embedded = in, Tensor(); });
  const HookHandle after = model->module_at("h.0").register_forward_hook(
      [&](Module&, const Tensor&, const Tensor& out) { return first = out, Tensor(); });
  const HookHandle end = model->module_at("ln_f").register_forward_hook(
      [&](Module&, const Tensor&, const Tensor& out) { return last = out, Tensor(); });
  (*model)(golden().tensor(c["args"][0]));
  const GoldenTolerance tolerance{1e-12, 1e-12, 0};
  expect_close(embedded, golden().tensor(c["embed"]), tolerance, "embed");
  expect_close(first, golden().tensor(c["after_layer_0"]), tolerance, "after_layer_0");
  expect_close(last, golden().tensor(c["last_normed"]), tolerance, "last_normed");
}

TEST(GptGolden, EveryGradientEqualsTransformers) {
  const json& c = golden().find("grads_f64");
  const auto model = load_model(DType::kF64);
  const LossSum loss =
      model->loss(golden().tensor(c["args"][0]), next_tokens(golden().tensor(c["labels"])));
  backward(div(loss.sum, loss.count));
  const std::vector<NamedTensor> parameters = model->named_parameters();
  EXPECT_EQ(parameters.size(), c["grads"].size());
  for (const NamedTensor& named : parameters) {
    const std::string name = kPrefix + named.name;
    Tensor wanted = golden().tensor(c["grads"].at(name));
    if (is_projection(name)) wanted = contiguous(t(wanted));
    expect_close(without_key_bias(name, grad_of(named.tensor)), without_key_bias(name, wanted),
                 {1e-10, 1e-11, 0}, name);
  }
  EXPECT_NEAR(total_grad_norm(model->parameters()), c["total_norm"].get<double>(), 1e-10);
}

// [sum, sum of squares, largest magnitude].
std::vector<double> digest(const Tensor& tensor) {
  const Tensor wide = to(tensor, DType::kF64);
  return {sum(wide).item(), sum(square(wide)).item(), amax(abs(wide)).item()};
}

void train(DType dtype, double tolerance) {
  const json& c = golden().find("train");
  const json& options = c["options"];
  const json& wanted = c[dtype == DType::kF64 ? "f64" : "f32"];
  const auto model = load_model(dtype);
  AdamW optimizer(model->named_parameters(), {.lr = options["lr"],
                                              .beta1 = options["betas"][0],
                                              .beta2 = options["betas"][1],
                                              .eps = options["eps"],
                                              .weight_decay = options["weight_decay"]});
  const LrSchedule schedule{.kind = LrSchedule::Kind::kCosine,
                            .warmup_steps = options["warmup"],
                            .total_steps = options["steps"]};
  const Tensor batches = golden().tensor(c["batches"]);
  for (int64_t step = 0; step < options["steps"].get<int64_t>(); ++step) {
    const double lr = options["lr"].get<double>() * schedule.factor(step);
    EXPECT_NEAR(lr, c["lr"][static_cast<size_t>(step)].get<double>(), 1e-15) << step;
    optimizer.set_lr(lr);
    const Tensor tokens = select(batches, 0, step);
    const LossSum loss = model->loss(tokens, next_tokens(tokens));
    const Tensor mean_loss = div(loss.sum, loss.count);
    backward(mean_loss);
    const double norm = clip_grad_norm_(model->parameters(), options["clip"]);
    EXPECT_NEAR(mean_loss.item(), wanted["loss"][static_cast<size_t>(step)].get<double>(),
                tolerance)
        << step;
    EXPECT_NEAR(norm, wanted["grad_norm"][static_cast<size_t>(step)].get<double>(), 10 * tolerance)
        << step;
    optimizer.step();
    model->zero_grad();
  }
  for (const NamedTensor& named : model->named_parameters()) {
    if (named.name.ends_with("c_attn.bias")) continue;  // the key bias drifts with rounding
    const std::vector<double> got = digest(named.tensor);
    const json& expected = wanted["final"].at(kPrefix + named.name);
    for (size_t i = 0; i < got.size(); ++i) {
      const double bound = tolerance * 20 * (1 + static_cast<double>(named.tensor.numel()) * 0.02);
      EXPECT_NEAR(got[i], expected[i].get<double>(), bound) << named.name << " " << i;
    }
  }
}

TEST(GptGolden, TwentyStepsInF64FollowTransformers) { train(DType::kF64, 1e-11); }
TEST(GptGolden, TwentyStepsInF32FollowTransformers) { train(DType::kF32, 5e-6); }
}  // namespace
}  // namespace muster::testing
