// The trainer's state as a checkpoint holds it: names of tensors, and the JSON of everything else.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "launcher/recipe/recipe_keys.h"
#include "train/trainer.h"

namespace muster {
namespace {
using checkpoint::Box;
using checkpoint::TensorPiece;

checkpoint::Dims checkpoint_dims(Dims dims) { return checkpoint::Dims(dims.begin(), dims.end()); }

Box box_of(const ShardBox& box) {
  return Box{checkpoint_dims(box.offsets), checkpoint_dims(box.sizes)};
}

// The boxes of the whole parameter that `local`, a piece or a moment of it, holds.
void add_pieces(const std::string& name, const fsdp::ShardedParam& param, const Tensor& local,
                std::vector<TensorPiece>& pieces) {
  for (const LocalBox& box : param.boxes) {
    const int64_t rows = box.box.sizes.empty() ? 1 : box.box.sizes[0];
    const Tensor part = param.boxes.size() == 1 ? local : rows_of(local, box.first_row, rows);
    TensorPiece piece;
    piece.name = name;
    piece.dtype = local.dtype();
    piece.global_sizes = checkpoint_dims(param.sizes);
    piece.box = box_of(box.box);
    piece.data = {static_cast<const std::byte*>(part.data_ptr()),
                  static_cast<size_t>(part.nbytes())};
    piece.holders = replica_ranks(param.spec);
    pieces.push_back(std::move(piece));
  }
}

// The values that decide numbers and are not those of the checkpoint, one a line.
std::string changed_values(const std::string& saved_text, const Recipe& recipe) {
  const Result<Recipe> saved = parse_recipe(saved_text, "the checkpoint's recipe");
  if (!saved.ok()) return fmt::format("\n  {}", saved.error().what());
  std::string text;
  for (const RecipeDifference& difference : diff(*saved, recipe)) {
    const RecipeKey* key = find_recipe_key(difference.key);
    if (key == nullptr || !key->decides_numbers) continue;
    text += fmt::format("\n  {}: {} there, {} here", difference.key, difference.a, difference.b);
  }
  return text;
}
}  // namespace

std::vector<TensorPiece> Trainer::pieces(bool with_tied_copies) {
  std::vector<TensorPiece> result;
  std::map<std::string, const fsdp::ShardedParam*> by_name;
  for (const fsdp::NamedShard& shard : model_->shards()) {
    by_name[shard.name] = shard.param;
    if (!with_tied_copies && model_->is_tied_copy(shard.name)) continue;
    add_pieces("model." + shard.name, *shard.param, shard.param->local, result);
  }
  for (const OptimizerStateEntry& entry : optimizer_->state()) {
    if (!with_tied_copies && model_->is_tied_copy(entry.parameter)) continue;
    for (const NamedTensor& moment : entry.tensors) {
      add_pieces(fmt::format("optimizer.{}.{}", entry.parameter, moment.name),
                 *by_name.at(entry.parameter), moment.tensor, result);
    }
  }
  return result;
}

std::string Trainer::train_state_json() const {
  const int64_t next_sample = step_ * recipe_.train.global_batch;
  nlohmann::ordered_json state;
  state["step"] = step_;
  state["tokens_seen"] = tokens_seen_;
  state["optimizer"] = {{"step", step_}};
  state["lr"] = hex_float(recipe_.optimizer.lr * schedule_.factor(step_));
  state["rng"] = {
      {"algorithm", "philox4x32-10"}, {"seed", recipe_.train.seed}, {"next_step", step_}};
  state["data"] = {
      {"next_sample", next_sample},         {"epoch", next_sample / data_.num_windows()},
      {"seed", recipe_.data.seed},          {"order", "feistel6.v1"},
      {"fingerprint", data_.fingerprint()}, {"global_batch", recipe_.train.global_batch}};
  state["recipe_hash"] = hex64(recipe_hash(recipe_));
  return state.dump();
}

void Trainer::save() {
  checkpoint::SaveRequest request;
  request.step = step_;
  request.tensors = pieces(/*with_tied_copies=*/false);
  request.train_state_json = train_state_json();
  nlohmann::json axes = nlohmann::json::array();
  for (const DeviceMesh::Axis& axis : model_->mesh()->axes())
    axes.push_back({{"name", axis.name}, {"size", axis.size}});
  request.mesh_json = nlohmann::json{{"axes", axes}}.dump();
  request.recipe_text = to_yaml(recipe_);
  request.code_revision = MUSTER_CODE_REVISION;
  request.overwrite = true;  // a step that is run again after a fall-back replaces the damaged one
  const Result<checkpoint::SaveReport> report = checkpointer_->save(request);
  if (report.ok()) {
    MUSTER_LOG(kInfo, "checkpoint of step {}: {} in {}, digest {}", step_,
               format_bytes({report->total_nbytes}), format_duration(report->total_time),
               report->digest);
    event({{"event", "saved"}, {"step", step_}, {"digest", report->digest}});
    return;
  }
  // Training goes on: the previous checkpoint is intact. Two failures in a row are fatal, and so is
  // one after the last step, which no later save makes good.
  MUSTER_LOG(kError, "{}", report.error().what());
  event({{"event", "save_failed"}, {"step", step_}, {"reason", report.error().what()}});
  const bool is_last = step_ == recipe_.train.steps;
  if (is_last || checkpointer_->failed_saves_in_a_row() >= 2) throw report.error();
}

void Trainer::apply_train_state(const checkpoint::LoadedState& loaded) {
  const nlohmann::json state = nlohmann::json::parse(loaded.train_state_json);
  const std::string fingerprint = state.at("data").at("fingerprint");
  MUSTER_CHECK(fingerprint == data_.fingerprint(), ErrorCode::kFailedPrecondition,
               "resume: the data must be what the checkpoint was trained on; it has fingerprint "
               "{}, {} has {}\n"
               "  fix: restore the text files, or start in another run.dir",
               data_.fingerprint(), loaded.path, fingerprint);
  const std::string hash = state.at("recipe_hash");
  MUSTER_CHECK(hash == hex64(recipe_hash(recipe_)), ErrorCode::kFailedPrecondition,
               "resume: the recipe must compute the numbers that {} began; got other values:{}\n"
               "  fix: go back to the values there, or start in another run.dir",
               loaded.path, changed_values(loaded.recipe_text, recipe_));
  step_ = state.at("step");
  tokens_seen_ = state.at("tokens_seen");
  for (OptimizerStateEntry& entry : optimizer_->state()) {
    entry.step = state.at("optimizer").at("step");
    optimizer_->load_state(entry);
  }
}

void Trainer::resume() {
  std::vector<checkpoint::TensorSlot> slots;
  const std::vector<TensorPiece> own = pieces(/*with_tied_copies=*/true);
  for (const TensorPiece& piece : own) {
    auto* data = const_cast<std::byte*>(piece.data.data());
    slots.push_back(
        {piece.name, piece.dtype, piece.global_sizes, piece.box, {data, piece.data.size()}});
  }
  checkpoint::LoadRequest request;
  request.slots = slots;
  const std::optional<checkpoint::LoadedState> loaded = checkpointer_->load_latest(request).value();
  if (!loaded) return;
  for (const checkpoint::Skipped& skipped : loaded->skipped) {
    if (is_first_rank())
      MUSTER_LOG(kWarn, "checkpoint {} is passed over: {}", skipped.name, skipped.reason);
    event({{"event", "checkpoint_skipped"}, {"name", skipped.name}, {"reason", skipped.reason}});
  }
  apply_train_state(*loaded);
  if (is_first_rank())
    MUSTER_LOG(kInfo, "resumed from {}, digest {}", loaded->path, loaded->digest);
  event({{"event", "resumed"}, {"from_step", step_}, {"digest", loaded->digest}});
}
}  // namespace muster
