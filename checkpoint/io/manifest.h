#pragma once
/// The manifest: what a committed checkpoint holds, byte range by byte range.
///
/// It is the last file written before the rename that commits. Its last line is the checksum of all
/// lines before it, so that a manifest is either whole or no manifest. Everything that a loader
/// trusts is in here; the files are compared with it, never the other way round.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/io/state.h"
#include "checkpoint/plan/box.h"
#include "core/base/result.h"
#include "core/tensor/dtype.h"

namespace muster::checkpoint {

/// The newest version of the files that this code writes; it reads all up to it.
inline constexpr int64_t kFormatVersion = 1;

/// A box of a tensor and where its bytes lie.
struct StoredBox {
  size_t file = 0;     ///< index into Manifest::files
  int64_t offset = 0;  ///< bytes from the start of the file
  int64_t nbytes = 0;
  Box box;
  std::vector<uint64_t> checksums;  ///< XXH3-64 of each chunk of Manifest::chunk_nbytes
  bool operator==(const StoredBox&) const = default;
};

struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  Dims global_sizes;
  uint64_t digest = 0;  ///< finish_digest() over all elements
  std::vector<StoredBox> boxes;
  bool operator==(const StoredTensor&) const = default;
};

/// A file of the checkpoint. Its first `checked_nbytes` bytes have `checksum`: the header of a
/// tensor file, whose data the chunks cover, or all of an object file.
struct StoredFile {
  std::string name;
  int64_t nbytes = 0;
  int64_t checked_nbytes = 0;
  uint64_t checksum = 0;
  bool operator==(const StoredFile&) const = default;
};

struct Manifest {
  std::string save_id;
  int64_t step = 0;
  std::string created;  ///< wall time, for people
  int world_size = 0;
  int64_t chunk_nbytes = 0;
  std::string mesh_json;
  std::string recipe_hash;
  std::string code_revision;
  std::string digest;  ///< over all tensors, 16 hexadecimal digits
  std::vector<StoredFile> files;
  Aliases aliases;
  std::vector<StoredTensor> tensors;  ///< by ascending name
  bool operator==(const Manifest&) const = default;

  /// nullptr when there is no such tensor. An alias is no tensor.
  [[nodiscard]] const StoredTensor* find(std::string_view name) const;
  /// nullptr when there is no such file.
  [[nodiscard]] const StoredFile* find_file(std::string_view name) const;
  /// Bytes of all files, the manifest itself left out.
  [[nodiscard]] int64_t total_nbytes() const;
};

/// Text of a manifest, one line per file and tensor, with the checksum line at its end.
std::string render_manifest(const Manifest& manifest);

/// Checks the checksum, then every value: names, sizes, ranges, counts, alias targets.
/// @error kCorruption what is wrong; kFailedPrecondition written by a newer version
Result<Manifest> parse_manifest(std::string_view text);

/// Fills in the digest over all tensors and sorts them.
void finish_manifest(Manifest& manifest);

}  // namespace muster::checkpoint
