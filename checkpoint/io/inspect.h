#pragma once
/// Questions about stored checkpoints that one process can answer: list, verify, digest, compare.
///
/// Memory stays below a few chunks whatever the size of the checkpoint and however many ranks wrote
/// it. Results are data; `muster-tools ckpt` prints them.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/io/reader.h"
#include "checkpoint/io/state.h"
#include "core/base/file_system.h"
#include "core/base/result.h"

namespace muster::checkpoint {

/// One line of a listing. `reason` is empty for a good one.
struct ListedCheckpoint {
  std::string name;
  std::string path;
  std::string reason;
  int64_t step = 0;
  std::string created;
  int world_size = 0;
  int64_t num_tensors = 0;
  int64_t nbytes = 0;
  std::string digest;
};

/// `path` as a checkpoint (it holds a manifest or is named like one) or all in a folder of them,
/// newest first. Manifests and sizes are checked. @error kNotFound there is nothing there
Result<std::vector<ListedCheckpoint>> list_checkpoints(FileSystem& fs, const std::string& path);

/// The checkpoint itself, or the newest good one in a folder of them.
/// @error kNotFound, kCorruption
Result<Checkpoint> open_checkpoint(FileSystem& fs, const std::string& path);

struct NamedDigest {
  std::string name;
  DType dtype = DType::kF32;
  Dims shape;
  std::string digest;  ///< 16 hexadecimal digits
};
struct DigestReport {
  int64_t step = 0;
  std::vector<NamedDigest> tensors;
  std::string total;
};
/// Digests computed anew from the stored bytes. @error kCorruption
Result<DigestReport> digest_checkpoint(const Checkpoint& checkpoint);

/// How one tensor differs between two checkpoints.
struct TensorDifference {
  std::string name;
  std::string what;           ///< "only in a", "only in b", "shape", "dtype", "values"
  std::string detail;         ///< for people
  int64_t num_different = 0;  ///< elements whose bits differ
  double max_abs = 0;         ///< largest |a - b|; nan when one side is nan or both are infinite
  Dims first_index;           ///< of the first different element, row-major
};
/// How one value of the state differs.
struct StateDifference {
  std::string path;  ///< e.g. "train/lr", "rank/3/cursor", "step"
  std::string a;     ///< JSON text; empty when it is only in b
  std::string b;
};
struct DiffReport {
  std::vector<TensorDifference> tensors;
  std::vector<StateDifference> state;
  [[nodiscard]] bool is_equal() const { return tensors.empty() && state.empty(); }
};
/// Compares tensors bit by bit, whatever the layouts, aliases, train.json and the state of ranks.
/// Save ids and times are left out. @error kCorruption
Result<DiffReport> diff_checkpoints(const Checkpoint& a, const Checkpoint& b);

/// Slabs of at most `max_numel` elements that tile a tensor in row-major order. Pure.
std::vector<Box> slabs_of(const Dims& sizes, int64_t max_numel);

}  // namespace muster::checkpoint
