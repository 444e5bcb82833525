// muster-tools generate and logits on the published models, through the binary.
#include "train/generate_command.h"

#include <gmock/gmock.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/file_system.h"
#include "core/ops/ops.h"
#include "tests/support/golden_case.h"
#include "tests/support/golden_close.h"
#include "tests/support/matchers.h"
#include "train/logits_command.h"

namespace muster::testing {
namespace {
using nlohmann::json;
using ::testing::HasSubstr;

constexpr const char* kModels[] = {"gpt2", "llama", "llama3_tied_sharded", "qwen3_bf16"};

std::string golden_folder(const std::string& name) { return golden_path("models/" + name); }

std::string ids_text(const Tensor& ids) {
  return fmt::format("{}", fmt::join(to_vector<int64_t>(reshape(ids, {-1})), ","));
}

struct Ended {
  int status = 0;
  std::string out;
};

// Runs muster-tools beside this test, with its errors in the output too.
Ended tools(const std::string& arguments) {
  const auto binary =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "muster-tools";
  Ended ended;
  FILE* pipe = ::popen(
      fmt::format("timeout -k 5 120 {} {} 2>&1 < /dev/null", binary.string(), arguments).c_str(),
      "r");
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) ended.out.append(buffer, n);
  const int raw = ::pclose(pipe);
  ended.status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
  return ended;
}

CommandOutput generate(std::vector<std::string> arguments) {
  return run_generate_command(arguments);
}

class GenerateCommand : public ::testing::Test {
 protected:
  std::string changed_copy(const std::string& name, const json& changes) {
    const std::string to = dir_.file(name);
    std::filesystem::remove_all(to);
    std::filesystem::copy(golden_folder(name), to);
    const std::string path = to + "/config.json";
    json config = json::parse(read_text(real_file_system(), path).value());
    config.update(changes);
    std::filesystem::remove(path);
    write_file_durably(real_file_system(), path, config.dump()).value();
    return to;
  }
  TempDirectory dir_;
};

TEST_F(GenerateCommand, PrintsTheTokensThatTransformersGenerates) {
  for (const char* name : kModels) {
    const GoldenFile& golden = GoldenFile::load(std::string("models/") + name);
    for (const char* id : {"generate", "generate_stop"}) {
      const json& c = golden.find(id);
      const std::string stop =
          c.contains("eos_token_id") ? fmt::format("--stop-ids {}", c["eos_token_id"].dump()) : "";
      const Ended ended = tools(
          fmt::format("generate {} --prompt-ids {} --max-new {} {} --json", golden_folder(name),
                      ids_text(golden.tensor(c["args"][0])), c["max_new_tokens"].get<int>(), stop));
      ASSERT_EQ(ended.status, 0) << ended.out;
      EXPECT_EQ(json::parse(ended.out)["ids"].get<std::vector<int64_t>>(),
                to_vector<int64_t>(golden.tensor(c["out"])))
          << name << " " << id;
    }
  }
}

TEST_F(GenerateCommand, StopsAtTheTokenThatTheFolderNames) {
  const GoldenFile& golden = GoldenFile::load("models/llama");
  const json& c = golden.find("generate_stop");
  const std::string folder = changed_copy("llama", {{"eos_token_id", {239, 7}}});
  std::filesystem::remove(folder + "/generation_config.json");
  const std::string prompt = ids_text(golden.tensor(c["args"][0]));
  const CommandOutput output = generate({folder, "--prompt-ids", prompt, "--json"});
  EXPECT_EQ(json::parse(output.out)["ids"].get<std::vector<int64_t>>(),
            to_vector<int64_t>(golden.tensor(c["out"])));
  const CommandOutput on = generate({folder, "--prompt-ids", prompt, "--ignore-eos", "--json"});
  EXPECT_EQ(json::parse(on.out)["ids"].get<std::vector<int64_t>>(),
            to_vector<int64_t>(golden.tensor(golden.find("generate")["out"])));
}

TEST_F(GenerateCommand, RefusesByNameWithTheStatusOfTheErrorTable) {
  const std::string llama = golden_folder("llama");
  const auto expect = [](const CommandOutput& output, int status, const std::string& says) {
    EXPECT_EQ(output.status, status) << output.err;
    EXPECT_EQ(output.out, "");
    EXPECT_THAT(output.err, HasSubstr(says));
  };
  expect(generate({llama}), 64, "--prompt-ids is required");
  expect(generate({llama, "--prompt-ids", "1,x"}), 64, "got \"x\" in \"1,x\"");
  expect(generate({llama, "--prompt-ids", "1,256"}), 65,
         "must be from 0 to 255, by the vocabulary; got 256");
  expect(generate({llama, "--prompt-ids", "-1"}), 65,
         "must be from 0 to 255, by the vocabulary; got -1");
  expect(generate({llama, "--prompt-ids", "1", "--max-new", "9223372036854775807"}), 64,
         "not in range 0 to 2147483648");
  expect(generate({changed_copy("llama", {{"rms_norm_eps", -1}}), "--prompt-ids", "1"}), 64,
         "rms_norm_eps must be at least 0; got -1");
  expect(generate({llama, "--prompt-ids", "1", "--dtype", "i8"}), 64,
         "must be f32, f64, bf16 or f16");
  expect(generate({dir_.file("none"), "--prompt-ids", "1"}), 66, "none/config.json");
  expect(generate({changed_copy("llama", {{"model_type", "bloom"}}), "--prompt-ids", "1"}), 65,
         "model_type must be one of gpt2, llama, qwen3; got \"bloom\"");
  expect(generate({changed_copy("gpt2", {{"n_layer", 3}}), "--prompt-ids", "1"}), 64,
         "missing: transformer.h.2.ln_1.weight");
  const std::string damaged = changed_copy("qwen3_bf16", json::object());
  std::filesystem::permissions(damaged + "/model.safetensors", std::filesystem::perms::owner_write,
                               std::filesystem::perm_options::add);
  std::filesystem::resize_file(damaged + "/model.safetensors", 100'000);
  expect(generate({damaged, "--prompt-ids", "1"}), 66, "model.safetensors");
  const std::string long_prompt = ids_text(zeros({60}, DType::kI64));
  expect(generate({golden_folder("gpt2"), "--prompt-ids", long_prompt, "--ignore-eos"}), 64,
         "of length at most 64");
}

TEST_F(GenerateCommand, AFolderWhoseStopTokensCannotBeReadIsRefused) {
  const std::string folder = changed_copy("llama", json::object());
  const std::string path = folder + "/generation_config.json";
  for (const char* stop : {"\"x\"", "[2, null]", "1e30"}) {
    std::filesystem::remove(path);
    write_file_durably(real_file_system(), path, fmt::format("{{\"eos_token_id\": {}}}", stop))
        .value();
    const CommandOutput output = generate({folder, "--prompt-ids", "1"});
    EXPECT_EQ(output.status, 64) << stop;
    EXPECT_THAT(output.err, HasSubstr("eos_token_id must be an integer or a list of them"));
  }
}

TEST_F(GenerateCommand, LogitsThatAreNoNumbersMakeNoTokens) {
  const std::string folder = changed_copy("llama", json::object());
  const std::string path = folder + "/model.safetensors";
  std::string bytes = read_text(real_file_system(), path).value();
  for (size_t i = bytes.size() - 64; i < bytes.size(); ++i) bytes[i] = '\xff';
  std::filesystem::remove(path);
  write_file_durably(real_file_system(), path, bytes).value();
  const CommandOutput output = generate({folder, "--prompt-ids", "1,2"});
  EXPECT_EQ(output.status, 65);
  EXPECT_EQ(output.out, "");
  EXPECT_THAT(output.err, HasSubstr("got nan after 2 tokens"));
}

TEST_F(GenerateCommand, IdsThatCannotBePrintedFail) {
  const std::string folder = golden_folder("llama");
  EXPECT_EQ(tools(fmt::format("generate {} --prompt-ids 1 > /dev/full", folder)).status, 74);
}

TEST_F(GenerateCommand, LogitsAreNotWrittenOverWhatIsNoFile) {
  std::filesystem::create_directory(dir_.file("d"));
  for (const std::string& out : {dir_.file("d"), std::string("/dev/null")}) {
    const CommandOutput output = run_logits_command(
        std::vector<std::string>{golden_folder("llama"), "--prompt-ids", "1", "--out", out});
    EXPECT_EQ(output.status, 64);
    EXPECT_THAT(output.err, HasSubstr("must be a new file or a regular one"));
  }
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST_F(GenerateCommand, HelpSaysWhatTheIdsAre) {
  const CommandOutput output = generate({"--help"});
  EXPECT_EQ(output.status, 0);
  EXPECT_THAT(output.out, HasSubstr("the ids of the prompt and of what follows it"));
}

TEST_F(GenerateCommand, LogitsWritesThoseOfTransformers) {
  for (const char* name : kModels) {
    const GoldenFile& golden = GoldenFile::load(std::string("models/") + name);
    const json& c = golden.find("forward");
    const Tensor tokens = golden.tensor(c["args"][0]);
    for (const bool wide : {false, true}) {
      const std::string file = dir_.file("logits.safetensors");
      const Ended ended =
          tools(fmt::format("logits {} --prompt-ids {} --prompt-ids {} --out {} {}",
                            golden_folder(name), ids_text(select(tokens, 0, 0)),
                            ids_text(select(tokens, 0, 1)), file, wide ? "--dtype f64" : ""));
      ASSERT_EQ(ended.status, 0) << ended.out;
      const auto written = read_safetensors(file);
      EXPECT_TRUE(equal(written.at("input_ids"), tokens));
      expect_close(written.at("logits"), golden.tensor(c[wide ? "logits_f64" : "logits_f32"]),
                   wide ? GoldenTolerance{0, 0, 1e-9} : GoldenTolerance{0, 0, 1e-4}, name);
    }
  }
  const std::vector<std::string> uneven = {
      golden_folder("llama"), "--prompt-ids", "1,2", "--prompt-ids", "1", "--out", dir_.file("x")};
  const CommandOutput refused = run_logits_command(uneven);
  EXPECT_EQ(refused.status, 64);
  EXPECT_THAT(refused.err, HasSubstr("must have one length; got 2 and 1"));
}
}  // namespace
}  // namespace muster::testing
