#include "dist/tensor/redistribute.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/autograd/autograd_meta.h"
#include "core/dispatch/mode.h"
#include "core/ops/ops.h"
#include "dist/tensor/redistribute_local.h"

namespace muster {
namespace {
using Placements = std::vector<Placement>;

// The gradient of a global value is no sum that is still open: P becomes R.
Placements gradient_placements(Placements placements) {
  for (Placement& placement : placements) {
    if (placement.is_partial()) placement = Placement::replicate();
  }
  return placements;
}

template <typename Make>
Tensor record(const Tensor& input, Tensor output, Make make_node) {
  if (!grad_enabled() || !input.requires_grad()) return output;
  const Ref<Node> node = make_node();
  node->add_next_edge(gradient_edge(input));
  node->add_output({DimVector(output.sizes()), output.dtype()});
  set_history(output, node, 0);
  return output;
}

class RedistributeNode final : public Node {
 public:
  RedistributeNode(const DTensorSpec& source, DType moving)
      : source_(source.placements), dtype_(source.dtype), moving_(moving) {}
  GradList apply(GradList&& grads, bool /*create_graph*/) override {
    if (!grads[0].defined()) return GradList(1);
    const Placements& lies = dtensor_spec(grads[0]).placements;
    Placements wanted = source_;
    for (size_t axis = 0; axis < wanted.size(); ++axis) {
      // A gradient that is the same Partial already stays: nothing was reduced on the way.
      if (wanted[axis].is_partial() && lies[axis] != wanted[axis]) {
        wanted[axis] = Placement::replicate();
      }
    }
    return {to(redistribute(to(grads[0], moving_), wanted), dtype_)};
  }
  [[nodiscard]] std::string name() const override { return "redistribute"; }

 private:
  Placements source_;
  DType dtype_;
  DType moving_;  // of the gradient on its way
};

// The gradient under `wanted`, which may ask for a Partial where it is whole: one rank's share is
// all of it then, and the others' nothing.
Tensor as_shares(const Tensor& grad, const Placements& wanted) {
  const Placements& lies = dtensor_spec(grad).placements;
  Placements first = wanted;
  for (size_t axis = 0; axis < wanted.size(); ++axis) {
    if (wanted[axis].is_partial() && lies[axis] != wanted[axis]) {
      first[axis] = Placement::replicate();
    }
  }
  const Tensor now = redistribute(grad, first);
  if (first == wanted) return now;
  DTensorSpec target = dtensor_spec(now);
  target.placements = wanted;
  Tensor shares = make_dtensor(
      redistribute_local(local_tensor(now), dtensor_spec(now), wanted, PartialTargets::kAllow),
      std::move(target));
  return record(now, std::move(shares),
                [&] { return make_ref<RedistributeNode>(dtensor_spec(now), now.dtype()); });
}

class ToLocalNode final : public Node {
 public:
  ToLocalNode(DTensorSpec spec, Placements grad_placements)
      : spec_(std::move(spec)), grad_placements_(std::move(grad_placements)) {}
  GradList apply(GradList&& grads, bool /*create_graph*/) override {
    if (!grads[0].defined()) return GradList(1);
    return {from_local(grads[0], spec_.mesh, grad_placements_, spec_.sizes)};
  }
  [[nodiscard]] std::string name() const override { return "to_local"; }

 private:
  DTensorSpec spec_;
  Placements grad_placements_;
};

class FromLocalNode final : public Node {
 public:
  FromLocalNode(DTensorSpec spec, Placements grad_placements, Tensor extremes)
      : spec_(std::move(spec)),
        grad_placements_(std::move(grad_placements)),
        extremes_(std::move(extremes)) {}
  GradList apply(GradList&& grads, bool /*create_graph*/) override {
    if (!grads[0].defined()) return GradList(1);
    Tensor grad = to_local(as_shares(grads[0], grad_placements_));
    for (size_t axis = 0; axis < spec_.placements.size(); ++axis) {
      if (spec_.placements[axis].is_partial()) grad = adjoint(grad, static_cast<int>(axis));
    }
    return {grad};
  }
  [[nodiscard]] std::string name() const override { return "from_local"; }

 private:
  Tensor adjoint(const Tensor& grad, int axis) const {
    ProcessGroup& group = *spec_.mesh->group(axis);
    const PartialOp op = spec_.placements[static_cast<size_t>(axis)].op;
    if (op == PartialOp::kSum) return grad;
    if (op == PartialOp::kAvg) return div(grad, group.world_size());
    MUSTER_CHECK(op != PartialOp::kProduct, ErrorCode::kUnimplemented,
                 "backward of from_local: a Partial product has no derivative; got {}",
                 spec_.describe());
    const Tensor best = reduce_partial(extremes_, group, op);
    const Tensor wins = to(eq(extremes_, best), grad.dtype());
    return div(mul(grad, wins), reduce_partial(wins, group, PartialOp::kSum));
  }

  DTensorSpec spec_;
  Placements grad_placements_;
  Tensor extremes_;  // the local values, where the derivative depends on who won
};

bool has_extreme(const Placements& placements) {
  return std::any_of(placements.begin(), placements.end(), [](Placement placement) {
    return placement.is_partial() &&
           (placement.op == PartialOp::kMax || placement.op == PartialOp::kMin);
  });
}

constexpr int64_t kMaxDims = 14;
constexpr int64_t kRow = kMaxDims + 2;

// Row r of the result: the sizes of the piece of mesh rank r (row-major). On the way: number of
// dims, dtype, sizes.
std::vector<std::vector<int64_t>> exchange_sizes(const Tensor& local, const DeviceMesh& mesh) {
  MUSTER_CHECK(local.ndim() <= kMaxDims, ErrorCode::kInvalidArgument,
               "from_local: at most {} dims; got {}", kMaxDims, local);
  std::vector<int64_t> own(kRow);
  own[0] = local.ndim();
  own[1] = static_cast<int64_t>(local.dtype());
  std::copy(local.sizes().begin(), local.sizes().end(), own.begin() + 2);
  Tensor table = from_vector(own, {1, kRow});
  // Inner axis first, so that rows end up row-major.
  for (int axis = mesh.num_axes(); axis-- > 0;) {
    ProcessGroup& group = *mesh.group(axis);
    const Tensor wider = empty({table.size(0) * group.world_size(), kRow}, DType::kI64);
    group.run(group.all_gather_into_tensor(wider, table));
    table = wider;
  }
  std::vector<std::vector<int64_t>> rows;
  const auto* const data = table.data<int64_t>();
  for (int64_t r = 0; r < table.size(0); ++r) {
    const auto* const row = data + r * kRow;
    MUSTER_CHECK(row[1] == data[1], ErrorCode::kInvalidArgument,
                 "from_local: all pieces must have one dtype; got {} on rank 0 and {} on rank {}",
                 static_cast<DType>(data[1]), static_cast<DType>(row[1]), r);
    rows.emplace_back(row + 2, row + 2 + row[0]);
  }
  return rows;
}

// The sizes whose pieces these are. Every rank judges the whole table, so all agree.
DimVector global_sizes_of(const std::vector<std::vector<int64_t>>& rows, const DeviceMesh& mesh,
                          const Placements& placements) {
  const std::vector<int> axes = mesh.sizes();
  DimVector sizes{Dims(std::span<const int64_t>(rows[0]))};
  for (const Placement& placement : placements) {
    MUSTER_CHECK(!placement.is_shard() || static_cast<size_t>(placement.dim) < sizes.size(),
                 ErrorCode::kInvalidArgument,
                 "from_local: {} needs more dims than the pieces have; got [{}]",
                 to_string(placements), fmt::join(rows, ", "));
  }
  // Along each dim the pieces that differ in sharding axes only, at coordinate 0 elsewhere, add up.
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    int64_t total = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      const std::vector<int> at = coordinate_of(axes, static_cast<int>(r));
      bool counts = rows[r].size() == sizes.size();
      for (size_t axis = 0; axis < axes.size(); ++axis) {
        if (at[axis] != 0 && !placements[axis].is_shard_of(static_cast<int32_t>(dim))) {
          counts = false;
        }
      }
      if (counts) total += rows[r][dim];
    }
    sizes[dim] = total;
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    const ShardBox box =
        shard_box(sizes, axes, coordinate_of(axes, static_cast<int>(r)), placements);
    MUSTER_CHECK(std::equal(box.sizes.begin(), box.sizes.end(), rows[r].begin(), rows[r].end()),
                 ErrorCode::kInvalidArgument,
                 "from_local: the pieces of {} as {} must be cut by ceil(n / ranks): rank {} then "
                 "holds {}; got [{}]",
                 to_string(Dims(sizes)), to_string(placements), r, to_string(Dims(box.sizes)),
                 fmt::join(rows, ", "));
  }
  return sizes;
}
}  // namespace

Tensor redistribute(const Tensor& dtensor, const std::vector<Placement>& placements,
                    const MoveDTypes& dtypes) {
  DTensorSpec spec = dtensor_spec(dtensor);
  const DType moving = dtypes.backward.value_or(spec.dtype);
  Tensor local = local_tensor(dtensor);
  DTensorSpec target = spec;
  target.placements = placements;
  target.dtype = dtypes.forward.value_or(spec.dtype);
  if (target.dtype != spec.dtype) {
    const NoGradGuard no_grad;
    local = to(local, target.dtype);
  }
  Tensor moved = make_dtensor(redistribute_local(local, spec, placements), std::move(target));
  return record(dtensor, std::move(moved),
                [&] { return make_ref<RedistributeNode>(spec, moving); });
}

Tensor full_tensor(const Tensor& dtensor, std::optional<Placements> grad_placements) {
  const size_t num_axes = dtensor_spec(dtensor).placements.size();
  return to_local(redistribute(dtensor, Placements(num_axes)), std::move(grad_placements));
}

Tensor to_local(const Tensor& dtensor, std::optional<Placements> grad_placements) {
  const DTensorSpec& spec = dtensor_spec(dtensor);
  Placements backward = grad_placements.value_or(spec.placements);
  MUSTER_CHECK(backward.size() == spec.placements.size(), ErrorCode::kInvalidArgument,
               "to_local: one gradient placement for each of {} mesh axes; got {}",
               spec.placements.size(), to_string(backward));
  for (size_t axis = 0; !grad_placements && axis < backward.size(); ++axis) {
    if (!backward[axis].is_partial()) continue;
    MUSTER_CHECK(backward[axis].op != PartialOp::kProduct || !dtensor.requires_grad(),
                 ErrorCode::kUnimplemented,
                 "to_local: a Partial product has no derivative; got {}\n  fix: redistribute first",
                 spec.describe());
    backward[axis] =
        backward[axis].op == PartialOp::kSum ? Placement::replicate() : Placement::partial();
  }
  return record(dtensor, shallow_detach(local_tensor(dtensor)),
                [&] { return make_ref<ToLocalNode>(spec, backward); });
}

Tensor from_local(const Tensor& local, MeshRef mesh, Placements placements,
                  std::optional<DimVector> global_sizes,
                  std::optional<Placements> grad_placements) {
  MUSTER_CHECK(!is_dtensor(local), ErrorCode::kInvalidArgument,
               "from_local: a plain tensor is wanted; got a DTensor {}", local);
  MUSTER_CHECK(static_cast<int>(placements.size()) == mesh->num_axes() &&
                   (!grad_placements || grad_placements->size() == placements.size()),
               ErrorCode::kInvalidArgument,
               "from_local: one placement for each axis of {}; got {}, gradient {}",
               mesh->describe(), to_string(placements),
               grad_placements ? to_string(*grad_placements) : "not given");
  if (!global_sizes) {
    global_sizes = global_sizes_of(exchange_sizes(local, *mesh), *mesh, placements);
  }
  DTensorSpec spec{std::move(mesh), std::move(placements), *std::move(global_sizes), local.dtype()};
  // The strides of a DTensor are a claim about all pieces, so each must lie as it says.
  const Tensor piece = shallow_detach(local);
  Tensor wrapped = make_dtensor(contiguous(piece), spec);
  return record(local, std::move(wrapped), [&] {
    const bool needs_values = has_extreme(spec.placements);
    Placements backward =
        grad_placements ? *std::move(grad_placements) : gradient_placements(spec.placements);
    return make_ref<FromLocalNode>(spec, std::move(backward),
                                   needs_values ? clone(detach(local)) : Tensor());
  });
}

Tensor distribute_tensor(const Tensor& full, MeshRef mesh, Placements placements) {
  const Placements whole(static_cast<size_t>(mesh->num_axes()));
  return redistribute(from_local(full, std::move(mesh), whole, DimVector(full.sizes())),
                      placements);
}
}  // namespace muster
