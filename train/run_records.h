#pragma once
/// What a run writes for people and tools: metrics.jsonl and events.jsonl in its folder.
///
/// One write(2) per line, so that a kill leaves at most one torn line, which the next attempt ends
/// with a newline before it goes on. Written by global rank 0 only.

#include <cstdint>
#include <string>

#include "core/base/result.h"

namespace muster {

/// One step as metrics.jsonl shows it.
struct StepMetrics {
  int64_t step = 0;  ///< steps completed, from 1
  double loss = 0;   ///< mean over the global batch's tokens, before the update
  double grad_norm = 0;
  double lr = 0;
  int64_t tokens = 0;  ///< of this step, over all ranks
  double tokens_per_s = 0;
  double peak_mb = 0;  ///< most that the rank's allocators held at once, so far
  int attempt = 0;
  int64_t generation = 1;
};

/// One line of metrics.jsonl, with loss_hex, rss_mb and t_ns (monotonic) added.
std::string metrics_line(const StepMetrics& metrics);

/// Appends lines to a file.
class LineFile {
 public:
  /// @error kIo, kNotFound
  static Result<LineFile> open(const std::string& path);
  ~LineFile();
  LineFile(LineFile&& other) noexcept;
  LineFile& operator=(LineFile&&) = delete;
  /// Appends text and a newline. @error kIo
  Result<void> append(const std::string& line);

 private:
  explicit LineFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_;
  std::string path_;
};

}  // namespace muster
