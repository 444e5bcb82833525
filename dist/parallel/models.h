#pragma once
/// Tensor parallel plans of the models in core/nn.
///
///   parallel::parallelize(model, mesh->slice({"tp"}));   // then fully_shard over "fsdp"
///
/// Heads, MLP features and vocabulary are shared out; logits stay shared out, and the model's loss
/// becomes the vocabulary parallel one. With sequence parallelism norms and residual additions run
/// on shards of the sequence between the blocks. @source the layouts of Megatron-LM
/// (arXiv:1909.08053, 2205.05198)

#include "core/nn/gpt.h"
#include "core/nn/llama.h"
#include "dist/parallel/plan.h"

namespace muster::parallel {

struct ModelOptions {
  bool sequence_parallel = false;
};

/// The plans "gpt" and "llama".
Plan gpt_plan(const GptConfig& config, const ModelOptions& options = {});
Plan llama_plan(const LlamaConfig& config, const ModelOptions& options = {});

/// Checks the heads, applies the model's plan and replaces its loss. All ranks of the axis pass the
/// same tokens. @error kInvalidArgument heads that the axis does not divide; another kind of model;
/// as parallelize_module
void parallelize(CausalLm& model, const MeshRef& axis, const ModelOptions& options = {});

/// The plan of a model, and the loss that goes with it: for parts of it, such as pipeline stages,
/// that hold modules under the model's names.
/// @error kInvalidArgument another kind of model
Plan plan_of(const CausalLm& model, const ModelOptions& options = {});
CausalLm::LossFunction loss_of(const CausalLm& model, const MeshRef& axis);
/// Applies what the model's plan says about the modules that `part` holds; its loss is the caller's
/// to replace. `whole` is asked for its configuration only. Sequence shards that come from another
/// part must be even. @error as parallelize
void parallelize_part(Module& part, const CausalLm& whole, const MeshRef& axis,
                      const ModelOptions& options = {});

/// What a recipe's `tp: {plan: ..}` may say for this model: "gpt" or "llama"; "" for none.
std::string plan_name_of(const CausalLm& model);

}  // namespace muster::parallel
