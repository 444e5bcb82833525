#include "tests/train/hf/plain_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>
#include <set>

#include "core/ops/ops.h"
#include "tests/support/golden_case.h"

namespace muster::testing {
namespace {
using nlohmann::json;
using Row = std::vector<double>;
using Rows = std::vector<Row>;  // [position][feature]

json read_json_file(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file);
}

class Plain {
 public:
  explicit Plain(const std::string& folder) : config_(read_json_file(folder + "/config.json")) {
    std::set<std::string> files = {"model.safetensors"};
    const std::string index = folder + "/model.safetensors.index.json";
    if (std::filesystem::exists(index)) {
      files.clear();
      const json map = read_json_file(index).at("weight_map");
      for (const auto& [name, file] : map.items()) files.insert(file.get<std::string>());
    }
    for (const std::string& file : files) {
      for (const auto& [name, tensor] : read_safetensors(folder + "/" + file)) {
        const std::string bare = name.starts_with("transformer.") ? name.substr(12) : name;
        weights_[bare] = {to_vector<double>(to(tensor, DType::kF64)), tensor.sizes().back()};
      }
    }
  }

  Rows logits(const std::vector<int64_t>& tokens) {
    return config_["model_type"] == "gpt2" ? gpt2(tokens) : llama(tokens);
  }

 private:
  struct Weight {
    Row values;
    int64_t width = 0;  // of a row
  };

  bool has(const std::string& name) const { return weights_.contains(name); }
  Row row(const std::string& name, int64_t i) const {
    const Weight& weight = weights_.at(name);
    const auto begin = weight.values.begin() + i * weight.width;
    return {begin, begin + weight.width};
  }
  // A file's config may leave a key out, or say null.
  template <typename T>
  T value(const std::string& key, T otherwise) const {
    const auto at = config_.find(key);
    return at == config_.end() || at->is_null() ? otherwise : at->get<T>();
  }

  // x @ W^T, of a weight [out, in].
  Row out_in(const Row& x, const std::string& name) const {
    const Weight& weight = weights_.at(name + ".weight");
    Row y(weight.values.size() / x.size());
    for (size_t o = 0; o < y.size(); ++o) {
      for (size_t i = 0; i < x.size(); ++i) y[o] += weight.values[o * x.size() + i] * x[i];
      if (has(name + ".bias")) y[o] += weights_.at(name + ".bias").values[o];
    }
    return y;
  }
  // x @ W + b, of a weight [in, out].
  Row in_out(const Row& x, const std::string& name) const {
    const Weight& weight = weights_.at(name + ".weight");
    Row y = weights_.at(name + ".bias").values;
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t o = 0; o < y.size(); ++o) y[o] += x[i] * weight.values[i * y.size() + o];
    }
    return y;
  }

  Row layer_norm(const Row& x, const std::string& name) const {
    double mean = 0, variance = 0;
    for (const double v : x) mean += v / static_cast<double>(x.size());
    for (const double v : x) variance += (v - mean) * (v - mean) / static_cast<double>(x.size());
    const double scale = 1 / std::sqrt(variance + value("layer_norm_epsilon", 1e-5));
    Row y = x;
    for (size_t i = 0; i < x.size(); ++i) {
      y[i] = (x[i] - mean) * scale * weights_.at(name + ".weight").values[i] +
             weights_.at(name + ".bias").values[i];
    }
    return y;
  }
  Row rms_norm(const Row& x, const std::string& name) const {
    double squares = 0;
    for (const double v : x) squares += v * v / static_cast<double>(x.size());
    Row y = x;
    for (size_t i = 0; i < x.size(); ++i) {
      y[i] = x[i] / std::sqrt(squares + value("rms_norm_eps", 1e-6)) *
             weights_.at(name + ".weight").values[i];
    }
    return y;
  }

  // Causal attention of one query head; key head h / (heads / kv_heads).
  static Row attend(const Rows& q, const Rows& k, const Rows& v, size_t at, size_t head,
                    size_t kv_head, size_t dim) {
    Row scores(at + 1);
    for (size_t j = 0; j <= at; ++j) {
      for (size_t d = 0; d < dim; ++d) scores[j] += q[at][head * dim + d] * k[j][kv_head * dim + d];
      scores[j] /= std::sqrt(static_cast<double>(dim));
    }
    const double most = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    for (double& score : scores) total += score = std::exp(score - most);
    Row out(dim);
    for (size_t j = 0; j <= at; ++j) {
      for (size_t d = 0; d < dim; ++d) out[d] += scores[j] / total * v[j][kv_head * dim + d];
    }
    return out;
  }
  static Row all_heads(const Rows& q, const Rows& k, const Rows& v, size_t at, size_t heads,
                       size_t kv_heads) {
    const size_t dim = q[at].size() / heads;
    Row joined;
    for (size_t head = 0; head < heads; ++head) {
      const Row one = attend(q, k, v, at, head, head / (heads / kv_heads), dim);
      joined.insert(joined.end(), one.begin(), one.end());
    }
    return joined;
  }
  static void add_to(Row& x, const Row& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  Row head(const Row& x, const std::string& embedding, bool tied) const {
    const Weight& table = weights_.at(tied ? embedding : "lm_head.weight");
    Row y(table.values.size() / x.size());
    for (size_t o = 0; o < y.size(); ++o) {
      for (size_t i = 0; i < x.size(); ++i) y[o] += table.values[o * x.size() + i] * x[i];
    }
    return y;
  }

  Rows gpt2(const std::vector<int64_t>& tokens) const;
  Row gpt2_mlp(const Row& x, const std::string& at) const;
  Rows llama(const std::vector<int64_t>& tokens) const;
  void llama_attention(Rows& xs, const std::string& at) const;
  void turn(Row& x, size_t position, size_t head_dim) const;
  double frequency(size_t pair, size_t head_dim) const;

  json config_;
  std::map<std::string, Weight> weights_;
};

Row Plain::gpt2_mlp(const Row& x, const std::string& at) const {
  Row inner = in_out(x, at + "c_fc");
  for (double& m : inner) {
    const double cubic = std::sqrt(2 / std::numbers::pi) * (m + 0.044715 * m * m * m);
    m = 0.5 * m * (1 + std::tanh(cubic));
  }
  return in_out(inner, at + "c_proj");
}

Rows Plain::gpt2(const std::vector<int64_t>& tokens) const {
  const auto heads = config_["n_head"].get<size_t>();
  Rows xs;
  for (size_t t = 0; t < tokens.size(); ++t) {
    xs.push_back(row("wte.weight", tokens[t]));
    add_to(xs.back(), row("wpe.weight", static_cast<int64_t>(t)));
  }
  for (int layer = 0; layer < config_["n_layer"].get<int>(); ++layer) {
    const std::string at = "h." + std::to_string(layer) + ".";
    Rows q, k, v;
    for (const Row& x : xs) {
      const Row packed = in_out(layer_norm(x, at + "ln_1"), at + "attn.c_attn");
      const auto third = static_cast<std::ptrdiff_t>(packed.size() / 3);
      q.emplace_back(packed.begin(), packed.begin() + third);
      k.emplace_back(packed.begin() + third, packed.begin() + 2 * third);
      v.emplace_back(packed.begin() + 2 * third, packed.end());
    }
    for (size_t t = 0; t < xs.size(); ++t) {
      add_to(xs[t], in_out(all_heads(q, k, v, t, heads, heads), at + "attn.c_proj"));
      add_to(xs[t], gpt2_mlp(layer_norm(xs[t], at + "ln_2"), at + "mlp."));
    }
  }
  for (Row& x : xs)
    x = head(layer_norm(x, "ln_f"), "wte.weight", value("tie_word_embeddings", true));
  return xs;
}

double Plain::frequency(size_t pair, size_t head_dim) const {
  json rope = value("rope_parameters", value("rope_scaling", json::object()));
  const double theta = rope.value("rope_theta", value("rope_theta", 10000.0));
  const std::string type = rope.value("rope_type", rope.value("type", "default"));
  const double plain =
      std::pow(theta, -2.0 * static_cast<double>(pair) / static_cast<double>(head_dim));
  if (type == "linear") return plain / rope["factor"].get<double>();
  if (type != "llama3") return plain;
  const double factor = rope["factor"], low = rope["low_freq_factor"],
               high = rope["high_freq_factor"];
  const double turns = rope["original_max_position_embeddings"].get<double>() * plain / 2 /
                       std::numbers::pi;  // within the old context
  const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
  return kept * plain + (1 - kept) * plain / factor;
}

void Plain::turn(Row& x, size_t position, size_t head_dim) const {
  const size_t half = head_dim / 2;
  for (size_t first = 0; first < x.size(); first += head_dim) {
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * frequency(i, head_dim);
      const double a = x[first + i], b = x[first + half + i];
      x[first + i] = a * std::cos(angle) - b * std::sin(angle);
      x[first + half + i] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
}

void Plain::llama_attention(Rows& xs, const std::string& at) const {
  const auto heads = config_["num_attention_heads"].get<size_t>();
  const auto kv_heads = value("num_key_value_heads", heads);
  const size_t dim = value("head_dim", xs[0].size() / heads);
  const auto normed = [&](Row x, const std::string& name) {
    if (!has(at + name + ".weight")) return x;
    for (size_t first = 0; first < x.size(); first += dim) {
      const auto begin = x.begin() + static_cast<std::ptrdiff_t>(first);
      const Row part = rms_norm(Row(begin, begin + static_cast<std::ptrdiff_t>(dim)), at + name);
      std::copy(part.begin(), part.end(), begin);
    }
    return x;
  };
  Rows q, k, v;
  for (size_t t = 0; t < xs.size(); ++t) {
    const Row x = rms_norm(xs[t], at.substr(0, at.size() - 10) + "input_layernorm");
    q.push_back(normed(out_in(x, at + "q_proj"), "q_norm"));
    k.push_back(normed(out_in(x, at + "k_proj"), "k_norm"));
    v.push_back(out_in(x, at + "v_proj"));
    turn(q[t], t, dim), turn(k[t], t, dim);
  }
  for (size_t t = 0; t < xs.size(); ++t) {
    add_to(xs[t], out_in(all_heads(q, k, v, t, heads, kv_heads), at + "o_proj"));
  }
}

Rows Plain::llama(const std::vector<int64_t>& tokens) const {
  Rows xs;
  for (const int64_t token : tokens) xs.push_back(row("model.embed_tokens.weight", token));
  for (int layer = 0; layer < config_["num_hidden_layers"].get<int>(); ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    llama_attention(xs, at + "self_attn.");
    for (Row& x : xs) {
      const Row y = rms_norm(x, at + "post_attention_layernorm");
      Row gate = out_in(y, at + "mlp.gate_proj");
      const Row up = out_in(y, at + "mlp.up_proj");
      for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
      add_to(x, out_in(gate, at + "mlp.down_proj"));
    }
  }
  const bool tied = value("tie_word_embeddings", false);
  for (Row& x : xs) x = head(rms_norm(x, "model.norm"), "model.embed_tokens.weight", tied);
  return xs;
}
}  // namespace

std::vector<std::vector<double>> plain_logits(const std::string& folder,
                                              const std::vector<int64_t>& tokens) {
  return Plain(folder).logits(tokens);
}

PlainText plain_greedy(const std::string& folder, const std::vector<int64_t>& prompt,
                       int64_t count) {
  Plain model(folder);
  PlainText text{.ids = prompt};
  for (int64_t i = 0; i < count; ++i) {
    Row last = model.logits(text.ids).back();
    const auto best = std::max_element(last.begin(), last.end());
    const double most = *best;
    text.ids.push_back(best - last.begin());
    *best = -1e300;
    text.smallest_gap =
        std::min(text.smallest_gap, most - *std::max_element(last.begin(), last.end()));
  }
  return text;
}
}  // namespace muster::testing
