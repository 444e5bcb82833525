#pragma once
/// activation_checkpoint: a region keeps its inputs only and is computed again in backward.
///
/// Non-reentrant: built on saved-tensor hooks, so the region is an ordinary part of the graph. The
/// first saved tensor that a backward pass asks for runs the region again, with the random state,
/// autocast and grad mode of the first time, up to the last value that is still needed; values are
/// dropped as they are used. Regions nest, and a pass with retain_graph recomputes once more.
/// Not for functions with effects: everything in the region happens twice.
/// @source torch.utils.checkpoint(use_reentrant=False) of PyTorch 2.13

#include <functional>
#include <span>
#include <vector>

#include "core/tensor/tensor.h"

namespace muster {

/// How a recomputed value is compared with the one of the first run.
enum class RecomputeCheck : uint8_t {
  kNone,
  kMetadata,  ///< sizes, dtype and device
  kValues,    ///< also a hash of all bytes: finds every nondeterminism, costs one read each time
};

struct CheckpointOptions {
  /// Runs again with the thread's default generator as it was, so that dropout masks repeat.
  bool preserve_rng_state = true;
  /// Stops the second run at the last value that backward needs.
  bool early_stop = true;
  RecomputeCheck check = RecomputeCheck::kMetadata;
};

/// A region: from inputs to outputs. Tensors that it captures (parameters) get gradients as usual,
/// and must not be written between forward and backward.
using CheckpointFunction = std::function<std::vector<Tensor>(std::span<const Tensor> inputs)>;

/// Runs `function` and keeps `inputs` (undefined ones are passed on) in place of what it saves.
/// Gradients are bit for bit those without checkpointing. Without grad mode it only runs.
/// @error in backward kFailedPrecondition: an input or captured tensor was written since; the
/// second run saved other tensors than the first (another number, other metadata, other values),
/// or one saved tensor is unpacked twice in a pass
std::vector<Tensor> activation_checkpoint(CheckpointFunction function, std::vector<Tensor> inputs,
                                          CheckpointOptions options = {});

/// The same for one input and one output.
Tensor activation_checkpoint(std::function<Tensor(const Tensor& input)> function,
                             const Tensor& input, CheckpointOptions options = {});

}  // namespace muster
