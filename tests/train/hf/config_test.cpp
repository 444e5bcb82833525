// config.json of published models: both spellings, and what must be refused.
#include "train/hf/config.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "core/base/file_system.h"
#include "tests/support/golden_case.h"
#include "tests/support/matchers.h"

namespace muster::testing {
namespace {
using hf::parse_config;
using nlohmann::json;
using ::testing::HasSubstr;

json golden_config(const std::string& path) {
  return json::parse(read_text(real_file_system(), golden_path("models/" + path)).value());
}

// The text with some keys replaced.
std::string changed(const std::string& path, const json& changes) {
  json object = golden_config(path);
  object.update(changes);
  return object.dump();
}

LlamaConfig llama_of(const std::string& text) {
  return std::get<LlamaConfig>(parse_config(text).value().model);
}

TEST(HfConfig, ReadsGpt2) {
  const hf::Config config = parse_config(golden_config("gpt2/config.json").dump()).value();
  EXPECT_EQ(config.family, hf::Family::kGpt2);
  const auto& model = std::get<GptConfig>(config.model);
  EXPECT_EQ(model.vocab_size, 257);
  EXPECT_EQ(model.max_positions, 64);
  EXPECT_EQ(model.dim, 48);
  EXPECT_EQ(model.layers, 2);
  EXPECT_EQ(model.heads, 3);
  EXPECT_EQ(model.dropout, 0.0);
  EXPECT_TRUE(model.tied_head);
  EXPECT_EQ(config.eos_ids, std::vector<int64_t>{256});
}

TEST(HfConfig, ReadsTheSameFromBothSpellings) {
  for (const char* folder : {"llama", "llama3_tied_sharded"}) {
    const std::string base = folder;
    const hf::Config five = parse_config(golden_config(base + "/config.json").dump()).value();
    const hf::Config four = parse_config(golden_config(base + "/config_v4.json").dump()).value();
    // The older spelling leaves head_dim out where it is dim / heads; written out they are equal.
    EXPECT_EQ(hf::render_config(five), hf::render_config(four)) << folder;
  }
  const LlamaConfig model = llama_of(golden_config("llama3_tied_sharded/config_v4.json").dump());
  EXPECT_EQ(model.rope.scaling, RopeConfig::Scaling::kLlama3);
  EXPECT_EQ(model.rope.factor, 8.0);
  EXPECT_EQ(model.rope.original_max_positions, 64);
  EXPECT_EQ(model.rope.theta, 10000.0);
  EXPECT_TRUE(model.tied_head);
  EXPECT_EQ(model.kv_heads, 2);
}

TEST(HfConfig, ReadsQwen3) {
  const hf::Config config = parse_config(golden_config("qwen3_bf16/config.json").dump()).value();
  const auto& model = std::get<LlamaConfig>(config.model);
  EXPECT_EQ(config.family, hf::Family::kQwen3);
  EXPECT_EQ(config.dtype, DType::kBF16);
  EXPECT_TRUE(model.qk_norm);
  EXPECT_EQ(model.head_size(), 16);
}

TEST(HfConfig, WhatItWritesItReadsAgain) {
  for (const char* folder : {"gpt2", "llama", "llama3_tied_sharded", "qwen3_bf16"}) {
    const std::string path = std::string(folder) + "/config.json";
    const std::string written = hf::render_config(parse_config(golden_config(path).dump()).value());
    EXPECT_EQ(hf::render_config(parse_config(written).value()), written) << folder;
    // Everything that both files name has the published value.
    const json published = golden_config(path), ours = json::parse(written);
    for (const auto& [key, value] : published.items()) {
      if (ours.contains(key) && key != "rope_parameters") {
        EXPECT_EQ(ours[key], value) << key;
      }
    }
  }
}

struct Refusal {
  const char* file;
  json changes;
  const char* says;
};

TEST(HfConfig, RefusesByNameWhatWouldChangeTheMathematics) {
  const Refusal refusals[] = {
      {"llama/config.json",
       {{"model_type", "mamba"}},
       "must be one of gpt2, llama, qwen3; got \"mamba\""},
      {"llama/config.json",
       {{"architectures", {"LlamaForSequenceClassification"}}},
       "architectures must name LlamaForCausalLM"},
      {"llama/config.json", {{"hidden_act", "gelu"}}, "hidden_act must be silu; got \"gelu\""},
      {"llama/config.json", {{"logits_soft_cap", 30.0}}, "unknown key logits_soft_cap"},
      {"llama/config.json",
       {{"quantization_config", {{"bits", 4}}}},
       "unknown key quantization_config"},
      {"llama/config.json",
       {{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 4.0}}}},
       "rope_parameters.rope_type must be default, linear or llama3; got \"yarn\""},
      {"llama/config_v4.json",
       {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}},
       "rope_scaling.type must be default, linear or llama3; got \"dynamic\""},
      {"llama/config.json",
       {{"partial_rotary_factor", 0.5}},
       "partial_rotary_factor must be 1; got 0.5"},
      {"qwen3_bf16/config.json",
       {{"use_sliding_window", true}},
       "use_sliding_window must be false"},
      {"qwen3_bf16/config.json",
       {{"layer_types", {"full_attention", "sliding_attention"}}},
       "layer_types must be full_attention throughout"},
      {"gpt2/config.json",
       {{"activation_function", "relu"}},
       "activation_function must be gelu_new"},
      {"gpt2/config.json",
       {{"scale_attn_by_inverse_layer_idx", true}},
       "scale_attn_by_inverse_layer_idx must be false"},
      {"gpt2/config.json", {{"attn_pdrop", 0.2}}, "attn_pdrop must equal resid_pdrop"},
      {"gpt2/config.json", {{"dtype", "float8_e4m3fn"}}, "dtype must be float32"},
  };
  for (const Refusal& refusal : refusals) {
    EXPECT_THAT(parse_config(changed(refusal.file, refusal.changes)),
                FailsWith(ErrorCode::kUnimplemented, HasSubstr(refusal.says)));
  }
}

TEST(HfConfig, ReadsTheWidthOfAGpt2Mlp) {
  const auto width = [](const json& n_inner) {
    const std::string text = changed("gpt2/config.json", {{"n_inner", n_inner}});
    return std::get<GptConfig>(parse_config(text).value().model).mlp_width();
  };
  EXPECT_EQ(width(nullptr), 192);
  EXPECT_EQ(width(192), 192);
  EXPECT_EQ(width(100), 100);
  EXPECT_THAT(parse_config(changed("gpt2/config.json", {{"n_inner", 0}})),
              FailsWith(ErrorCode::kInvalidArgument,
                        HasSubstr("n_inner must be a positive integer; got 0")));
}

TEST(HfConfig, ReadsLinearRotaryScalingFromBothSpellings) {
  const LlamaConfig five = llama_of(changed(
      "llama/config.json",
      {{"rope_parameters", {{"rope_type", "linear"}, {"factor", 2.5}, {"rope_theta", 5000.0}}}}));
  EXPECT_EQ(five.rope.scaling, RopeConfig::Scaling::kLinear);
  EXPECT_EQ(five.rope.factor, 2.5);
  EXPECT_EQ(five.rope.theta, 5000.0);
  const LlamaConfig four = llama_of(
      changed("llama/config_v4.json", {{"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}}));
  EXPECT_EQ(four.rope.scaling, RopeConfig::Scaling::kLinear);
  EXPECT_EQ(four.rope.factor, 4.0);
  for (const auto& [scaling, says] :
       {std::pair<json, const char*>{{{"type", "linear"}}, "rope_scaling.factor must be given"},
        {{{"type", "linear"}, {"factor", 0.0}}, "rope_scaling.factor must be above 0; got 0"}}) {
    EXPECT_THAT(parse_config(changed("llama/config_v4.json", {{"rope_scaling", scaling}})),
                FailsWith(ErrorCode::kInvalidArgument, HasSubstr(says)));
  }
}

TEST(HfConfig, RefusesValuesWithoutSenseAllAtOnce) {
  const json wrong = {
      {"num_attention_heads", 0}, {"rms_norm_eps", "small"}, {"hidden_act", "gelu"}};
  const Result<hf::Config> result = parse_config(changed("llama/config.json", wrong));
  for (const char* part :
       {"num_attention_heads must be a positive integer; got 0",
        "rms_norm_eps must be a number; got \"small\"", "hidden_act must be silu"}) {
    EXPECT_THAT(result, FailsWith(ErrorCode::kInvalidArgument, HasSubstr(part)));
  }
  EXPECT_THAT(parse_config(changed("llama/config.json", {{"num_key_value_heads", 3}})),
              FailsWith(ErrorCode::kInvalidArgument,
                        HasSubstr("num_key_value_heads must divide num_attention_heads; got 3")));
  EXPECT_THAT(parse_config(changed("llama/config.json", {{"rope_theta", 5000.0}})),
              FailsWith(ErrorCode::kInvalidArgument,
                        HasSubstr("rope_theta must equal that of the rope parameters; got 5000")));
  EXPECT_THAT(parse_config(changed("llama/config.json", {{"num_hidden_layers", 1'000'000}})),
              FailsWith(ErrorCode::kInvalidArgument,
                        HasSubstr("num_hidden_layers must be at most 10000; got 1000000")));
  EXPECT_THAT(
      parse_config(changed("llama/config.json", {{"hidden_size", int64_t{1} << 40}})),
      FailsWith(ErrorCode::kInvalidArgument, HasSubstr("hidden_size must be a positive integer")));
  EXPECT_THAT(parse_config("[1]"),
              FailsWith(ErrorCode::kCorruption, HasSubstr("must be a JSON object")));
  EXPECT_THAT(parse_config("{\"model_type\": \"llama\""),
              FailsWith(ErrorCode::kCorruption, HasSubstr("must be a JSON object")));
  EXPECT_THAT(
      parse_config("{\"model_type\": \"llama\"}"),
      FailsWith(ErrorCode::kInvalidArgument, HasSubstr("vocab_size must be given; got nothing")));
}
}  // namespace
}  // namespace muster::testing
