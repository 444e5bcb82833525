#include "checkpoint/io/discovery.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/io/folder_lock.h"
#include "checkpoint/io/reader.h"

namespace muster::checkpoint {

Result<std::vector<Candidate>> list_candidates(FileSystem& fs, const std::string& directory) {
  std::vector<Candidate> candidates;
  const Result<std::vector<std::string>> names = fs.list(directory);
  if (!names.ok() && names.error().code() == ErrorCode::kNotFound) return candidates;
  if (!names.ok()) return names.error();
  for (const std::string& name : *names) {
    const auto folder = parse_folder_name(name);
    if (!folder) continue;
    if (folder->kind == FolderName::Kind::kStep || folder->kind == FolderName::Kind::kReplaced)
      candidates.push_back({*folder, name, path_join(directory, name)});
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    if (a.folder.step != b.folder.step) return a.folder.step > b.folder.step;
    return std::tie(a.folder.kind, a.name) < std::tie(b.folder.kind, b.name);
  });
  return candidates;
}

Result<Newest> find_newest(FileSystem& fs, const std::string& directory) {
  Newest newest;
  for (const Candidate& candidate : MUSTER_TRY(list_candidates(fs, directory))) {
    const Result<Checkpoint> opened = Checkpoint::open(fs, candidate.path);
    if (opened.ok()) {
      newest.candidate = candidate;
      return newest;
    }
    newest.skipped.push_back({candidate.name, opened.error().message()});
  }
  return newest;
}

Result<std::vector<RetentionChoice>> choose_retention(FileSystem& fs, const std::string& directory,
                                                      int keep,
                                                      const std::set<std::string>& known_bad) {
  std::vector<RetentionChoice> choices;
  int num_verified = 0;
  int64_t last_verified_step = -1;
  for (const Candidate& candidate : MUSTER_TRY(list_candidates(fs, directory))) {
    if (candidate.folder.kind == FolderName::Kind::kReplaced &&
        candidate.folder.step == last_verified_step) {
      choices.push_back({candidate, true, "replaced by a newer save of the step"});
      continue;
    }
    const Result<Checkpoint> opened = Checkpoint::open(fs, candidate.path);
    if (!opened.ok()) {
      choices.push_back({candidate, false, "not verified: " + opened.error().message()});
    } else if (known_bad.count(opened->manifest().save_id) > 0) {
      choices.push_back({candidate, false, "not verified: it did not load"});
    } else {
      ++num_verified;
      last_verified_step = candidate.folder.step;
      const bool is_surplus = keep > 0 && num_verified > keep;
      choices.push_back({candidate, is_surplus,
                         num_verified == 1
                             ? "newest verified"
                             : fmt::format("verified, {} newest first; {} kept", num_verified,
                                           keep == 0 ? "all" : std::to_string(keep))});
    }
  }
  return choices;
}

Result<std::vector<std::string>> apply_retention(FileSystem& fs, const std::string& directory,
                                                 int keep, const std::set<std::string>& known_bad) {
  std::vector<std::string> removed;
  for (const RetentionChoice& choice :
       MUSTER_TRY(choose_retention(fs, directory, keep, known_bad))) {
    if (!choice.remove || !FolderLock::is_free(choice.candidate.path)) continue;
    MUSTER_TRY(remove_by_trash(fs, directory, choice.candidate));
    removed.push_back(choice.candidate.name);
  }
  return removed;
}

Result<void> remove_by_trash(FileSystem& fs, const std::string& directory,
                             const Candidate& candidate) {
  const std::string trash = path_join(
      directory, folder_name({FolderName::Kind::kTrash, candidate.folder.step, new_save_id()}));
  MUSTER_TRY(fs.rename(candidate.path, trash));
  MUSTER_TRY(fs.sync_directory(directory));
  return remove_tree(fs, trash);
}

Result<std::vector<std::string>> remove_leftovers(FileSystem& fs, const std::string& directory) {
  std::vector<std::string> removed;
  for (const std::string& name : MUSTER_TRY(fs.list(directory))) {
    const auto folder = parse_folder_name(name);
    if (!folder) continue;
    const bool is_leftover =
        folder->kind == FolderName::Kind::kTemporary || folder->kind == FolderName::Kind::kTrash;
    const std::string path = path_join(directory, name);
    if (!is_leftover || !FolderLock::is_free(path)) continue;
    MUSTER_TRY(remove_tree(fs, path));
    removed.push_back(name);
  }
  return removed;
}
}  // namespace muster::checkpoint
