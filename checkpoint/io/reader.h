#pragma once
/// One committed checkpoint, opened for reading.
///
/// Opening reads the manifest and compares the sizes of all files. Every byte that is read later is
/// checked against its checksum before it reaches the caller; a mismatch names the tensor, the file
/// and the range of bytes. Knows no ranks: each caller reads what it asks for.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/io/folder_lock.h"
#include "checkpoint/io/manifest.h"
#include "checkpoint/io/state.h"
#include "core/base/file_system.h"
#include "core/base/result.h"

namespace muster::checkpoint {

/// A file or range that is not what the manifest says.
struct Damage {
  std::string file;
  std::string tensor;  ///< empty for damage outside of tensors
  std::string text;    ///< the whole message
};

class Checkpoint {
 public:
  /// Reads the manifest of the folder and compares the sizes of all files with it. Holds the
  /// folder's lock while it lives.
  /// @error kNotFound no folder or no manifest; kCorruption; kFailedPrecondition a newer version
  static Result<Checkpoint> open(FileSystem& fs, const std::string& path);

  [[nodiscard]] const Manifest& manifest() const noexcept { return manifest_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] int64_t manifest_nbytes() const noexcept { return manifest_nbytes_; }

  /// Fills every slot; they must have passed compare_with_slots(). Verifies the chunks that it
  /// reads and the headers of the files they lie in. Returns the number of tensor bytes read.
  /// @error kCorruption, kIo, kNotFound; slots are then filled in part
  [[nodiscard]] Result<int64_t> read_slots(std::span<const TensorSlot> slots) const;

  /// Train state, rank states and what the manifest says, verified; no tensors.
  /// @error kCorruption, kIo
  [[nodiscard]] Result<LoadedState> read_state() const;

  /// Calls `body(first_element, bytes)` for consecutive parts of a stored box, verified.
  using ChunkBody = std::function<void(int64_t first_element, std::span<const std::byte> bytes)>;
  [[nodiscard]] Result<void> for_each_chunk(const StoredTensor& tensor, const StoredBox& box,
                                            const ChunkBody& body) const;

  /// Checks the checked part of a file (a header, or a whole object file).
  [[nodiscard]] Result<void> verify_file(const StoredFile& file) const;

  /// Reads everything and lists all damage: headers, objects, chunks, tilings, digests, bytes that
  /// nothing covers and files that the manifest does not list.
  [[nodiscard]] std::vector<Damage> verify_deep() const;

 private:
  friend class ChunkReader;
  Checkpoint() = default;
  [[nodiscard]] Result<std::vector<std::byte>> read_object(const std::string& name) const;

  FileSystem* fs_ = nullptr;
  std::string path_;
  Manifest manifest_;
  int64_t manifest_nbytes_ = 0;
  FolderLock lock_;
};

}  // namespace muster::checkpoint
