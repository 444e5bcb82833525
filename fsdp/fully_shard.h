#pragma once
/// fully_shard(): FSDP2-style sharding of a module, bottom-up, by hooks.
///
///   for (Module* block : blocks) fsdp::fully_shard(*block, options);
///   fsdp::Handle root = fsdp::fully_shard(model, options);
///
/// Each call makes one group of the parameters below the module that no earlier call took. Forward
/// gathers a group before its module runs; backward gathers it again where it was freed, reduces
/// its gradients as soon as all have arrived, and leaves every rank the gradient of its rows.
/// @source torch.distributed.fsdp.fully_shard of PyTorch 2.13

#include <memory>
#include <vector>

#include "fsdp/param_group.h"

namespace muster::fsdp {

struct Unit;

/// Control over a sharded module. Copies refer to the same group.
class Handle {
 public:
  explicit Handle(std::shared_ptr<Unit> unit) : unit_(std::move(unit)) {}

  /// False: backward keeps whole gradients on each rank and communicates nothing (gradient
  /// accumulation); true: the next backward reduces what has accumulated. For the whole tree.
  void set_requires_gradient_sync(bool value);
  /// False: backward reduces over the shards only, and the rows wait; the next backward with true
  /// reduces them over the replicas too. For the whole tree; only a mesh with replicas has them.
  void set_requires_all_reduce(bool value);
  void set_reshard_after_forward(bool value);
  /// False: groups stay gathered after backward, for microbatches that go on. For the whole tree.
  void set_reshard_after_backward(bool value);
  /// Gathers now, or frees now; for code that reads parameters outside forward.
  void unshard();
  void reshard();

  [[nodiscard]] ParamGroup& group() const;
  /// All groups of the tree, in order of creation; the root's is the last.
  [[nodiscard]] std::vector<ParamGroup*> groups() const;
  /// What the groups hold on this rank, in the same order: plan_memory() adds it up.
  [[nodiscard]] std::vector<GroupMemory> memory() const;

 private:
  std::shared_ptr<Unit> unit_;
};

/// Shards the parameters of `module`. Call it on inner modules first, on the root last; all ranks
/// in the same order. The module must outlive the handle. `forward` then refuses to be called
/// directly.
/// @error kInvalidArgument the module is a container without forward, was sharded before, or a tied
/// parameter is visible to an earlier group; what ParamGroup throws
Handle fully_shard(Module& module, const Options& options);

/// The same for several modules as one group, gathered before the first of them runs and freed
/// after the last: for tied weights, or a norm and the head behind it.
Handle fully_shard(const std::vector<Module*>& modules, const Options& options);

/// Gives every sharded parameter of the tree its initial value, by (seed, name, global index):
/// equal to initialising the whole model and sharding it then.
void init_parameters(Module& root, uint64_t seed);

/// Sharded parameters of the tree with names from the root: {name, group parameter}.
struct NamedShard {
  std::string name;
  ShardedParam* param = nullptr;
};
std::vector<NamedShard> sharded_parameters(Module& root);

/// The 2-norm of all gradients over all ranks, summed in double. Placements say over which axes a
/// gradient is cut; replicas count once.
/// @collective all ranks of the parameters' meshes, one call for each axis that cuts any
double grad_norm(const std::vector<NamedShard>& parameters);

/// Clips by grad_norm(), which it returns: scales by min(1, max_norm / (norm + 1e-6)). Parameters
/// without gradient are left out. @collective as grad_norm
double clip_grad_norm_(const std::vector<NamedShard>& parameters, double max_norm);

}  // namespace muster::fsdp
