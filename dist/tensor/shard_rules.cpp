#include "dist/tensor/shard_rules.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <unordered_map>

#include "core/base/error.h"

namespace muster {
namespace {
constexpr double kImpossible = std::numeric_limits<double>::infinity();

const std::vector<ShardRule>& rules_of(const Op& op) {
  static std::mutex mutex;
  static std::unordered_map<const Op*, std::vector<ShardRule>> known;
  const std::lock_guard lock(mutex);
  const auto [at, is_new] = known.try_emplace(&op);
  if (is_new) {
    for (const std::string& text : op.facts().shard_rules) {
      at->second.push_back(parse_shard_rule(text).value());
    }
  }
  return at->second;
}

// What moving one tensor on one axis costs, in elements sent, roughly.
double move_cost(const RuleInput& input, Placement from, Placement to) {
  if (from == to) return 0;
  if (input.is_plain || input.is_written) return kImpossible;
  const double n = static_cast<double>(numel_of(input.sizes)) + 1;
  if (from.is_replicate()) {
    const bool is_sum = to.is_partial() && to.op == PartialOp::kSum;
    return to.is_shard() || is_sum ? 0.01 * n : kImpossible;
  }
  if (to.is_partial()) return kImpossible;
  if (from.is_partial()) return to.is_shard() ? n : 2 * n;
  return to.is_shard() ? 0.5 * n : n;
}

struct Candidate {
  std::vector<Placement> inputs;
  std::vector<Placement> outputs;  // one per schema return
  double cost = 0;
};

// Tries rules on one mesh axis.
class AxisRules {
 public:
  AxisRules(const Op& op, Args args, const std::vector<RuleInput>& inputs,
            const std::vector<TensorSpec>& outputs, const DTensorSpec& any, int axis)
      : op_(op), args_(args), inputs_(inputs), outputs_(outputs), any_(any), axis_(axis) {}

  /// Cheapest first; all-replicated among them.
  [[nodiscard]] std::vector<Candidate> all() const {
    std::vector<Candidate> found;
    Candidate whole;
    whole.inputs.resize(inputs_.size());
    whole.outputs.resize(op_.schema().returns.size());
    add(std::move(whole), found);
    for (const ShardRule& rule : rules_of(op_)) try_rule(rule, found);
    if (op_.is_view()) try_view(found);
    std::stable_sort(found.begin(), found.end(),
                     [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; });
    return found;
  }

 private:
  [[nodiscard]] Placement placed(size_t i) const {
    return inputs_[i].placements[static_cast<size_t>(axis_)];
  }

  void add(Candidate candidate, std::vector<Candidate>& found) const {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      candidate.cost += move_cost(inputs_[i], placed(i), candidate.inputs[i]);
    }
    // What is written keeps its placement, so the result must have it.
    const bool is_honest =
        !op_.writes_self() || inputs_.empty() || candidate.outputs[0] == placed(0);
    if (candidate.cost != kImpossible && is_honest) found.push_back(std::move(candidate));
  }

  void try_rule(const ShardRule& rule, std::vector<Candidate>& found) const {
    bool has_letter = false;
    int64_t space = 0;
    for (const RuleInput& input : inputs_) {
      if (rule.inputs[input.pattern].dim.letter == 0) continue;
      has_letter = true;
      space = std::max(space, static_cast<int64_t>(input.sizes.size()));
    }
    if (!has_letter) return try_binding(rule, 0, 0, found);
    for (int64_t b = 0; b < space; ++b) try_binding(rule, b, space, found);
  }

  // `b` counts in `space` dims, aligned at the last one.
  void try_binding(const ShardRule& rule, int64_t b, int64_t space,
                   std::vector<Candidate>& found) const {
    for (const RuleCondition& condition : rule.conditions) {
      if (!holds(condition, b)) return;
    }
    if (!numbers_fit(rule)) return;
    Candidate candidate;
    int64_t cut_size = -1;
    bool is_anchored = false;  // some tensor lies so already: rules never invent shards
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const PlacementPattern& pattern = rule.inputs[inputs_[i].pattern];
      const std::optional<Placement> wanted = bind_input(pattern, i, b, space);
      if (!wanted) return;
      if (wanted->is_shard()) {
        const int64_t size = inputs_[i].sizes[static_cast<size_t>(wanted->dim)];
        if (cut_size >= 0 && size != cut_size && !cuts_evenly(size, cut_size)) return;
        cut_size = size;
      }
      is_anchored |= !wanted->is_replicate() && *wanted == placed(i);
      candidate.inputs.push_back(*wanted);
    }
    if (!is_anchored) return;
    for (size_t r = 0; r < rule.outputs.size(); ++r) {
      const std::optional<Placement> out = bind_output(rule.outputs[r], r, b, space);
      if (!out || !may_be_partial(*out, candidate.inputs)) return;
      candidate.outputs.push_back(*out);
    }
    add(std::move(candidate), found);
  }

  // A number in the place of a tensor is replicated: it can't be one rank's share of a sum.
  [[nodiscard]] bool numbers_fit(const ShardRule& rule) const {
    size_t pattern = 0;
    for (size_t i = 0; i < args_.size(); ++i) {
      if (op_.schema().arguments[i].type != ArgumentType::kTensor) continue;
      const PlacementPattern& wanted = rule.inputs[pattern++];
      if (!args_[i].is_number()) continue;
      if (wanted.kind == PlacementPattern::Kind::kPartial) return false;
      if (wanted.kind == PlacementPattern::Kind::kShard && wanted.dim.letter == 0) return false;
    }
    return true;
  }

  // Dims of different sizes that are cut together (heads of queries and of keys) stay in step only
  // where both divide.
  [[nodiscard]] bool cuts_evenly(int64_t a, int64_t b) const {
    return a % any_.mesh->size() == 0 && b % any_.mesh->size() == 0;
  }

  [[nodiscard]] std::optional<Placement> bind_input(const PlacementPattern& pattern, size_t i,
                                                    int64_t b, int64_t space) const {
    const auto ndim = static_cast<int64_t>(inputs_[i].sizes.size());
    switch (pattern.kind) {
      case PlacementPattern::Kind::kReplicate:
        return Placement::replicate();
      case PlacementPattern::Kind::kPartial:
        return Placement::partial(pattern.op);
      case PlacementPattern::Kind::kAny:
        return placed(i);
      case PlacementPattern::Kind::kShard:
        break;
    }
    if (pattern.dim.letter == 0) {
      const int64_t dim = pattern.dim.offset < 0 ? pattern.dim.offset + ndim : pattern.dim.offset;
      if (dim < 0 || dim >= ndim) return std::nullopt;
      return Placement::shard(static_cast<int32_t>(dim));
    }
    const int64_t dim = b - (space - ndim) + pattern.dim.offset;
    if (dim < 0 || dim >= ndim || inputs_[i].sizes[static_cast<size_t>(dim)] == 1) {
      return Placement::replicate();
    }
    return Placement::shard(static_cast<int32_t>(dim));
  }

  [[nodiscard]] std::optional<Placement> bind_output(const PlacementPattern& pattern, size_t r,
                                                     int64_t b, int64_t space) const {
    if (pattern.kind == PlacementPattern::Kind::kPartial) return Placement::partial(pattern.op);
    if (pattern.kind != PlacementPattern::Kind::kShard) return Placement::replicate();
    if (outputs_.empty()) return std::nullopt;
    const auto ndim = static_cast<int64_t>(outputs_[std::min(r, outputs_.size() - 1)].sizes.size());
    int64_t dim = pattern.dim.offset;
    if (pattern.dim.letter == 0) {
      if (dim < 0) dim += ndim;
    } else if (!pattern.dim.dropped.empty()) {
      dim += after_drop(pattern.dim.dropped, b);
    } else {
      dim += b - (space - ndim);
    }
    if (dim < 0 || dim >= ndim) return std::nullopt;
    return Placement::shard(static_cast<int32_t>(dim));
  }

  [[nodiscard]] int64_t first_ndim() const {
    return inputs_.empty() ? 0 : static_cast<int64_t>(inputs_[0].sizes.size());
  }
  [[nodiscard]] int64_t from_front(int64_t dim) const { return dim < 0 ? dim + first_ndim() : dim; }

  // The dims an argument names; nothing when it is absent or empty, which stands for all dims.
  [[nodiscard]] std::vector<int64_t> dims_of(std::string_view name) const {
    const Value& value = args_[*op_.schema().index_of(name)];
    std::vector<int64_t> dims;
    if (value.tag() == ValueTag::kInt) dims.push_back(from_front(value.integer()));
    if (value.tag() == ValueTag::kIntList) {
      for (const int64_t dim : value.ints()) dims.push_back(from_front(dim));
    }
    return dims;
  }

  [[nodiscard]] int64_t after_drop(std::string_view name, int64_t b) const {
    const std::optional<size_t> keepdim = op_.schema().index_of("keepdim");
    if (keepdim && !args_[*keepdim].is_none() && args_[*keepdim].boolean()) return b;
    const std::vector<int64_t> dims = dims_of(name);
    return b - std::count_if(dims.begin(), dims.end(), [&](int64_t dim) { return dim < b; });
  }

  [[nodiscard]] bool holds(const RuleCondition& condition, int64_t b) const {
    using Relation = RuleCondition::Relation;
    std::vector<int64_t> right;
    bool is_all = false;
    if (!condition.argument.empty()) {
      right = dims_of(condition.argument);
      is_all = right.empty();
    } else if (!condition.ndim_of.empty()) {
      const size_t argument = *op_.schema().index_of(condition.ndim_of);
      for (const RuleInput& input : inputs_) {
        if (input.argument == argument && right.empty()) {
          right.push_back(static_cast<int64_t>(input.sizes.size()) + condition.number);
        }
      }
      if (right.empty()) return false;
    } else {
      right.push_back(from_front(condition.number));
    }
    const bool is_in = is_all || std::find(right.begin(), right.end(), b) != right.end();
    switch (condition.relation) {
      case Relation::kEqual:
      case Relation::kIn:
        return is_in;
      case Relation::kNotEqual:
      case Relation::kNotIn:
        return !is_in;
      case Relation::kLess:
        return !is_all && b < right[0];
      case Relation::kLessEqual:
        return !is_all && b <= right[0];
      case Relation::kGreater:
        return !is_all && b > right[0];
      case Relation::kGreaterEqual:
        break;
    }
    return !is_all && b >= right[0];
  }

  // An average weighs ranks alike and an extreme needs a value on each: all pieces must be equal.
  [[nodiscard]] bool may_be_partial(Placement out, const std::vector<Placement>& wanted) const {
    if (!out.is_partial() || out.op == PartialOp::kSum || out.op == PartialOp::kProduct) {
      return true;
    }
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!wanted[i].is_shard()) continue;
      int64_t parts = any_.mesh->axes()[static_cast<size_t>(axis_)].size;
      for (size_t axis = 0; axis < inputs_[i].placements.size(); ++axis) {
        if (static_cast<int>(axis) == axis_) continue;
        if (inputs_[i].placements[axis].is_shard_of(wanted[i].dim)) {
          parts *= any_.mesh->axes()[axis].size;
        }
      }
      const int64_t size = inputs_[i].sizes[static_cast<size_t>(wanted[i].dim)];
      if (size == 0 || size % parts != 0) return false;
    }
    return true;
  }

  // A view that keeps the sharded dim: the one output dim with its size and stride.
  void try_view(std::vector<Candidate>& found) const {
    if (outputs_.size() != 1 || inputs_.size() != 1 || !placed(0).is_shard()) return;
    const auto from = static_cast<size_t>(placed(0).dim);
    const RuleInput& input = inputs_[0];
    if (placed(0).kind != Placement::Kind::kShard || input.sizes[from] <= 1) return;
    Candidate candidate;
    candidate.inputs.push_back(placed(0));
    for (size_t dim = 0; dim < outputs_[0].sizes.size(); ++dim) {
      if (outputs_[0].sizes[dim] == input.sizes[from] &&
          outputs_[0].strides[dim] == input.strides[from]) {
        candidate.outputs.push_back(Placement::shard(static_cast<int32_t>(dim)));
      }
    }
    if (candidate.outputs.size() == 1) add(std::move(candidate), found);
  }

  const Op& op_;
  Args args_;
  const std::vector<RuleInput>& inputs_;
  const std::vector<TensorSpec>& outputs_;
  const DTensorSpec& any_;
  int axis_;
};

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

std::vector<int> mesh_sizes(const DeviceMesh& mesh) {
  std::vector<int> sizes;
  for (const DeviceMesh::Axis& axis : mesh.axes()) sizes.push_back(axis.size);
  return sizes;
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
  const std::vector<int> axes = mesh_sizes(mesh);
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
  ints_ = std::move(ints);
  values_[*op.schema().index_of(name)] = Value(ints_);
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
  layout.output_placements.assign(layout.outputs.size(), std::vector<Placement>(num_axes));
  const bool is_list = op.facts().count != nullptr;
  const bool has_size = op.is_view() && op.schema().index_of("size").has_value();
  // Axis by axis, the later ones replicated: each accepted choice fits with those before it.
  for (size_t axis = 0; axis < num_axes; ++axis) {
    const AxisRules rules(op, args, inputs, layout.outputs, any, static_cast<int>(axis));
    bool accepted = false;
    for (const Candidate& candidate : rules.all()) {
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
