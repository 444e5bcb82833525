#include "checkpoint/io/save_session.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "checkpoint/io/discovery.h"
#include "checkpoint/io/names.h"
#include "checkpoint/io/reader.h"
#include "checkpoint/io/wire.h"
#include "core/base/fault.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/text.h"

namespace muster::checkpoint {
namespace {
using nlohmann::json;

Result<void> check_piece(const TensorPiece& piece) {
  if (piece.name.empty() || piece.name == "__metadata__" ||
      piece.name.find('\0') != std::string::npos) {
    return make_error(ErrorCode::kInvalidArgument, "a tensor cannot be called \"{}\"", piece.name);
  }
  if (!is_inside(piece.box, piece.global_sizes)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "tensor \"{}\": the box must lie inside of sizes {}; got {}", piece.name,
                      to_string(piece.global_sizes), to_string(piece.box));
  }
  const int64_t wanted = numel(piece.box.sizes) * item_nbytes(piece.dtype);
  if (static_cast<int64_t>(piece.data.size()) != wanted) {
    return make_error(ErrorCode::kInvalidArgument,
                      "tensor \"{}\": box {} of {} has {} bytes; got {}", piece.name,
                      to_string(piece.box), piece.dtype, wanted, piece.data.size());
  }
  return {};
}

std::string aliases_hash(const Aliases& aliases) { return hex64(hash_text(json(aliases).dump())); }
}  // namespace

std::string SaveSession::where() const { return fmt::format("save step {}: ", request_.step); }

RankFileTarget SaveSession::target() const {
  return {options_.file_system, folder_, save_id_, request_.step, options_.global_rank,
          options_.chunk_nbytes};
}

Result<SaveReport> SaveSession::run() {
  Result<SaveReport> report = attempt();
  if (!report.ok()) undo();
  return report;
}

Result<SaveReport> SaveSession::attempt() {
  const TimePoint start = real_clock().now();
  MUSTER_TRY(begin(validate()));
  Result<WrittenFiles> written = write();
  json reply = written.ok() ? written_to_json(*written) : error_to_json(written.error());
  reply["aliases"] = aliases_hash(request_.aliases);
  MUSTER_TRY(meeting_.report("write", reply.dump()), where() + "phase write");
  if (MUSTER_FAULT_POINT("checkpoint.before_commit")) (void)tear_tensor_file(target());
  Result<SaveReport> report = is_leader() ? commit() : hear_result();
  if (!report.ok()) return report;
  RankFileTarget committed = target();
  committed.folder = final_;
  if (MUSTER_FAULT_POINT("checkpoint.after_commit")) (void)tear_tensor_file(committed);
  if (is_leader()) retire_old(*report);
  report->local_nbytes = written->data_nbytes;
  report->commit_nbytes = meeting_.sent_nbytes();
  report->write_time = write_time_;
  report->total_time = real_clock().now() - start;
  return report;
}

Result<void> SaveSession::validate() {
  if (request_.step < 0)
    return make_error(ErrorCode::kInvalidArgument, "the step must not be negative; got {}",
                      request_.step);
  std::vector<HeldBox> held;
  for (const TensorPiece& piece : request_.tensors) {
    MUSTER_TRY(catch_error([&] { check_piece(piece).value(); }));
    held.push_back(
        {piece.name, piece.global_sizes, piece.box, item_nbytes(piece.dtype), piece.holders});
  }
  items_ = MUSTER_TRY(catch_error([&] { return plan_save(held, options_.global_rank); }));
  rank_state_ = MUSTER_TRY(canonical_json_object("rank state", request_.rank_state_json));
  train_state_ = MUSTER_TRY(canonical_json_object("train state", request_.train_state_json));
  mesh_ = MUSTER_TRY(canonical_json_object("mesh", request_.mesh_json));
  const json texts = {request_.recipe_text, request_.code_revision, request_.aliases};
  try {
    (void)texts.dump();
  } catch (const json::exception&) {
    return make_error(ErrorCode::kInvalidArgument, "recipe, revision and aliases must be UTF-8");
  }
  return {};
}

// Rank 0 says where to write, or why nobody may. A rank whose own request is wrong goes on, to tell
// the others in the next phase.
Result<void> SaveSession::begin(const Result<void>& valid) {
  final_ = path_join(options_.directory, step_name(request_.step));
  Result<void> outcome = valid;
  if (is_leader()) {
    if (outcome.ok()) outcome = make_folder();
    json reply = {{"ok", true}, {"save_id", save_id_}, {"step", request_.step}};
    if (!outcome.ok()) reply = error_to_json(outcome.error());
    MUSTER_TRY(meeting_.announce("begin", reply.dump()), where() + "phase begin");
    if (outcome.ok()) return {};
    return check_reply(reply, where() + "global rank 0: ");
  }
  const Result<std::string> text = meeting_.hear("begin", Deadline::after(options_.timeout));
  Result<json> reply = text.ok() ? parse_reply(*text) : Result<json>(text.error());
  if (reply.ok()) {
    MUSTER_TRY(check_reply(*reply, where() + "global rank 0: "));
    save_id_ = reply->value("save_id", "");
    const int64_t step = reply->value("step", int64_t{-1});
    folder_ = path_join(options_.directory,
                        folder_name({FolderName::Kind::kTemporary, request_.step, save_id_}));
    if (outcome.ok() && step != request_.step) {
      outcome = make_error(ErrorCode::kMismatch,
                           "all ranks must save the same step; got {} here and {} on global rank 0",
                           request_.step, step);
    }
  } else {
    outcome = reply.error();
  }
  if (outcome.ok()) return {};
  const Error own = outcome.error();
  MUSTER_TRY(meeting_.report("write", error_to_json(own).dump()));
  if (!reply.ok()) return make_error(own.code(), "{}{}", where(), own.message());
  return hear_result().error();
}

Result<void> SaveSession::make_folder() {
  FileSystem& fs = *options_.file_system;
  save_id_ = new_save_id();
  folder_ = path_join(options_.directory,
                      folder_name({FolderName::Kind::kTemporary, request_.step, save_id_}));
  if (MUSTER_TRY(fs.info(final_)).exists) {
    const Result<Checkpoint> old = Checkpoint::open(fs, final_);
    const bool is_good = old.ok() && known_bad_.count(old->manifest().save_id) == 0;
    if (is_good && !request_.overwrite) {
      return make_error(ErrorCode::kFailedPrecondition,
                        "{} must not exist; got a good checkpoint; set overwrite to replace it",
                        final_);
    }
    replaced_ = path_join(options_.directory,
                          folder_name({FolderName::Kind::kReplaced, request_.step, save_id_}));
  }
  made_folder_ = true;
  MUSTER_TRY(fs.make_directories(folder_));
  lock_ = FolderLock::share(folder_);
  return {};
}

Result<WrittenFiles> SaveSession::write() {
  const TimePoint start = real_clock().now();
  if (!is_leader()) lock_ = FolderLock::share(folder_);
  (void)MUSTER_FAULT_POINT("checkpoint.before_data");
  const json rank_extra = {{"format", "muster-rank-state"}, {"global_rank", options_.global_rank}};
  WrittenFiles written = MUSTER_TRY(write_tensor_files(target(), request_.tensors, items_));
  written.files.push_back(MUSTER_TRY(write_object_file(
      target(), rank_state_name(options_.global_rank), rank_extra.dump(), rank_state_)));
  if (is_leader()) {
    const json train_extra = {{"format", "muster-train-state"},
                              {"recipe", request_.recipe_text},
                              {"code_revision", request_.code_revision}};
    written.files.push_back(MUSTER_TRY(write_object_file(target(), std::string(kTrainStateName),
                                                         train_extra.dump(), train_state_)));
  }
  if (MUSTER_FAULT_POINT("checkpoint.after_data")) MUSTER_TRY(tear_tensor_file(target()));
  write_time_ = real_clock().now() - start;
  return written;
}

Result<Manifest> SaveSession::merge(const std::vector<std::string>& reports) const {
  std::vector<WrittenFiles> by_rank;
  for (size_t global_rank = 0; global_rank < reports.size(); ++global_rank) {
    const std::string prefix = fmt::format("global rank {}: ", global_rank);
    const json reply = MUSTER_TRY(parse_reply(reports[global_rank]));
    MUSTER_TRY(check_reply(reply, prefix));
    if (reply.value("aliases", "") != aliases_hash(request_.aliases)) {
      return make_error(ErrorCode::kMismatch, "{}aliases must be the same as on global rank 0",
                        prefix);
    }
    by_rank.push_back(MUSTER_TRY(written_from_json(reply)));
  }
  Manifest manifest;
  manifest.save_id = save_id_;
  manifest.step = request_.step;
  manifest.created = wall_time_iso8601();
  manifest.world_size = options_.world_size;
  manifest.chunk_nbytes = options_.chunk_nbytes;
  manifest.mesh_json = mesh_;
  manifest.recipe_hash = hex64(hash_text(request_.recipe_text));
  manifest.code_revision = request_.code_revision;
  manifest.aliases = request_.aliases;
  MUSTER_TRY(merge_written(by_rank, manifest));
  for (const auto& [alias, name] : manifest.aliases) {
    if (manifest.find(name) == nullptr || manifest.find(alias) != nullptr) {
      return make_error(ErrorCode::kInvalidArgument,
                        "alias \"{}\" must stand for a saved tensor and not be one; got \"{}\"",
                        alias, name);
    }
  }
  return manifest;
}

Result<int64_t> SaveSession::write_manifest(const Manifest& manifest) {
  FileSystem& fs = *options_.file_system;
  const std::string text = render_manifest(manifest);
  const auto file = MUSTER_TRY(fs.create(path_join(folder_, std::string(kManifestName))));
  MUSTER_TRY(file->append(std::as_bytes(std::span(text))));
  MUSTER_TRY(file->sync());
  MUSTER_TRY(file->close());
  MUSTER_TRY(fs.sync_directory(folder_));
  return static_cast<int64_t>(text.size());
}

// From the rename on the checkpoint counts; after the sync of the parent it also survives power
// loss.
Result<void> SaveSession::move_into_place() {
  FileSystem& fs = *options_.file_system;
  if (!replaced_.empty()) MUSTER_TRY(fs.rename(final_, replaced_));
  Result<void> moved = fs.rename(folder_, final_);
  if (moved.ok()) {
    moved_ = true;
    moved = fs.sync_directory(options_.directory);
  }
  if (moved.ok()) return {};
  if (moved_) MUSTER_TRY(fs.rename(final_, folder_));
  moved_ = false;
  if (!replaced_.empty()) MUSTER_TRY(fs.rename(replaced_, final_));
  return moved;
}

Result<SaveReport> SaveSession::commit() {
  SaveReport report;
  const auto try_to_commit = [&]() -> Result<void> {
    const auto reports = MUSTER_TRY(meeting_.collect("write", Deadline::after(options_.timeout)));
    const Manifest manifest = MUSTER_TRY(merge(reports));
    const int64_t manifest_nbytes = MUSTER_TRY(write_manifest(manifest), "on global rank 0");
    MUSTER_TRY(move_into_place(), "on global rank 0");
    report.digest = manifest.digest;
    report.total_nbytes = manifest.total_nbytes() + manifest_nbytes;
    return {};
  };
  const Result<void> outcome = try_to_commit();
  json reply = {{"ok", true}, {"digest", report.digest}, {"total_nbytes", report.total_nbytes}};
  if (!outcome.ok()) {
    undo();  // before the others hear of it: they may try again at once
    reply = error_to_json(outcome.error());
  }
  const Result<void> announced = meeting_.announce("result", reply.dump());
  if (!announced.ok() && outcome.ok())
    MUSTER_LOG(kWarn, "{}committed, but the other ranks cannot be told: {}", where(),
               announced.error().what());
  MUSTER_TRY(check_reply(reply, where()));
  report.step = request_.step;
  report.path = final_;
  report.save_id = save_id_;
  return report;
}

Result<SaveReport> SaveSession::hear_result() {
  // Rank 0 itself waits for `timeout` before it gives up; its verdict says more than ours.
  const std::string text = MUSTER_TRY(
      meeting_.hear("result", Deadline::after(options_.timeout * 2)), where() + "phase result");
  const json reply = MUSTER_TRY(parse_reply(text));
  MUSTER_TRY(check_reply(reply, where()));
  SaveReport report;
  report.step = request_.step;
  report.path = final_;
  report.save_id = save_id_;
  report.digest = reply.value("digest", "");
  report.total_nbytes = reply.value("total_nbytes", int64_t{0});
  return report;
}

void SaveSession::undo() {
  if (!made_folder_ || moved_) return;
  made_folder_ = false;
  const Result<void> removed = remove_tree(*options_.file_system, folder_);
  if (!removed.ok())
    MUSTER_LOG(kWarn, "{}{} stays until the next start: {}", where(), folder_,
               removed.error().what());
}

// The checkpoint is safe by now: what goes wrong here is worth a warning, not a failed save.
void SaveSession::retire_old(SaveReport& report) {
  lock_ = FolderLock();
  FileSystem& fs = *options_.file_system;
  Result<std::vector<std::string>> removed =
      apply_retention(fs, options_.directory, options_.keep, known_bad_);
  if (removed.ok())
    report.removed = std::move(*removed);
  else
    MUSTER_LOG(kWarn, "{}old checkpoints stay: {}", where(), removed.error().what());
}
}  // namespace muster::checkpoint
