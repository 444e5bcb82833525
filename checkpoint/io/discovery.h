#pragma once
/// Which checkpoints a folder holds, which of them count, and which may be removed.
///
/// A folder name alone proves nothing: a checkpoint counts when its manifest is whole and all files
/// have their sizes. What is passed over is listed with its reason. Leftovers of dead saves and
/// removals are taken away only when no process uses them.

#include <set>
#include <string>
#include <vector>

#include "checkpoint/io/names.h"
#include "checkpoint/io/state.h"
#include "core/base/file_system.h"
#include "core/base/result.h"

namespace muster::checkpoint {

/// A folder that may be a checkpoint.
struct Candidate {
  FolderName folder;  ///< kStep, or kReplaced: a step whose successor never arrived
  std::string name;
  std::string path;
};

/// All step folders, newest step first; a replaced one comes behind the one that replaced it.
/// A missing directory has none. @error kIo
Result<std::vector<Candidate>> list_candidates(FileSystem& fs, const std::string& directory);

/// The newest candidate whose manifest and sizes are good, and why newer ones are not.
struct Newest {
  std::optional<Candidate> candidate;
  std::vector<Skipped> skipped;
};
Result<Newest> find_newest(FileSystem& fs, const std::string& directory);

/// What retention would do, and why: one decision per candidate, newest first.
struct RetentionChoice {
  Candidate candidate;
  bool remove = false;
  std::string reason;  ///< e.g. "newest verified", "1 of 2 kept", "not verified: ..."
};
/// Keeps the newest `keep` verified checkpoints (0: all) and everything that does not verify; those
/// in `known_bad` (save ids) do not count as verified. Pure but for reading manifests and sizes.
Result<std::vector<RetentionChoice>> choose_retention(FileSystem& fs, const std::string& directory,
                                                      int keep,
                                                      const std::set<std::string>& known_bad);

/// Carries out choose_retention(): renames to trash, then unlinks. A checkpoint that is being read
/// stays. Returns the names that were removed. @error kIo
Result<std::vector<std::string>> apply_retention(FileSystem& fs, const std::string& directory,
                                                 int keep, const std::set<std::string>& known_bad);

/// Removes one folder by way of a trash name, so that a kill in between leaves nothing that looks
/// like a checkpoint. @error kIo
Result<void> remove_by_trash(FileSystem& fs, const std::string& directory,
                             const Candidate& candidate);

/// Removes temporary and trash folders that no process has locked; returns their names. @error kIo
Result<std::vector<std::string>> remove_leftovers(FileSystem& fs, const std::string& directory);

}  // namespace muster::checkpoint
