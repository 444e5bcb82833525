#include "dist/mesh/device_mesh.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/text.h"

namespace muster {
namespace {
int rank_at(const std::vector<int>& sizes, const std::vector<int>& coordinate) {
  int rank = 0;
  for (size_t i = 0; i < sizes.size(); ++i) rank = rank * sizes[i] + coordinate[i];
  return rank;
}

std::vector<int> sizes_of(const std::vector<DeviceMesh::Axis>& axes) {
  std::vector<int> sizes;
  for (const DeviceMesh::Axis& axis : axes) sizes.push_back(axis.size);
  return sizes;
}

int64_t product_of(const std::vector<DeviceMesh::Axis>& axes) {
  int64_t product = 1;
  for (const DeviceMesh::Axis& axis : axes) product *= axis.size;
  return product;
}

std::string describe_axes(const std::vector<DeviceMesh::Axis>& axes) {
  std::vector<std::string> parts;
  for (const DeviceMesh::Axis& axis : axes)
    parts.push_back(fmt::format("{}={}", axis.name, axis.size));
  return join(parts);
}

Result<void> check_axes(const std::vector<DeviceMesh::Axis>& axes) {
  for (const DeviceMesh::Axis& axis : axes) {
    const auto same = [&](const DeviceMesh::Axis& other) { return other.name == axis.name; };
    if (axis.name.empty() || axis.size < 1 || std::count_if(axes.begin(), axes.end(), same) > 1) {
      return make_error(ErrorCode::kInvalidArgument,
                        "mesh: axes have distinct names and sizes >= 1; got {}",
                        describe_axes(axes));
    }
  }
  return {};
}
}  // namespace

std::vector<int> coordinate_of(const std::vector<int>& sizes, int rank) {
  std::vector<int> coordinate(sizes.size());
  for (size_t i = sizes.size(); i-- > 0;) {
    coordinate[i] = rank % sizes[i];
    rank /= sizes[i];
  }
  return coordinate;
}

std::vector<int> ranks_along(const std::vector<int>& sizes, const std::vector<int>& coordinate,
                             int axis) {
  std::vector<int> ranks;
  std::vector<int> at = coordinate;
  for (int i = 0; i < sizes[static_cast<size_t>(axis)]; ++i) {
    at[static_cast<size_t>(axis)] = i;
    ranks.push_back(rank_at(sizes, at));
  }
  return ranks;
}

Result<MeshRef> DeviceMesh::open(std::shared_ptr<ProcessGroup> world, std::vector<Axis> axes,
                                 Deadline deadline) {
  MUSTER_TRY(check_axes(axes));
  const int64_t product = product_of(axes);
  if (axes.empty() || product != world->world_size()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "mesh: {} ranks asked for, world size is {}; axes {}", product,
                      world->world_size(), describe_axes(axes));
  }
  std::shared_ptr<DeviceMesh> mesh(new DeviceMesh());
  const std::vector<int> sizes = sizes_of(axes);
  mesh->axes_ = std::move(axes);
  mesh->coordinate_ = coordinate_of(sizes, world->group_rank());
  mesh->global_ranks_ = world->global_ranks();
  mesh->world_ = world;
  for (int axis = 0; axis < mesh->num_axes(); ++axis) {
    const std::vector<int> members = ranks_along(sizes, mesh->coordinate_, axis);
    if (static_cast<int>(members.size()) == world->world_size()) {
      mesh->groups_.push_back(world);
      continue;
    }
    const std::string& name = mesh->axes_[static_cast<size_t>(axis)].name;
    mesh->groups_.push_back(
        MUSTER_TRY(world->subgroup(fmt::format("{}.{}.{}", world->name(), name, members.front()),
                                   members, deadline),
                   fmt::format("while opening axis {} of the mesh", name)));
  }
  return MeshRef(std::move(mesh));
}

std::vector<int> DeviceMesh::sizes() const {
  std::vector<int> sizes;
  for (const Axis& axis : axes_) sizes.push_back(axis.size);
  return sizes;
}

int DeviceMesh::size() const noexcept {
  int product = 1;
  for (const Axis& axis : axes_) product *= axis.size;
  return product;
}

int DeviceMesh::axis_index(const std::string& name) const {
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == name) return static_cast<int>(i);
  }
  throw_error(ErrorCode::kNotFound, "mesh: no axis \"{}\"; the axes are {}", name,
              describe_axes(axes_));
}

MeshRef DeviceMesh::slice(const std::vector<std::string>& names) const {
  std::shared_ptr<DeviceMesh> mesh(new DeviceMesh());
  mesh->root_ = root_ ? root_ : shared_from_this();
  mesh->world_ = world_;
  std::vector<int> kept;
  for (const std::string& name : names) {
    const int axis = axis_index(name);
    MUSTER_CHECK(std::find(kept.begin(), kept.end(), axis) == kept.end(),
                 ErrorCode::kInvalidArgument, "mesh: each axis at most once in a slice; got {}",
                 join(names));
    kept.push_back(axis);
    mesh->axes_.push_back(axes_[static_cast<size_t>(axis)]);
    mesh->coordinate_.push_back(coordinate_[static_cast<size_t>(axis)]);
    mesh->groups_.push_back(groups_[static_cast<size_t>(axis)]);
  }
  const std::vector<int> sizes = sizes_of(axes_);
  const std::vector<int> kept_sizes = sizes_of(mesh->axes_);
  for (int i = 0; i < mesh->size(); ++i) {
    std::vector<int> at = coordinate_;
    const std::vector<int> inner = coordinate_of(kept_sizes, i);
    for (size_t k = 0; k < kept.size(); ++k) at[static_cast<size_t>(kept[k])] = inner[k];
    mesh->global_ranks_.push_back(global_ranks_[static_cast<size_t>(rank_at(sizes, at))]);
  }
  return mesh;
}

MeshRef DeviceMesh::concatenate(const std::vector<MeshRef>& slices) {
  MUSTER_CHECK(!slices.empty(), ErrorCode::kInvalidArgument, "mesh: no slices to concatenate");
  const auto root_of = [](const MeshRef& mesh) { return mesh->root_ ? mesh->root_ : mesh; };
  const MeshRef root = root_of(slices.front());
  std::vector<std::string> names;
  for (const MeshRef& slice : slices) {
    MUSTER_CHECK(root_of(slice) == root, ErrorCode::kInvalidArgument,
                 "mesh: slices of one root can be concatenated; got {} and {}",
                 slices.front()->describe(), slice->describe());
    for (const Axis& axis : slice->axes_) names.push_back(axis.name);
  }
  return root->slice(names);
}

Result<MeshRef> DeviceMesh::flatten(std::string name, Deadline deadline) const {
  const MeshRef root = root_ ? root_ : shared_from_this();
  if (name.empty()) {
    std::vector<std::string> names;
    for (const Axis& axis : axes_) names.push_back(axis.name);
    name = join(names, "_");
  }
  if (num_axes() == 1 && name == axes_[0].name) return MeshRef(shared_from_this());
  for (const Axis& axis : root->axes_) {
    if (axis.name != name) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "mesh: flatten needs a name that is no axis of {}; got {}", root->describe(),
                      name);
  }
  std::shared_ptr<DeviceMesh> mesh(new DeviceMesh());
  mesh->root_ = root;
  mesh->world_ = world_;
  mesh->axes_ = {{name, size()}};
  mesh->global_ranks_ = global_ranks_;
  mesh->coordinate_ = {rank_at(sizes_of(axes_), coordinate_)};
  if (num_axes() == 1) {
    mesh->groups_ = groups_;
  } else if (global_ranks_ == world_->global_ranks()) {
    mesh->groups_ = {world_};
  } else {
    const std::vector<int>& all = world_->global_ranks();
    std::vector<int> members;
    for (const int rank : global_ranks_) {
      members.push_back(static_cast<int>(std::find(all.begin(), all.end(), rank) - all.begin()));
    }
    mesh->groups_.push_back(
        MUSTER_TRY(world_->subgroup(fmt::format("{}.{}.{}", world_->name(), name, members.front()),
                                    members, deadline),
                   fmt::format("while flattening {}", describe())));
  }
  return MeshRef(std::move(mesh));
}

Result<MeshRef> DeviceMesh::unflatten(const std::string& axis, std::vector<Axis> parts,
                                      Deadline deadline) const {
  const auto at = static_cast<size_t>(axis_index(axis));
  const int whole = axes_[at].size;
  std::vector<Axis> axes = axes_;
  axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(at));
  axes.insert(axes.begin() + static_cast<std::ptrdiff_t>(at), parts.begin(), parts.end());
  MUSTER_TRY(check_axes(axes), fmt::format("while unflattening axis {}", axis));
  if (parts.empty() || product_of(parts) != whole) {
    return make_error(ErrorCode::kInvalidArgument,
                      "mesh: unflatten needs sizes that multiply to {}={}; got {}", axis, whole,
                      describe_axes(parts));
  }
  std::shared_ptr<DeviceMesh> mesh(new DeviceMesh());
  mesh->world_ = world_;
  mesh->global_ranks_ = global_ranks_;
  mesh->axes_ = std::move(axes);
  const std::vector<int> sizes = sizes_of(parts);
  const std::vector<int> inner = coordinate_of(sizes, coordinate_[at]);
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (i != at) {
      mesh->coordinate_.push_back(coordinate_[i]);
      mesh->groups_.push_back(groups_[i]);
      continue;
    }
    for (size_t part = 0; part < parts.size(); ++part) {
      mesh->coordinate_.push_back(inner[part]);
      if (sizes[part] == whole) {
        mesh->groups_.push_back(groups_[at]);
        continue;
      }
      const std::vector<int> members = ranks_along(sizes, inner, static_cast<int>(part));
      mesh->groups_.push_back(MUSTER_TRY(
          groups_[at]->subgroup(
              fmt::format("{}.{}.{}", groups_[at]->name(), parts[part].name, members.front()),
              members, deadline),
          fmt::format("while unflattening axis {}", axis)));
    }
  }
  return MeshRef(std::move(mesh));
}

std::string DeviceMesh::describe() const { return fmt::format("mesh [{}]", describe_axes(axes_)); }

bool DeviceMesh::operator==(const DeviceMesh& other) const {
  return describe() == other.describe() && global_ranks_ == other.global_ranks_;
}
}  // namespace muster
