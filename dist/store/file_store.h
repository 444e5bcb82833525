#pragma once
/// A store in one file that several processes share, on one host or over a network file system.
///
/// The file is a log of writes under a lock; each process replays what the others have written. It
/// survives a writer that dies at any instant. The file belongs to one run and generation: a newer
/// generation, or another run once the old one is gone, starts it afresh. Not for heavy traffic.

#include <memory>
#include <string>
#include <vector>

#include "dist/store/store.h"

namespace muster {

struct FileStoreOptions {
  std::string path;  ///< its folder must exist
  std::string run_id =
      {};  ///< whose file it is; another run's file is taken over when nobody uses it
  int64_t generation = 0;     ///< a higher one discards the keys of lower ones and shuts them out
  Duration lock_limit = 30s;  ///< how long an operation may wait for the file's lock
};

class FileStore final : public Store {
 public:
  /// Creates or joins the file. The file stays when the store goes.
  /// @error kFailedPrecondition  another run uses it, or a higher generation has taken over
  /// @error kCorruption          it is no store file, or damaged before its end; kIo
  static Result<std::unique_ptr<FileStore>> open(FileStoreOptions options);

  ~FileStore() override;
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  /// @error (this and all below) kAborted when a higher generation has taken over the file
  Result<void> set(std::string_view key, std::string_view value) override;
  Result<std::string> get(std::string_view key, Deadline deadline) override;
  Result<std::optional<std::string>> try_get(std::string_view key) override;
  Result<int64_t> add(std::string_view key, int64_t delta) override;
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) override;
  Result<void> wait(const std::vector<std::string>& keys, Deadline deadline) override;
  Result<bool> check(const std::vector<std::string>& keys) override;
  Result<bool> remove(std::string_view key) override;
  Result<void> append(std::string_view key, std::string_view value) override;
  Result<int64_t> num_keys() override;
  Result<std::vector<std::string>> list_keys() override;
  void cancel() override;
  [[nodiscard]] std::string describe() const override;

 private:
  class Impl;
  explicit FileStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster
