#include "core/base/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>

namespace muster {
namespace {
namespace stdfs = std::filesystem;

Error io_error(const char* operation, const std::string& path, int error_number) {
  const ErrorCode code = error_number == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo;
  return make_error(code, "{} {}: {}", operation, path, errno_text(error_number));
}

Result<void> sync_path(const char* operation, const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC);
  if (fd < 0) return io_error(operation, path, errno);
  const int status = ::fsync(fd);
  const int error_number = errno;
  ::close(fd);
  if (status != 0) return io_error(operation, path, error_number);
  return {};
}

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~PosixWritableFile() override {
    if (fd_ >= 0) ::close(fd_);
  }
  Result<void> append(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0) {
        if (errno == EINTR) continue;
        return io_error("write", path_, errno);
      }
      bytes = bytes.subspan(static_cast<size_t>(n));
      appended_ += n;
    }
    start_writeback();
    return {};
  }
  Result<void> overwrite(int64_t offset, std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), offset);
      if (n < 0) {
        if (errno == EINTR) continue;
        return io_error("write", path_, errno);
      }
      bytes = bytes.subspan(static_cast<size_t>(n));
      offset += n;
    }
    return {};
  }
  Result<void> sync() override {
    if (::fsync(fd_) != 0) return io_error("fsync", path_, errno);
    return {};
  }
  Result<void> close() override {
    const int status = ::close(std::exchange(fd_, -1));
    if (status != 0) return io_error("close", path_, errno);
    return {};
  }

 private:
  // Lets the device write while the caller makes the next bytes; sync() then has little left to do.
  void start_writeback() {
    if (appended_ - writeback_begun_ < kWritebackNbytes) return;
    ::sync_file_range(fd_, writeback_begun_, appended_ - writeback_begun_, SYNC_FILE_RANGE_WRITE);
    writeback_begun_ = appended_;
  }

  static constexpr int64_t kWritebackNbytes = int64_t{8} << 20;
  int fd_;
  int64_t appended_ = 0;
  int64_t writeback_begun_ = 0;
  std::string path_;
};

class PosixFileSystem final : public FileSystem {
 public:
  Result<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return io_error("create", path, errno);
    return std::unique_ptr<WritableFile>(std::make_unique<PosixWritableFile>(fd, path));
  }

  Result<std::vector<std::byte>> read(const std::string& path) override {
    const FileInfo found = MUSTER_TRY(info(path));
    if (!found.exists) return io_error("open", path, ENOENT);
    std::vector<std::byte> bytes(static_cast<size_t>(found.nbytes));
    MUSTER_TRY(read_at(path, 0, bytes));
    return bytes;
  }

  Result<void> read_at(const std::string& path, int64_t offset,
                       std::span<std::byte> into) override {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return io_error("open", path, errno);
    size_t done = 0;
    while (done < into.size()) {
      const ssize_t n =
          ::pread(fd, into.data() + done, into.size() - done, offset + static_cast<int64_t>(done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        const int error_number = errno;
        ::close(fd);
        if (n < 0) return io_error("read", path, error_number);
        return make_error(ErrorCode::kCorruption,
                          "read {}: {} bytes at {} wanted; the file ends after {}", path,
                          into.size(), offset, done);
      }
      done += static_cast<size_t>(n);
    }
    ::close(fd);
    return {};
  }

  Result<FileInfo> info(const std::string& path) override {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) {
      if (errno == ENOENT || errno == ENOTDIR) return FileInfo{};
      return io_error("stat", path, errno);
    }
    return FileInfo{true, S_ISDIR(status.st_mode), static_cast<int64_t>(status.st_size)};
  }

  Result<std::vector<std::string>> list(const std::string& directory) override {
    std::error_code error;
    std::vector<std::string> names;
    for (stdfs::directory_iterator it(directory, error), end; !error && it != end;
         it.increment(error)) {
      names.push_back(it->path().filename().string());
    }
    if (error) return io_error("list", directory, error.value());
    std::sort(names.begin(), names.end());
    return names;
  }

  Result<void> make_directories(const std::string& path) override {
    std::error_code error;
    stdfs::create_directories(path, error);
    if (error) return make_error(ErrorCode::kIo, "mkdir {}: {}", path, error.message());
    return {};
  }

  Result<void> rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0)
      return io_error("rename", from + " to " + to, errno);
    return {};
  }

  Result<void> remove_file(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) return io_error("unlink", path, errno);
    return {};
  }

  Result<void> remove_directory(const std::string& path) override {
    if (::rmdir(path.c_str()) != 0) return io_error("rmdir", path, errno);
    return {};
  }

  Result<void> sync_directory(const std::string& path) override {
    return sync_path("fsync", path, O_RDONLY | O_DIRECTORY);
  }
};
}  // namespace

Result<void> WritableFile::overwrite(int64_t offset, std::span<const std::byte> bytes) {
  return make_error(ErrorCode::kUnimplemented,
                    "overwrite: this file can only grow; got {} bytes at {}", bytes.size(), offset);
}

FileSystem& real_file_system() noexcept {
  static PosixFileSystem& instance = *new PosixFileSystem;  // never destroyed
  return instance;
}

Result<void> remove_tree(FileSystem& fs, const std::string& path) {
  const FileInfo found = MUSTER_TRY(fs.info(path));
  if (!found.exists) return {};
  if (!found.is_directory) return fs.remove_file(path);
  for (const std::string& name : MUSTER_TRY(fs.list(path)))
    MUSTER_TRY(remove_tree(fs, path_join(path, name)));
  return fs.remove_directory(path);
}

Result<void> write_file_durably(FileSystem& fs, const std::string& path, std::string_view text) {
  const std::string temporary = path + ".tmp";
  const std::unique_ptr<WritableFile> file = MUSTER_TRY(fs.create(temporary));
  MUSTER_TRY(file->append(std::as_bytes(std::span(text.data(), text.size()))));
  MUSTER_TRY(file->sync());
  MUSTER_TRY(file->close());
  MUSTER_TRY(fs.rename(temporary, path));
  return fs.sync_directory(path_parent(path));
}

Result<std::string> read_text(FileSystem& fs, const std::string& path) {
  const std::vector<std::byte> bytes = MUSTER_TRY(fs.read(path));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::string path_join(const std::string& a, const std::string& b) {
  return (stdfs::path(a) / b).string();
}

std::string path_parent(const std::string& path) {
  const std::string parent = stdfs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

TempDirectory::TempDirectory(const std::string& prefix) {
  const char* base = std::getenv("TMPDIR");
  path_ = path_join(base != nullptr && *base != '\0' ? base : "/tmp", prefix + ".XXXXXX");
  MUSTER_CHECK(::mkdtemp(path_.data()) != nullptr, ErrorCode::kIo, "mkdtemp {}: {}", path_,
               errno_text(errno));
}

TempDirectory::~TempDirectory() {
  std::error_code ignored;
  stdfs::remove_all(path_, ignored);
}
}  // namespace muster
