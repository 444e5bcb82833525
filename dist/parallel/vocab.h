#pragma once
/// Embedding and cross entropy over a vocabulary that ranks share out.
///
/// Rank r of an axis holds rows chunk r of the vocabulary, late ranks fewer or none; every rank
/// takes part in every collective, also with an empty piece. Each rank passes the same indices.

#include "core/ops/losses.h"
#include "dist/mesh/device_mesh.h"

namespace muster::parallel {

/// This rank's share of the rows of an embedding: rows of other ranks are zero, so that the sum
/// over the axis is the embedding. Communicates nothing.
/// @shape weight [piece of vocab, D], indices any -> [.., D]
/// @error kOutOfRange an index outside [0, vocab), on all ranks alike
Tensor vocab_parallel_embedding(const Tensor& weight, const Tensor& indices, const DeviceMesh& axis,
                                int64_t vocab, int64_t padding_idx = -1);

/// Cross entropy of logits whose classes are shared out; options as of cross_entropy, label
/// smoothing and class weights included. All ranks get the same loss, each the gradient of its
/// logits. Backward is local.
/// @shape logits [N, piece of vocab, ..]; target [N, ..] i64; weight [vocab]
/// @collective two all-reduces of a few numbers a row
/// @error kInvalidArgument logits of another number of classes than this rank's share (replicated
/// logits, say); kOutOfRange a target outside [0, vocab); both before any communication
Tensor vocab_parallel_cross_entropy(const Tensor& logits, const Tensor& target, const MeshRef& axis,
                                    int64_t vocab, const CrossEntropyOptions& options = {},
                                    Reduction reduction = Reduction::kMean);

/// The same as a sum and what it is to be divided by.
LossSum vocab_parallel_cross_entropy_sum_count(const Tensor& logits, const Tensor& target,
                                               const MeshRef& axis, int64_t vocab,
                                               const CrossEntropyOptions& options = {});

}  // namespace muster::parallel
