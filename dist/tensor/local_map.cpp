#include "dist/tensor/local_map.h"

#include <algorithm>

namespace muster {
namespace {
using Placements = std::vector<Placement>;

// Per axis: ranks compute different things there, so what they say about a replicated tensor is a
// share of a sum.
std::vector<bool> shared_axes(const LocalMapOptions& options, size_t num_axes) {
  std::vector<bool> shared(num_axes);
  for (const Placements& placements : options.out) {
    MUSTER_CHECK(placements.size() == num_axes, ErrorCode::kInvalidArgument,
                 "local_map: one placement of a result for each of {} mesh axes; got {}", num_axes,
                 to_string(placements));
    for (size_t axis = 0; axis < num_axes; ++axis) {
      if (!placements[axis].is_replicate()) shared[axis] = true;
    }
  }
  return shared;
}

// Of an argument or a result. An open sum has a whole gradient.
Placements gradient_of(Placements placements, const std::vector<bool>& shared) {
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (placements[axis].is_partial()) {
      placements[axis] = Placement::replicate();
    } else if (placements[axis].is_replicate() && shared[axis]) {
      placements[axis] = Placement::partial();
    }
  }
  return placements;
}

MeshRef mesh_of(const std::vector<Tensor>& arguments) {
  MeshRef mesh;
  for (const Tensor& argument : arguments) {
    if (!is_dtensor(argument)) continue;
    const MeshRef& own = dtensor_spec(argument).mesh;
    MUSTER_CHECK(!mesh || *mesh == *own, ErrorCode::kInvalidArgument,
                 "local_map: all DTensors must lie on one mesh; got {} and {}", mesh->describe(),
                 own->describe());
    mesh = own;
  }
  MUSTER_CHECK(mesh != nullptr, ErrorCode::kInvalidArgument,
               "local_map: at least one argument must be a DTensor; got {} plain ones",
               arguments.size());
  return mesh;
}

template <typename T>
T entry_or_nothing(const std::vector<T>& list, size_t i) {
  return i < list.size() ? list[i] : T();
}

Tensor local_argument(const Tensor& argument, size_t i, const LocalMapOptions& options,
                      const std::vector<bool>& shared) {
  const std::optional<Placements> wanted = entry_or_nothing(options.in, i);
  if (!is_dtensor(argument)) {
    MUSTER_CHECK(!wanted, ErrorCode::kInvalidArgument,
                 "local_map: argument {} must lie as {}; got a plain tensor {}", i,
                 to_string(*wanted), argument);
    return argument;
  }
  Tensor placed = argument;
  if (wanted && *wanted != dtensor_spec(argument).placements) {
    MUSTER_CHECK(options.redistributes, ErrorCode::kInvalidArgument,
                 "local_map: argument {} must lie as {}; got {}\n"
                 "  fix: redistribute it, or set `redistributes`",
                 i, to_string(*wanted), dtensor_spec(argument).describe());
    placed = redistribute(argument, *wanted);
  }
  std::optional<Placements> backward = entry_or_nothing(options.in_grad, i);
  if (!backward) {
    const Placements& lies = dtensor_spec(placed).placements;
    MUSTER_CHECK(
        std::none_of(lies.begin(), lies.end(),
                     [](Placement p) { return p.is_partial() && p.op != PartialOp::kSum; }),
        ErrorCode::kInvalidArgument,
        "local_map: argument {} lies as {}: say by `in_grad` how its gradient lies", i,
        to_string(lies));
    backward = gradient_of(lies, shared);
  }
  return to_local(placed, std::move(backward));
}
}  // namespace

std::vector<Tensor> local_map(const LocalFunction& function, const std::vector<Tensor>& arguments,
                              const LocalMapOptions& options) {
  const MeshRef mesh = mesh_of(arguments);
  const std::vector<bool> shared = shared_axes(options, static_cast<size_t>(mesh->num_axes()));
  std::vector<Tensor> locals;
  for (size_t i = 0; i < arguments.size(); ++i) {
    locals.push_back(local_argument(arguments[i], i, options, shared));
  }
  const std::vector<Tensor> results = function(locals);
  MUSTER_CHECK(results.size() == options.out.size(), ErrorCode::kInvalidArgument,
               "local_map: the function must give {} results, one for each entry of `out`; got {}",
               options.out.size(), results.size());
  std::vector<Tensor> wrapped;
  for (size_t r = 0; r < results.size(); ++r) {
    std::optional<DimVector> sizes;
    if (r < options.out_sizes.size()) sizes = options.out_sizes[r];
    wrapped.push_back(from_local(results[r], mesh, options.out[r], std::move(sizes),
                                 gradient_of(options.out[r], shared)));
  }
  return wrapped;
}
}  // namespace muster
