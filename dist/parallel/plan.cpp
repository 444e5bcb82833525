#include "dist/parallel/plan.h"

#include <fmt/format.h>

#include <map>

#include "core/autograd/autograd.h"
#include "core/base/text.h"
#include "core/ops/ops.h"
#include "dist/parallel/styles.h"
#include "dist/tensor/redistribute_local.h"

namespace muster::parallel {
namespace {
// One entry of the plan at one module that it names.
struct Match {
  std::string name;
  Module* module = nullptr;
  Style style;
  bool is_prepared = false;
};

bool is_below(std::string_view name, std::string_view above) {
  return above.empty() || name == above || name.starts_with(std::string(above) + ".");
}

std::vector<Match> matches_of(Module& module, const Plan& plan, std::vector<std::string>& faults) {
  std::vector<Match> matches;
  const std::vector<NamedModule> modules = module.named_modules();
  for (const PlanEntry& entry : plan) {
    const size_t before = matches.size();
    for (const NamedModule& named : modules) {
      if (!matches_glob(entry.glob, named.name)) continue;
      const std::string fault = fault_of(*named.module, entry.style);
      if (!fault.empty()) faults.push_back(fmt::format("\"{}\": {}", named.name, fault));
      matches.push_back({named.name, named.module, entry.style, false});
    }
    if (matches.size() > before) continue;
    std::vector<std::string> names;
    for (const NamedModule& named : modules) names.push_back(named.name);
    const std::string near = nearest_name(entry.glob, names);
    faults.push_back(fmt::format("\"{}\" matches no module{}", entry.glob,
                                 near.empty() ? "" : "; did you mean \"" + near + "\"?"));
  }
  for (Match& match : matches) {
    for (const Match& other : matches) {
      match.is_prepared |= other.style.kind == Style::Kind::kPrepareInput &&
                           other.style.partial_gradient && is_below(match.name, other.name);
    }
  }
  return matches;
}

// What the plan says about each parameter, tied ones once; parameters it leaves out are replicated.
struct Cuts {
  std::map<const TensorImpl*, ParameterCut> by_parameter;
};

Cuts collect_cuts(const std::vector<Match>& matches, std::vector<std::string>& faults) {
  Cuts cuts;
  for (const Match& match : matches) {
    if (!fault_of(*match.module, match.style).empty()) continue;
    for (const ParameterCut& cut : cuts_of(*match.module, match.style)) {
      for (const TensorSlot& slot : match.module->parameter_slots(false)) {
        if (slot.name != cut.name || !slot.tensor->defined()) continue;
        const auto [at, is_new] = cuts.by_parameter.try_emplace(slot.tensor->impl(), cut);
        if (!is_new && (at->second.placement != cut.placement ||
                        at->second.has_partial_gradient != cut.has_partial_gradient)) {
          faults.push_back(fmt::format("\"{}.{}\" is to be {} and {}", match.name, cut.name,
                                       to_string(at->second.placement), to_string(cut.placement)));
        }
      }
    }
  }
  return cuts;
}

Tensor piece_of(const Tensor& whole, const DTensorSpec& spec) {
  if (whole.is_meta()) {
    return empty_from_spec(TensorSpec::contiguous(spec.local_sizes(), whole.dtype(), kMetaDevice));
  }
  DTensorSpec as_one = spec;
  as_one.placements = {Placement::replicate()};
  return contiguous(redistribute_local(shallow_detach(whole), as_one, spec.placements));
}

// Puts a piece into the place of a parameter. A gradient that is only a share is summed as it
// comes, unless fully_shard() takes the parameter over: it sums what it has reduced.
Tensor as_parameter(const Tensor& piece, LocalShard shard, bool requires_grad) {
  const MeshRef axis = shard.whole.mesh;
  const bool is_share = shard.has_partial_gradient && axis->size() > 1;
  const Tensor parameter = make_local_shard(piece, std::move(shard));
  muster::requires_grad_(parameter, requires_grad);
  if (is_share && requires_grad) {
    register_hook(parameter, [axis](const Tensor& grad) {
      const NoGradGuard no_grad;
      return reduce_partial(grad, *axis->group(0), PartialOp::kSum);
    });
  }
  return parameter;
}

void cut_parameters(Module& module, const MeshRef& axis, const Cuts& cuts) {
  std::map<const TensorImpl*, Tensor> made;
  std::vector<Tensor> keep;  // so that no address is used twice
  for (const TensorSlot& slot : module.parameter_slots()) {
    if (!slot.tensor->defined()) continue;
    const Tensor whole = *slot.tensor;
    auto at = made.find(whole.impl());
    if (at == made.end()) {
      ParameterCut cut;
      if (const auto found = cuts.by_parameter.find(whole.impl());
          found != cuts.by_parameter.end()) {
        cut = found->second;
      }
      const DTensorSpec spec{axis, {cut.placement}, DimVector(whole.sizes()), whole.dtype()};
      keep.push_back(whole);
      at = made.emplace(whole.impl(),
                        as_parameter(piece_of(whole, spec), {spec, cut.has_partial_gradient},
                                     whole.requires_grad()))
               .first;
    }
    *slot.tensor = at->second;
  }
}
}  // namespace

Style colwise(Placement input, Placement output) {
  return {.kind = Style::Kind::kColwise, .from = input, .to = output};
}
Style colwise_blocks(int parts, Placement input) {
  Style style = colwise(input);
  style.parts = parts;
  return style;
}
Style rowwise(Placement output, Placement input) {
  return {.kind = Style::Kind::kRowwise, .from = input, .to = output};
}
Style rowwise_embedding(Placement output) { return rowwise(output, Placement::replicate()); }
Style sequence() {
  return {.kind = Style::Kind::kSequence, .from = Placement::shard(1), .to = Placement::shard(1)};
}
Style prepare_input(Placement from, Placement to, bool partial_gradient) {
  return {.kind = Style::Kind::kPrepareInput,
          .from = from,
          .to = to,
          .partial_gradient = partial_gradient && to.is_replicate()};
}
Style prepare_output(Placement from, Placement to, bool partial_gradient) {
  return {.kind = Style::Kind::kPrepareOutput,
          .from = from,
          .to = to,
          .partial_gradient = partial_gradient && to.is_replicate()};
}

bool matches_glob(std::string_view glob, std::string_view name) {
  const std::vector<std::string> wanted = split(glob, '.');
  const std::vector<std::string> parts = split(name, '.');
  if (wanted.size() != parts.size()) return false;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] != parts[i] && (wanted[i] != "*" || parts[i].empty())) return false;
  }
  return true;
}

void parallelize_module(Module& module, const MeshRef& axis, const Plan& plan) {
  MUSTER_CHECK(axis && axis->num_axes() == 1, ErrorCode::kInvalidArgument,
               "parallelize_module: a mesh of one axis; got {}", axis ? axis->describe() : "none");
  for (const TensorSlot& slot : module.parameter_slots()) {
    MUSTER_CHECK(
        !slot.tensor->defined() || (!local_shard_of(*slot.tensor) && !is_dtensor(*slot.tensor)),
        ErrorCode::kInvalidArgument,
        "parallelize_module: {} must have whole parameters; {} is {}\n"
        "  fix: one plan for the whole model, before fully_shard",
        module.kind(), slot.name, is_dtensor(*slot.tensor) ? "sharded already" : "a piece already");
  }
  std::vector<std::string> faults;
  const std::vector<Match> matches = matches_of(module, plan, faults);
  const Cuts cuts = collect_cuts(matches, faults);
  MUSTER_CHECK(faults.empty(), ErrorCode::kInvalidArgument,
               "parallelize_module: the plan must fit {}\n  {}", module.kind(),
               join(faults, "\n  "));
  const auto context = std::make_shared<PlanContext>(PlanContext{axis});
  for (const Match& match : matches) {
    install_style(*match.module, match.style, context, match.is_prepared);
  }
  cut_parameters(module, axis, cuts);
  for (const NamedModule& named : module.named_modules()) {
    named.module->keep_parameters(
        "holds pieces of tensor parallelism\n"
        "  fix: convert and allocate before parallelize_module; parallel::init_parameters or "
        "fsdp::init_parameters give values");
  }
}

void init_parameters(Module& module, uint64_t seed) {
  const NoGradGuard no_grad;
  std::map<const TensorImpl*, Tensor> made;
  std::vector<Tensor> keep;
  for (const TensorSlot& slot : module.parameter_slots()) {
    if (!slot.tensor->defined()) continue;
    const Tensor old = *slot.tensor;
    if (const auto at = made.find(old.impl()); at != made.end()) {
      *slot.tensor = at->second;
      continue;
    }
    const LocalShard* shard = local_shard_of(old);
    MUSTER_CHECK(
        shard != nullptr, ErrorCode::kFailedPrecondition,
        "parallel::init_parameters: {} must be a piece that parallelize_module made; got {}",
        slot.name, old);
    if (old.is_meta()) {
      const Tensor memory = empty_from_spec(TensorSpec::contiguous(old.sizes(), old.dtype()));
      *slot.tensor = as_parameter(memory, *shard, old.requires_grad());
    }
    for (const LocalBox& piece : local_boxes(shard->whole)) {
      const int64_t rows = piece.box.sizes.empty() ? 1 : piece.box.sizes[0];
      init_parameter(muster::rows_of(*slot.tensor, piece.first_row, rows), slot.init, seed,
                     slot.name, shard->whole.sizes, piece.box.offsets);
    }
    keep.push_back(old);
    made.emplace(old.impl(), *slot.tensor);
    made.emplace(slot.tensor->impl(), *slot.tensor);
  }
}

void check_heads(const HeadCounts& counts, int tp) {
  MUSTER_CHECK(tp > 0 && counts.heads % tp == 0 && counts.kv_heads % tp == 0,
               ErrorCode::kInvalidArgument,
               "tensor parallel: heads and kv heads must be multiples of tp; got {} heads, {} kv "
               "heads, tp {}",
               counts.heads, counts.kv_heads, tp);
}
}  // namespace muster::parallel
