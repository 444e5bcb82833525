#include "fsdp/fully_shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "fsdp/shared_state.h"

namespace muster::fsdp {

namespace {
// Which tree a module belongs to, while its handles or hooks live.
std::map<const Module*, std::weak_ptr<SharedState>>& states() {
  thread_local std::map<const Module*, std::weak_ptr<SharedState>> map;
  return map;
}

void join_trees_below(Module& module, std::shared_ptr<SharedState>& found) {
  MUSTER_CHECK(dynamic_cast<ModuleList*>(&module) == nullptr, ErrorCode::kInvalidArgument,
               "fully_shard: a container without forward has no hooks to gather by; got {}\n"
               "  fix: call it on each module that the container holds",
               module.kind());
  for (const NamedModule& named : module.named_modules()) {
    const auto at = states().find(named.module);
    if (at == states().end()) continue;
    std::shared_ptr<SharedState> state = at->second.lock();
    if (!state) continue;
    MUSTER_CHECK(named.module != &module, ErrorCode::kInvalidArgument,
                 "fully_shard: module {} is sharded already; each module once, inner ones first",
                 module.kind());
    if (!found) {
      found = state;
    } else if (found != state) {
      found->join(*state, found);
    }
  }
}

std::shared_ptr<SharedState> state_below(const std::vector<Module*>& modules) {
  std::shared_ptr<SharedState> found;
  for (Module* module : modules) join_trees_below(*module, found);
  return found ? found : std::make_shared<SharedState>();
}

// Parameters below the modules that no group has taken, shared ones once with all their slots.
std::vector<ShardedParam> free_parameters(const std::vector<Module*>& modules) {
  std::vector<ShardedParam> params;
  std::map<TensorImpl*, size_t> known;
  for (Module* module : modules) {
    for (const TensorSlot& slot : module->parameter_slots()) {
      if (is_dtensor(*slot.tensor)) continue;
      const auto [at, is_new] = known.try_emplace(slot.tensor->impl(), params.size());
      if (is_new) {
        ShardedParam param;
        param.name = slot.name;
        param.init = slot.init;
        params.push_back(std::move(param));
      }
      params[at->second].slots.push_back(slot.tensor);
    }
  }
  return params;
}

// Groups and parameters below `module` get their names from it.
void name_below(Module& module, const SharedState& state) {
  std::map<const Module*, std::string> paths;
  for (const NamedModule& named : module.named_modules()) paths[named.module] = named.name;
  std::map<const Tensor*, std::string> names;
  for (const TensorSlot& slot : module.parameter_slots()) names.try_emplace(slot.tensor, slot.name);
  for (const Unit* unit : state.units) {
    std::vector<std::string> parts;
    for (const Module* part : unit->modules) {
      const auto at = paths.find(part);
      if (at == paths.end()) continue;
      parts.push_back(at->second.empty() ? part->kind() : at->second);
    }
    if (parts.empty()) continue;
    unit->group->set_name(fmt::format("{}", fmt::join(parts, "+")));
    for (ShardedParam& param : unit->group->params()) {
      const auto at = names.find(param.slots.front());
      if (at != names.end()) param.name = at->second;
    }
  }
}

// A parameter that an inner group has cut already must not be cut again, from the whole.
void refuse_tied(const std::string& module, const std::vector<ShardedParam>& params) {
  for (const auto& [_, weak] : states()) {
    const std::shared_ptr<SharedState> state = weak.lock();
    if (!state) continue;
    for (const Unit* unit : state->units) {
      for (const auto& [whole, name] : unit->held_elsewhere) {
        for (const ShardedParam& param : params) {
          MUSTER_CHECK(
              !whole.is_same(*param.slots.front()), ErrorCode::kInvalidArgument,
              "fully_shard: a parameter belongs to one group; {} of {} is tied to {} of "
              "{}, which is sharded already\n"
              "  fix: fully_shard({{&{}, &{}}}, options) puts both in one group; or call it "
              "on a module that holds both, before either alone",
              param.name, module, name, unit->group->name(), unit->group->name(), module);
        }
      }
    }
  }
}

// Whole parameters, and afterwards those of them that something else holds too.
std::vector<std::pair<Tensor, std::string>> wholes_of(const std::vector<ShardedParam>& params) {
  std::vector<std::pair<Tensor, std::string>> wholes;
  for (const ShardedParam& param : params) wholes.emplace_back(*param.slots.front(), param.name);
  return wholes;
}

// Undefined: nothing to change.
Tensor cast(const Tensor& tensor, std::optional<DType> dtype) {
  if (!dtype || !is_floating(tensor.dtype()) || tensor.dtype() == *dtype) return {};
  return to(tensor, *dtype);
}

Tensor cast_input(const Tensor& input, const MixedPrecision& precision) {
  return precision.cast_forward_inputs ? cast(input, precision.param_dtype) : Tensor();
}

// Initialisation gives values to parameters; a buffer of the meta device would make results of it.
void check_buffers(Unit& unit) {
  if (std::exchange(unit.buffers_are_checked, true)) return;
  for (Module* module : unit.modules) {
    const std::string path = module->path();
    for (const TensorSlot& slot : module->buffer_slots()) {
      MUSTER_CHECK(!slot.tensor->is_meta(), ErrorCode::kFailedPrecondition,
                   "fsdp: buffer {}{}{} was built on the meta device and has no values\n"
                   "  fix: make it outside of the meta device, or assign it before the first "
                   "forward",
                   path, path.empty() ? "" : ".", slot.name);
    }
  }
}

// The module's hooks own the unit: it stays sharded after its handles are gone.
void add_hooks(Module& module, const std::shared_ptr<Unit>& unit) {
  module.register_forward_pre_hook([unit](Module&, const Tensor& input) {
    check_buffers(*unit);
    unit->state->before_forward(*unit);
    return cast_input(input, unit->group->options().mixed_precision);
  });
  module.register_forward_hook([unit](Module& own, const Tensor&, const Tensor& output) {
    unit->state->after_forward(*unit, own);
    const Tensor converted = cast(output, unit->group->options().mixed_precision.output_dtype);
    const Tensor& result = converted.defined() ? converted : output;
    if (grad_enabled() && result.requires_grad()) {
      register_hook(result, [unit](const Tensor&) {
        unit->state->before_backward(*unit);
        return Tensor();
      });
    }
    return converted;
  });
  for (const NamedModule& named : module.named_modules())
    named.module->keep_parameters("is sharded; fsdp::init_parameters() gives it values");
  module.require_hooked_call(
      "it is sharded, and hooks gather its parameters; for other code call Handle::unshard() "
      "first");
}

std::string kinds_of(const std::vector<Module*>& modules) {
  std::vector<std::string> kinds;
  for (const Module* module : modules) kinds.push_back(module->kind());
  return fmt::format("{}", fmt::join(kinds, "+"));
}
}  // namespace

Handle fully_shard(Module& module, const Options& options) {
  return fully_shard(std::vector<Module*>{&module}, options);
}

Handle fully_shard(const std::vector<Module*>& modules, const Options& options) {
  MUSTER_CHECK(!modules.empty(), ErrorCode::kInvalidArgument,
               "fully_shard: at least one module is needed; got none");
  auto unit = std::make_shared<Unit>();
  unit->state = state_below(modules);
  unit->modules = modules;
  std::vector<ShardedParam> params = free_parameters(modules);
  refuse_tied(kinds_of(modules), params);
  unit->held_elsewhere = wholes_of(params);
  unit->group = std::make_shared<ParamGroup>(kinds_of(modules), std::move(params), options);
  std::erase_if(unit->held_elsewhere,
                [](const auto& entry) { return entry.first.impl()->use_count() == 1; });
  unit->is_explicit = options.reshard_after_forward.has_value();
  unit->reshard_after_forward = options.reshard_after_forward.value_or(true);
  unit->state->units.push_back(unit.get());
  unit->group->on_gradient([raw = unit.get()] {
    if (raw->group->all_gradients_arrived()) raw->state->after_gradients(*raw);
  });
  for (Module* module : modules) {
    for (const NamedModule& named : module->named_modules()) {
      if (states().contains(named.module)) states()[named.module] = unit->state;
    }
    states()[module] = unit->state;
    if (modules.size() == 1) name_below(*module, *unit->state);
    add_hooks(*module, unit);
  }
  return Handle(std::move(unit));
}

ParamGroup& Handle::group() const { return *unit_->group; }
void Handle::unshard() { unit_->group->unshard(); }
void Handle::reshard() { unit_->group->reshard(); }
void Handle::set_requires_gradient_sync(bool value) { unit_->state->requires_sync = value; }
void Handle::set_requires_all_reduce(bool value) { unit_->state->requires_all_reduce = value; }
void Handle::set_reshard_after_backward(bool value) {
  unit_->state->reshards_after_backward = value;
}

void Handle::set_reshard_after_forward(bool value) {
  unit_->is_explicit = true;
  unit_->reshard_after_forward = value;
}

std::vector<GroupMemory> Handle::memory() const {
  std::vector<GroupMemory> groups;
  for (const Unit* unit : unit_->state->units) {
    groups.push_back(unit->group->memory(unit->state->reshards(*unit)));
  }
  return groups;
}

std::vector<ParamGroup*> Handle::groups() const {
  std::vector<ParamGroup*> groups;
  for (const Unit* unit : unit_->state->units) groups.push_back(unit->group.get());
  return groups;
}

std::vector<NamedShard> sharded_parameters(Module& root) {
  std::map<const Tensor*, std::string> names;
  for (const TensorSlot& slot : root.parameter_slots()) names.try_emplace(slot.tensor, slot.name);
  std::vector<NamedShard> found;
  std::vector<const SharedState*> seen;
  std::map<const Tensor*, ShardedParam*> by_slot;
  for (const NamedModule& named : root.named_modules()) {
    const auto at = states().find(named.module);
    const std::shared_ptr<SharedState> state = at == states().end() ? nullptr : at->second.lock();
    if (!state || std::find(seen.begin(), seen.end(), state.get()) != seen.end()) continue;
    seen.push_back(state.get());
    for (const Unit* unit : state->units) {
      for (ShardedParam& param : unit->group->params()) by_slot[param.slots.front()] = &param;
    }
  }
  // The order of the module's own names, whatever the order of sharding.
  for (const TensorSlot& slot : root.parameter_slots()) {
    const auto at = by_slot.find(slot.tensor);
    if (at != by_slot.end()) found.push_back({slot.name, at->second});
  }
  return found;
}

void init_parameters(Module& root, uint64_t seed) {
  const NoGradGuard no_grad;
  for (const NamedShard& shard : sharded_parameters(root)) {
    ShardedParam& param = *shard.param;
    for (const LocalBox& piece : param.boxes) {
      init_parameter(rows_of(param.local, piece.first_row, piece.box.sizes[0]), param.init, seed,
                     shard.name, param.sizes, piece.box.offsets);
    }
    param.is_initialized = true;
  }
}
}  // namespace muster::fsdp
