#pragma once
/// Pieces of a language model for a pipeline, under the parameter names of the whole model.
///
///   auto whole = make_model(recipe.model);                  // on the meta device: shapes only
///   auto stage = make_stage(*whole, stage_index, num_stages);
///   fsdp::fully_shard / reset_parameters(seed) ...          // as for the whole model
///   stages.push_back({.index = stage_index, .module = stage.get(),
///                     .hooks = stage_hooks(sharded_root)});
///   auto pipeline = pipeline::Pipeline::open({.schedule = .., .group = mesh->group("pp"),
///                                             .stages = stages}).value();
///   StepResult done = pipeline->train_step({.inputs = tokens by microbatch,
///       .loss = [&](const Tensor& logits, int m) { return stage->loss(logits, targets[m]); },
///       .grad_scale = 1.0 / global_tokens});
///   reduce_tied_gradients(*pp_group, ..);                   // tied head only
///
/// The first stage holds the embeddings, the last one the final norm and the head. Values depend on
/// (seed, name, index) alone, so a cut model begins as the whole one; checkpoints have its names.

#include <memory>
#include <string>
#include <vector>

#include "core/nn/causal_lm.h"
#include "fsdp/fully_shard.h"
#include "pipeline/runtime/stage.h"

namespace muster {

/// Input of a stage -> its output. @shape i64 [B, T] at the first stage, else [B, T, dim]; logits
/// [B, T, vocab] at the last one, else [B, T, dim]
class StageModule : public Module {
 public:
  /// Dotted names of the transformer blocks held here, in order: what sharding wraps.
  [[nodiscard]] const std::vector<std::string>& block_names() const noexcept {
    return block_names_;
  }
  /// Parameters that the first and the last stage both hold: the embedding of a tied head.
  [[nodiscard]] const std::vector<std::string>& tied_parameters() const noexcept {
    return tied_parameters_;
  }
  /// Parameters whose first copy lives on stage 0, if that is another stage: the embedding of a
  /// tied head. They count once, there: in the norm and in checkpoints.
  [[nodiscard]] const std::vector<std::string>& tied_copies() const noexcept {
    return tied_copies_;
  }
  /// Next-token loss of the last stage's logits. @shape logits [B, T, classes], targets i64 [B, T]
  LossSum loss(const Tensor& logits, const Tensor& targets) const;
  /// How the loss comes from logits [N, classes] and targets [N], where logits are not whole.
  void replace_loss(CausalLm::LossFunction loss) { replaced_loss_ = std::move(loss); }

 protected:
  using Module::Module;
  std::vector<std::string> block_names_;
  std::vector<std::string> tied_parameters_;
  std::vector<std::string> tied_copies_;

 private:
  CausalLm::LossFunction replaced_loss_;
};

/// Blocks [first, last) of each stage: as even as can be, the first stages one more.
/// @error kInvalidArgument (throws) fewer blocks than stages
std::vector<std::pair<int64_t, int64_t>> split_blocks(int64_t blocks, int num_stages);

/// One stage of a Gpt or Llama like `whole`, which is only asked for its configuration. On the
/// current device (DeviceGuard), with its values not yet set.
/// @error kInvalidArgument fewer blocks than stages; kUnimplemented another kind of model
std::unique_ptr<StageModule> make_stage(const CausalLm& whole, int stage, int num_stages);

/// Where both ends of a model are on one rank (a V schedule): lets `last` use the tied parameters
/// of `first` themselves. Call it once both have values; not for sharded stages.
void share_tied_parameters(StageModule& first, StageModule& last);

/// Gradients of tied parameters, summed over the stages that hold them, on both: call it after
/// train_step on all ranks of the pipeline's group, with the leaves that hold the gradients (of a
/// sharded module: the local pieces), in one order. Ranks that hold none return at once.
/// @collective group ranks `first` (of stage 0) and `last` (of the last stage)
/// @error kTimeout, kPeerLost, kMismatch (throws)
void reduce_tied_gradients(ProcessGroup& group, int first, int last,
                           const std::vector<Tensor>& leaves);

/// `shards` without the stage's tied copies: what counts once in the norm.
std::vector<fsdp::NamedShard> without_tied_copies(const StageModule& stage,
                                                  std::vector<fsdp::NamedShard> shards);
/// The 2-norm over all stages from each rank's own (of all its stages), the same on all ranks.
/// @collective all ranks of the pipeline's group
double norm_over_stages(ProcessGroup& group, double own_norm);

/// Lets a sharded stage take part: gradients are kept whole over the microbatches and reduced in
/// the last backward of a step. Parameters stay gathered until then, so that a step gathers them
/// once (reshard_after_forward false, or a schedule with UNSHARD and RESHARD), unless
/// `frees_between`: then each microbatch gathers them for forward and again for backward.
pipeline::StageHooks stage_hooks(fsdp::Handle root, bool frees_between = false);

}  // namespace muster
