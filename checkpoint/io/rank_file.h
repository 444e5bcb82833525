#pragma once
/// The files that one rank writes.
///
/// Tensor files are valid safetensors files in which any tool can look: keys are tensor names, the
/// metadata says where each box belongs (DCP_SHARDING_INFO, as PyTorch's reader expects it) and
/// holds a checksum per key. Checksums and digests are computed from the caller's memory before the
/// bytes are handed to the file system, so damage on the way is noticed on load.
/// @source DCP_SHARDING_INFO: torch.distributed.checkpoint.hf_storage of 2.13

#include <span>
#include <string>
#include <vector>

#include "checkpoint/io/manifest.h"
#include "checkpoint/io/state.h"
#include "checkpoint/plan/save_plan.h"
#include "core/base/file_system.h"
#include "core/base/result.h"

namespace muster::checkpoint {

/// A stored box with what the manifest says of its tensor. `digest_sum` is this box's part.
struct WrittenBox {
  std::string name;
  DType dtype = DType::kF32;
  Dims global_sizes;
  uint64_t digest_sum = 0;
  StoredBox stored;  ///< `file` counts from 0 within this rank's files
};

/// What one rank reports for the manifest.
struct WrittenFiles {
  std::vector<StoredFile> files;
  std::vector<WrittenBox> boxes;
  int64_t data_nbytes = 0;
};

/// Where and as what to write.
struct RankFileTarget {
  FileSystem* file_system = nullptr;
  std::string folder;
  std::string save_id;
  int64_t step = 0;
  int global_rank = 0;
  int64_t chunk_nbytes = 0;
};

/// Writes and syncs the tensor files of a rank: as many as its items need so that no file holds a
/// name twice, and at least one.
/// @error kIo
Result<WrittenFiles> write_tensor_files(const RankFileTarget& target,
                                        std::span<const TensorPiece> pieces,
                                        std::span<const SaveItem> items);

/// Writes and syncs a JSON object {"format", "save_id", "step", ...extra, "state"}.
/// `state_json` must be a JSON object (see check_json_object). @error kIo
Result<StoredFile> write_object_file(const RankFileTarget& target, const std::string& name,
                                     const std::string& extra_json, const std::string& state_json);

/// The text as canonical JSON: one line, keys sorted.
/// @error kInvalidArgument not a JSON object, or not UTF-8; the message starts with `what`
Result<std::string> canonical_json_object(const std::string& what, const std::string& text);

/// Damages the first tensor file of a rank in `folder` as a torn write would: its last half is
/// lost. Only drills call it. @error kIo
Result<void> tear_tensor_file(const RankFileTarget& target);

}  // namespace muster::checkpoint
