#include "dist/tensor/axis_rules.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <mutex>
#include <numeric>
#include <unordered_map>

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

// What moving one tensor on one axis costs, in elements sent, roughly. `into_sum`: it is added to
// what is written, so that a shard may become a share of an open sum.
double move_cost(const RuleInput& input, Placement from, Placement to, bool into_sum) {
  if (from == to) return 0;
  if (input.is_plain || input.is_written) return kImpossible;
  const double n = static_cast<double>(numel_of(input.sizes)) + 1;
  const bool is_sum = to.is_partial() && to.op == PartialOp::kSum;
  if (is_sum && into_sum && from.kind == Placement::Kind::kShard) return 0.01 * n;
  if (from.is_replicate()) {
    return to.is_shard() || is_sum ? 0.01 * n : kImpossible;
  }
  if (to.is_partial()) return kImpossible;
  if (from.is_partial()) return to.is_shard() ? n : 2 * n;
  return to.is_shard() ? 0.5 * n : n;
}

// Tries rules on one mesh axis.
class AxisRules {
 public:
  AxisRules(const Op& op, Args args, const std::vector<RuleInput>& inputs,
            const std::vector<TensorSpec>& outputs, const DeviceMesh& mesh, int axis)
      : op_(op), args_(args), inputs_(inputs), outputs_(outputs), mesh_(mesh), axis_(axis) {}

  /// Cheapest first; all-replicated among them.
  [[nodiscard]] std::vector<AxisCandidate> all() const {
    std::vector<AxisCandidate> found;
    AxisCandidate whole;
    whole.inputs.resize(inputs_.size());
    whole.outputs.resize(op_.schema().returns.size());
    add(std::move(whole), found);
    for (const ShardRule& rule : rules_of(op_)) try_rule(rule, found);
    if (op_.is_view()) try_view(found);
    if (is_drawn_by_box(op_) || is_exact_cast()) try_same(found);
    std::stable_sort(
        found.begin(), found.end(),
        [](const AxisCandidate& a, const AxisCandidate& b) { return a.cost < b.cost; });
    return found;
  }

 private:
  [[nodiscard]] Placement placed(size_t i) const {
    return inputs_[i].placements[static_cast<size_t>(axis_)];
  }

  void add(AxisCandidate candidate, std::vector<AxisCandidate>& found) const {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      candidate.cost += move_cost(inputs_[i], placed(i), candidate.inputs[i], op_.writes_self());
    }
    // What is written keeps its placement, so the result must have it.
    const bool is_honest =
        !op_.writes_self() || inputs_.empty() || candidate.outputs[0] == placed(0);
    if (candidate.cost != kImpossible && is_honest) found.push_back(std::move(candidate));
  }

  void try_rule(const ShardRule& rule, std::vector<AxisCandidate>& found) const {
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
                   std::vector<AxisCandidate>& found) const {
    for (const RuleCondition& condition : rule.conditions) {
      if (!holds(condition, b)) return;
    }
    if (!numbers_fit(rule)) return;
    // Beside a dim of several elements one of 1 is stretched, so each rank needs it.
    bool is_wide = false;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const std::optional<int64_t> dim = bound_dim(rule.inputs[inputs_[i].pattern], i, b, space);
      is_wide |= dim && size_of(i, static_cast<int32_t>(*dim)) != 1;
    }
    AxisCandidate candidate;
    bool is_anchored = false;  // some tensor lies so already: rules never invent shards
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const PlacementPattern& pattern = rule.inputs[inputs_[i].pattern];
      const std::optional<Placement> wanted = bind_input(pattern, i, b, space, is_wide);
      if (!wanted) return;
      is_anchored |= !wanted->is_replicate() && *wanted == placed(i);
      candidate.inputs.push_back(*wanted);
    }
    if (!is_anchored || !stays_in_step(candidate.inputs)) return;
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

  [[nodiscard]] int64_t size_of(size_t i, int32_t dim) const {
    return inputs_[i].sizes[static_cast<size_t>(dim)];
  }
  // Into how many pieces this axis and the others cut what `wanted` shards.
  [[nodiscard]] int64_t parts_of(const std::vector<Placement>& wanted) const {
    int64_t parts = mesh_.axes()[static_cast<size_t>(axis_)].size;
    for (size_t axis = 0; axis < mesh_.axes().size(); ++axis) {
      if (static_cast<int>(axis) == axis_) continue;
      for (size_t i = 0; i < wanted.size(); ++i) {
        if (!wanted[i].is_shard() || !inputs_[i].placements[axis].is_shard_of(wanted[i].dim)) {
          continue;
        }
        parts *= mesh_.axes()[axis].size;
        break;
      }
    }
    return parts;
  }

  // Dims of different sizes that are cut together (heads of queries and of keys) stay in step only
  // where the pieces of all are even.
  [[nodiscard]] bool stays_in_step(const std::vector<Placement>& wanted) const {
    std::vector<int64_t> sizes;
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i].is_shard()) sizes.push_back(size_of(i, wanted[i].dim));
    }
    const bool is_one_size =
        std::adjacent_find(sizes.begin(), sizes.end(), std::not_equal_to<>()) == sizes.end();
    const int64_t parts = parts_of(wanted);
    return is_one_size ||
           std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) { return size % parts == 0; });
  }

  // The dim of an input that a lettered pattern speaks of, if the input has it.
  [[nodiscard]] std::optional<int64_t> bound_dim(const PlacementPattern& pattern, size_t i,
                                                 int64_t b, int64_t space) const {
    if (pattern.kind != PlacementPattern::Kind::kShard || pattern.dim.letter == 0) return {};
    const auto ndim = static_cast<int64_t>(inputs_[i].sizes.size());
    const int64_t dim = b - (space - ndim) + pattern.dim.offset;
    return dim < 0 || dim >= ndim ? std::nullopt : std::optional<int64_t>(dim);
  }

  [[nodiscard]] std::optional<Placement> bind_input(const PlacementPattern& pattern, size_t i,
                                                    int64_t b, int64_t space, bool is_wide) const {
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
      const auto ndim = static_cast<int64_t>(inputs_[i].sizes.size());
      const int64_t dim = pattern.dim.offset < 0 ? pattern.dim.offset + ndim : pattern.dim.offset;
      if (dim < 0 || dim >= ndim) return std::nullopt;
      return Placement::shard(static_cast<int32_t>(dim));
    }
    const std::optional<int64_t> dim = bound_dim(pattern, i, b, space);
    if (!dim || (is_wide && size_of(i, static_cast<int32_t>(*dim)) == 1)) {
      return Placement::replicate();
    }
    return Placement::shard(static_cast<int32_t>(*dim));
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
    const int64_t parts = parts_of(wanted);
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!wanted[i].is_shard()) continue;
      const int64_t size = size_of(i, wanted[i].dim);
      if (size == 0 || size % parts != 0) return false;
    }
    return true;
  }

  // A wider floating type holds every share as it is, so shares may be cast one by one. What is
  // narrowed is reduced first: in the dtype with more bits.
  [[nodiscard]] bool is_exact_cast() const {
    if (op_.name() != "_to_copy" || inputs_.size() != 1 || outputs_.size() != 1) return false;
    const DType from = inputs_[0].dtype, to = outputs_[0].dtype;
    return is_floating(from) && is_floating(to) && item_nbytes(to) > item_nbytes(from);
  }

  // Each number drawn is a function of its global place: shards draw their own.
  void try_same(std::vector<AxisCandidate>& found) const {
    const bool may_stay = inputs_.size() == 1 && (placed(0).kind == Placement::Kind::kShard ||
                                                  (placed(0).is_partial() && is_exact_cast()));
    if (!may_stay) return;
    AxisCandidate candidate;
    candidate.inputs.push_back(placed(0));
    candidate.outputs.push_back(placed(0));
    add(std::move(candidate), found);
  }

  // A view of shares is a share of the view. A shard stays one where the view keeps its dim: the
  // one output dim with its size and stride.
  void try_view(std::vector<AxisCandidate>& found) const {
    if (inputs_.size() != 1) return;
    AxisCandidate candidate;
    candidate.inputs.push_back(placed(0));
    if (placed(0).is_partial()) {
      candidate.outputs.assign(op_.schema().returns.size(), placed(0));
      return add(std::move(candidate), found);
    }
    if (outputs_.size() != 1 || placed(0).kind != Placement::Kind::kShard) return;
    const auto from = static_cast<size_t>(placed(0).dim);
    const RuleInput& input = inputs_[0];
    if (input.sizes[from] <= 1) return;
    for (size_t dim = 0; dim < outputs_[0].sizes.size(); ++dim) {
      if (outputs_[0].sizes[dim] == input.sizes[from] &&
          outputs_[0].strides[dim] == input.strides[from]) {
        candidate.outputs.push_back(Placement::shard(static_cast<int32_t>(dim)));
      }
    }
    if (candidate.outputs.size() == 1) add(std::move(candidate), found);
    if (op_.name() == "view") try_reshape(found);
  }

  // Elements keep their order: a dim of the result that begins where the sharded one does holds the
  // same elements in each of its pieces if these have the same number, which is checked later.
  void try_reshape(std::vector<AxisCandidate>& found) const {
    const auto from = static_cast<std::ptrdiff_t>(placed(0).dim);
    const DimVector& sizes = inputs_[0].sizes;
    const int64_t before =
        std::accumulate(sizes.begin(), sizes.begin() + from, int64_t{1}, std::multiplies<>());
    int64_t prefix = 1;
    for (size_t dim = 0; dim < outputs_[0].sizes.size(); ++dim) {
      if (prefix == before && outputs_[0].sizes[dim] > 1) {
        AxisCandidate candidate;
        candidate.inputs.push_back(placed(0));
        candidate.outputs.push_back(Placement::shard(static_cast<int32_t>(dim)));
        add(std::move(candidate), found);
      }
      prefix *= outputs_[0].sizes[dim];
    }
  }

  const Op& op_;
  Args args_;
  const std::vector<RuleInput>& inputs_;
  const std::vector<TensorSpec>& outputs_;
  const DeviceMesh& mesh_;
  int axis_;
};
}  // namespace

bool is_drawn_by_box(const Op& op) {
  return op.schema().index_of("global_sizes") && op.schema().index_of("box_start");
}

std::vector<AxisCandidate> axis_candidates(const Op& op, Args args,
                                           const std::vector<RuleInput>& inputs,
                                           const std::vector<TensorSpec>& outputs,
                                           const DeviceMesh& mesh, int axis) {
  return AxisRules(op, args, inputs, outputs, mesh, axis).all();
}
}  // namespace muster
