#include "fsdp/fully_shard.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "core/ops/optimizer.h"

namespace muster::fsdp {

class SharedState;

/// One fully_shard() call. Owned by the hooks of its module and by handles; owns a share of the
/// tree.
struct Unit {
  std::shared_ptr<ParamGroup> group;
  std::shared_ptr<SharedState> state;
  bool reshard_after_forward = true;
  bool is_explicit = false;  ///< the caller chose reshard_after_forward
  /// Whole parameters that something beside the module still holds: a tied one, by its name.
  std::vector<std::pair<Tensor, std::string>> held_elsewhere;

  ~Unit();
};

/// What the groups of one tree share: their order, and the pass under way. One thread at a time.
class SharedState {
 public:
  std::vector<Unit*> units;          ///< order of creation; the root is the last
  std::vector<Unit*> forward_order;  ///< of the last forward, with repetitions
  bool requires_sync = true;

  // Called around a module's forward.
  void before_forward(Unit& unit) {
    if (&unit == units.back()) forward_order.clear();
    unit.group->unshard();
    prefetch_after(unit);
  }
  void after_forward(Unit& unit) {
    forward_order.push_back(&unit);
    const bool reshards = unit.is_explicit ? unit.reshard_after_forward : &unit != units.back();
    if (reshards) unit.group->reshard();
  }

  // Called when backward reaches a module's output.
  void before_backward(Unit& unit) {
    if (!callback_queued_) {
      callback_queued_ = true;
      queue_callback([this] { finish_backward(); });
    }
    unit.group->unshard();
    if (unit.group->options().prefetch > 0) prefetch_before(unit);
  }

  // Called when all gradients of a group have arrived.
  void after_gradients(Unit& unit) {
    if (requires_sync) {
      unit.group->reduce_gradients();
    } else {
      unit.group->keep_gradients_unsharded();
    }
    unit.group->reshard();
  }

  // Trees that were sharded apart meet under their common root.
  void join(SharedState& other, const std::shared_ptr<SharedState>& self) {
    const std::vector<Unit*> moved = std::exchange(other.units, {});
    units.insert(units.end(), moved.begin(), moved.end());
    for (Unit* unit : moved) unit->state = self;
  }
  void forget(Unit* unit) {
    std::erase(units, unit);
    std::erase(forward_order, unit);
    std::erase(last_order_, unit);
  }

 private:
  // The next group of the last known order, gathered while this one computes.
  void prefetch_after(const Unit& unit) {
    for (int ahead = 1; ahead <= unit.group->options().prefetch; ++ahead) {
      const size_t next = forward_order.size() + static_cast<size_t>(ahead);
      if (next < last_order_.size()) last_order_[next]->group->start_unshard(true);
    }
  }

  void prefetch_before(const Unit& unit) {
    const auto at = std::find(forward_order.rbegin(), forward_order.rend(), &unit);
    int ahead = unit.group->options().prefetch;
    for (auto next = at; next != forward_order.rend() && ahead > 0; ++next) {
      if (*next == &unit) continue;
      (*next)->group->start_unshard(true);
      --ahead;
    }
  }

  // Groups whose parameters were used in part, or whose inputs wanted no gradient.
  void finish_backward() {
    callback_queued_ = false;
    last_order_ = forward_order;
    for (Unit* unit : units) {
      if (requires_sync && unit->group->any_gradient_arrived()) unit->group->reduce_gradients();
      if (!requires_sync) unit->group->keep_gradients_unsharded();
      unit->group->reshard();
    }
  }

  bool callback_queued_ = false;
  std::vector<Unit*> last_order_;
};

Unit::~Unit() {
  if (state) state->forget(this);
}

namespace {
// Which tree a module belongs to, while its handles or hooks live.
std::map<const Module*, std::weak_ptr<SharedState>>& states() {
  thread_local std::map<const Module*, std::weak_ptr<SharedState>> map;
  return map;
}

std::shared_ptr<SharedState> state_below(Module& module) {
  std::shared_ptr<SharedState> found;
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
  return found ? found : std::make_shared<SharedState>();
}

// Parameters below `module` that no group has taken, shared ones once with all their slots.
std::vector<ShardedParam> free_parameters(Module& module) {
  std::vector<ShardedParam> params;
  std::map<TensorImpl*, size_t> known;
  for (const TensorSlot& slot : module.parameter_slots()) {
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
  return params;
}

// A parameter that an inner group has cut already must not be cut again, from the whole.
void refuse_tied(const Module& module, const std::vector<ShardedParam>& params) {
  for (const auto& [_, weak] : states()) {
    const std::shared_ptr<SharedState> state = weak.lock();
    if (!state) continue;
    for (const Unit* unit : state->units) {
      for (const auto& [whole, name] : unit->held_elsewhere) {
        for (const ShardedParam& param : params) {
          MUSTER_CHECK(!whole.is_same(*param.slots.front()), ErrorCode::kInvalidArgument,
                       "fully_shard: a parameter belongs to one group; {} of {} is tied to {} of "
                       "{}, which is sharded already\n"
                       "  fix: fully_shard a module that holds both, before either alone",
                       param.name, module.kind(), name, unit->group->name());
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

Tensor cast_input(const Tensor& input, const Options& options) {
  const std::optional<DType> dtype = options.mixed_precision.param_dtype;
  if (!dtype || !is_floating(input.dtype()) || input.dtype() == *dtype) return {};
  return to(input, *dtype);
}
}  // namespace

Handle fully_shard(Module& module, const Options& options) {
  auto unit = std::make_shared<Unit>();
  unit->state = state_below(module);
  std::vector<ShardedParam> params = free_parameters(module);
  refuse_tied(module, params);
  unit->held_elsewhere = wholes_of(params);
  unit->group = std::make_shared<ParamGroup>(module.kind(), std::move(params), options);
  std::erase_if(unit->held_elsewhere,
                [](const auto& entry) { return entry.first.impl()->use_count() == 1; });
  unit->is_explicit = options.reshard_after_forward.has_value();
  unit->reshard_after_forward = options.reshard_after_forward.value_or(true);
  unit->state->units.push_back(unit.get());
  for (const NamedModule& named : module.named_modules()) {
    if (states().contains(named.module)) states()[named.module] = unit->state;
  }
  states()[&module] = unit->state;

  // The module's hooks own the unit: it stays sharded after its handles are gone.
  unit->group->on_gradient([raw = unit.get()] {
    if (raw->group->all_gradients_arrived()) raw->state->after_gradients(*raw);
  });
  module.register_forward_pre_hook([unit](Module&, const Tensor& input) {
    unit->state->before_forward(*unit);
    return cast_input(input, unit->group->options());
  });
  module.register_forward_hook([unit](Module&, const Tensor&, const Tensor& output) {
    unit->state->after_forward(*unit);
    if (grad_enabled() && output.requires_grad()) {
      register_hook(output, [unit](const Tensor&) {
        unit->state->before_backward(*unit);
        return Tensor();
      });
    }
    return Tensor();
  });
  module.require_hooked_call(
      "it is sharded, and hooks gather its parameters; for other code call Handle::unshard() "
      "first");
  return Handle(std::move(unit));
}

ParamGroup& Handle::group() const { return *unit_->group; }
void Handle::unshard() { unit_->group->unshard(); }
void Handle::reshard() { unit_->group->reshard(); }
void Handle::set_requires_gradient_sync(bool value) { unit_->state->requires_sync = value; }

void Handle::set_reshard_after_forward(bool value) {
  unit_->is_explicit = true;
  unit_->reshard_after_forward = value;
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

namespace {
// Gradients that are cut along the same axes: their squares are summed over those, and so is no
// replica counted twice.
struct GradientBucket {
  std::vector<ProcessGroup*> cut_over;
  std::vector<Tensor> gradients;
};

std::vector<ProcessGroup*> groups_that_cut(const DTensorSpec& spec) {
  std::vector<ProcessGroup*> groups;
  for (size_t axis = 0; axis < spec.placements.size(); ++axis) {
    if (spec.placements[axis].is_shard()) {
      groups.push_back(spec.mesh->group(static_cast<int>(axis)).get());
    }
  }
  return groups;
}

// In order of the parameters, which is the same on all ranks; also buckets that are empty here.
std::vector<GradientBucket> bucket_gradients(const std::vector<NamedShard>& parameters) {
  std::vector<GradientBucket> buckets;
  for (const NamedShard& shard : parameters) {
    std::vector<ProcessGroup*> cut_over = groups_that_cut(shard.param->spec);
    auto at = std::find_if(buckets.begin(), buckets.end(),
                           [&](const GradientBucket& b) { return b.cut_over == cut_over; });
    if (at == buckets.end()) at = buckets.insert(at, {std::move(cut_over), {}});
    const Tensor gradient = grad_of(shard.param->local);
    if (gradient.defined() && gradient.numel() > 0) at->gradients.push_back(gradient);
  }
  return buckets;
}

// Adds up sums[i] over every group that cuts bucket i: one call a group.
void sum_over_ranks(const std::vector<GradientBucket>& buckets, std::vector<double>& sums) {
  std::vector<ProcessGroup*> done;
  for (const GradientBucket& bucket : buckets) {
    for (ProcessGroup* group : bucket.cut_over) {
      if (std::find(done.begin(), done.end(), group) != done.end()) continue;
      done.push_back(group);
      std::vector<size_t> members;
      std::vector<double> values;
      for (size_t i = 0; i < buckets.size(); ++i) {
        const auto& cut_over = buckets[i].cut_over;
        if (std::find(cut_over.begin(), cut_over.end(), group) == cut_over.end()) continue;
        members.push_back(i);
        values.push_back(sums[i]);
      }
      const Tensor total = from_vector(values);
      group->run(group->all_reduce(total));
      for (size_t i = 0; i < members.size(); ++i) sums[members[i]] = total.data<double>()[i];
    }
  }
}
}  // namespace

double grad_norm(const std::vector<NamedShard>& parameters) {
  const NoGradGuard no_grad;
  const std::vector<GradientBucket> buckets = bucket_gradients(parameters);
  std::vector<double> sums;
  for (const GradientBucket& bucket : buckets) {
    sums.push_back(foreach_sum_of_squares(bucket.gradients).item());
  }
  sum_over_ranks(buckets, sums);
  return std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
}

double clip_grad_norm_(const std::vector<NamedShard>& parameters, double max_norm) {
  const NoGradGuard no_grad;
  const double norm = grad_norm(parameters);
  const double factor = std::min(1.0, max_norm / (norm + 1e-6));
  if (!(factor >= 1.0)) {
    for (const GradientBucket& bucket : bucket_gradients(parameters)) {
      foreach_mul_(bucket.gradients, factor);
    }
  }
  return norm;
}
}  // namespace muster::fsdp
