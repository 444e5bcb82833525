#include "train/generate_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "train/hf/generate.h"
#include "train/model_arguments.h"

namespace muster {
namespace {
constexpr int kUsage = 64;

struct Request {
  std::string folder;
  std::string prompt;
  std::string stop_ids;
  std::string dtype = "f32";
  int64_t max_new_tokens = 20;
  bool ignores_eos = false;
  bool as_json = false;
};

Result<std::vector<int64_t>> generate(const Request& request) {
  const std::vector<int64_t> prompt = MUSTER_TRY(parse_ids(request.prompt));
  const DType dtype = MUSTER_TRY(parse_compute_dtype(request.dtype));
  hf::GenerateOptions options{.max_new_tokens = request.max_new_tokens};
  if (!request.stop_ids.empty()) options.stop_ids = MUSTER_TRY(parse_ids(request.stop_ids));
  const hf::LoadedFolder loaded =
      MUSTER_TRY(hf::load_folder(real_file_system(), request.folder, dtype));
  MUSTER_TRY(check_ids(prompt, loaded.config));
  if (request.stop_ids.empty() && !request.ignores_eos) options.stop_ids = loaded.config.eos_ids;
  return hf::generate_greedy(*loaded.model, prompt, options);
}

CommandOutput failure(const Error& error) {
  return {exit_status(error.code()), "", fmt::format("muster-tools generate: {}\n", error.what())};
}
}  // namespace

CommandOutput run_generate_command(std::span<const std::string> arguments) {
  CLI::App app{
      "continue a prompt greedily with the model of a Hugging Face folder (gpt2, llama, qwen3).\n"
      "Prints the ids of the prompt and of what follows it, as transformers' generate() returns "
      "them; the token that ends the text is kept.",
      "muster-tools generate"};
  Request request;
  app.add_option("folder", request.folder, "config.json and safetensors")->required();
  app.add_option("--prompt-ids", request.prompt, "token ids, such as 1,2,3")->required();
  app.add_option("--max-new", request.max_new_tokens, "at most so many new tokens")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31))
      ->capture_default_str();
  CLI::Option* stop =
      app.add_option("--stop-ids", request.stop_ids,
                     "ids that end the text, in place of the folder's eos_token_id");
  app.add_flag("--ignore-eos", request.ignores_eos, "do not stop before --max-new tokens")
      ->excludes(stop);
  app.add_option("--dtype", request.dtype, "f32, f64, bf16 or f16: what the model computes in")
      ->capture_default_str();
  app.add_flag("--json", request.as_json, "print {\"ids\": [..]}");
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    return {0, app.help(), ""};
  } catch (const CLI::ParseError& error) {
    return {kUsage, "", fmt::format("muster-tools generate: {}\n{}", error.what(), app.help())};
  }
  const Result<std::vector<int64_t>> ids = catch_error([&] { return generate(request).value(); });
  if (!ids.ok()) return failure(ids.error());
  if (request.as_json) return {0, nlohmann::json{{"ids", *ids}}.dump() + "\n", ""};
  return {0, fmt::format("{}\n", fmt::join(*ids, " ")), ""};
}
}  // namespace muster
