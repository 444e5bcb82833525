#pragma once
/// config.json of a Hugging Face model folder: which model, and which numbers it computes.
///
/// Reads what transformers 4 and 5 write (`rope_scaling` and `torch_dtype`, or `rope_parameters`
/// and `dtype`). Closed by default: a key that is not known, or whose value asks for mathematics
/// that is not implemented, is refused by name, all of them at once. Knows no tensors.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/result.h"
#include "core/nn/gpt.h"
#include "core/nn/llama.h"

namespace muster::hf {

enum class Family : uint8_t { kGpt2, kLlama, kQwen3 };
/// "gpt2", "llama", "qwen3": the key model_type.
std::string_view to_string(Family family) noexcept;

struct Config {
  Family family = Family::kLlama;
  std::variant<GptConfig, LlamaConfig> model;  ///< GptConfig for kGpt2
  DType dtype = DType::kF32;                   ///< of the published weights
  std::vector<int64_t> bos_ids;                ///< tokens that begin and end a text; may be empty
  std::vector<int64_t> eos_ids;

  [[nodiscard]] bool tied_head() const;
  [[nodiscard]] int64_t vocab_size() const;
};

/// Reads the text of a config.json.
/// @error kCorruption no JSON object; kInvalidArgument a key that is missing or has a wrong value;
///        kUnimplemented an architecture, a key or a value that is not supported (each named)
Result<Config> parse_config(std::string_view text);

/// The text of a config.json that transformers 4 and 5 and parse_config() read.
std::string render_config(const Config& config);

/// The model that a config describes, with uninitialised parameters.
std::unique_ptr<CausalLm> make_model(const Config& config);

}  // namespace muster::hf
