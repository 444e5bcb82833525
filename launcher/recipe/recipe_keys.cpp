#include "launcher/recipe/recipe_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "launcher/recipe/yaml_values.h"

namespace muster {
namespace {
// The address of Recipe::*section.*member, in the form that its type asks for.
template <auto kSection, auto kMember>
FieldRef at(Recipe& recipe) {
  auto& field = recipe.*kSection.*kMember;
  using Field = std::remove_reference_t<decltype(field)>;
  if constexpr (std::is_enum_v<Field>) {
    return ChoiceRef{
        &field, [](const void* from) { return static_cast<int>(*static_cast<const Field*>(from)); },
        [](void* into, int choice) { *static_cast<Field*>(into) = static_cast<Field>(choice); }};
  } else {
    return &field;
  }
}

Limits at_least(double low) { return {.low = low}; }
Limits between(double low, double high) { return {.low = low, .high = high}; }
Limits above(double low) { return {.low = low, .excludes_low = true}; }
Limits from_to_below(double low, double high) {
  return {.low = low, .high = high, .excludes_high = true};
}

constexpr Limits kAny{};
constexpr bool kNumbers = true;  // the value decides which numbers a run computes, but for rounding
constexpr bool kOther = false;

using R = Recipe;
using Rows = std::vector<RecipeKey>;

void add_run_and_model(Rows& rows) {
  const auto run = [&](std::string_view name, std::string_view doc, auto field) {
    rows.push_back({"run", name, "", {}, kAny, kOther, doc, field});
  };
  run("name", "name of the run, for people", at<&R::run, &R::Run::name>);
  run("dir", "folder of metrics, events, logs and checkpoints", at<&R::run, &R::Run::dir>);
  run("tensorboard", "also write TensorBoard event files, to tensorboard in run.dir",
      at<&R::run, &R::Run::tensorboard>);

  const auto model = [&](std::string_view name, Limits limits, std::string_view doc, auto field,
                         std::vector<std::string> choices = {}) {
    rows.push_back({"model", name, "", std::move(choices), limits, kNumbers, doc, field});
  };
  using M = R::Model;
  model("kind", kAny, "architecture", at<&R::model, &M::kind>, {"gpt", "llama"});
  model("layers", between(1, 1024), "transformer blocks", at<&R::model, &M::layers>);
  model("dim", between(1, 65536), "width of the residual stream; a multiple of heads",
        at<&R::model, &M::dim>);
  model("heads", between(1, 1024), "attention heads", at<&R::model, &M::heads>);
  model("kv_heads", between(0, 1024),
        "llama: heads of keys and values, a divisor of heads; 0 = heads",
        at<&R::model, &M::kv_heads>);
  model("vocab", between(2, 1 << 24), "size of the vocabulary; at least 256 for bytes",
        at<&R::model, &M::vocab>);
  model("sequence", between(1, 1 << 20), "tokens of context", at<&R::model, &M::sequence>);
  model("dropout", from_to_below(0, 1), "gpt: share of activations dropped in training",
        at<&R::model, &M::dropout>);
  model("mlp_ratio", between(1, 64), "gpt: width of the MLP in multiples of dim",
        at<&R::model, &M::mlp_ratio>);
  model("mlp_dim", between(0, 1 << 20),
        "llama: width of the MLP; 0 = 8/3 of dim, rounded up to a multiple of 32",
        at<&R::model, &M::mlp_dim>);
  model("rope_theta", above(0), "llama: base of the rotary frequencies",
        at<&R::model, &M::rope_theta>);
  model("init_std", above(0), "standard deviation of the initial weights",
        at<&R::model, &M::init_std>);
  model("tie_embeddings", kAny, "share the weights of the token embedding and of the output layer",
        at<&R::model, &M::tie_embeddings>);
  model("dtype", kAny, "type of parameters, gradients and moments; f64 to compare layouts closely",
        at<&R::model, &M::dtype>, {"f32", "f64"});
}

void add_data_and_mesh(Rows& rows) {
  const auto data = [&](std::string_view name, Limits limits, std::string_view doc, auto field,
                        std::vector<std::string> choices = {}) {
    rows.push_back({"data", name, "", std::move(choices), limits, kNumbers, doc, field});
  };
  using D = R::Data;
  data("kind", kAny, "source of the data", at<&R::data, &D::kind>, {"text"});
  data("files", kAny, "globs of the text files; required", at<&R::data, &D::files>);
  data("exclude", kAny, "globs of files to leave out; without a / of their names alone",
       at<&R::data, &D::exclude>);
  data("seed", at_least(0), "seed of the order in which sequences are drawn",
       at<&R::data, &D::seed>);
  data("tokenizer", kAny, "how text becomes tokens", at<&R::data, &D::tokenizer>, {"byte"});

  const auto mesh = [&](std::string_view name, Limits limits, std::string_view doc, auto field) {
    rows.push_back({"mesh", name, "", {}, limits, kOther, doc, field});
  };
  using Axes = R::Mesh;
  constexpr double kMost = 1 << 15;  // the product of four axes fits 64 bits
  mesh("pp", between(1, kMost), "ranks that the layers are spread over, as pipeline stages",
       at<&R::mesh, &Axes::pp>);
  mesh("dp_replicate", between(1, kMost), "copies of the sharded model, each on mesh.fsdp ranks",
       at<&R::mesh, &Axes::dp_replicate>);
  mesh("fsdp", between(-1, kMost), "ranks that share one sharded copy; -1 = all that are left",
       at<&R::mesh, &Axes::fsdp>);
  mesh("tp", between(1, kMost), "ranks that split each layer (tensor parallel)",
       at<&R::mesh, &Axes::tp>);
}

void add_parallel(Rows& rows) {
  const auto fsdp = [&](std::string_view name, Limits limits, bool decides, std::string_view doc,
                        auto field, std::vector<std::string> choices = {}) {
    rows.push_back({"fsdp", name, "", std::move(choices), limits, decides, doc, field});
  };
  using F = R::Fsdp;
  fsdp("reshard_after_forward", kAny, kOther,
       "free the gathered parameters between forward and backward; auto = all but the last group",
       at<&R::fsdp, &F::reshard_after_forward>, {"false", "true", "auto"});
  fsdp("param_dtype", kAny, kNumbers, "type of the gathered parameters and of the compute",
       at<&R::fsdp, &F::param_dtype>, {"f32", "bf16"});
  fsdp("reduce_dtype", kAny, kNumbers, "type in which gradients are summed over ranks",
       at<&R::fsdp, &F::reduce_dtype>, {"f32", "bf16"});
  fsdp("prefetch", between(0, 64), kOther, "parameter groups gathered ahead of their use",
       at<&R::fsdp, &F::prefetch>);

  rows.push_back({"tp",
                  "sequence_parallel",
                  "",
                  {},
                  kAny,
                  kOther,
                  "split norms and residuals along the sequence over mesh.tp",
                  at<&R::tp, &R::Tp::sequence_parallel>});
  using P = R::Pipeline;
  rows.push_back({"pipeline",
                  "schedule",
                  "",
                  {"gpipe", "1f1b", "interleaved_1f1b"},
                  kAny,
                  kOther,
                  "order of the microbatches on mesh.pp",
                  at<&R::pipeline, &P::schedule>});
  rows.push_back({"pipeline",
                  "stages_per_rank",
                  "",
                  {},
                  between(1, 64),
                  kOther,
                  "stages on each rank of mesh.pp; more than 1 with interleaved_1f1b",
                  at<&R::pipeline, &P::stages_per_rank>});
}

void add_optimizer(Rows& rows) {
  const auto optimizer = [&](std::string_view name, Limits limits, std::string_view doc, auto field,
                             std::vector<std::string> choices = {}, std::string_view unit = "") {
    rows.push_back({"optimizer", name, unit, std::move(choices), limits, kNumbers, doc, field});
  };
  using O = R::Optimizer;
  optimizer("kind", kAny, "update rule", at<&R::optimizer, &O::kind>, {"adamw", "sgd"});
  optimizer("lr", above(0), "learning rate after the warm-up", at<&R::optimizer, &O::lr>);
  optimizer("betas", from_to_below(0, 1), "decay of AdamW's two moments",
            at<&R::optimizer, &O::betas>);
  optimizer("eps", above(0), "AdamW's term against division by zero", at<&R::optimizer, &O::eps>);
  optimizer("weight_decay", at_least(0), "decoupled weight decay",
            at<&R::optimizer, &O::weight_decay>);
  optimizer("momentum", from_to_below(0, 1), "momentum of sgd", at<&R::optimizer, &O::momentum>);
  optimizer("warmup", at_least(0), "steps of linear warm-up from 0",
            at<&R::optimizer, &O::warmup_steps>, {}, "steps");
  optimizer("schedule", kAny, "course of the learning rate after the warm-up",
            at<&R::optimizer, &O::schedule>, {"cosine", "linear", "constant"});
  optimizer("min_lr_ratio", between(0, 1), "learning rate at the last step, as a share of lr",
            at<&R::optimizer, &O::min_lr_ratio>);
  optimizer("max_grad_norm", at_least(0), "gradients are clipped to this norm; 0 = never",
            at<&R::optimizer, &O::max_grad_norm>);
}

void add_the_rest(Rows& rows) {
  const auto train = [&](std::string_view name, Limits limits, bool decides, std::string_view doc,
                         auto field, std::string_view unit = "",
                         std::vector<std::string> choices = {}) {
    rows.push_back({"train", name, unit, std::move(choices), limits, decides, doc, field});
  };
  using T = R::Train;
  train("steps", between(1, 1e12), kNumbers, "optimizer steps of the whole run",
        at<&R::train, &T::steps>, "steps");
  train("seed", at_least(0), kNumbers, "seed of the weights and of dropout",
        at<&R::train, &T::seed>);
  train("global_batch", between(1, 1 << 24), kNumbers, "sequences a step, over all ranks",
        at<&R::train, &T::global_batch>);
  train("microbatch", between(1, 1 << 24), kNumbers, "sequences a forward, on one rank",
        at<&R::train, &T::microbatch>);
  train("deterministic", kAny, kNumbers,
        "same numbers in every run; all that runs is so, and false changes nothing yet",
        at<&R::train, &T::deterministic>);
  train("threads", between(0, 1024), kOther, "threads a rank; 0 = allowed cores / local ranks",
        at<&R::train, &T::threads>);
  train("log_every", between(1, 1e12), kOther, "steps between two lines on the console",
        at<&R::train, &T::log_every>, "steps");
  train("autocast", kAny, kNumbers, "type in which autocast runs matrix products",
        at<&R::train, &T::autocast>, "", {"none", "bf16"});
  train("activation_checkpoint", kAny, kOther,
        "full: keep each block's input only and compute the block again in backward",
        at<&R::train, &T::activation_checkpoint>, "", {"none", "full"});
  train("float32_matmul_precision", kAny, kNumbers,
        "high: f32 products from three bf16 ones where the CPU gains by it",
        at<&R::train, &T::float32_matmul_precision>, "", {"highest", "high"});
  train("flush_denormals", kAny, kNumbers,
        "treat denormal numbers as 0; they make some steps several times slower",
        at<&R::train, &T::flush_denormals>);
  train("loss_chunk", between(0, 1 << 24), kOther,
        "positions whose logits are in memory at a time, made again in backward; 0 = all",
        at<&R::train, &T::loss_chunk>);

  const auto other = [&](std::string_view section, std::string_view name, Limits limits,
                         std::string_view doc, auto field, std::vector<std::string> choices = {},
                         std::string_view unit = "") {
    rows.push_back({section, name, unit, std::move(choices), limits, kOther, doc, field});
  };
  using C = R::Checkpoint;
  other("checkpoint", "every", between(0, 1e12), "steps between two checkpoints; 0 = none",
        at<&R::checkpoint, &C::every_steps>, {}, "steps");
  other("checkpoint", "keep", between(1, 1e6), "checkpoints to keep, newest first",
        at<&R::checkpoint, &C::keep>);
  other("checkpoint", "dir", kAny, "folder of the checkpoints; empty = checkpoints in run.dir",
        at<&R::checkpoint, &C::dir>);
  using Net = R::Dist;
  other("dist", "backend", kAny, "how ranks communicate", at<&R::dist, &Net::backend>,
        {"shm", "gloo", "fake", "nccl"});
  other("dist", "timeout", above(0), "the longest that a rank waits for its peers",
        at<&R::dist, &Net::timeout>);
  other("dist", "slow_after", above(0),
        "a rank that its peers wait for longer than this is named in log and events, not ended",
        at<&R::dist, &Net::slow_after>);
}

std::string choice_text(const RecipeKey& key, int choice) {
  return key.choices.at(static_cast<size_t>(choice));
}

std::string number_text(double value) { return fmt::format("{}", value); }
}  // namespace

bool Limits::contains(double value) const noexcept {
  if (excludes_low ? value <= low : value < low) return false;
  return excludes_high ? value < high : value <= high;
}

std::string Limits::text() const {
  const bool has_low = low != -std::numeric_limits<double>::infinity();
  const bool has_high = high != std::numeric_limits<double>::infinity();
  std::string text;
  if (has_low) text = fmt::format("{} {}", excludes_low ? "above" : "at least", low);
  if (has_low && has_high) text += " and ";
  if (has_high) text += fmt::format("{} {}", excludes_high ? "below" : "at most", high);
  return text;
}

std::string RecipeKey::path() const { return fmt::format("{}.{}", section, name); }

std::string RecipeKey::type_text() const {
  if (!choices.empty()) return fmt::format("{}", fmt::join(choices, " | "));
  if (!unit.empty()) return std::string(unit);
  Recipe recipe;
  struct Visitor {
    std::string operator()(bool*) const { return "true | false"; }
    std::string operator()(int64_t*) const { return "whole number"; }
    std::string operator()(double*) const { return "number"; }
    std::string operator()(std::string*) const { return "text"; }
    std::string operator()(std::vector<std::string>*) const { return "list of texts"; }
    std::string operator()(std::vector<double>*) const { return "list of numbers"; }
    std::string operator()(Duration*) const { return "time"; }
    std::string operator()(const ChoiceRef&) const { return "choice"; }
  };
  return std::visit(Visitor{}, field(recipe));
}

const std::vector<RecipeKey>& recipe_keys() {
  static const std::vector<RecipeKey> rows = [] {
    Rows all;
    add_run_and_model(all);
    add_data_and_mesh(all);
    add_parallel(all);
    add_optimizer(all);
    add_the_rest(all);
    return all;
  }();
  return rows;
}

const RecipeKey* find_recipe_key(std::string_view path) {
  const size_t dot = path.find('.');
  if (dot == std::string_view::npos) return nullptr;
  for (const RecipeKey& key : recipe_keys()) {
    if (key.section == path.substr(0, dot) && key.name == path.substr(dot + 1)) return &key;
  }
  return nullptr;
}

std::vector<std::string> recipe_sections() {
  std::vector<std::string> sections;
  for (const RecipeKey& key : recipe_keys()) {
    if (sections.empty() || sections.back() != key.section) sections.emplace_back(key.section);
  }
  return sections;
}

std::string value_to_yaml(const RecipeKey& key, const Recipe& recipe) {
  struct Visitor {
    const RecipeKey& key;
    std::string operator()(const bool* value) const { return *value ? "true" : "false"; }
    std::string operator()(const int64_t* value) const {
      return key.unit.empty() ? fmt::format("{}", *value) : fmt::format("{} {}", *value, key.unit);
    }
    std::string operator()(const double* value) const { return number_text(*value); }
    std::string operator()(const std::string* value) const { return text_to_yaml(*value); }
    std::string operator()(const std::vector<std::string>* value) const {
      std::vector<std::string> texts;
      for (const std::string& text : *value) texts.push_back(text_to_yaml(text));
      return fmt::format("[{}]", fmt::join(texts, ", "));
    }
    std::string operator()(const std::vector<double>* value) const {
      std::vector<std::string> texts;
      for (const double number : *value) texts.push_back(number_text(number));
      return fmt::format("[{}]", fmt::join(texts, ", "));
    }
    std::string operator()(const Duration* value) const { return duration_to_yaml(*value); }
    std::string operator()(const ChoiceRef& choice) const {
      return choice_text(key, choice.get(choice.field));
    }
  };
  // The table addresses fields for reading and writing alike; here they are only read.
  return std::visit(Visitor{key}, key.field(const_cast<Recipe&>(recipe)));
}

std::string recipe_keys_markdown() {
  const Recipe defaults;
  std::string text = "| key | type | default | meaning |\n|---|---|---|---|\n";
  for (const RecipeKey& key : recipe_keys()) {
    std::string type = key.type_text();
    // A bar would end the cell.
    for (size_t bar = type.find(" | "); bar != std::string::npos; bar = type.find(" | ")) {
      type.replace(bar, 3, ", ");
    }
    const std::string limits = key.limits.text();
    if (!limits.empty()) type += fmt::format(" ({})", limits);
    text += fmt::format("| `{}` | {} | `{}` | {} |\n", key.path(), type,
                        value_to_yaml(key, defaults), key.doc);
  }
  return text;
}
}  // namespace muster
