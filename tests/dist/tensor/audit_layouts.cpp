#include "tests/dist/tensor/audit_layouts.h"

#include <cmath>

#include "core/ops/ops.h"
#include "dist/tensor/redistribute.h"

namespace muster::testing {
namespace {
using Placements = std::vector<Placement>;

std::vector<double> values_of(const Tensor& x) {
  return to_vector<double>(to(contiguous(detach(x)), DType::kF64));
}

}  // namespace

bool same_values(const Tensor& a, const Tensor& b) {
  if (to_string(a.sizes()) != to_string(b.sizes()) || a.dtype() != b.dtype()) return false;
  const auto x = values_of(a), y = values_of(b);
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i]) && std::isnan(y[i])) continue;
    if (!(x[i] == y[i] || std::abs(x[i] - y[i]) <= 1e-9 * (1 + std::abs(y[i])))) return false;
  }
  return true;
}

namespace {
std::vector<Placement> choices_for(const Tensor& x) {
  std::vector<Placement> choices = {Placement::replicate()};
  for (int32_t dim = 0; dim < x.ndim(); ++dim) choices.push_back(Placement::shard(dim));
  if (x.dtype() != DType::kBool) choices.push_back(Placement::partial());
  return choices;
}

// All combinations for one or two tensors; for more, one moved at a time and all cut alike.
std::vector<AuditLayouts> layouts_of(const std::vector<Tensor>& tensors) {
  std::vector<AuditLayouts> all;
  if (tensors.size() <= 2) {
    all.emplace_back();
    for (const Tensor& tensor : tensors) {
      std::vector<AuditLayouts> longer;
      for (const AuditLayouts& begun : all) {
        for (const Placement placement : choices_for(tensor)) {
          longer.push_back(begun);
          longer.back().push_back(placement);
        }
      }
      all = std::move(longer);
    }
    return all;
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (const Placement placement : choices_for(tensors[i])) {
      AuditLayouts one(tensors.size());
      one[i] = placement;
      all.push_back(one);
    }
  }
  for (int32_t dim = 0; dim < 3; ++dim) {
    AuditLayouts alike(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (dim < tensors[i].ndim()) alike[i] = Placement::shard(dim);
    }
    all.push_back(alike);
  }
  return all;
}

// What a rank holds of x under an open reduction along one axis: ranks hold different values.
Tensor share_of(const Tensor& x, PartialOp op, int rank, int world) {
  switch (op) {
    case PartialOp::kSum:
      return rank == 0 ? sub(x, world * (world - 1) / 2) : full_like(x, rank);
    case PartialOp::kAvg:
      return add(x, 2 * rank - (world - 1));
    case PartialOp::kProduct:
      return rank == 0 ? mul(x, world) : full_like(x, rank == 1 ? 1.0 / world : 1.0);
    case PartialOp::kMax:
      return sub(x, rank);
    case PartialOp::kMin:
      break;
  }
  return add(x, rank);
}

}  // namespace

Tensor audit_placed(const Tensor& x, const MeshRef& mesh, const Placements& placements) {
  Tensor share = x;
  Placements whole(placements.size());
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_partial()) continue;
    whole[axis] = placements[axis];
    const int rank = mesh->coordinate()[axis];
    const int world = mesh->axes()[axis].size;
    share = share_of(share, placements[axis].op, rank, world);
  }
  return redistribute(from_local(clone(share), mesh, whole, DimVector(x.sizes())), placements);
}

std::vector<std::vector<AuditLayouts>> shards_and_sums(const std::vector<Tensor>& dense,
                                                       const DeviceMesh& mesh) {
  const std::vector<AuditLayouts> choices = layouts_of(dense);
  std::vector<std::vector<AuditLayouts>> all;
  for (size_t i = 0; i < choices.size(); ++i) {
    all.push_back({choices[i]});
    // A second axis gets another choice, far from the first and different for each.
    if (mesh.num_axes() == 2) all.back().push_back(choices[(i * 5 + 3) % choices.size()]);
  }
  return all;
}

std::vector<std::vector<AuditLayouts>> other_reductions(const std::vector<Tensor>& dense,
                                                        const DeviceMesh& mesh) {
  std::vector<std::vector<AuditLayouts>> all;
  for (const PartialOp op :
       {PartialOp::kAvg, PartialOp::kProduct, PartialOp::kMax, PartialOp::kMin}) {
    const auto fits = [&](const Tensor& x) {
      const bool divides = op == PartialOp::kAvg || op == PartialOp::kProduct;
      return divides ? is_floating(x.dtype())
                     : x.dtype() != DType::kBool && x.dtype() != DType::kU8;
    };
    AuditLayouts alike(dense.size());
    for (size_t i = 0; i < dense.size(); ++i) {
      if (!fits(dense[i])) continue;
      AuditLayouts one(dense.size());
      one[i] = alike[i] = Placement::partial(op);
      all.push_back({one});
    }
    if (dense.size() > 1) all.push_back({alike});
  }
  // The same on both axes: reductions of different kinds depend on their order.
  for (size_t i = 0; mesh.num_axes() == 2 && i < all.size(); ++i) all[i].push_back(all[i][0]);
  return all;
}

std::vector<std::vector<AuditLayouts>> strided_shards(const std::vector<Tensor>& dense,
                                                      const DeviceMesh& mesh) {
  std::vector<std::vector<AuditLayouts>> all;
  const int inner = mesh.axes()[1].size;
  for (int32_t dim = 0; dim < 3; ++dim) {
    AuditLayouts outer(dense.size()), within(dense.size());
    for (size_t i = 0; i < dense.size(); ++i) {
      if (dim >= dense[i].ndim()) continue;
      AuditLayouts one(dense.size()), below(dense.size());
      one[i] = outer[i] = Placement::strided_shard(dim, inner);
      below[i] = within[i] = Placement::shard(dim);
      all.push_back({one, below});
      all.push_back({one, AuditLayouts(dense.size())});
    }
    if (dense.size() > 1) all.push_back({outer, within});
  }
  return all;
}

}  // namespace muster::testing
