// What each style does to a module: the placements of its parameters, and the compute or hook.
#include "dist/parallel/styles.h"

#include "core/nn/layers.h"
#include "core/ops/ops.h"
#include "dist/parallel/axis_move.h"
#include "dist/parallel/vocab.h"
#include "dist/tensor/shard_geometry.h"

namespace muster::parallel {
namespace {
constexpr Placement kReplicated = Placement::replicate();
constexpr Placement kPartial = Placement::partial();

Tensor* slot_named(Module& module, std::string_view name) {
  for (const TensorSlot& slot : module.parameter_slots(false)) {
    if (slot.name == name && slot.tensor->defined()) return slot.tensor;
  }
  return nullptr;
}

Placement last_dim() { return Placement::shard(-1); }
bool is_last_dim(Placement placement) { return placement == last_dim(); }

// Of all ranks, along a dim of which this rank has a piece: the length that was cut last, if the
// piece fits it.
std::optional<int64_t> known_length(const Tensor& local, int32_t dim, const PlanContext& context) {
  const ProcessGroup& group = *context.axis->group(0);
  const int64_t length = context.sequence_length;
  if (length < 0) return std::nullopt;
  const int64_t own = chunk_range(length, group.world_size(), group.group_rank()).size;
  return own == local.size(dim) ? std::optional<int64_t>(length) : std::nullopt;
}

// A move of activations. Cutting a sequence notes its length, joining one asks for it.
AxisMove with_length(AxisMove step, const Tensor& local, PlanContext& context) {
  const auto is_sequence = [](Placement p) { return p.is_shard() && p.dim >= 0; };
  if (is_sequence(step.to) && !step.from.is_shard()) {
    context.sequence_length = local.size(step.to.dim);
  }
  if (is_sequence(step.from) && step.from != step.to) {
    step.whole_size = known_length(local, step.from.dim, context);
  }
  return step;
}

Tensor move_activation(const Tensor& local, const AxisMove& step, const PlanContextRef& context) {
  return move(local, with_length(step, local, *context));
}

// Feature shards to what the style wants; `features` are those of all ranks.
Tensor give_output(const Tensor& local, const Style& style, const PlanContextRef& context,
                   int64_t features) {
  if (is_last_dim(style.to)) return local;
  const MeshRef& axis = context->axis;
  const Tensor whole =
      move(local, {.axis = axis, .from = last_dim(), .to = kReplicated, .whole_size = features});
  return style.to.is_replicate()
             ? whole
             : move_activation(whole, {.axis = axis, .from = kReplicated, .to = style.to}, context);
}

// A sum of the ranks' shares to what the style wants.
Tensor give_sum(const Tensor& share, const Tensor& bias, const Style& style,
                const PlanContextRef& context) {
  const AxisMove step{.axis = context->axis, .from = kPartial, .to = style.to};
  return reduce_and_add_bias(share, bias, with_length(step, share, *context));
}

void install_colwise_linear(Module& module, const Style& style, const PlanContextRef& context,
                            bool is_prepared) {
  Tensor* const weight = slot_named(module, "weight");
  Tensor* const bias = slot_named(module, "bias");
  const int64_t features = weight->size(0);
  const AxisMove step{
      .axis = context->axis, .from = style.from, .to = kReplicated, .partial_gradient = true};
  module.replace_compute([=](const Tensor& input) {
    const Tensor x = is_prepared ? input : move_activation(input, step, context);
    return give_output(linear(x, *weight, bias == nullptr ? Tensor() : *bias), style, context,
                       features);
  });
}

void install_colwise_embedding(Module& module, const Style& style, const PlanContextRef& context) {
  Tensor* const weight = slot_named(module, "weight");
  const int64_t features = weight->size(1);
  module.replace_compute([=](const Tensor& input) {
    return give_output(embedding(*weight, input), style, context, features);
  });
}

void install_rowwise_linear(Module& module, const Style& style, const PlanContextRef& context) {
  Tensor* const weight = slot_named(module, "weight");
  Tensor* const bias = slot_named(module, "bias");
  const AxisMove step{.axis = context->axis, .from = style.from, .to = last_dim()};
  module.replace_compute([=](const Tensor& input) {
    const Tensor x = move_activation(input, step, context);
    return give_sum(linear(x, *weight), bias == nullptr ? Tensor() : *bias, style, context);
  });
}

void install_rowwise_embedding(Module& module, const Style& style, const PlanContextRef& context) {
  Tensor* const weight = slot_named(module, "weight");
  const int64_t vocab = weight->size(0);
  module.replace_compute([=](const Tensor& input) {
    return give_sum(vocab_parallel_embedding(*weight, input, *context->axis, vocab), {}, style,
                    context);
  });
}

// Draws for its piece of the sequence what one process draws for the whole.
void install_dropout(Dropout& module, const PlanContextRef& context) {
  constexpr int32_t kSequenceDim = 1;
  Dropout* const own = &module;
  module.replace_compute([own, context](const Tensor& input) {
    if (own->p() == 0 || !own->is_training()) return input;
    const ProcessGroup& group = *context->axis->group(0);
    const int64_t length = known_length(input, kSequenceDim, *context)
                               .value_or(input.size(kSequenceDim) * group.world_size());
    PhiloxStream stream = PhiloxStream::next();
    stream.global_sizes = DimVector(input.sizes());
    stream.global_sizes[kSequenceDim] = length;
    stream.box_start = DimVector(input.sizes().size());
    stream.box_start[kSequenceDim] =
        chunk_range(length, group.world_size(), group.group_rank()).offset;
    return dropout(input, own->p(), stream);
  });
}

void install_move(Module& module, const Style& style, const PlanContextRef& context) {
  const AxisMove step{.axis = context->axis,
                      .from = style.from,
                      .to = style.to,
                      .partial_gradient = style.partial_gradient && style.to.is_replicate()};
  if (style.kind == Style::Kind::kPrepareInput) {
    module.register_forward_pre_hook([step, context](Module&, const Tensor& input) {
      return move_activation(input, step, context);
    });
  } else {
    module.register_forward_hook([step, context](Module&, const Tensor&, const Tensor& output) {
      return move_activation(output, step, context);
    });
  }
}
}  // namespace

std::vector<ParameterCut> cuts_of(Module& module, const Style& style) {
  const bool is_linear = dynamic_cast<Linear*>(&module) != nullptr;
  switch (style.kind) {
    case Style::Kind::kColwise:
      if (!is_linear) return {{"weight", Placement::shard(1)}};
      return {{"weight",
               style.parts == 1 ? Placement::shard(0) : Placement::strided_shard(0, style.parts)},
              {"bias",
               style.parts == 1 ? Placement::shard(0) : Placement::strided_shard(0, style.parts)}};
    case Style::Kind::kRowwise:
      if (!is_linear) return {{"weight", Placement::shard(0)}};
      return {{"weight", Placement::shard(1)}, {"bias", kReplicated}};
    case Style::Kind::kSequence: {
      std::vector<ParameterCut> cuts;
      for (const TensorSlot& slot : module.parameter_slots(false)) {
        cuts.push_back({slot.name, kReplicated, true});
      }
      return cuts;
    }
    case Style::Kind::kPrepareInput:
    case Style::Kind::kPrepareOutput:
      break;
  }
  return {};
}

std::string fault_of(Module& module, const Style& style) {
  const bool is_linear = dynamic_cast<Linear*>(&module) != nullptr;
  const bool is_embedding = dynamic_cast<Embedding*>(&module) != nullptr;
  const bool is_layer = style.kind == Style::Kind::kColwise || style.kind == Style::Kind::kRowwise;
  if (is_layer && !is_linear && !is_embedding) {
    return fmt::format("{} is cut by columns or rows, but only Linear and Embedding can be",
                       module.kind());
  }
  if (style.kind == Style::Kind::kColwise && style.parts > 1) {
    if (!is_linear || !is_last_dim(style.to)) {
      return "only a Linear whose output stays shared out can be cut by blocks";
    }
    const int64_t rows = slot_named(module, "weight")->size(0);
    if (rows % style.parts != 0) {
      return fmt::format("{} rows are not {} blocks of equal size", rows, style.parts);
    }
  }
  if (style.kind == Style::Kind::kRowwise && !style.to.is_replicate() && !style.to.is_shard()) {
    return fmt::format("its output can be replicated or a shard; got {}", to_string(style.to));
  }
  return "";
}

void install_style(Module& module, const Style& style, const PlanContextRef& context,
                   bool is_prepared) {
  const bool is_linear = dynamic_cast<Linear*>(&module) != nullptr;
  switch (style.kind) {
    case Style::Kind::kColwise:
      if (is_linear) return install_colwise_linear(module, style, context, is_prepared);
      return install_colwise_embedding(module, style, context);
    case Style::Kind::kRowwise:
      if (is_linear) return install_rowwise_linear(module, style, context);
      return install_rowwise_embedding(module, style, context);
    case Style::Kind::kPrepareInput:
    case Style::Kind::kPrepareOutput:
      return install_move(module, style, context);
    case Style::Kind::kSequence:  // others compute as they are, on their piece of the sequence
      if (auto* dropout = dynamic_cast<Dropout*>(&module)) install_dropout(*dropout, context);
      break;
  }
}
}  // namespace muster::parallel
