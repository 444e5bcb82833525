#pragma once
/// Parameters that are used as plain local tensors and know which piece of a whole they are.
///
/// Tensor parallel layers compute on their own pieces, without a DTensor's dispatch. Such a piece
/// is an ordinary leaf; its description tells sharding, initialisation, norms and checkpoints what
/// it is a part of, so that each of them follows from placements and not from a flag.

#include "dist/tensor/dtensor.h"

namespace muster {

/// What a local piece is a piece of.
struct LocalShard {
  DTensorSpec whole;
  /// Each rank's gradient is only its share: the true one is the sum over the mesh. For replicated
  /// parameters that ranks use on different data, such as norms on sequence shards.
  bool has_partial_gradient = false;
};

/// A leaf over the memory of `local`, with its description. No history; requires_grad is off.
/// @error kInvalidArgument the piece has not the sizes that placements give this rank
Tensor make_local_shard(const Tensor& local, LocalShard shard);

/// The description of a tensor that make_local_shard() gave; null for any other tensor. Results of
/// operators are plain tensors again.
[[nodiscard]] const LocalShard* local_shard_of(const Tensor& tensor) noexcept;

/// A box of the whole tensor that lies in rows [first_row, first_row + sizes[0]) of the piece.
struct LocalBox {
  ShardBox box;
  int64_t first_row = 0;
};

/// This rank's piece as boxes of the whole, in the order of its rows. One box, or several where a
/// strided shard cut dim 0; one empty box for an empty piece.
/// @error kUnimplemented a strided shard of another dim than 0
std::vector<LocalBox> local_boxes(const DTensorSpec& spec);

/// Global ranks that hold the same piece as this one (it differs along replicated axes only),
/// ascending, this one included.
std::vector<int> replica_ranks(const DTensorSpec& spec);

/// Rows [first, first + count) of a contiguous tensor, sharing its memory, without history.
Tensor rows_of(const Tensor& whole, int64_t first, int64_t count);

}  // namespace muster
