// Configs that the families allow beside the published ones, through the commands, against plain
// loops: heads, key heads, widths, biases, tied or not, rotary scalings, dtypes, several files.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "core/base/file_system.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"
#include "tests/support/golden_case.h"
#include "tests/support/golden_close.h"
#include "tests/support/matchers.h"
#include "tests/train/hf/plain_model.h"
#include "tests/train/job.h"
#include "train/hf/folder.h"

namespace muster::testing {
namespace {
using nlohmann::json;
using ::testing::HasSubstr;

std::string golden_folder(const std::string& name) { return golden_path("models/" + name); }

std::string text_of(const std::vector<int64_t>& ids) {
  return fmt::format("{}", fmt::join(ids, ","));
}

json llama3_scaling() {
  return {{"rope_type", "llama3"},
          {"factor", 4.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 3.0},
          {"original_max_position_embeddings", 32}};
}

struct Variant {
  const char* name;
  const char* base;  ///< golden folder whose config is changed
  json changes;
  Bytes max_file = 1_GiB;
};

std::vector<Variant> variants() {
  const json rope_linear = {{"rope_type", "linear"}, {"factor", 2.5}, {"rope_theta", 5000.0}};
  json rope_llama3 = llama3_scaling();
  rope_llama3["rope_theta"] = 500000.0;
  return {
      {"gpt2_inner_100", "gpt2", {{"n_inner", 100}}},
      {"gpt2_inner_written_out", "gpt2", {{"n_inner", 192}, {"n_head", 6}}},
      {"gpt2_own_head", "gpt2", {{"tie_word_embeddings", false}, {"n_layer", 1}}},
      {"gpt2_bf16_files", "gpt2", {{"dtype", "bfloat16"}, {"layer_norm_epsilon", 1e-3}}, 40_KiB},
      {"llama_one_key_head", "llama", {{"num_key_value_heads", 1}}},
      {"llama_all_key_heads", "llama", {{"num_key_value_heads", 4}, {"num_hidden_layers", 3}}},
      {"llama_six_heads",
       "llama",
       {{"num_attention_heads", 6}, {"num_key_value_heads", 3}, {"head_dim", 10}}},
      {"llama_tied", "llama", {{"tie_word_embeddings", true}, {"rms_norm_eps", 1e-2}}},
      {"llama_biases", "llama", {{"attention_bias", true}, {"mlp_bias", true}}},
      {"llama_linear", "llama", {{"rope_parameters", rope_linear}, {"intermediate_size", 50}}},
      {"llama_linear_v4",
       "llama/config_v4.json",
       {{"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}, {"torch_dtype", "float16"}}},
      {"llama_llama3", "llama", {{"rope_parameters", rope_llama3}}, 60_KiB},
      {"llama_llama3_v4", "llama/config_v4.json", {{"rope_scaling", llama3_scaling()}}},
      {"llama_bf16_files", "llama3_tied_sharded", {{"dtype", "bfloat16"}}, 20_KiB},
      {"qwen3_own_head", "qwen3_bf16", {{"tie_word_embeddings", false}, {"head_dim", 8}}},
      {"qwen3_biases",
       "qwen3_bf16",
       {{"attention_bias", true}, {"num_key_value_heads", 4}, {"dtype", "float32"}}},
  };
}

class HfVariants : public ::testing::Test {
 protected:
  // A folder with transformers' own spelling of the config, and weights that are all of some size.
  std::string make_folder(const Variant& variant) {
    const std::string base = variant.base;
    const std::string path = golden_folder(base.ends_with(".json") ? base : base + "/config.json");
    json config = json::parse(read_text(real_file_system(), path).value());
    config.update(variant.changes);
    const hf::Config read = hf::parse_config(config.dump()).value();
    const std::unique_ptr<CausalLm> model = hf::make_model(read);
    model->reset_parameters(7);
    Generator generator(11);
    for (const NamedTensor& named : model->named_parameters()) {
      const Tensor noise = randn(named.tensor.sizes(), DType::kF32, {}, &generator);
      add_(detach(named.tensor), mul(noise, 0.15));
    }
    const std::string folder = directory_.file(variant.name);
    hf::save_folder(real_file_system(), folder, read, *model,
                    {.dtype = read.dtype, .max_file = variant.max_file})
        .value();
    write_file_durably(real_file_system(), folder + "/config.json", config.dump()).value();
    return folder;
  }

  void expect_plain_logits(const std::string& folder, const std::vector<int64_t>& tokens) {
    const std::string file = directory_.file("logits.safetensors");
    const Ended ended = shell(fmt::format("{} logits {} --prompt-ids {} --out {} --dtype f64",
                                          binary("muster"), folder, text_of(tokens), file));
    ASSERT_EQ(ended.status, 0) << ended.output;
    std::vector<double> expected;
    for (const std::vector<double>& row : plain_logits(folder, tokens)) {
      expected.insert(expected.end(), row.begin(), row.end());
    }
    const Tensor logits = read_safetensors(file).at("logits");
    expect_close(reshape(logits, {-1}), from_vector(expected), {0, 0, 1e-9}, folder);
  }

  TempDirectory directory_;
};

const std::vector<int64_t> kPrompt = {5, 250, 17, 3, 88, 131, 17};

TEST_F(HfVariants, ThePlainLoopsComputeThePublishedModels) {
  for (const char* name : {"gpt2", "llama", "llama3_tied_sharded", "qwen3_bf16"}) {
    const GoldenFile& golden = GoldenFile::load(std::string("models/") + name);
    const json& c = golden.find("forward");
    const Tensor tokens = select(golden.tensor(c["args"][0]), 0, 1);
    std::vector<double> flat;
    for (const auto& row : plain_logits(golden_folder(name), to_vector<int64_t>(tokens))) {
      flat.insert(flat.end(), row.begin(), row.end());
    }
    expect_close(from_vector(flat), reshape(select(golden.tensor(c["logits_f64"]), 0, 1), {-1}),
                 {0, 0, 1e-12}, name);
  }
}

TEST_F(HfVariants, LogitsAndGreedyTokensAreThoseOfThePlainLoops) {
  for (const Variant& variant : variants()) {
    SCOPED_TRACE(variant.name);
    const std::string folder = make_folder(variant);
    EXPECT_EQ(std::filesystem::exists(folder + "/model.safetensors"), variant.max_file > 1_MiB);
    expect_plain_logits(folder, kPrompt);
    const PlainText expected = plain_greedy(folder, kPrompt, 10);
    ASSERT_GT(expected.smallest_gap, 1e-3) << "another seed is due: f32 cannot tell these apart";
    for (const char* program : {"muster", "muster-tools"}) {
      const Ended ended =
          shell(fmt::format("{} generate {} --prompt-ids {} --max-new 10 --ignore-eos --json",
                            binary(program), folder, text_of(kPrompt)));
      ASSERT_EQ(ended.status, 0) << ended.output;
      EXPECT_EQ(json::parse(ended.output)["ids"].get<std::vector<int64_t>>(), expected.ids);
    }
  }
}

// What is read and written again says the same to the same reader.
TEST_F(HfVariants, WrittenBackTheyComputeTheSameBits) {
  for (const Variant& variant : variants()) {
    SCOPED_TRACE(variant.name);
    const std::string folder = make_folder(variant);
    const hf::LoadedFolder first = hf::load_folder(real_file_system(), folder).value();
    const std::string again = directory_.file(std::string(variant.name) + "_again");
    ASSERT_OK(hf::save_folder(real_file_system(), again, first.config, *first.model,
                              {.dtype = first.config.dtype}));
    const hf::LoadedFolder second = hf::load_folder(real_file_system(), again).value();
    EXPECT_EQ(hf::render_config(second.config), hf::render_config(first.config));
    const NoGradGuard no_grad;
    const Tensor tokens = from_span(std::span(kPrompt), {1, 7});
    EXPECT_TRUE(equal((*first.model)(tokens), (*second.model)(tokens)));
    expect_plain_logits(again, kPrompt);
  }
}

TEST_F(HfVariants, AnotherArchitectureIsRefusedByNameThroughBothPrograms) {
  const std::string folder = make_folder({"mixtral", "llama", json::object()});
  json config = json::parse(read_text(real_file_system(), folder + "/config.json").value());
  config.update({{"model_type", "mixtral"}, {"architectures", {"MixtralForCausalLM"}}});
  write_file_durably(real_file_system(), folder + "/config.json", config.dump()).value();
  for (const char* program : {"muster", "muster-tools"}) {
    for (const char* command : {"generate", "logits --out none.safetensors"}) {
      const Ended ended =
          shell(fmt::format("{} {} {} --prompt-ids 1", binary(program), command, folder));
      EXPECT_EQ(ended.status, 65) << ended.output;
      EXPECT_THAT(ended.output,
                  HasSubstr("model_type must be one of gpt2, llama, qwen3; got \"mixtral\""));
    }
  }
}
}  // namespace
}  // namespace muster::testing
