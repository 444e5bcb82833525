#include "fsdp/replicas.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/autograd/autograd.h"
#include "core/base/hash.h"
#include "core/ops/ops.h"

namespace muster::fsdp {
namespace {
// One tensor that all ranks of a group should hold alike.
struct Replica {
  const NamedShard* shard = nullptr;
  const char* what = "";
  Tensor tensor;  // undefined: no gradient
};

struct ReplicatingAxis {
  ProcessGroup* group = nullptr;
  std::string name;
  std::vector<Replica> replicas;
};

// In order of the parameters, which is the same on all ranks.
std::vector<ReplicatingAxis> replicating_axes(const std::vector<NamedShard>& parameters) {
  std::vector<ReplicatingAxis> axes;
  for (const NamedShard& shard : parameters) {
    const DTensorSpec& spec = shard.param->spec;
    for (size_t i = 0; i < spec.placements.size(); ++i) {
      ProcessGroup* group = spec.mesh->group(static_cast<int>(i)).get();
      if (!spec.placements[i].is_replicate() || group->world_size() == 1) continue;
      auto at = std::find_if(axes.begin(), axes.end(),
                             [&](const ReplicatingAxis& axis) { return axis.group == group; });
      if (at == axes.end()) at = axes.insert(at, {group, spec.mesh->axes()[i].name, {}});
      at->replicas.push_back({&shard, "value", detach(shard.param->local)});
      at->replicas.push_back({&shard, "gradient", grad_of(shard.param->local)});
    }
  }
  return axes;
}

int64_t hash_of(const Tensor& tensor) {
  if (!tensor.defined()) return 0;
  const Tensor dense = contiguous(tensor);
  return static_cast<int64_t>(hash_bytes(
      {static_cast<const std::byte*>(dense.data_ptr()), static_cast<size_t>(dense.nbytes())}, 1));
}

// A rank without a gradient counts as one whose gradient is zero.
double max_difference(const Replica& replica, ProcessGroup& group) {
  const Tensor wide = replica.tensor.defined()
                          ? to(contiguous(replica.tensor), DType::kF64)
                          : zeros(replica.shard->param->local.sizes(), DType::kF64);
  const Tensor largest = clone(wide), smallest = clone(wide);
  group.run(group.all_reduce(largest, ReduceOp::kMax));
  group.run(group.all_reduce(smallest, ReduceOp::kMin));
  return wide.numel() == 0 ? 0.0 : amax(sub(largest, smallest)).item();
}
}  // namespace

std::string ReplicaFault::describe() const {
  return fmt::format("{}: {} differs along axis {} by up to {}", name, what, axis, max_difference);
}

std::vector<ReplicaFault> find_replica_faults(const std::vector<NamedShard>& parameters) {
  const NoGradGuard no_grad;
  std::vector<ReplicaFault> faults;
  for (const ReplicatingAxis& axis : replicating_axes(parameters)) {
    std::vector<int64_t> own;
    for (const Replica& replica : axis.replicas) own.push_back(hash_of(replica.tensor));
    const auto count = static_cast<int64_t>(own.size());
    const int world = axis.group->world_size();
    const Tensor all = empty({world, count}, DType::kI64);
    axis.group->run(axis.group->all_gather_into_tensor(all, from_vector(own)));
    for (size_t i = 0; i < axis.replicas.size(); ++i) {
      const auto* const hashes = all.data<int64_t>() + i;
      bool differs = false;
      for (int rank = 1; rank < world; ++rank) differs |= hashes[rank * count] != hashes[0];
      if (!differs) continue;
      const Replica& replica = axis.replicas[i];
      faults.push_back(
          {replica.shard->name, replica.what, axis.name, max_difference(replica, *axis.group)});
    }
  }
  return faults;
}
}  // namespace muster::fsdp
