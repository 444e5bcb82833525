#include "train/stages.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/autograd/autograd.h"
#include "core/nn/gpt.h"
#include "core/nn/llama.h"
#include "core/ops/ops.h"

namespace muster {
namespace {
constexpr uint64_t kTiedTag = 0x7469656467726164;  // "tiedgrad"

// A mere folder for names.
class Folder final : public Module {
 public:
  Folder() : Module("Folder") {}
  template <typename M, typename... Arguments>
  M& add(std::string name, Arguments&&... arguments) {
    return add_module<M>(std::move(name), std::forward<Arguments>(arguments)...);
  }
};

struct Part {
  Part(int64_t blocks, int stage, int num_stages)
      : is_first(stage == 0), is_last(stage + 1 == num_stages) {
    MUSTER_CHECK(stage >= 0 && stage < num_stages, ErrorCode::kInvalidArgument,
                 "make_stage: the stage must be in [0, {}); got {}", num_stages, stage);
    std::tie(first_block, last_block) =
        split_blocks(blocks, num_stages)[static_cast<size_t>(stage)];
  }
  bool is_first;
  bool is_last;
  int64_t first_block = 0;
  int64_t last_block = 0;
};

LinearOptions head_options(int64_t dim, int64_t vocab_size, double init_std) {
  return {.in_features = dim,
          .out_features = vocab_size,
          .bias = false,
          .weight_init = InitSpec::normal(init_std)};
}

class GptStage final : public StageModule {
 public:
  GptStage(const GptConfig& config, const Part& part) : StageModule("GptStage"), part_(part) {
    const bool needs_wte = part.is_first || (part.is_last && config.tied_head);
    if (needs_wte) {
      wte_ = &add_module<Embedding>("wte", config.vocab_size, config.dim,
                                    InitSpec::normal(config.init_std));
    }
    if (part.is_first) {
      wpe_ = &add_module<Embedding>("wpe", config.max_positions, config.dim,
                                    InitSpec::normal(config.init_std));
      drop_ = &add_module<Dropout>("drop", config.dropout);
    } else if (needs_wte) {
      tied_copies_ = {"wte.weight"};
    }
    if (needs_wte && config.tied_head) tied_parameters_ = {"wte.weight"};
    Folder& blocks = add_module<Folder>("h");
    for (int64_t i = part.first_block; i < part.last_block; ++i) {
      blocks_.push_back(&blocks.add<GptBlock>(std::to_string(i), config));
      block_names_.push_back("h." + std::to_string(i));
    }
    if (!part.is_last) return;
    ln_f_ = &add_module<LayerNorm>("ln_f", config.dim, config.layer_norm_eps, config.bias);
    if (!config.tied_head) {
      lm_head_ = &add_module<Linear>("lm_head",
                                     head_options(config.dim, config.vocab_size, config.init_std));
    }
  }

 protected:
  Tensor compute(const Tensor& input) override {
    Tensor x = input;
    if (part_.is_first) {
      const Tensor positions = arange(input.size(1), DType::kI64, input.device());
      x = (*drop_)(add((*wte_)(input), (*wpe_)(positions)));
    }
    for (Module* block : blocks_) x = (*block)(x);
    if (!part_.is_last) return x;
    x = (*ln_f_)(x);
    return lm_head_ == nullptr ? linear(x, wte_->weight()) : (*lm_head_)(x);
  }

 private:
  Part part_;
  Embedding* wte_ = nullptr;
  Embedding* wpe_ = nullptr;
  Dropout* drop_ = nullptr;
  std::vector<Module*> blocks_;
  LayerNorm* ln_f_ = nullptr;
  Linear* lm_head_ = nullptr;
};

class LlamaStage final : public StageModule {
 public:
  LlamaStage(const LlamaConfig& config, const Part& part) : StageModule("LlamaStage"), part_(part) {
    const bool needs_embedding = part.is_first || (part.is_last && config.tied_head);
    Folder& body = add_module<Folder>("model");
    if (needs_embedding) {
      embed_tokens_ = &body.add<Embedding>("embed_tokens", config.vocab_size, config.dim,
                                           InitSpec::normal(config.init_std));
      if (!part.is_first) tied_copies_ = {"model.embed_tokens.weight"};
      if (config.tied_head) tied_parameters_ = {"model.embed_tokens.weight"};
    }
    Folder& layers = body.add<Folder>("layers");
    const auto rope = std::make_shared<RopeTable>(config.rope, config.head_size());
    for (int64_t i = part.first_block; i < part.last_block; ++i) {
      blocks_.push_back(&layers.add<LlamaBlock>(std::to_string(i), config, rope));
      block_names_.push_back("model.layers." + std::to_string(i));
    }
    if (!part.is_last) return;
    norm_ = &body.add<RmsNorm>("norm", config.dim, config.rms_norm_eps);
    if (!config.tied_head) {
      lm_head_ = &add_module<Linear>("lm_head",
                                     head_options(config.dim, config.vocab_size, config.init_std));
    }
  }

 protected:
  Tensor compute(const Tensor& input) override {
    Tensor x = part_.is_first ? (*embed_tokens_)(input) : input;
    for (Module* block : blocks_) x = (*block)(x);
    if (!part_.is_last) return x;
    x = (*norm_)(x);
    return lm_head_ == nullptr ? linear(x, embed_tokens_->weight()) : (*lm_head_)(x);
  }

 private:
  Part part_;
  Embedding* embed_tokens_ = nullptr;
  std::vector<Module*> blocks_;
  RmsNorm* norm_ = nullptr;
  Linear* lm_head_ = nullptr;
};

Tensor gradient_or_zeros(const Tensor& leaf) {
  const Tensor gradient = grad_of(leaf);
  return gradient.defined() ? contiguous(gradient) : zeros(leaf.sizes(), leaf.dtype());
}
}  // namespace

LossSum StageModule::loss(const Tensor& logits, const Tensor& targets) const {
  const Tensor rows = reshape(logits, {-1, logits.size(-1)}), classes = reshape(targets, {-1});
  return replaced_loss_ ? replaced_loss_(rows, classes) : cross_entropy_sum_count(rows, classes);
}

std::vector<std::pair<int64_t, int64_t>> split_blocks(int64_t blocks, int num_stages) {
  MUSTER_CHECK(num_stages >= 1 && blocks >= num_stages, ErrorCode::kInvalidArgument,
               "pipeline: each stage needs a block or more; got {} blocks and {} stages", blocks,
               num_stages);
  std::vector<std::pair<int64_t, int64_t>> parts;
  int64_t first = 0;
  for (int64_t stage = 0; stage < num_stages; ++stage) {
    const int64_t count = blocks / num_stages + (stage < blocks % num_stages ? 1 : 0);
    parts.emplace_back(first, first + count);
    first += count;
  }
  return parts;
}

std::unique_ptr<StageModule> make_stage(const CausalLm& whole, int stage, int num_stages) {
  if (const auto* gpt = dynamic_cast<const Gpt*>(&whole)) {
    const GptConfig& config = gpt->config();
    return std::make_unique<GptStage>(config, Part(config.layers, stage, num_stages));
  }
  if (const auto* llama = dynamic_cast<const Llama*>(&whole)) {
    const LlamaConfig& config = llama->config();
    return std::make_unique<LlamaStage>(config, Part(config.layers, stage, num_stages));
  }
  throw_error(ErrorCode::kUnimplemented, "make_stage: the model must be a Gpt or a Llama; got {}",
              whole.kind());
}

void share_tied_parameters(StageModule& first, StageModule& last) {
  for (const TensorSlot& own : last.parameter_slots()) {
    const auto& tied = last.tied_copies();
    if (std::find(tied.begin(), tied.end(), own.name) == tied.end()) continue;
    for (const TensorSlot& origin : first.parameter_slots()) {
      if (origin.name == own.name) *own.tensor = *origin.tensor;
    }
  }
}

void reduce_tied_gradients(ProcessGroup& group, int first, int last,
                           const std::vector<Tensor>& leaves) {
  const int own = group.group_rank();
  if (first == last || (own != first && own != last)) return;
  const int peer = own == first ? last : first;
  const NoGradGuard no_grad;
  for (const Tensor& leaf : leaves) {
    const Tensor mine = gradient_or_zeros(leaf);
    const Tensor theirs = empty_from_spec(TensorSpec::contiguous(mine.sizes(), mine.dtype()));
    group.run(group.send_tagged(mine, peer, kTiedTag));
    group.run(group.recv_tagged(theirs, peer, kTiedTag));
    // One order on both sides, so that the copies stay equal to the last bit.
    set_grad(leaf, own == first ? add(mine, theirs) : add(theirs, mine));
  }
}

std::vector<fsdp::NamedShard> without_tied_copies(const StageModule& stage,
                                                  std::vector<fsdp::NamedShard> shards) {
  const auto& tied = stage.tied_copies();
  std::erase_if(shards, [&](const fsdp::NamedShard& shard) {
    return std::find(tied.begin(), tied.end(), shard.name) != tied.end();
  });
  return shards;
}

double norm_over_stages(ProcessGroup& group, double own_norm) {
  const Tensor squares = from_vector(std::vector<double>{own_norm * own_norm});
  group.run(group.all_reduce(squares));
  return std::sqrt(squares.item());
}

pipeline::StageHooks stage_hooks(fsdp::Handle root, bool frees_between) {
  pipeline::StageHooks hooks;
  hooks.unshard = [root] {
    for (fsdp::ParamGroup* group : root.groups()) group->unshard();
  };
  hooks.reshard = [root] {
    for (fsdp::ParamGroup* group : root.groups()) group->reshard();
  };
  hooks.before_backward = [root, frees_between](bool is_last) mutable {
    root.set_requires_gradient_sync(is_last);
    root.set_reshard_after_backward(frees_between || is_last);
  };
  return hooks;
}
}  // namespace muster
