#pragma once
/// One save of one rank, from the first check to the last rename.
///
/// Phases: begin (rank 0 makes the temporary folder), write (every rank), commit (rank 0), result.
/// Whatever fails anywhere, every rank leaves with the same error and the temporary folder is gone.

#include <set>
#include <string>
#include <vector>

#include "checkpoint/io/checkpointer.h"
#include "checkpoint/io/folder_lock.h"
#include "checkpoint/io/meeting.h"
#include "checkpoint/io/rank_file.h"

namespace muster::checkpoint {

class SaveSession {
 public:
  SaveSession(const CheckpointerOptions& options, const SaveRequest& request, Meeting& meeting,
              const std::set<std::string>& known_bad)
      : options_(options), request_(request), meeting_(meeting), known_bad_(known_bad) {}

  /// @collective all ranks
  Result<SaveReport> run();

 private:
  Result<SaveReport> attempt();
  Result<void> validate();
  Result<void> begin(const Result<void>& valid);
  Result<void> make_folder();
  Result<WrittenFiles> write();
  Result<SaveReport> commit();
  Result<Manifest> merge(const std::vector<std::string>& reports) const;
  Result<int64_t> write_manifest(const Manifest& manifest);
  Result<void> move_into_place();
  void undo();
  void retire_old(SaveReport& report);
  Result<SaveReport> hear_result();
  [[nodiscard]] RankFileTarget target() const;
  [[nodiscard]] bool is_leader() const { return options_.global_rank == 0; }
  [[nodiscard]] std::string where() const;

  const CheckpointerOptions& options_;
  const SaveRequest& request_;
  Meeting& meeting_;
  const std::set<std::string>& known_bad_;

  std::vector<SaveItem> items_;
  std::string rank_state_;   // canonical JSON
  std::string train_state_;  // the same
  std::string mesh_;
  std::string save_id_;
  std::string folder_;    // temporary
  std::string final_;     // step-*
  std::string replaced_;  // where an old final_ went; empty if there was none
  bool made_folder_ = false;
  bool moved_ = false;
  FolderLock lock_;
  Duration write_time_{0};
};

/// Merges what the ranks wrote into a manifest's files and tensors, and proves that each tensor is
/// tiled exactly once. Pure. @error kMismatch names the tensor
Result<void> merge_written(const std::vector<WrittenFiles>& by_rank, Manifest& manifest);

}  // namespace muster::checkpoint
