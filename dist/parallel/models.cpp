#include "dist/parallel/models.h"

#include <algorithm>

#include "dist/parallel/vocab.h"

namespace muster::parallel {
namespace {
constexpr Placement kWhole = Placement::replicate();

// How the residual stream lies between layers.
Placement stream_of(const ModelOptions& options) {
  return options.sequence_parallel ? Placement::shard(1) : kWhole;
}

const Llama& llama_of(const CausalLm& model) {
  const auto* llama = dynamic_cast<const Llama*>(&model);
  MUSTER_CHECK(llama != nullptr, ErrorCode::kInvalidArgument,
               "tensor parallel: there is a plan for Gpt and Llama; got {}", model.kind());
  return *llama;
}

HeadCounts heads_of(const CausalLm& model) {
  if (const auto* gpt = dynamic_cast<const Gpt*>(&model)) {
    return {.heads = gpt->config().heads, .kv_heads = gpt->config().heads};
  }
  const LlamaConfig& config = llama_of(model).config();
  return {.heads = config.heads, .kv_heads = config.kv_heads};
}

// A tied head reads the embedding's weight itself, so its input is made where the last norm ends.
void add_head(Plan& plan, bool tied, const std::string& last_norm, Placement stream) {
  if (tied) {
    plan.push_back({last_norm, prepare_output(stream, kWhole, true)});
  } else {
    plan.push_back({"lm_head", colwise(stream)});
  }
}
// Each rank has some of the heads; the masks of dropout are those of all of them.
void share_out_heads(Module& part, const MeshRef& axis) {
  const int64_t share = axis->coordinate()[0], shares = axis->size();
  for (const NamedModule& named : part.named_modules()) {
    if (auto* gpt = dynamic_cast<CausalSelfAttention*>(named.module)) {
      gpt->set_head_share(share, shares);
    } else if (auto* llama = dynamic_cast<LlamaAttention*>(named.module)) {
      llama->set_head_share(share, shares);
    }
  }
}

}  // namespace

Plan gpt_plan(const GptConfig& config, const ModelOptions& options) {
  const Placement stream = stream_of(options);
  Plan plan = {{"wte", rowwise_embedding(stream)}};
  if (config.layers > 0) {
    plan.push_back({"h.*.attn.c_attn", colwise_blocks(3, stream)});
    plan.push_back({"h.*.attn.c_proj", rowwise(stream)});
    plan.push_back({"h.*.mlp.c_fc", colwise(stream)});
    plan.push_back({"h.*.mlp.c_proj", rowwise(stream)});
  }
  if (options.sequence_parallel) {
    plan.push_back({"wpe", prepare_output(kWhole, Placement::shard(0))});
    plan.push_back({"drop", sequence()});
    if (config.layers > 0) {
      plan.push_back({"h.*.ln_1", sequence()});
      plan.push_back({"h.*.ln_2", sequence()});
      plan.push_back({"h.*.attn.resid_dropout", sequence()});
      plan.push_back({"h.*.mlp.dropout", sequence()});
    }
    plan.push_back({"ln_f", sequence()});
  }
  add_head(plan, config.tied_head, "ln_f", stream);
  return plan;
}

Plan llama_plan(const LlamaConfig& config, const ModelOptions& options) {
  const Placement stream = stream_of(options);
  Plan plan = {{"model.embed_tokens", rowwise_embedding(stream)}};
  if (config.layers > 0) {
    // q, k and v share one input, gate and up another: each is made, and its gradient reduced,
    // once.
    plan.push_back({"model.layers.*.self_attn", prepare_input(stream)});
    for (const char* layer : {"q_proj", "k_proj", "v_proj"}) {
      plan.push_back({std::string("model.layers.*.self_attn.") + layer, colwise()});
    }
    plan.push_back({"model.layers.*.self_attn.o_proj", rowwise(stream)});
    plan.push_back({"model.layers.*.mlp", prepare_input(stream)});
    plan.push_back({"model.layers.*.mlp.gate_proj", colwise()});
    plan.push_back({"model.layers.*.mlp.up_proj", colwise()});
    plan.push_back({"model.layers.*.mlp.down_proj", rowwise(stream)});
    if (config.qk_norm) {
      // One weight for all heads, of which each rank has some: its gradient is a sum over ranks.
      plan.push_back({"model.layers.*.self_attn.q_norm", sequence()});
      plan.push_back({"model.layers.*.self_attn.k_norm", sequence()});
    }
  }
  if (options.sequence_parallel) {
    if (config.layers > 0) {
      plan.push_back({"model.layers.*.input_layernorm", sequence()});
      plan.push_back({"model.layers.*.post_attention_layernorm", sequence()});
    }
    plan.push_back({"model.norm", sequence()});
  }
  add_head(plan, config.tied_head, "model.norm", stream);
  return plan;
}

Plan plan_of(const CausalLm& model, const ModelOptions& options) {
  if (const auto* gpt = dynamic_cast<const Gpt*>(&model)) return gpt_plan(gpt->config(), options);
  return llama_plan(llama_of(model).config(), options);
}

CausalLm::LossFunction loss_of(const CausalLm& model, const MeshRef& axis) {
  const auto* gpt = dynamic_cast<const Gpt*>(&model);
  const int64_t vocab =
      gpt != nullptr ? gpt->config().vocab_size : llama_of(model).config().vocab_size;
  return [axis, vocab](const Tensor& logits, const Tensor& targets) {
    return vocab_parallel_cross_entropy_sum_count(logits, targets, axis, vocab);
  };
}

void parallelize_part(Module& part, const CausalLm& whole, const MeshRef& axis,
                      const ModelOptions& options) {
  check_heads(heads_of(whole), axis->size());
  Plan plan = plan_of(whole, options);
  const std::vector<NamedModule> modules = part.named_modules();
  std::erase_if(plan, [&](const PlanEntry& entry) {
    return std::none_of(modules.begin(), modules.end(), [&](const NamedModule& named) {
      return matches_glob(entry.glob, named.name);
    });
  });
  parallelize_module(part, axis, plan);
  share_out_heads(part, axis);
}

void parallelize(CausalLm& model, const MeshRef& axis, const ModelOptions& options) {
  check_heads(heads_of(model), axis->size());
  parallelize_module(model, axis, plan_of(model, options));
  share_out_heads(model, axis);
  model.replace_loss(loss_of(model, axis));
}

std::string plan_name_of(const CausalLm& model) {
  if (dynamic_cast<const Gpt*>(&model) != nullptr) return "gpt";
  return dynamic_cast<const Llama*>(&model) != nullptr ? "llama" : "";
}
}  // namespace muster::parallel
