#pragma once
/// All file operations that must survive a crash, behind one interface.
///
/// Real code uses real_file_system(). Tests wrap it to count operations, to die at the k-th one, to
/// fail with ENOSPC, or to drop what was not synced. Paths are plain strings. Not for logs.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"

namespace muster {

/// A file being written from its start to its end.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  /// Appends all bytes. @error kIo with errno as text (ENOSPC, EIO, ...)
  virtual Result<void> append(std::span<const std::byte> bytes) = 0;
  /// Replaces bytes that were appended before; the file's end stays where it is.
  /// @error kIo; kUnimplemented for files that can only grow
  virtual Result<void> overwrite(int64_t offset, std::span<const std::byte> bytes);
  /// Returns when the bytes are on the device. @error kIo
  virtual Result<void> sync() = 0;
  virtual Result<void> close() = 0;
};

/// What stat(2) tells of a path.
struct FileInfo {
  bool exists = false;
  bool is_directory = false;
  int64_t nbytes = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  /// Creates or truncates a file. @error kIo, or kNotFound if the folder is missing
  virtual Result<std::unique_ptr<WritableFile>> create(const std::string& path) = 0;
  /// Reads a whole file. @error kNotFound, kIo
  virtual Result<std::vector<std::byte>> read(const std::string& path) = 0;
  /// Reads exactly `into.size()` bytes at `offset`. @error kCorruption when the file is shorter
  virtual Result<void> read_at(const std::string& path, int64_t offset,
                               std::span<std::byte> into) = 0;
  virtual Result<FileInfo> info(const std::string& path) = 0;
  /// Names in a folder, sorted, without "." and "..". @error kNotFound, kIo
  virtual Result<std::vector<std::string>> list(const std::string& directory) = 0;
  /// Makes a folder and its parents; an existing one is fine. @error kIo
  virtual Result<void> make_directories(const std::string& path) = 0;
  /// rename(2): atomic within one file system. @error kIo
  virtual Result<void> rename(const std::string& from, const std::string& to) = 0;
  virtual Result<void> remove_file(const std::string& path) = 0;
  virtual Result<void> remove_directory(const std::string& path) = 0;
  /// fsync of a folder: makes renames and new names in it durable. @error kIo
  virtual Result<void> sync_directory(const std::string& path) = 0;
};

/// The operating system's files. @thread any
FileSystem& real_file_system() noexcept;

/// Removes a folder and all below it, through `fs`; a missing one is fine.
Result<void> remove_tree(FileSystem& fs, const std::string& path);

/// Writes `text` to `path` by temporary file, sync, rename and sync of the folder.
Result<void> write_file_durably(FileSystem& fs, const std::string& path, std::string_view text);

/// The text of a file. @error kNotFound, kIo
Result<std::string> read_text(FileSystem& fs, const std::string& path);

/// "a/b" from "a" and "b"; an absolute second part wins.
std::string path_join(const std::string& a, const std::string& b);

/// The folder part; "." when there is none.
std::string path_parent(const std::string& path);

/// A fresh folder under $TMPDIR (or /tmp), removed with its content on destruction.
class TempDirectory {
 public:
  /// @error throws kIo
  explicit TempDirectory(const std::string& prefix = "muster");
  ~TempDirectory();
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::string file(const std::string& name) const { return path_join(path_, name); }

 private:
  std::string path_;
};

}  // namespace muster
