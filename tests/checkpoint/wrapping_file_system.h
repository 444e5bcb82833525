#pragma once
/// A file system that passes everything on to another one, with two places to interfere.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/file_system.h"

namespace muster::checkpoint {

class WrappingFileSystem final : public FileSystem {
 public:
  struct Hooks {
    /// Runs before each operation that changes something; an error fails the operation.
    std::function<Result<void>(const std::string& operation)> before;
    /// Replaces append().
    std::function<Result<void>(WritableFile& file, std::span<const std::byte> bytes)> append;
  };
  WrappingFileSystem(FileSystem& inner, Hooks hooks) : inner_(inner), hooks_(std::move(hooks)) {}

  Result<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    MUSTER_TRY(before("create " + path));
    return std::unique_ptr<WritableFile>(
        std::make_unique<File>(*this, MUSTER_TRY(inner_.create(path)), path));
  }
  Result<std::vector<std::byte>> read(const std::string& path) override {
    return inner_.read(path);
  }
  Result<void> read_at(const std::string& path, int64_t offset,
                       std::span<std::byte> into) override {
    return inner_.read_at(path, offset, into);
  }
  Result<FileInfo> info(const std::string& path) override { return inner_.info(path); }
  Result<std::vector<std::string>> list(const std::string& path) override {
    return inner_.list(path);
  }
  Result<void> make_directories(const std::string& path) override {
    MUSTER_TRY(before("mkdir " + path));
    return inner_.make_directories(path);
  }
  Result<void> rename(const std::string& from, const std::string& to) override {
    MUSTER_TRY(before("rename " + from + " to " + to));
    return inner_.rename(from, to);
  }
  Result<void> remove_file(const std::string& path) override {
    MUSTER_TRY(before("unlink " + path));
    return inner_.remove_file(path);
  }
  Result<void> remove_directory(const std::string& path) override {
    MUSTER_TRY(before("rmdir " + path));
    return inner_.remove_directory(path);
  }
  Result<void> sync_directory(const std::string& path) override {
    MUSTER_TRY(before("sync_directory " + path));
    return inner_.sync_directory(path);
  }

 private:
  class File final : public WritableFile {
   public:
    File(WrappingFileSystem& fs, std::unique_ptr<WritableFile> file, std::string path)
        : fs_(fs), file_(std::move(file)), path_(std::move(path)) {}
    Result<void> append(std::span<const std::byte> bytes) override {
      MUSTER_TRY(fs_.before("append " + path_));
      if (fs_.hooks_.append) return fs_.hooks_.append(*file_, bytes);
      return file_->append(bytes);
    }
    Result<void> overwrite(int64_t offset, std::span<const std::byte> bytes) override {
      MUSTER_TRY(fs_.before("overwrite " + path_));
      return file_->overwrite(offset, bytes);
    }
    Result<void> sync() override {
      MUSTER_TRY(fs_.before("sync " + path_));
      return file_->sync();
    }
    Result<void> close() override {
      MUSTER_TRY(fs_.before("close " + path_));
      return file_->close();
    }

   private:
    WrappingFileSystem& fs_;
    std::unique_ptr<WritableFile> file_;
    std::string path_;
  };

  Result<void> before(const std::string& operation) {
    if (hooks_.before) return hooks_.before(operation);
    return {};
  }

  FileSystem& inner_;
  Hooks hooks_;
};

}  // namespace muster::checkpoint
