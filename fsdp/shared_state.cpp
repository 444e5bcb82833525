#include "fsdp/shared_state.h"

#include <algorithm>

#include "core/autograd/autograd.h"
#include "core/autograd/engine.h"

namespace muster::fsdp {

Unit::~Unit() {
  if (state) state->forget(this);
}

void SharedState::before_forward(Unit& unit) {
  const bool is_recomputing = current_backward_pass() != 0;
  if (!is_recomputing && &unit == units.back()) forward_order.clear();
  if (unit.not_yet_run.empty()) unit.not_yet_run = unit.modules;
  unit.group->unshard();
  if (!is_recomputing) prefetch_after(unit);
}

void SharedState::after_forward(Unit& unit, Module& module) {
  std::erase(unit.not_yet_run, &module);
  if (!unit.not_yet_run.empty()) return;
  if (current_backward_pass() == 0) forward_order.push_back(&unit);
  // What backward has gathered it still needs, also where it computes a module again.
  if (reshards(unit) && !unit.is_in_backward) unit.group->reshard();
  if (&unit == units.back() && current_backward_pass() == 0) show_shards();
}

// Between the passes of the tree. Inside of them a module may use what another has gathered.
void SharedState::show_shards() {
  for (Unit* unit : units) unit->group->show_shards();
}

void SharedState::before_backward(Unit& unit) {
  if (!callback_queued_) {
    callback_queued_ = true;
    queue_callback([this] { finish_backward(); });
  }
  unit.is_in_backward = true;
  unit.group->unshard();
  if (unit.group->options().prefetch > 0) prefetch_before(unit);
}

void SharedState::after_gradients(Unit& unit) {
  reduce_or_keep(unit);
  unit.is_in_backward = false;
  if (reshards_after_backward) unit.group->reshard();
}

void SharedState::reduce_or_keep(Unit& unit) {
  if (requires_sync) {
    unit.group->reduce_gradients(requires_all_reduce);
  } else {
    unit.group->keep_gradients_unsharded();
  }
}

void SharedState::join(SharedState& other, const std::shared_ptr<SharedState>& self) {
  const std::vector<Unit*> moved = std::exchange(other.units, {});
  units.insert(units.end(), moved.begin(), moved.end());
  for (Unit* unit : moved) unit->state = self;
}

void SharedState::forget(Unit* unit) {
  std::erase(units, unit);
  std::erase(forward_order, unit);
  std::erase(last_order_, unit);
}

// The next group of the last known order, gathered while this one computes.
void SharedState::prefetch_after(const Unit& unit) {
  for (int ahead = 1; ahead <= unit.group->options().prefetch; ++ahead) {
    const size_t next = forward_order.size() + static_cast<size_t>(ahead);
    if (next < last_order_.size()) last_order_[next]->group->start_unshard(true);
  }
}

void SharedState::prefetch_before(const Unit& unit) {
  const auto at = std::find(forward_order.rbegin(), forward_order.rend(), &unit);
  int ahead = unit.group->options().prefetch;
  for (auto next = at; next != forward_order.rend() && ahead > 0; ++next) {
    if (*next == &unit) continue;
    (*next)->group->start_unshard(true);
    --ahead;
  }
}

// Also groups whose parameters were used in part, or only in microbatches before this one.
void SharedState::finish_backward() {
  callback_queued_ = false;
  last_order_ = forward_order;
  for (Unit* unit : units) {
    reduce_or_keep(*unit);
    unit->is_in_backward = false;
    unit->not_yet_run.clear();
    if (reshards_after_backward || unit->group->state() == ParamGroup::State::kGathering) {
      unit->group->reshard();
    }
    unit->group->begin_pass();
  }
  show_shards();
}
}  // namespace muster::fsdp
