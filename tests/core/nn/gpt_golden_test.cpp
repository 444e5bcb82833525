// Gpt against Hugging Face's GPT-2: logits, all gradients, twenty steps of training.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/nn/gpt.h"
#include "core/ops/ops.h"
#include "tests/core/nn/golden_lm.h"
#include "tests/support/golden_close.h"

namespace muster::testing {
namespace {
constexpr const char* kPrefix = "transformer.";

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

// Without the key bias, whose gradient is 0 up to rounding.
Tensor without_key_bias(const std::string& name, const Tensor& tensor) {
  if (!name.ends_with("c_attn.bias")) return tensor;
  const std::vector<Tensor> parts = chunk(tensor, 3);
  return cat({parts[0], parts[2]});
}

const GoldenLm kGpt2 = {.name = "models/gpt2",
                        .load = load_model,
                        .prefix = kPrefix,
                        .is_transposed = is_projection,
                        .meaningful = without_key_bias,
                        .decays_matrices_only = false};

TEST(GptGolden, LogitsAndLossEqualTransformers) { expect_forward(kGpt2); }
TEST(GptGolden, EveryGradientEqualsTransformers) { expect_gradients(kGpt2); }
TEST(GptGolden, TwentyStepsInF64FollowTransformers) { expect_training(kGpt2, DType::kF64, 1e-11); }
TEST(GptGolden, TwentyStepsInF32FollowTransformers) { expect_training(kGpt2, DType::kF32, 5e-6); }
TEST(GptGolden, GreedyTokensEqualTransformersWithAndWithoutACache) { expect_generation(kGpt2); }

TEST(GptGolden, HiddenStatesEqualTransformers) {
  const GoldenFile& golden = GoldenFile::load("models/gpt2");
  const nlohmann::json& c = golden.find("hidden_f64");
  const auto model = load_model(DType::kF64);
  Tensor embedded, first, last;
  const HookHandle before = model->module_at("h.0").register_forward_pre_hook(
      [&](Module&, const Tensor& in) { return embedded = in, Tensor(); });
  const HookHandle after = model->module_at("h.0").register_forward_hook(
      [&](Module&, const Tensor&, const Tensor& out) { return first = out, Tensor(); });
  const HookHandle end = model->module_at("ln_f").register_forward_hook(
      [&](Module&, const Tensor&, const Tensor& out) { return last = out, Tensor(); });
  (*model)(golden.tensor(c["args"][0]));
  const GoldenTolerance tolerance{1e-12, 1e-12, 0};
  expect_close(embedded, golden.tensor(c["embed"]), tolerance, "embed");
  expect_close(first, golden.tensor(c["after_layer_0"]), tolerance, "after_layer_0");
  expect_close(last, golden.tensor(c["last_normed"]), tolerance, "last_normed");
}
}  // namespace
}  // namespace muster::testing
