#pragma once
/// The synchronous checkpoint of a training job: save, load, retention, for all ranks together.
///
/// A save is all or nothing: until the last rename the previous checkpoint is the newest, and a
/// failure of any rank aborts it on every rank with one error. A load either reports every
/// difference between model and checkpoint before it changes a byte, or fills all slots with bytes
/// whose checksums it has verified. Protocol and files: docs/checkpoint_format.md.

#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "checkpoint/io/state.h"
#include "core/base/file_system.h"
#include "core/base/result.h"
#include "core/base/time.h"
#include "dist/store/store.h"

namespace muster::checkpoint {

class Meeting;

struct CheckpointerOptions {
  std::string directory;   ///< holds the step-* folders; made if missing
  int keep = 2;            ///< newest verified checkpoints to keep; 0 keeps all
  Store* store = nullptr;  ///< meeting point of the ranks; may be null when world_size is 1
  /// In front of all keys in the store. Must be unused: give each restart attempt its own.
  std::string key_prefix = "checkpoint";
  int global_rank = 0;
  int world_size = 1;
  Duration timeout = std::chrono::minutes(10);  ///< for each wait on the other ranks
  int64_t chunk_nbytes = int64_t{1} << 20;      ///< bytes under one checksum
  FileSystem* file_system = &real_file_system();
};

struct LoadRequest {
  std::span<const TensorSlot> slots;
  Aliases aliases;              ///< as the model ties them now
  std::optional<int64_t> step;  ///< this step or nothing; the newest loadable one when absent
};

class Checkpointer {
 public:
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  /// Opens the folder and, on rank 0, removes what dead saves and removals have left there.
  /// @error kIo the folder cannot be made or read; kInvalidArgument options that make no sense
  static Result<std::unique_ptr<Checkpointer>> open(CheckpointerOptions options);

  /// Writes a checkpoint and returns when it is durable.
  /// @collective all ranks, with the same step
  /// @blocks until all ranks have written, or `timeout`
  /// @error kFailedPrecondition the step exists; kIo; kMismatch ranks disagree; kTimeout names the
  ///        ranks that did not answer. Every rank returns the same error, which names the rank it
  ///        comes from; the previous checkpoint is intact and a later save() may succeed
  Result<SaveReport> save(const SaveRequest& request);

  /// Fills the slots from the newest checkpoint that verifies; nullopt when there is none. A
  /// damaged one is passed over on all ranks and listed in `skipped`.
  /// @collective all ranks; the world size may differ from the writer's
  /// @error kFailedPrecondition model and checkpoint differ: one line per fault, no slot changed;
  ///        kCorruption there are checkpoints, but none of them is good: slots are unspecified;
  ///        kNotFound the step asked for is missing
  Result<std::optional<LoadedState>> load_latest(const LoadRequest& request);

  /// The state of the newest good checkpoint without its tensors, for what must be known before the
  /// slots exist. Sizes and objects are verified, tensor bytes are not.
  /// @collective none: each rank reads for itself
  Result<std::optional<LoadedState>> peek_latest();

  /// Saves that failed since the last good one.
  [[nodiscard]] int failed_saves_in_a_row() const noexcept { return failed_saves_in_a_row_; }
  [[nodiscard]] const CheckpointerOptions& options() const noexcept { return options_; }

 private:
  explicit Checkpointer(CheckpointerOptions options);
  std::unique_ptr<Meeting> new_meeting(const char* kind, int64_t number) const;
  void finish_meeting(std::unique_ptr<Meeting> meeting);

  CheckpointerOptions options_;
  int64_t num_saves_ = 0;  // also the keys of the store: equal on all ranks
  int64_t num_loads_ = 0;
  int failed_saves_in_a_row_ = 0;
  std::unique_ptr<Meeting>
      previous_meeting_;             // its keys are removed when all have surely read them
  std::set<std::string> known_bad_;  // save ids that did not load; a new save may replace them
};

}  // namespace muster::checkpoint
