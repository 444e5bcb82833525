#pragma once
/// DeviceMesh: the ranks of a job arranged along named axes, with one process group per axis.
///
/// Ranks fill the mesh row-major, the last axis fastest. `axis` always means a mesh axis, `dim` a
/// tensor dim. A slice shares the groups of its root; making one communicates nothing. A mesh is
/// immutable. @source torch.distributed.device_mesh, names and errors

#include <memory>
#include <string>
#include <vector>

#include "dist/group/process_group.h"

namespace muster {

class DeviceMesh : public std::enable_shared_from_this<DeviceMesh> {
 public:
  struct Axis {
    std::string name;
    int size = 1;
  };

  /// The root mesh over all ranks of `world`; opens one group per axis. An axis that spans the
  /// world uses the world's own group.
  /// @collective all ranks of `world`, with the same axes
  /// @error kInvalidArgument names twice, or sizes that do not multiply to the world; kTimeout
  static Result<std::shared_ptr<const DeviceMesh>> open(std::shared_ptr<ProcessGroup> world,
                                                        std::vector<Axis> axes, Deadline deadline);

  [[nodiscard]] const std::vector<Axis>& axes() const noexcept { return axes_; }
  [[nodiscard]] int num_axes() const noexcept { return static_cast<int>(axes_.size()); }
  /// Number of ranks in this mesh.
  [[nodiscard]] int size() const noexcept;
  /// Of each axis.
  [[nodiscard]] std::vector<int> sizes() const;
  /// This rank's position along each axis.
  [[nodiscard]] const std::vector<int>& coordinate() const noexcept { return coordinate_; }
  /// Global ranks of the mesh that holds this rank, row-major.
  [[nodiscard]] const std::vector<int>& global_ranks() const noexcept { return global_ranks_; }

  /// @error kNotFound listing the axes that exist
  [[nodiscard]] int axis_index(const std::string& name) const;
  /// The group of the ranks that differ from this one in `axis` only; group rank = coordinate.
  [[nodiscard]] const std::shared_ptr<ProcessGroup>& group(int axis) const {
    return groups_[static_cast<size_t>(axis)];
  }
  [[nodiscard]] const std::shared_ptr<ProcessGroup>& group(const std::string& axis) const {
    return group(axis_index(axis));
  }

  /// The mesh of some axes, in the order given, that contains this rank.
  /// @error kNotFound, kInvalidArgument an axis twice
  [[nodiscard]] std::shared_ptr<const DeviceMesh> slice(
      const std::vector<std::string>& names) const;

  /// The mesh of the axes of several slices, in that order: {tp, fsdp} joins what two layers cut.
  /// @error kInvalidArgument slices of different roots, an axis twice
  static std::shared_ptr<const DeviceMesh> concatenate(
      const std::vector<std::shared_ptr<const DeviceMesh>>& slices);

  /// A mesh of one axis over the same ranks, row-major: for sums over several axes at once. ""
  /// joins the names by "_". Opens a group, unless the axis or the world is that group.
  /// @collective all ranks of the root mesh
  /// @error kInvalidArgument the name of another axis of the root; kTimeout
  [[nodiscard]] Result<std::shared_ptr<const DeviceMesh>> flatten(std::string name,
                                                                  Deadline deadline) const;

  /// The same ranks with `axis` divided into `parts`, outermost first: another view of one world. A
  /// root of its own. Opens a group for each part, unless it spans the axis; other axes keep
  /// theirs.
  /// @collective all ranks of this mesh
  /// @error kInvalidArgument sizes that do not multiply to the axis, or a name twice; kNotFound;
  /// kTimeout
  [[nodiscard]] Result<std::shared_ptr<const DeviceMesh>> unflatten(const std::string& axis,
                                                                    std::vector<Axis> parts,
                                                                    Deadline deadline) const;

  /// "mesh [fsdp=2, tp=2]".
  [[nodiscard]] std::string describe() const;
  /// Same axes over the same ranks.
  bool operator==(const DeviceMesh& other) const;

 private:
  DeviceMesh() = default;

  std::vector<Axis> axes_;
  std::vector<int> coordinate_;
  std::vector<int> global_ranks_;
  std::vector<std::shared_ptr<ProcessGroup>> groups_;
  std::shared_ptr<ProcessGroup> world_;     // of the root
  std::shared_ptr<const DeviceMesh> root_;  // null for the root itself
};

using MeshRef = std::shared_ptr<const DeviceMesh>;

/// Global ranks along `axis` through `coordinate` of a row-major mesh of `sizes`. Pure.
std::vector<int> ranks_along(const std::vector<int>& sizes, const std::vector<int>& coordinate,
                             int axis);
/// Position of a rank in a row-major mesh. Pure.
std::vector<int> coordinate_of(const std::vector<int>& sizes, int rank);

}  // namespace muster
