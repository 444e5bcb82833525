// Model folders: strict loading, and saving that gives the same bytes again.
#include "train/hf/folder.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/ops/ops.h"
#include "tests/checkpoint/wrapping_file_system.h"
#include "tests/support/golden_case.h"
#include "tests/support/matchers.h"
#include "train/hf/weights.h"

namespace muster::testing {
namespace {
using hf::load_folder;
using hf::save_folder;
using hf::Weights;
using nlohmann::json;
using ::testing::HasSubstr;

FileSystem& files() { return real_file_system(); }
std::string golden_folder(const std::string& name) { return golden_path("models/" + name); }

class HfFolder : public ::testing::Test {
 protected:
  // A copy of a golden folder that a test may change.
  std::string copy_of(const std::string& name) {
    const std::string to = dir_.file(name);
    std::filesystem::copy(golden_folder(name), to);
    for (const auto& entry : std::filesystem::directory_iterator(to)) {
      std::filesystem::permissions(entry.path(), std::filesystem::perms::owner_write,
                                   std::filesystem::perm_options::add);
    }
    return to;
  }
  void write(const std::string& path, const std::string& text) {
    write_file_durably(files(), path, text).value();
  }
  json read_json(const std::string& path) { return json::parse(read_text(files(), path).value()); }

  TempDirectory dir_;
};

void expect_same_state(Module& a, Module& b) {
  const auto x = a.state(), y = b.state();
  ASSERT_EQ(x.size(), y.size());
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(x[i].name, y[i].name);
    EXPECT_TRUE(equal(x[i].tensor, y[i].tensor)) << x[i].name;
  }
}

TEST_F(HfFolder, WhatIsSavedHasTheTensorsOfThePublishedFiles) {
  for (const char* name : {"gpt2", "llama", "llama3_tied_sharded", "qwen3_bf16"}) {
    const hf::LoadedFolder loaded = load_folder(files(), golden_folder(name)).value();
    const std::string folder = dir_.file(std::string("saved_") + name);
    ASSERT_OK(
        save_folder(files(), folder, loaded.config, *loaded.model, {.dtype = loaded.config.dtype}));
    const Weights published = Weights::open(files(), golden_folder(name)).value();
    const Weights saved = Weights::open(files(), folder).value();
    ASSERT_EQ(saved.names(), published.names()) << name;
    for (const std::string& tensor : saved.names()) {
      const Tensor a = saved.read(tensor).value(), b = published.read(tensor).value();
      EXPECT_EQ(a.dtype(), b.dtype());
      EXPECT_TRUE(equal(a, b)) << name << " " << tensor;
    }
    expect_same_state(*load_folder(files(), folder).value().model, *loaded.model);
  }
}

TEST_F(HfFolder, LargeModelsAreSavedInSeveralFilesWithAnIndex) {
  const hf::LoadedFolder loaded = load_folder(files(), golden_folder("llama")).value();
  const std::string folder = dir_.file("saved");
  ASSERT_OK(save_folder(files(), folder, loaded.config, *loaded.model, {.max_file = 60_KiB}));
  const json index = read_json(folder + "/model.safetensors.index.json");
  EXPECT_EQ(index["metadata"]["total_size"], loaded.model->num_parameters() * 4);
  EXPECT_EQ(index["weight_map"].size(), loaded.model->state().size());
  EXPECT_THAT(index["weight_map"]["lm_head.weight"].get<std::string>(),
              HasSubstr("-of-00005.safetensors"));
  expect_same_state(*load_folder(files(), folder).value().model, *loaded.model);
}

TEST_F(HfFolder, SavesOnlyIntoANewFolder) {
  const hf::LoadedFolder loaded = load_folder(files(), golden_folder("llama")).value();
  const std::string folder = copy_of("llama");
  EXPECT_THAT(save_folder(files(), folder, loaded.config, *loaded.model),
              FailsWith(ErrorCode::kFailedPrecondition, HasSubstr("must be new or empty")));
  EXPECT_FALSE(std::filesystem::exists(folder + ".part"));
}

// An operation at a time fails, as on a full disk: nothing half-written is left behind.
TEST_F(HfFolder, AFailedSaveLeavesNothing) {
  const hf::LoadedFolder loaded = load_folder(files(), golden_folder("llama")).value();
  const std::string folder = dir_.file("saved");
  int64_t failed = 0;
  for (int64_t last = 1;; ++last) {
    int64_t operations = 0;
    const auto fail_at_last = [&](const std::string& operation) -> Result<void> {
      const bool removes = operation.starts_with("unlink") || operation.starts_with("rmdir");
      if (removes || ++operations != last) return {};
      return make_error(ErrorCode::kIo, "{}: No space left on device", operation);
    };
    checkpoint::WrappingFileSystem full(files(), {.before = fail_at_last, .append = nullptr});
    const Result<void> saved =
        save_folder(full, folder, loaded.config, *loaded.model, {.max_file = 60_KiB});
    if (operations < last) {
      ASSERT_OK(saved);
      break;
    }
    EXPECT_THAT(saved, FailsWith(ErrorCode::kIo, HasSubstr("No space left on device")));
    ++failed;
    if (std::filesystem::exists(folder)) break;  // only the sync after the rename failed
    EXPECT_TRUE(std::filesystem::is_empty(dir_.path())) << "after operation " << last;
  }
  EXPECT_GT(failed, 20);
  expect_same_state(*load_folder(files(), folder).value().model, *loaded.model);
}

TEST_F(HfFolder, NamesEveryFaultBeforeAByteOfTheModelChanges) {
  const hf::Config config = hf::read_config(files(), golden_folder("llama")).value();
  hf::Config other = config;
  auto& changed = std::get<LlamaConfig>(other.model);
  changed.layers = 1, changed.mlp_dim = 80, changed.attention_bias = true;
  const auto model = hf::make_model(other);
  model->reset_parameters(4);
  const auto before = hf::make_model(other);
  before->reset_parameters(4);
  const Weights weights = Weights::open(files(), golden_folder("llama")).value();
  const Result<void> result = hf::load_weights(weights, other, *model);
  for (const char* fault :
       {"missing: model.layers.0.self_attn.q_proj.bias",
        "unexpected: model.layers.1.mlp.up_proj.weight",
        "shape: model.layers.0.mlp.down_proj.weight must be [48, 80]; got [48, 96]"}) {
    EXPECT_THAT(result, FailsWith(ErrorCode::kInvalidArgument, HasSubstr(fault)));
  }
  EXPECT_THAT(result, FailsWith(ErrorCode::kInvalidArgument, HasSubstr("got 16 faults:")));
  expect_same_state(*model, *before);
}

TEST_F(HfFolder, ReadsGpt2FilesWithoutPrefixAndWithMasks) {
  const std::string folder = copy_of("gpt2");
  std::vector<checkpoint::SafetensorsTensor> tensors;
  std::vector<Tensor> kept;
  const Weights weights = Weights::open(files(), folder).value();
  const auto add = [&](const std::string& name, const Tensor& tensor) {
    kept.push_back(tensor);
    tensors.push_back(
        {name,
         "F32",
         {tensor.sizes().begin(), tensor.sizes().end()},
         {static_cast<const std::byte*>(tensor.data_ptr()), static_cast<size_t>(tensor.nbytes())}});
  };
  for (const std::string& name : weights.names()) {
    add(name.substr(std::string("transformer.").size()), weights.read(name).value());
  }
  add("h.0.attn.bias", ones({1, 1, 4, 4}));
  ASSERT_OK(checkpoint::write_safetensors(files(), folder + "/model.safetensors", {}, tensors));
  expect_same_state(*load_folder(files(), folder).value().model,
                    *load_folder(files(), golden_folder("gpt2")).value().model);
}

TEST_F(HfFolder, ATiedHeadInTheFilesMustBeTheEmbedding) {
  const std::string folder = copy_of("llama");
  json config = read_json(folder + "/config.json");
  config["tie_word_embeddings"] = true;
  write(folder + "/config.json", config.dump());
  EXPECT_THAT(load_folder(files(), folder),
              FailsWith(ErrorCode::kInvalidArgument,
                        HasSubstr("lm_head.weight must equal model.embed_tokens.weight")));
}

TEST_F(HfFolder, AnIndexMustAgreeWithItsFiles) {
  const std::string folder = copy_of("llama3_tied_sharded");
  const std::string path = folder + "/model.safetensors.index.json";
  const json index = read_json(path);
  json wrong = index;
  wrong["weight_map"]["model.norm.weight"] = "model-00001-of-00004.safetensors";
  wrong["weight_map"].erase("model.layers.0.mlp.up_proj.weight");
  write(path, wrong.dump());
  EXPECT_THAT(load_folder(files(), folder),
              FailsWith(ErrorCode::kCorruption,
                        HasSubstr("model.norm.weight is not in model-00001-of-00004.safetensors")));
  EXPECT_THAT(
      load_folder(files(), folder),
      FailsWith(
          ErrorCode::kCorruption,
          HasSubstr("model.layers.0.mlp.up_proj.weight of model-00002-of-00004.safetensors is "
                    "not in the weight_map")));
  wrong = index;
  wrong["weight_map"]["model.norm.weight"] = "../elsewhere.safetensors";
  write(path, wrong.dump());
  EXPECT_THAT(
      load_folder(files(), folder),
      FailsWith(ErrorCode::kCorruption,
                HasSubstr("must name files of this folder; got \"../elsewhere.safetensors\"")));
  write(path, index.dump());
  std::filesystem::remove(folder + "/model-00003-of-00004.safetensors");
  EXPECT_THAT(load_folder(files(), folder),
              FailsWith(ErrorCode::kNotFound, HasSubstr("model-00003")));
}

TEST_F(HfFolder, NamesWhatIsMissingInAFolder) {
  EXPECT_THAT(load_folder(files(), dir_.file("nowhere")),
              FailsWith(ErrorCode::kNotFound, HasSubstr("nowhere/config.json")));
  const std::string folder = copy_of("llama");
  std::filesystem::remove(folder + "/model.safetensors");
  EXPECT_THAT(load_folder(files(), folder),
              FailsWith(ErrorCode::kNotFound,
                        HasSubstr("must hold model.safetensors or model.safetensors.index.json")));
}
}  // namespace
}  // namespace muster::testing
