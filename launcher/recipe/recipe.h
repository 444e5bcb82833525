#pragma once
/// A recipe: the typed, validated configuration of a training run, which knows where each of its
/// values came from.
///
/// The launcher and the worker read the same file through load_recipe, so they never disagree. A
/// loaded Recipe is valid in itself; what depends on the number of ranks is asked of check_recipe.
/// All keys, their types, limits and descriptions live in one table (recipe_keys.h). Not a place
/// for live objects: it is a plain value that copies and compares.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/base/time.h"

namespace muster {

/// Where a value came from.
struct Origin {
  enum class Kind : uint8_t { kDefault, kFile, kCommandLine };
  Kind kind = Kind::kDefault;
  std::string file;  ///< for kFile: the path as it was given
  int line = 0;      ///< for kFile: 1-based
  int column = 0;    ///< for kFile: 1-based

  /// "default", "configs/a.yaml:4:18" or "command line".
  [[nodiscard]] std::string text() const;
};

/// Everything that one training run is made from. Counts are int64_t so that no product overflows.
struct Recipe {
  struct Run {
    std::string name = "run";
    std::string dir = "out/run";  ///< metrics.jsonl, events.jsonl, logs and checkpoints go here
    bool tensorboard = false;     ///< also write TensorBoard event files, below run.dir/tensorboard
  } run;

  struct Model {
    enum class Kind : uint8_t { kGpt, kLlama };
    Kind kind = Kind::kGpt;
    int64_t layers = 4;
    int64_t dim = 128;
    int64_t heads = 4;
    int64_t kv_heads = 0;  ///< llama; 0 = heads
    int64_t vocab = 256;
    int64_t sequence = 128;  ///< tokens of context
    double dropout = 0.0;    ///< gpt
    int64_t mlp_ratio = 4;   ///< gpt
    int64_t mlp_dim = 0;     ///< llama; 0 = 8/3 of dim, rounded up to a multiple of 32
    double rope_theta = 10000.0;
    double init_std = 0.02;
    bool tie_embeddings = true;
    std::string dtype = "f32";  ///< of parameters and moments; a name that parse_dtype knows
  } model;

  struct Data {
    enum class Kind : uint8_t { kText };
    enum class Tokenizer : uint8_t { kByte };
    Kind kind = Kind::kText;
    std::vector<std::string> files;    ///< globs; see expand_data_files
    std::vector<std::string> exclude;  ///< globs taken away from `files`
    int64_t seed = 0;
    Tokenizer tokenizer = Tokenizer::kByte;
  } data;

  /// Axes of the device mesh, outermost first. -1 for fsdp = all ranks that the other axes leave.
  struct Mesh {
    int64_t pp = 1;
    int64_t dp_replicate = 1;
    int64_t fsdp = -1;
    int64_t tp = 1;
  } mesh;

  struct Fsdp {
    enum class Reshard : uint8_t { kFalse, kTrue, kAuto };
    Reshard reshard_after_forward = Reshard::kAuto;
    std::string param_dtype = "f32";   ///< a name that parse_dtype knows
    std::string reduce_dtype = "f32";  ///< likewise
    int64_t prefetch = 1;              ///< parameter groups gathered ahead
  } fsdp;

  /// Tensor parallel: what mesh.tp splits, by the plan that belongs to model.kind.
  struct Tp {
    bool sequence_parallel = false;  ///< norms and residuals are split along the sequence
  } tp;

  struct Pipeline {
    enum class Schedule : uint8_t { kGpipe, k1F1B, kInterleaved1F1B };
    Schedule schedule = Schedule::k1F1B;
    int64_t stages_per_rank = 1;  ///< more than 1 with interleaved_1f1b
  } pipeline;

  struct Optimizer {
    enum class Kind : uint8_t { kAdamW, kSgd };
    enum class Schedule : uint8_t { kCosine, kLinear, kConstant };
    Kind kind = Kind::kAdamW;
    double lr = 3e-4;
    std::vector<double> betas = {0.9, 0.999};  ///< always two
    double eps = 1e-8;
    double weight_decay = 0.01;
    double momentum = 0.0;
    int64_t warmup_steps = 0;  ///< key `warmup`
    Schedule schedule = Schedule::kCosine;
    double min_lr_ratio = 0.0;
    double max_grad_norm = 1.0;  ///< 0 = no clipping
  } optimizer;

  struct Train {
    int64_t steps = 100;
    int64_t seed = 0;
    int64_t global_batch = 16;  ///< sequences a step, over all ranks
    int64_t microbatch = 4;     ///< sequences a forward, on one rank
    bool deterministic = true;
    int64_t threads = 0;  ///< a rank; 0 = allowed cores / local ranks
    int64_t log_every = 1;
    enum class Autocast : uint8_t { kNone, kBf16 };
    Autocast autocast = Autocast::kNone;
    enum class ActivationCheckpoint : uint8_t { kNone, kFull };
    ActivationCheckpoint activation_checkpoint = ActivationCheckpoint::kNone;
    enum class MatmulPrecision : uint8_t { kHighest, kHigh };
    MatmulPrecision float32_matmul_precision = MatmulPrecision::kHighest;
    bool flush_denormals = true;
    int64_t loss_chunk = 0;  ///< positions whose logits are made at a time; 0 = all
  } train;

  struct Checkpoint {
    int64_t every_steps = 0;  ///< key `every`; 0 = never
    int64_t keep = 2;
    std::string dir;  ///< "" = run.dir/checkpoints; read it through checkpoint_dir()
  } checkpoint;

  struct Dist {
    enum class Backend : uint8_t { kShm, kGloo, kFake, kNccl };
    Backend backend = Backend::kShm;
    Duration timeout = 30s;
    Duration slow_after = 5s;  ///< a rank that its peers wait for longer is named, not ended
  } dist;

  std::string source;                     ///< path of the file that it was loaded from
  std::map<std::string, Origin> origins;  ///< by "section.key", only keys that are not defaults

  /// The folder of the checkpoints: checkpoint.dir, or run.dir/checkpoints.
  [[nodiscard]] std::string checkpoint_dir() const;
  /// Where "section.key" was set; kDefault when nowhere.
  [[nodiscard]] Origin origin_of(std::string_view key) const;
};

/// Reads a recipe file and applies `overrides` in order: "section.key=value", or "~section.key" and
/// "~section" to go back to defaults.
///
/// Strict: unknown and duplicate keys, wrong types, values out of range and values that contradict
/// each other are all reported, in one Error, one line each:
/// `file:line:col: section.key: what; got value; did you mean "..."? [BadRecipe]`.
/// @error kBadRecipe  the file or an override is wrong; kNotFound, kIo  the file cannot be read
Result<Recipe> load_recipe(const std::string& path, const std::vector<std::string>& overrides = {});

/// load_recipe of a text that is already in memory; `path` only names it in messages.
Result<Recipe> parse_recipe(std::string_view text, const std::string& path,
                            const std::vector<std::string>& overrides = {});

/// Checks what depends on the number of ranks: the mesh's product, and a sequence for every rank.
/// @error kBadRecipe  names the key and where it was set
Result<void> check_recipe(const Recipe& recipe, int world_size);

/// The complete recipe as YAML, in the table's order. Loading it gives an equal recipe.
/// With `with_origins` each value carries a comment that says where it was set.
std::string to_yaml(const Recipe& recipe, bool with_origins = false);

/// A hash over the values that decide which numbers a run computes (the table marks them): two
/// recipes with the same hash walk the same trajectory. Names, folders and time-outs do not count.
uint64_t recipe_hash(const Recipe& recipe);

/// One value that differs between two recipes, as YAML text.
struct RecipeDifference {
  std::string key;  ///< "section.key"
  std::string a;
  std::string b;
};

/// The values in which two recipes differ, in the table's order. Origins do not count.
std::vector<RecipeDifference> diff(const Recipe& a, const Recipe& b);

/// The files that `files` minus `exclude` match now: sorted, each once, no folders.
/// Relative globs start at the working folder.
/// @error kNotFound  a glob of `files` matches nothing, or nothing is left
Result<std::vector<std::string>> expand_data_files(const Recipe::Data& data);

}  // namespace muster
