// Llama against Hugging Face's: plain, tied with llama3 rope and four files, and Qwen3 in bf16.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "core/nn/llama.h"
#include "core/ops/ops.h"
#include "tests/core/nn/golden_lm.h"
#include "tests/support/golden_close.h"
#include "tests/support/matchers.h"

namespace muster::testing {
namespace {
using ::testing::HasSubstr;

constexpr LlamaConfig kSmall = {.vocab_size = 256,
                                .max_positions = 64,
                                .dim = 48,
                                .mlp_dim = 96,
                                .layers = 2,
                                .heads = 4,
                                .kv_heads = 2,
                                .rms_norm_eps = 1e-5};

LlamaConfig llama3_config() {
  LlamaConfig config = kSmall;
  config.max_positions = 512;
  config.tied_head = true;
  config.rope = {.scaling = RopeConfig::Scaling::kLlama3,
                 .factor = 8.0,
                 .low_freq_factor = 1.0,
                 .high_freq_factor = 4.0,
                 .original_max_positions = 64};
  return config;
}

LlamaConfig qwen3_config() {
  LlamaConfig config = kSmall;
  config.head_dim = 16;
  config.rms_norm_eps = 1e-6;
  config.tied_head = true;
  config.qk_norm = true;
  return config;
}

GoldenLm golden_lm(const std::string& folder, const LlamaConfig& config,
                   const std::vector<std::string>& files) {
  const auto load = [=](DType dtype) {
    auto model = std::make_unique<Llama>(config);
    std::map<std::string, Tensor> state;
    for (const std::string& file : files) {
      for (const auto& [name, tensor] :
           read_safetensors(golden_path("models/" + folder + "/" + file))) {
        state[name] = to(tensor, DType::kF32);
      }
    }
    model->load_state(state);
    model->to(dtype);
    return model;
  };
  return {.name = "models/" + folder, .load = load};
}

class LlamaGolden : public ::testing::TestWithParam<GoldenLm> {};

TEST_P(LlamaGolden, LogitsAndLossEqualTransformers) { expect_forward(GetParam()); }
TEST_P(LlamaGolden, EveryGradientEqualsTransformers) { expect_gradients(GetParam()); }
TEST_P(LlamaGolden, TwentyStepsInF64FollowTransformers) {
  expect_training(GetParam(), DType::kF64, 1e-10);
}
TEST_P(LlamaGolden, TwentyStepsInF32FollowTransformers) {
  expect_training(GetParam(), DType::kF32, GetParam().f32_train_tolerance);
}
TEST_P(LlamaGolden, GreedyTokensEqualTransformersWithAndWithoutACache) {
  expect_generation(GetParam());
}

TEST_P(LlamaGolden, RotaryTablesEqualTransformers) {
  const GoldenFile& golden = GoldenFile::load(GetParam().name);
  const nlohmann::json& c = golden.find("rope");
  const bool is_llama3 = GetParam().name.find("llama3") != std::string::npos;
  const int64_t dim = 2 * golden.tensor(c["inv_freq_f64"]).size(0);
  const RopeConfig config = is_llama3 ? llama3_config().rope : RopeConfig{};
  expect_close(from_vector(rope_frequencies(config, dim)), golden.tensor(c["inv_freq_f64"]),
               {1e-14, 0, 0}, "frequencies");
  RopeTable table(config, dim);
  const int64_t length = golden.tensor(c["positions"]).size(0);
  const auto [cos, sin] = table.at(0, length, empty({1}));
  // transformers computes angles in f32: at position 39 they are off by 2e-6.
  const GoldenTolerance tolerance{0, 0, 4e-6};
  expect_close(squeeze(cos, 1), narrow(golden.tensor(c["cos_f32"]), 1, 0, dim / 2), tolerance,
               "cos");
  expect_close(squeeze(sin, 1), narrow(golden.tensor(c["sin_f32"]), 1, 0, dim / 2), tolerance,
               "sin");
}

INSTANTIATE_TEST_SUITE_P(
    Models, LlamaGolden,
    ::testing::Values(
        golden_lm("llama", kSmall, {"model.safetensors"}),
        golden_lm("llama3_tied_sharded", llama3_config(),
                  {"model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
                   "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors"}),
        golden_lm("qwen3_bf16", qwen3_config(), {"model.safetensors"})),
    [](const auto& tested) { return tested.param.name.substr(tested.param.name.find('/') + 1); });

TEST(Llama, RefusesHeadsThatTheKeyHeadsDoNotDivide) {
  LlamaConfig config = kSmall;
  config.kv_heads = 3;
  EXPECT_ERROR(Llama model(config), ErrorCode::kInvalidArgument,
               HasSubstr("heads must be a multiple of kv_heads; got 4 and 3"));
  config.kv_heads = 2, config.head_dim = 15;
  EXPECT_ERROR(Llama model(config), ErrorCode::kInvalidArgument, HasSubstr("must be even"));
}

TEST(Llama, RefusesRopeScalingWithoutSense) {
  RopeConfig rope = llama3_config().rope;
  rope.high_freq_factor = rope.low_freq_factor;
  EXPECT_ERROR(rope_frequencies(rope, 8), ErrorCode::kInvalidArgument,
               HasSubstr("low_freq_factor < high_freq_factor"));
}

// Heads follow from the projections: half of the heads is a model with half the heads.
TEST(Llama, ComputesTheHeadsThatItsProjectionsGive) {
  Llama whole(kSmall);
  whole.reset_parameters(3);
  auto& attention = dynamic_cast<LlamaAttention&>(whole.module_at("model.layers.0.self_attn"));
  const Tensor x = randn({2, 5, 48});
  const NoGradGuard no_grad;
  const Tensor wanted = attention(x);
  Tensor total;
  std::map<std::string, Tensor> weights;
  for (const TensorSlot& slot : attention.parameter_slots()) weights[slot.name] = *slot.tensor;
  for (int64_t half = 0; half < 2; ++half) {
    for (const TensorSlot& slot : attention.parameter_slots()) {
      const Tensor& weight = weights[slot.name];
      const int64_t dim = slot.name == "o_proj.weight" ? 1 : 0;
      const int64_t size = weight.size(dim) / 2;
      *slot.tensor = contiguous(narrow(weight, dim, half * size, size));
    }
    const Tensor part = attention(x);
    total = total.defined() ? add(total, part) : part;
  }
  expect_close(total, wanted, {1e-5, 1e-6, 0}, "sum of both halves");
}

TEST(Llama, BuiltOnTheMetaDeviceHasTheShapesAndInitialisesAlike) {
  std::unique_ptr<Llama> meta;
  {
    const DeviceGuard guard(kMetaDevice);
    meta = std::make_unique<Llama>(qwen3_config());
    EXPECT_EQ(to_string((*meta)(empty({2, 3}, DType::kI64)).sizes()), "[2, 3, 256]");
  }
  meta->to_empty();
  meta->reset_parameters(5);
  Llama plain(qwen3_config());
  plain.reset_parameters(5);
  const auto a = meta->named_parameters(), b = plain.named_parameters();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_TRUE(equal(a[i].tensor, b[i].tensor)) << a[i].name;
  }
}

TEST(Llama, ACacheRefusesMoreThanItHolds) {
  Llama model(kSmall);
  model.reset_parameters(1);
  model.open_cache(4);
  const Tensor tokens = zeros({1, 3}, DType::kI64);
  model(tokens);
  EXPECT_ERROR(model(tokens), ErrorCode::kOutOfRange,
               HasSubstr("3 positions and 3 more must fit into 4"));
  model.close_cache();
}
}  // namespace
}  // namespace muster::testing
