#include "checkpoint/io/checkpointer.h"

#include <fmt/format.h>

#include "checkpoint/io/discovery.h"
#include "checkpoint/io/load_session.h"
#include "checkpoint/io/meeting.h"
#include "checkpoint/io/reader.h"
#include "checkpoint/io/save_session.h"
#include "core/base/log.h"
#include "core/base/text.h"

namespace muster::checkpoint {
namespace {
Result<void> check_options(const CheckpointerOptions& options) {
  const bool is_rank = options.global_rank >= 0 && options.global_rank < options.world_size;
  if (!is_rank) {
    return make_error(ErrorCode::kInvalidArgument,
                      "open checkpointer: the rank must be in [0, world size); got {} of {}",
                      options.global_rank, options.world_size);
  }
  if (options.store == nullptr && options.world_size > 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "open checkpointer: {} ranks need a store; got none", options.world_size);
  }
  if (options.directory.empty() || options.keep < 0 || options.chunk_nbytes <= 0 ||
      options.chunk_nbytes % 8 != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "open checkpointer: needs a directory, keep >= 0 and chunks of a multiple of "
                      "8 bytes; got \"{}\", {} and {}",
                      options.directory, options.keep, options.chunk_nbytes);
  }
  return {};
}

Result<void> make_directory(FileSystem& fs, const std::string& directory) {
  const FileInfo info = MUSTER_TRY(fs.info(directory));
  if (info.exists) return {};
  MUSTER_TRY(fs.make_directories(directory));
  return fs.sync_directory(path_parent(directory));
}
}  // namespace

Checkpointer::Checkpointer(CheckpointerOptions options) : options_(std::move(options)) {}
Checkpointer::~Checkpointer() = default;

Result<std::unique_ptr<Checkpointer>> Checkpointer::open(CheckpointerOptions options) {
  MUSTER_TRY(check_options(options));
  if (options.global_rank == 0) {
    FileSystem& fs = *options.file_system;
    MUSTER_TRY(make_directory(fs, options.directory), "open checkpointer");
    const Result<std::vector<std::string>> removed = remove_leftovers(fs, options.directory);
    if (!removed.ok()) {
      MUSTER_LOG(kWarn, "checkpoint: leftovers in {} stay: {}", options.directory,
                 removed.error().what());
    } else if (!removed->empty()) {
      MUSTER_LOG(kInfo, "checkpoint: removed leftovers of dead saves: {}", join(*removed));
    }
  }
  return std::unique_ptr<Checkpointer>(new Checkpointer(std::move(options)));
}

std::unique_ptr<Meeting> Checkpointer::new_meeting(const char* kind, int64_t number) const {
  return std::make_unique<Meeting>(
      Meeting::Options{options_.store, fmt::format("{}/{}/{}", options_.key_prefix, kind, number),
                       options_.global_rank, options_.world_size});
}

// A rank that has gone through a whole meeting knows that all others are done with the one before.
void Checkpointer::finish_meeting(std::unique_ptr<Meeting> meeting) {
  if (previous_meeting_) previous_meeting_->clean_up();
  previous_meeting_ = std::move(meeting);
}

Result<SaveReport> Checkpointer::save(const SaveRequest& request) {
  std::unique_ptr<Meeting> meeting = new_meeting("save", num_saves_++);
  Result<SaveReport> report = catch_error(
      [&] { return SaveSession(options_, request, *meeting, known_bad_).run().value(); });
  failed_saves_in_a_row_ = report.ok() ? 0 : failed_saves_in_a_row_ + 1;
  if (report.ok()) finish_meeting(std::move(meeting));
  return report;
}

Result<std::optional<LoadedState>> Checkpointer::load_latest(const LoadRequest& request) {
  std::unique_ptr<Meeting> meeting = new_meeting("load", num_loads_++);
  Result<std::optional<LoadedState>> state = catch_error(
      [&] { return LoadSession(options_, request, *meeting, known_bad_).run().value(); });
  if (state.ok()) finish_meeting(std::move(meeting));
  return state;
}

Result<std::optional<LoadedState>> Checkpointer::peek_latest() {
  FileSystem& fs = *options_.file_system;
  std::vector<Skipped> skipped;
  for (const Candidate& candidate : MUSTER_TRY(list_candidates(fs, options_.directory))) {
    const auto read = [&]() -> Result<LoadedState> {
      const Checkpoint opened = MUSTER_TRY(Checkpoint::open(fs, candidate.path));
      return opened.read_state();
    };
    Result<LoadedState> state = read();
    if (!state.ok()) {
      skipped.push_back({candidate.name, state.error().message()});
      continue;
    }
    state->skipped = std::move(skipped);
    return std::optional<LoadedState>(std::move(*state));
  }
  return std::optional<LoadedState>();
}
}  // namespace muster::checkpoint
