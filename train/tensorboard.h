#pragma once
/// Scalars for TensorBoard: event files as its reader expects them, without its libraries.
///
/// Each record goes out with one write(2), so a kill leaves at most one torn record at the end,
/// which TensorBoard passes over. A new file is begun at each start; it says from which step the
/// run goes on, so that TensorBoard drops what the attempt before had written beyond it. Not a
/// record for comparisons: TensorBoard keeps f32; metrics.jsonl has every digit.
/// @source record framing of TensorFlow's TFRecord, messages of event.proto and summary.proto

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/base/result.h"

namespace muster {

struct TensorBoardScalar {
  std::string_view tag;  ///< "train/loss": the part before '/' groups charts
  double value = 0;      ///< stored as f32
};

class TensorBoardWriter {
 public:
  /// Begins an event file in `directory`, which is made. `next_step` is the first step that will be
  /// written; later ones of earlier files are void.
  /// @error kIo
  static Result<std::unique_ptr<TensorBoardWriter>> open(const std::string& directory,
                                                         int64_t next_step = 0);
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  /// Writes one value. @error kIo
  Result<void> scalar(std::string_view tag, int64_t step, double value);
  /// Writes the values of one step with one write(2). @error kIo
  Result<void> scalars(int64_t step, std::span<const TensorBoardScalar> values);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  TensorBoardWriter(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  Result<void> write_event(std::string_view fields, int64_t step);

  int fd_;
  std::string path_;
};

/// CRC-32C (Castagnoli) of bytes.
uint32_t crc32c(std::span<const std::byte> bytes) noexcept;

/// A record of a TFRecord file: length, its checksum, the bytes, theirs. Checksums are masked.
std::string tf_record(std::string_view bytes);

}  // namespace muster
