#include "train/run_records.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/text.h"

namespace muster {
namespace {
double resident_mb() {
  std::ifstream file("/proc/self/statm");
  int64_t total_pages = 0, resident_pages = 0;
  file >> total_pages >> resident_pages;
  return static_cast<double>(resident_pages * ::sysconf(_SC_PAGESIZE)) / (1 << 20);
}

int64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}
}  // namespace

std::string metrics_line(const StepMetrics& metrics) {
  const nlohmann::ordered_json line = {{"step", metrics.step},
                                       {"loss", metrics.loss},
                                       {"loss_hex", hex_float(metrics.loss)},
                                       {"grad_norm", metrics.grad_norm},
                                       {"lr", metrics.lr},
                                       {"tokens", metrics.tokens},
                                       {"tokens_per_s", metrics.tokens_per_s},
                                       {"rss_mb", resident_mb()},
                                       {"peak_mb", metrics.peak_mb},
                                       {"attempt", metrics.attempt},
                                       {"generation", metrics.generation},
                                       {"t_ns", monotonic_ns()}};
  return line.dump();
}

Result<LineFile> LineFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return make_error(ErrorCode::kIo, "open {}: {}", path, errno_text(errno));
  LineFile file(fd, path);
  struct stat status {};
  char last = '\n';
  if (::fstat(fd, &status) == 0 && status.st_size > 0 &&
      ::pread(fd, &last, 1, status.st_size - 1) == 1 && last != '\n') {
    MUSTER_TRY(file.append(""));
  }
  return file;
}

LineFile::~LineFile() {
  if (fd_ >= 0) ::close(fd_);
}

LineFile::LineFile(LineFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

Result<void> LineFile::append(const std::string& line) {
  const std::string text = line + "\n";
  const ssize_t n = ::write(fd_, text.data(), text.size());
  if (n != static_cast<ssize_t>(text.size())) {
    return make_error(ErrorCode::kIo, "write {}: {} of {} bytes: {}", path_, n, text.size(),
                      errno_text(errno));
  }
  return {};
}
}  // namespace muster
