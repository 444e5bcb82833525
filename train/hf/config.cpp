#include "train/hf/config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/base/text.h"
#include "train/hf/config_keys.h"

namespace muster::hf {
namespace {
using nlohmann::json;

struct FamilyRow {
  Family family;
  const char* model_type;
  const char* architecture;
};
constexpr FamilyRow kFamilies[] = {
    {Family::kGpt2, "gpt2", "GPT2LMHeadModel"},
    {Family::kLlama, "llama", "LlamaForCausalLM"},
    {Family::kQwen3, "qwen3", "Qwen3ForCausalLM"},
};
const FamilyRow& row_of(Family family) { return kFamilies[static_cast<size_t>(family)]; }

struct DTypeRow {
  DType dtype;
  const char* name;
};
constexpr DTypeRow kDTypes[] = {{DType::kF32, "float32"},
                                {DType::kF64, "float64"},
                                {DType::kBF16, "bfloat16"},
                                {DType::kF16, "float16"}};

const char* dtype_name(DType dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == dtype) return row.name;
  }
  throw_error(ErrorCode::kInvalidArgument, "config.json: weights must be floating; got {}", dtype);
}

DType read_dtype(ConfigKeys& keys) {
  const std::string key = keys.has("dtype") ? "dtype" : "torch_dtype";
  const std::string name = keys.text(key, "float32");
  keys.ignore({"dtype", "torch_dtype"});
  for (const DTypeRow& row : kDTypes) {
    if (name == row.name) return row.dtype;
  }
  keys.refuse(key, "be float32, float64, bfloat16 or float16");
  return DType::kF32;
}

// What transformers keeps in every config and what only its generation, its heads for other tasks
// or its bookkeeping read.
void ignore_common(ConfigKeys& keys) {
  keys.ignore({"_attn_implementation_autoset",
               "_commit_hash",
               "_name_or_path",
               "architectures",
               "attn_implementation",
               "bad_words_ids",
               "begin_suppress_tokens",
               "chunk_size_feed_forward",
               "decoder_start_token_id",
               "diversity_penalty",
               "do_sample",
               "early_stopping",
               "encoder_no_repeat_ngram_size",
               "exponential_decay_length_penalty",
               "finetuning_task",
               "forced_bos_token_id",
               "forced_eos_token_id",
               "id2label",
               "initializer_range",
               "label2id",
               "length_penalty",
               "max_length",
               "min_length",
               "model_type",
               "no_repeat_ngram_size",
               "num_beam_groups",
               "num_beams",
               "num_return_sequences",
               "output_attentions",
               "output_hidden_states",
               "output_scores",
               "pad_token_id",
               "prefix",
               "problem_type",
               "remove_invalid_values",
               "repetition_penalty",
               "return_dict",
               "return_dict_in_generate",
               "sep_token_id",
               "suppress_tokens",
               "task_specific_params",
               "temperature",
               "tf_legacy_loss",
               "tokenizer_class",
               "top_k",
               "top_p",
               "torchscript",
               "transformers_version",
               "transformers.js_config",
               "is_llama_config",
               "typical_p",
               "unk_token_id",
               "use_bfloat16",
               "use_cache"});
}

// Modules are made for every layer before weights are compared.
int64_t read_layers(ConfigKeys& keys, const std::string& key) {
  constexpr int64_t kMostLayers = 10'000;
  const int64_t layers = keys.required(key);
  if (layers <= kMostLayers) return layers;
  keys.invalid(key, fmt::format("be at most {}", kMostLayers));
  return 1;
}

GptConfig read_gpt2(ConfigKeys& keys) {
  GptConfig model;
  model.vocab_size = keys.required("vocab_size");
  model.max_positions = keys.required("n_positions");
  model.dim = keys.required("n_embd");
  model.layers = read_layers(keys, "n_layer");
  model.heads = keys.required("n_head");
  model.layer_norm_eps = keys.number("layer_norm_epsilon", 1e-5);
  model.tied_head = keys.flag("tie_word_embeddings", true);
  model.init_std = keys.number("initializer_range", 0.02);
  if (!(model.layer_norm_eps >= 0)) keys.invalid("layer_norm_epsilon", "be at least 0");
  if (model.dim % model.heads != 0) keys.invalid("n_head", "divide n_embd");
  const std::string activation = keys.text("activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    keys.refuse("activation_function", "be gelu_new");
  }
  model.mlp_dim = keys.integer("n_inner", 4 * model.dim);
  model.dropout = keys.number("resid_pdrop", 0.1);
  for (const char* other : {"embd_pdrop", "attn_pdrop"}) {
    if (keys.number(other, 0.1) != model.dropout) keys.refuse(other, "equal resid_pdrop");
  }
  if (model.dropout < 0 || model.dropout >= 1) keys.invalid("resid_pdrop", "be in [0, 1)");
  if (!keys.flag("scale_attn_weights", true)) keys.refuse("scale_attn_weights", "be true");
  keys.must_be_off("scale_attn_by_inverse_layer_idx");
  keys.must_be_off("add_cross_attention");
  // Attention is computed in f32 whatever the flag says; n_ctx is n_positions' older name.
  keys.ignore({"reorder_and_upcast_attn", "n_ctx", "summary_activation", "summary_first_dropout",
               "summary_proj_to_labels", "summary_type", "summary_use_proj",
               "gradient_checkpointing"});
  return model;
}

void read_rope_object(ConfigKeys& rope, RopeConfig& config) {
  config.theta = rope.number("rope_theta", config.theta);
  if (config.theta <= 0) rope.invalid("rope_theta", "be above 0");
  const std::string key = rope.has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.text(key, "default");
  rope.ignore({"rope_type", "type"});
  rope.must_be("partial_rotary_factor", 1.0);
  if (type == "default") return;
  if (type == "linear") {
    config.scaling = RopeConfig::Scaling::kLinear;
    if (!rope.has("factor")) rope.invalid("factor", "be given");
    config.factor = rope.number("factor", 1.0);
    if (!(config.factor > 0)) rope.invalid("factor", "be above 0");
    return;
  }
  if (type != "llama3") {
    rope.refuse(key, "be default, linear or llama3");
    rope.ignore({"factor", "original_max_position_embeddings", "low_freq_factor",
                 "high_freq_factor", "beta_fast", "beta_slow", "short_factor", "long_factor",
                 "attention_factor", "mscale", "mscale_all_dim", "truncate"});
    return;
  }
  config.scaling = RopeConfig::Scaling::kLlama3;
  for (const char* part : {"factor", "low_freq_factor", "high_freq_factor"}) {
    if (!rope.has(part)) rope.invalid(part, "be given");
  }
  config.factor = rope.number("factor", 1.0);
  config.low_freq_factor = rope.number("low_freq_factor", 1.0);
  config.high_freq_factor = rope.number("high_freq_factor", 4.0);
  config.original_max_positions = rope.required("original_max_position_embeddings");
  if (!(config.factor > 0)) rope.invalid("factor", "be above 0");
  if (!(0 < config.low_freq_factor && config.low_freq_factor < config.high_freq_factor)) {
    rope.invalid("low_freq_factor", "be above 0 and below high_freq_factor");
  }
}

// Version 5 holds everything in rope_parameters; version 4 has rope_theta beside rope_scaling.
RopeConfig read_rope(ConfigKeys& keys) {
  RopeConfig config;
  config.theta = keys.number("rope_theta", config.theta);
  const double outer = config.theta;
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const json* object = keys.find(name);
    if (object == nullptr) continue;
    if (!object->is_object()) {
      keys.invalid(name, "be an object");
      continue;
    }
    ConfigKeys rope(*object, std::string(name) + ".");
    read_rope_object(rope, config);
    keys.absorb(std::move(rope));
  }
  if (keys.has("rope_theta") && config.theta != outer) {
    keys.invalid("rope_theta", "equal that of the rope parameters");
  }
  keys.must_be("partial_rotary_factor", 1.0);
  keys.must_be_off("rope_interleaved");
  return config;
}

LlamaConfig read_llama(ConfigKeys& keys, Family family) {
  LlamaConfig model;
  model.vocab_size = keys.required("vocab_size");
  model.max_positions = keys.integer("max_position_embeddings", 2048);
  model.dim = keys.required("hidden_size");
  model.mlp_dim = keys.required("intermediate_size");
  model.layers = read_layers(keys, "num_hidden_layers");
  model.heads = keys.required("num_attention_heads");
  model.kv_heads = keys.integer("num_key_value_heads", model.heads);
  model.head_dim = keys.integer("head_dim", family == Family::kQwen3 ? 128 : 0);
  model.rope = read_rope(keys);
  model.rms_norm_eps = keys.number("rms_norm_eps", 1e-6);
  model.tied_head = keys.flag("tie_word_embeddings", false);
  model.attention_bias = keys.flag("attention_bias", false);
  model.mlp_bias = keys.flag("mlp_bias", false);
  model.qk_norm = family == Family::kQwen3;
  model.attention_dropout = keys.number("attention_dropout", 0.0);
  model.init_std = keys.number("initializer_range", 0.02);
  if (!(model.rms_norm_eps >= 0)) keys.invalid("rms_norm_eps", "be at least 0");
  if (model.heads % model.kv_heads != 0) {
    keys.invalid("num_key_value_heads", "divide num_attention_heads");
  }
  if (model.head_dim == 0 && model.dim % model.heads != 0) {
    keys.invalid("num_attention_heads", "divide hidden_size unless head_dim is given");
  } else if (model.head_size() % 2 != 0) {
    keys.invalid("head_dim", "be even, as rotary positions turn pairs");
  }
  if (model.attention_dropout < 0 || model.attention_dropout >= 1) {
    keys.invalid("attention_dropout", "be in [0, 1)");
  }
  const std::string activation = keys.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") keys.refuse("hidden_act", "be silu");
  keys.ignore({"pretraining_tp"});  // splits products; the result is the same
  return model;
}

// Layers that see a window of positions only are not implemented.
void refuse_windows(ConfigKeys& keys) {
  keys.ignore({"max_window_layers"});
  if (keys.flag("use_sliding_window", false)) keys.refuse("use_sliding_window", "be false");
  if (const json* types = keys.find("layer_types"); types != nullptr) {
    for (const json& type : *types) {
      if (type != "full_attention") {
        keys.refuse("layer_types", "be full_attention throughout");
        break;
      }
    }
  }
  // Qwen3 writes the window although it is off.
  keys.ignore({"sliding_window"});
}

Result<Family> read_family(ConfigKeys& keys) {
  const std::string type = keys.text("model_type", "");
  std::vector<std::string> known;
  for (const FamilyRow& row : kFamilies) {
    known.emplace_back(row.model_type);
    if (type != row.model_type) continue;
    const json* named = keys.find("architectures");
    const bool fits = named == nullptr || !named->is_array() || named->empty() ||
                      named->front() == row.architecture;
    if (fits) return row.family;
    return make_error(ErrorCode::kUnimplemented,
                      "config.json: architectures must name {} for model_type {}; got {}",
                      row.architecture, type, named->dump());
  }
  return make_error(ErrorCode::kUnimplemented,
                    "config.json: model_type must be one of {}; got \"{}\"", join(known), type);
}

json rope_json(const RopeConfig& rope, bool with_theta) {
  json object = {{"rope_type", "default"}};
  if (rope.scaling == RopeConfig::Scaling::kLinear) {
    object = {{"rope_type", "linear"}, {"factor", rope.factor}};
  } else if (rope.scaling == RopeConfig::Scaling::kLlama3) {
    object = {{"rope_type", "llama3"},
              {"factor", rope.factor},
              {"low_freq_factor", rope.low_freq_factor},
              {"high_freq_factor", rope.high_freq_factor},
              {"original_max_position_embeddings", rope.original_max_positions}};
  }
  if (with_theta) object["rope_theta"] = rope.theta;
  return object;
}

json gpt2_json(const GptConfig& model) {
  return {{"vocab_size", model.vocab_size},
          {"n_positions", model.max_positions},
          {"n_embd", model.dim},
          {"n_layer", model.layers},
          {"n_head", model.heads},
          {"n_inner", model.mlp_width() == 4 * model.dim ? json() : json(model.mlp_width())},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", model.layer_norm_eps},
          {"resid_pdrop", model.dropout},
          {"embd_pdrop", model.dropout},
          {"attn_pdrop", model.dropout},
          {"initializer_range", model.init_std},
          {"scale_attn_weights", true}};
}

json llama_json(const LlamaConfig& model, Family family) {
  json object = {{"vocab_size", model.vocab_size},
                 {"max_position_embeddings", model.max_positions},
                 {"hidden_size", model.dim},
                 {"intermediate_size", model.mlp_dim},
                 {"num_hidden_layers", model.layers},
                 {"num_attention_heads", model.heads},
                 {"num_key_value_heads", model.kv_heads},
                 {"head_dim", model.head_size()},
                 {"hidden_act", "silu"},
                 {"rms_norm_eps", model.rms_norm_eps},
                 {"attention_bias", model.attention_bias},
                 {"attention_dropout", model.attention_dropout},
                 {"initializer_range", model.init_std},
                 {"rope_parameters", rope_json(model.rope, true)},
                 {"rope_theta", model.rope.theta}};
  if (model.rope.scaling != RopeConfig::Scaling::kNone) {
    object["rope_scaling"] = rope_json(model.rope, false);
  }
  if (family == Family::kLlama) object["mlp_bias"] = model.mlp_bias;
  return object;
}
}  // namespace

std::string_view to_string(Family family) noexcept { return row_of(family).model_type; }

bool Config::tied_head() const {
  return std::visit([](const auto& of) { return of.tied_head; }, model);
}
int64_t Config::vocab_size() const {
  return std::visit([](const auto& of) { return of.vocab_size; }, model);
}

Result<Config> parse_config(std::string_view text) {
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return make_error(ErrorCode::kCorruption,
                      "config.json: must be a JSON object; got {} bytes that are none",
                      text.size());
  }
  ConfigKeys keys(object, "");
  Config config;
  config.family = MUSTER_TRY(read_family(keys));
  ignore_common(keys);
  if (config.family == Family::kGpt2) {
    config.model = read_gpt2(keys);
  } else {
    config.model = read_llama(keys, config.family);
  }
  if (config.family == Family::kQwen3) refuse_windows(keys);
  config.dtype = read_dtype(keys);
  config.bos_ids = keys.integers("bos_token_id");
  config.eos_ids = keys.integers("eos_token_id");
  MUSTER_TRY(keys.finish());
  return config;
}

std::string render_config(const Config& config) {
  json object = config.family == Family::kGpt2
                    ? gpt2_json(std::get<GptConfig>(config.model))
                    : llama_json(std::get<LlamaConfig>(config.model), config.family);
  object["model_type"] = row_of(config.family).model_type;
  object["architectures"] = {row_of(config.family).architecture};
  object["tie_word_embeddings"] = config.tied_head();
  object["dtype"] = dtype_name(config.dtype);
  object["torch_dtype"] = dtype_name(config.dtype);
  object["use_cache"] = true;
  const auto put_ids = [&](const char* key, const std::vector<int64_t>& ids) {
    if (ids.empty()) {
      object[key] = nullptr;
    } else {
      object[key] = ids.size() == 1 ? json(ids[0]) : json(ids);
    }
  };
  put_ids("bos_token_id", config.bos_ids);
  put_ids("eos_token_id", config.eos_ids);
  return object.dump(2) + "\n";
}

std::unique_ptr<CausalLm> make_model(const Config& config) {
  if (config.family == Family::kGpt2) {
    return std::make_unique<Gpt>(std::get<GptConfig>(config.model));
  }
  return std::make_unique<Llama>(std::get<LlamaConfig>(config.model));
}
}  // namespace muster::hf
