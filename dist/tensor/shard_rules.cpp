#include "dist/tensor/shard_rules.h"

#include <algorithm>

#include "core/base/error.h"
#include "dist/tensor/axis_rules.h"

namespace muster {
namespace {
// Strides for other sizes in the same order of dims; expanded dims stay expanded.
DimVector strides_in_order(Dims sizes, Dims order) {
  std::vector<size_t> dims(sizes.size());
  for (size_t i = 0; i < dims.size(); ++i) dims[i] = dims.size() - 1 - i;
  std::stable_sort(dims.begin(), dims.end(),
                   [&](size_t a, size_t b) { return order[a] < order[b]; });
  DimVector strides(sizes.size());
  int64_t stride = 1;
  for (const size_t dim : dims) {
    const bool is_expanded = order[dim] == 0 && sizes[dim] > 1;
    strides[dim] = is_expanded ? 0 : stride;
    if (!is_expanded) stride *= std::max<int64_t>(1, sizes[dim]);
  }
  return strides;
}

Tensor meta_tensor(Dims sizes, Dims order, DType dtype) {
  return empty_from_spec({DimVector(sizes), strides_in_order(sizes, order), dtype, kMetaDevice});
}

bool sizes_match(const std::vector<TensorSpec>& local, const CallLayout& layout,
                 std::span<const int> axes, std::span<const int> coordinate) {
  for (size_t r = 0; r < layout.outputs.size(); ++r) {
    const DimVector wanted =
        shard_sizes(layout.outputs[r].sizes, axes, coordinate, layout.output_placements[r]);
    if (local[r].sizes.size() != wanted.size() ||
        !std::equal(wanted.begin(), wanted.end(), local[r].sizes.begin())) {
      return false;
    }
  }
  return local.size() == layout.outputs.size();
}

// True when the local call gives the pieces of the global results on every rank.
bool fits_everywhere(const Op& op, Args args, const std::vector<RuleInput>& inputs,
                     const DeviceMesh& mesh, const CallLayout& layout) {
  const std::vector<int> axes = mesh.sizes();
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<int> at = coordinate_of(axes, rank);
    std::vector<Tensor> locals;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const DimVector sizes = shard_sizes(inputs[i].sizes, axes, at, layout.inputs[i]);
      locals.push_back(meta_tensor(sizes, inputs[i].strides, inputs[i].dtype));
    }
    ReplacedArgs replaced(args, std::move(locals));
    if (layout.localize_size) {
      replaced.set_ints(
          op, "size", shard_sizes(layout.outputs[0].sizes, axes, at, layout.output_placements[0]));
    }
    try {
      if (!sizes_match(op.infer(replaced.args()), layout, axes, at)) return false;
    } catch (const Error&) {
      return false;
    }
  }
  return true;
}

void check_movable(const Op& op, const std::vector<RuleInput>& inputs) {
  for (const RuleInput& input : inputs) {
    MUSTER_CHECK(!input.is_written, ErrorCode::kInvalidArgument,
                 "{}: no sharding rule lets it write {} as {}, and a written DTensor is never "
                 "redistributed\n  fix: redistribute it first, or write out of place",
                 op.name(), to_string(Dims(input.sizes)), to_string(input.placements));
  }
}
}  // namespace

ReplacedArgs::ReplacedArgs(Args args, std::vector<Tensor> tensors)
    : tensors_(std::move(tensors)), values_(args.begin(), args.end()) {
  size_t next = 0;
  for (Value& value : values_) {
    if (value.is_tensor()) value = Value(tensors_[next++]);
    if (!value.is_tensor_list()) continue;
    const size_t count = value.tensors().size();
    value = Value(std::span<const Tensor>(tensors_).subspan(next, count));
    next += count;
  }
}

void ReplacedArgs::set_ints(const Op& op, std::string_view name, DimVector ints) {
  ints_.push_back(std::move(ints));
  values_[*op.schema().index_of(name)] = Value(ints_.back());
}

CallLayout choose_layout(const Op& op, Args args, const std::vector<RuleInput>& inputs,
                         const DTensorSpec& any) {
  CallLayout layout;
  std::vector<Tensor> globals;
  for (const RuleInput& input : inputs) {
    globals.push_back(empty_from_spec({input.sizes, input.strides, input.dtype, kMetaDevice}));
  }
  const ReplacedArgs global_args(args, std::move(globals));
  const auto num_axes = static_cast<size_t>(any.mesh->num_axes());
  layout.inputs.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) layout.inputs[i].resize(num_axes);
  try {
    layout.outputs = op.infer(global_args.args());
  } catch (const Error& error) {
    // So answer operators whose sizes depend on data, when there is none.
    if (error.code() != ErrorCode::kFailedPrecondition || op.writes_self()) throw;
    layout.sizes_from_data = true;
    return layout;
  }
  layout.fills_box = is_drawn_by_box(op);
  layout.output_placements.assign(layout.outputs.size(), std::vector<Placement>(num_axes));
  const bool is_list = op.facts().count != nullptr;
  const bool has_size = op.is_view() && op.schema().index_of("size").has_value();
  // Axis by axis, the later ones replicated: each accepted choice fits with those before it.
  for (size_t axis = 0; axis < num_axes; ++axis) {
    bool accepted = false;
    for (const AxisCandidate& candidate :
         axis_candidates(op, args, inputs, layout.outputs, *any.mesh, static_cast<int>(axis))) {
      CallLayout tried = layout;
      for (size_t i = 0; i < inputs.size(); ++i) tried.inputs[i][axis] = candidate.inputs[i];
      for (size_t r = 0; r < layout.outputs.size(); ++r) {
        tried.output_placements[r][axis] = candidate.outputs[is_list ? 0 : r];
      }
      accepted = fits_everywhere(op, args, inputs, *any.mesh, tried);
      if (!accepted && has_size && !tried.localize_size) {
        tried.localize_size = true;
        accepted = fits_everywhere(op, args, inputs, *any.mesh, tried);
      }
      if (!accepted) continue;
      layout = std::move(tried);
      break;
    }
    if (!accepted) check_movable(op, inputs);
    MUSTER_CHECK(accepted, ErrorCode::kUnimplemented, "{}: no layout of its arguments fits {}",
                 op.name(), any.mesh->describe());
  }
  return layout;
}
}  // namespace muster
