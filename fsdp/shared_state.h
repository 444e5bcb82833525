#pragma once
/// What the groups of one tree share: their order, the switches, and the pass under way.
///
/// Each fully_shard() call makes a Unit; the hooks of its modules call the SharedState. A unit goes
/// idle -> forward -> idle -> backward -> idle; a module that is computed again in backward
/// (activation checkpointing) stays in backward. One thread at a time. Private to fsdp.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/param_group.h"

namespace muster::fsdp {

class SharedState;

/// One fully_shard() call. Owned by the hooks of its modules and by handles; owns a share of the
/// tree.
struct Unit {
  std::shared_ptr<ParamGroup> group;
  std::shared_ptr<SharedState> state;
  std::vector<Module*> modules;
  std::vector<Module*> not_yet_run;  ///< of a forward under way: freed after the last of them
  bool reshard_after_forward = true;
  bool is_explicit = false;  ///< the caller chose reshard_after_forward
  bool buffers_are_checked = false;
  bool is_in_backward = false;  ///< gathered for backward, whose gradients are not complete
  /// Whole parameters that something beside the module still holds: a tied one, by its name.
  std::vector<std::pair<Tensor, std::string>> held_elsewhere;

  ~Unit();
};

class SharedState {
 public:
  std::vector<Unit*> units;          ///< order of creation; the root is the last
  std::vector<Unit*> forward_order;  ///< of the last forward, with repetitions
  bool requires_sync = true;
  bool requires_all_reduce = true;
  bool reshards_after_backward = true;

  /// Around a module's forward.
  void before_forward(Unit& unit);
  void after_forward(Unit& unit, Module& module);
  /// When backward reaches a module's output.
  void before_backward(Unit& unit);
  /// When all gradients of a group have arrived.
  void after_gradients(Unit& unit);

  /// True for a unit that is freed between forward and backward.
  [[nodiscard]] bool reshards(const Unit& unit) const {
    return unit.is_explicit ? unit.reshard_after_forward : &unit != units.back();
  }
  /// Trees that were sharded apart meet under their common root.
  void join(SharedState& other, const std::shared_ptr<SharedState>& self);
  void forget(Unit* unit);

 private:
  void prefetch_after(const Unit& unit);
  void prefetch_before(const Unit& unit);
  void reduce_or_keep(Unit& unit);
  void finish_backward();
  void show_shards();

  bool callback_queued_ = false;
  std::vector<Unit*> last_order_;
};

}  // namespace muster::fsdp
