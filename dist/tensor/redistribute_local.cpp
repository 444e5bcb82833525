#include "dist/tensor/redistribute_local.h"

#include <algorithm>

#include "core/dispatch/mode.h"
#include "core/ops/ops.h"

namespace muster {
namespace {
ReduceOp reduce_op_of(PartialOp op) {
  switch (op) {
    case PartialOp::kSum:
      return ReduceOp::kSum;
    case PartialOp::kAvg:
      return ReduceOp::kAvg;
    case PartialOp::kProduct:
      return ReduceOp::kProduct;
    case PartialOp::kMax:
      return ReduceOp::kMax;
    case PartialOp::kMin:
      break;
  }
  return ReduceOp::kMin;
}

Tensor fresh(Dims sizes, const Tensor& like) {
  return empty_from_spec(TensorSpec::contiguous(sizes, like.dtype(), like.device()));
}
// Large buffers that peers read go where they can be read in place, as long as that leaves plenty.
Tensor buffer_for_peers(Dims sizes, DType dtype, ProcessGroup& group) {
  constexpr int64_t kWorthwhileNbytes = 64 * 1024;
  const TensorSpec spec = TensorSpec::contiguous(sizes, dtype);
  const int64_t nbytes = numel_of(sizes) * item_nbytes(dtype);
  Allocator& shared = group.communication_allocator();
  if (nbytes < kWorthwhileNbytes || &shared == &cpu_allocator()) return empty_from_spec(spec);
  const AllocatorStats stats = shared.stats();
  const bool leaves_plenty = nbytes < (stats.reserved.count - stats.allocated.count) / 4;
  return empty_from_spec(spec, leaves_plenty ? &shared : nullptr);
}

DimVector with_size(Dims sizes, int64_t dim, int64_t size) {
  DimVector changed(sizes);
  changed[static_cast<size_t>(dim)] = size;
  return changed;
}

// One step on one group. `whole` is the size of the local tensor without this axis' cut.
class Mover {
 public:
  Mover(ProcessGroup& group, DimVector whole) : group_(group), whole_(std::move(whole)) {}

  Tensor run(const Tensor& local, Placement from, Placement to) {
    if (from.is_replicate()) {
      return to.is_shard() ? slice_of(local, to.dim) : as_partial(local, to.op);
    }
    if (from.is_partial()) {
      return to.is_shard() ? reduce_scatter(local, to.dim, from.op)
                           : reduce_partial(local, group_, from.op);
    }
    if (to.is_partial()) return as_share(local, from.dim);
    return to.is_shard() ? all_to_all(local, from.dim, to.dim) : all_gather(local, from.dim);
  }

 private:
  [[nodiscard]] int world() const { return group_.world_size(); }
  [[nodiscard]] ChunkRange piece(int64_t dim, int rank) const {
    return chunk_range(whole_[static_cast<size_t>(dim)], world(), rank);
  }
  [[nodiscard]] Tensor cut(const Tensor& tensor, int64_t dim, int rank) const {
    const ChunkRange range = piece(dim, rank);
    return narrow(tensor, dim, range.offset, range.size);
  }

  Tensor slice_of(const Tensor& local, int64_t dim) const {
    return clone(cut(local, dim, group_.group_rank()), MemoryFormat::kContiguous);
  }

  [[nodiscard]] bool is_even(int64_t dim) const {
    return whole_[static_cast<size_t>(dim)] % world() == 0;
  }
  // True when pieces along `dim` lie one behind the other in memory.
  [[nodiscard]] bool is_outermost(int64_t dim) const {
    return std::all_of(whole_.begin(), whole_.begin() + dim, [](int64_t n) { return n == 1; });
  }

  Tensor all_gather(const Tensor& local, int64_t dim) {
    if (is_even(dim)) {
      DimVector stacked(local.sizes());
      stacked.insert(0, world());
      const Tensor gathered = fresh(stacked, local);
      group_.run(group_.all_gather_into_tensor(gathered, contiguous(local)));
      return contiguous(reshape(is_outermost(dim) ? gathered : movedim(gathered, 0, dim), whole_));
    }
    std::vector<Tensor> pieces;
    for (int rank = 0; rank < world(); ++rank) {
      pieces.push_back(fresh(with_size(whole_, dim, piece(dim, rank).size), local));
    }
    group_.run(group_.all_gather(pieces, contiguous(local)));
    return cat(pieces, dim);
  }

  Tensor all_to_all(const Tensor& local, int64_t from_dim, int64_t to_dim) {
    std::vector<Tensor> sent, received;
    const int64_t mine = piece(to_dim, group_.group_rank()).size;
    for (int rank = 0; rank < world(); ++rank) {
      sent.push_back(contiguous(cut(local, to_dim, rank)));
      const DimVector sizes = with_size(whole_, from_dim, piece(from_dim, rank).size);
      received.push_back(fresh(with_size(sizes, to_dim, mine), local));
    }
    group_.run(group_.all_to_all(received, sent));
    return cat(received, from_dim);
  }

  // Pieces padded to the size of the first one: the collective wants equal pieces.
  Tensor reduce_scatter(const Tensor& local, int64_t dim, PartialOp op) {
    const int64_t padded = piece(dim, 0).size;
    if (is_even(dim)) {
      const DimVector parts = {world(), padded};
      const Tensor cut_up = movedim(unflatten(local, dim, parts), dim, 0);
      const Tensor sent = buffer_for_peers(cut_up.sizes(), local.dtype(), group_);
      copy_(sent, cut_up);
      const Tensor received = fresh(with_size(whole_, dim, padded), local);
      group_.run(group_.reduce_scatter_tensor(received, sent, reduce_op_of(op)));
      return received;
    }
    std::vector<Tensor> pieces;
    for (int rank = 0; rank < world(); ++rank) {
      const Tensor part = cut(local, dim, rank);
      const Tensor filled = zeros(with_size(whole_, dim, padded), local.dtype());
      copy_(narrow(filled, dim, 0, part.size(dim)), part);
      pieces.push_back(filled);
    }
    const Tensor received = fresh(with_size(whole_, dim, padded), local);
    group_.run(group_.reduce_scatter_tensor(received, stack(pieces), reduce_op_of(op)));
    const int64_t kept = piece(dim, group_.group_rank()).size;
    return kept == padded ? received
                          : clone(narrow(received, dim, 0, kept), MemoryFormat::kContiguous);
  }

  // One rank keeps the value and the others the neutral element: exact, where x / W would round.
  Tensor as_partial(const Tensor& local, PartialOp op) const {
    const bool is_neutral = group_.group_rank() != 0;
    if (op == PartialOp::kSum && is_neutral) return zeros_like(local);
    if (op == PartialOp::kProduct && is_neutral) return ones_like(local);
    return clone(local);
  }

  // Its own piece of the whole and zeros elsewhere.
  Tensor as_share(const Tensor& local, int64_t dim) const {
    const Tensor share = zeros(whole_, local.dtype());
    copy_(cut(share, dim, group_.group_rank()), local);
    return share;
  }

  ProcessGroup& group_;
  DimVector whole_;
};

// Sizes of the local tensor when the axes from `axis` on cut nothing along what `axis` touches.
DimVector whole_of(const DTensorSpec& spec, std::span<const Placement> now, int axis) {
  std::vector<Placement> others(now.begin(), now.end());
  others[static_cast<size_t>(axis)] = Placement::replicate();
  DTensorSpec around = spec;
  around.placements = std::move(others);
  return around.local_sizes();
}

std::vector<int32_t> strided_dims(std::span<const Placement> placements) {
  std::vector<int32_t> dims;
  for (const Placement& placement : placements) {
    if (placement.kind == Placement::Kind::kStridedShard &&
        std::find(dims.begin(), dims.end(), placement.dim) == dims.end()) {
      dims.push_back(placement.dim);
    }
  }
  return dims;
}

void replicate_dim(std::vector<Placement>& placements, int32_t dim) {
  for (Placement& placement : placements) {
    if (placement.is_shard_of(dim)) placement = Placement::replicate();
  }
}

// Global indices of `dim` in the order in which gathering the axes after `axis` lines them up.
std::vector<int64_t> lined_up(const DTensorSpec& spec, int32_t dim, std::vector<int> coordinate,
                              size_t axis) {
  size_t inner = axis + 1;
  while (inner < spec.placements.size() && !spec.placements[inner].is_shard_of(dim)) ++inner;
  const std::vector<int> axes = spec.mesh->sizes();
  if (inner >= spec.placements.size()) {
    return shard_indices(spec.sizes[static_cast<size_t>(dim)], dim, axes, coordinate,
                         spec.placements);
  }
  std::vector<int64_t> all;
  for (int at = 0; at < axes[inner]; ++at) {
    coordinate[inner] = at;
    const std::vector<int64_t> part = lined_up(spec, dim, coordinate, inner);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

// Joins a dim that several axes cut in whatever order, then sorts its indices.
Tensor gather_dim(const Tensor& local, const DTensorSpec& spec, int32_t dim) {
  Tensor now = local;
  for (size_t axis = spec.placements.size(); axis-- > 0;) {
    if (!spec.placements[axis].is_shard_of(dim)) continue;
    ProcessGroup& group = *spec.mesh->group(static_cast<int>(axis));
    std::vector<int> coordinate = spec.mesh->coordinate();
    std::vector<Tensor> pieces;
    for (int at = 0; at < group.world_size(); ++at) {
      coordinate[axis] = at;
      const auto size = static_cast<int64_t>(lined_up(spec, dim, coordinate, axis).size());
      pieces.push_back(fresh(with_size(now.sizes(), dim, size), now));
    }
    group.run(group.all_gather(pieces, contiguous(now)));
    now = cat(pieces, dim);
  }
  const std::vector<int64_t> order =
      lined_up(spec, dim, spec.mesh->coordinate(), static_cast<size_t>(-1));
  std::vector<int64_t> place(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    place[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return index_select(now, dim, from_vector(place));
}
}  // namespace

Tensor reduce_partial(const Tensor& local, ProcessGroup& group, PartialOp op) {
  const Tensor reduced = buffer_for_peers(local.sizes(), local.dtype(), group);
  copy_(reduced, local);
  group.run(group.all_reduce(reduced, reduce_op_of(op)));
  return reduced;
}

Tensor redistribute_local(const Tensor& local, const DTensorSpec& spec,
                          std::span<const Placement> target, PartialTargets partial_targets) {
  if (std::equal(target.begin(), target.end(), spec.placements.begin(), spec.placements.end())) {
    return local;
  }
  const NoGradGuard no_grad;
  Tensor now = local;
  std::vector<Placement> placements = spec.placements;
  std::vector<Placement> plain_target(target.begin(), target.end());
  const std::vector<int32_t> gathered = strided_dims(placements);
  const std::vector<int32_t> picked = strided_dims(target);
  for (const int32_t dim : gathered) {
    now = gather_dim(now, spec, dim);
    replicate_dim(placements, dim);
  }
  for (const int32_t dim : picked) replicate_dim(plain_target, dim);
  const auto steps = plan_redistribute(static_cast<int64_t>(spec.sizes.size()), placements,
                                       plain_target, partial_targets);
  for (const RedistributeStep& step : steps) {
    ProcessGroup& group = *spec.mesh->group(step.axis);
    // One rank alone holds the whole, whatever it is called.
    now = group.world_size() == 1
              ? clone(now, MemoryFormat::kContiguous)
              : Mover(group, whole_of(spec, placements, step.axis)).run(now, step.from, step.to);
    placements[static_cast<size_t>(step.axis)] = step.to;
  }
  for (const int32_t dim : picked) {
    const std::vector<int64_t> held =
        shard_indices(spec.sizes[static_cast<size_t>(dim)], dim, spec.mesh->sizes(),
                      spec.mesh->coordinate(), target);
    now = index_select(now, dim, from_vector(held));
  }
  return now;
}
}  // namespace muster
