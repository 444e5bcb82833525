#pragma once
/// What goes into a checkpoint and what comes out, as plain bytes and text.
///
/// Tensors are named spans of row-major bytes with the box they fill in a global tensor; all other
/// state is JSON text that the caller makes and reads back. Nothing here knows modules, meshes or
/// optimizers, and nothing stored can run code when it is read.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/plan/box.h"
#include "core/base/time.h"
#include "core/tensor/dtype.h"

namespace muster::checkpoint {

/// A box of a tensor in this rank's memory, to be saved.
struct TensorPiece {
  std::string name;  ///< unique in the job, e.g. "model.wte.weight", "optimizer.wte.weight.exp_avg"
  DType dtype = DType::kF32;
  Dims global_sizes;
  Box box;                          ///< may be empty; several pieces of one name must not overlap
  std::span<const std::byte> data;  ///< row-major bytes of the box, unchanged until save() returns
  /// All global ranks that hold these same bytes, ascending, this one included; one of them writes
  /// each part. Empty: this rank alone. Replicated on all of 4 ranks: {0, 1, 2, 3}.
  std::vector<int> holders;
};

/// A box of a tensor in this rank's memory, to be filled.
struct TensorSlot {
  std::string name;
  DType dtype = DType::kF32;
  Dims global_sizes;
  Box box;
  std::span<std::byte> destination;
};

/// Tied names: alias -> the name under which the bytes are stored.
using Aliases = std::map<std::string, std::string>;

struct SaveRequest {
  int64_t step = 0;  ///< steps completed; names the checkpoint
  std::vector<TensorPiece> tensors;
  Aliases aliases;                      ///< same on every rank
  std::string rank_state_json = "{}";   ///< this rank's own objects: a JSON object
  std::string train_state_json = "{}";  ///< rank 0's counts: schedule, data cursor, scaler, seeds
  std::string mesh_json = "{}";         ///< rank 0's counts: axes and sizes, for people and tools
  std::string recipe_text;              ///< rank 0's counts: the resolved recipe
  std::string code_revision;            ///< rank 0's counts
  bool overwrite = false;               ///< replace a good checkpoint of the same step
};

struct SaveReport {
  int64_t step = 0;
  std::string path;           ///< the committed folder
  std::string save_id;        ///< 128 random bits that all files of the checkpoint carry
  std::string digest;         ///< over all tensors, independent of the layout
  int64_t local_nbytes = 0;   ///< tensor bytes that this rank wrote
  int64_t total_nbytes = 0;   ///< all files of the checkpoint
  int64_t plan_nbytes = 0;    ///< sent between ranks to plan: always 0
  int64_t commit_nbytes = 0;  ///< sent by this rank to commit
  Duration write_time{0};     ///< this rank's files, synced
  Duration total_time{0};
  std::vector<std::string> removed;  ///< older checkpoints that retention removed (rank 0 only)
};

/// A checkpoint (or leftover) that was passed over, and why.
struct Skipped {
  std::string name;    ///< e.g. "step-00000020"
  std::string reason;  ///< e.g. "rank-00001.safetensors: 8191 bytes, the manifest says 8192"
  bool operator==(const Skipped&) const = default;
};

struct LoadedState {
  int64_t step = 0;
  std::string path;
  std::string save_id;
  std::string digest;
  int writer_world_size = 0;
  std::string train_state_json;
  /// Of all ranks of the writer, by rank: a changed world size can redistribute them.
  std::vector<std::string> rank_states_json;
  std::string mesh_json;
  std::string recipe_text;
  std::string code_revision;
  Aliases aliases;
  std::vector<Skipped> skipped;  ///< newer ones that could not be loaded
  int64_t read_nbytes = 0;       ///< tensor bytes that this rank read from files
  Duration total_time{0};
};

}  // namespace muster::checkpoint
