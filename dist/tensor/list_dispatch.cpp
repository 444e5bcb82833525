#include "dist/tensor/list_dispatch.h"

#include <algorithm>
#include <deque>

#include "core/dispatch/mode.h"
#include "core/ops/ops.h"
#include "dist/tensor/redistribute_local.h"

namespace muster {
namespace {
using Tensors = std::span<const Tensor>;

bool is_open(const DTensorSpec& spec) {
  return std::any_of(spec.placements.begin(), spec.placements.end(),
                     [](Placement placement) { return placement.is_partial(); });
}

// Shares of a sum or of an average may be scaled one by one.
bool may_be_scaled(const DTensorSpec& spec) {
  return std::all_of(spec.placements.begin(), spec.placements.end(), [](Placement placement) {
    return !placement.is_partial() || placement.op == PartialOp::kSum ||
           placement.op == PartialOp::kAvg;
  });
}

// One call on local tensors whose lists are `lists`, the other arguments as they are.
class LocalCall {
 public:
  explicit LocalCall(Args args) : values_(args.begin(), args.end()) {}
  void set_list(size_t argument, std::vector<Tensor> list) {
    lists_.push_back(std::move(list));
    values_[argument] = Value(Tensors(lists_.back()));
  }
  void run(const Op& op, std::span<Tensor> outs) {
    op.redispatch(DispatchKeySet::below(DispatchKey::kDTensor),
                  Args(values_.data(), values_.size()), outs);
  }

 private:
  std::deque<std::vector<Tensor>> lists_;
  std::vector<Value> values_;
};

// Brings the entries of one list beside those of the first.
class Update {
 public:
  Update(const Op& op, Args args) : op_(op), args_(args), first_(args[0].tensors()) {
    for (const Value& value : args) num_lists_ += value.is_tensor_list() ? 1 : 0;
  }

  void run() {
    LocalCall call(args_);
    for (size_t argument = 0; argument < args_.size(); ++argument) {
      if (args_[argument].is_tensor_list()) call.set_list(argument, locals_of(argument));
    }
    call.run(op_, {});
    for (const Tensor& moved : cleared_) fill_(moved, 0);
  }

 private:
  std::vector<Tensor> locals_of(size_t argument) {
    const Tensors list = args_[argument].tensors();
    MUSTER_CHECK(list.empty() || list.size() == first_.size(), ErrorCode::kInvalidArgument,
                 "{}: lists must have one entry per parameter; got {} for {} parameters",
                 op_.name(), list.size(), first_.size());
    std::vector<Tensor> locals;
    for (size_t i = 0; i < list.size(); ++i) locals.push_back(local_of(argument, i));
    return locals;
  }

  Tensor local_of(size_t argument, size_t i) {
    const Tensor& entry = args_[argument].tensors()[i];
    const std::string& list = op_.schema().arguments[argument].name;
    MUSTER_CHECK(is_dtensor(entry) == is_dtensor(first_[i]), ErrorCode::kInvalidArgument,
                 "{}: entry {} of {} is {}, beside {}\n  fix: make both DTensors, or both plain",
                 op_.name(), i, list, describe(entry), describe(first_[i]));
    if (!is_dtensor(entry)) return entry;
    const DTensorSpec& own = dtensor_spec(entry);
    const DTensorSpec& wanted = dtensor_spec(first_[i]);
    if (argument == 0) {
      MUSTER_CHECK(num_lists_ == 1 ? may_be_scaled(own) : !is_open(own),
                   ErrorCode::kInvalidArgument,
                   "{}: entry {} of {} is written, so it must hold values; got {}\n"
                   "  fix: redistribute it first",
                   op_.name(), i, list, own.describe());
      return local_tensor(entry);
    }
    MUSTER_CHECK(*own.mesh == *wanted.mesh && own.sizes == wanted.sizes,
                 ErrorCode::kInvalidArgument,
                 "{}: entry {} of {} must fit its parameter; got {} "
                 "and {}",
                 op_.name(), i, list, own.describe(), wanted.describe());
    const Tensor& local = local_tensor(entry);
    const Tensor moved = redistribute_local(local, own, wanted.placements);
    if (!moved.is_same(local)) check_written(argument, i, own, wanted, local);
    return moved;
  }

  // What is written must not be a copy; only a gradient that is cleared may be cleared apart.
  void check_written(size_t argument, size_t i, const DTensorSpec& own, const DTensorSpec& wanted,
                     const Tensor& local) {
    const Argument& list = op_.schema().arguments[argument];
    if (!list.is_write) return;
    const std::optional<size_t> clears = op_.schema().index_of("zero_grad");
    const bool is_gradient = clears && list.name == "grads";
    MUSTER_CHECK(is_gradient, ErrorCode::kInvalidArgument,
                 "{}: entry {} of {} is written, so it must lie as its parameter; got {} and {}",
                 op_.name(), i, list.name, own.describe(), wanted.describe());
    if (args_[*clears].boolean()) cleared_.push_back(local);
  }

  static std::string describe(const Tensor& tensor) {
    return is_dtensor(tensor) ? "a DTensor " + dtensor_spec(tensor).describe()
                              : "a plain tensor " + tensor.describe();
  }

  const Op& op_;
  Args args_;
  Tensors first_;
  size_t num_lists_ = 0;
  std::vector<Tensor> cleared_;
};

// What this rank counts of the tensors of one mesh.
struct MeshSum {
  MeshRef mesh;
  std::vector<const Tensor*> entries;
};

std::vector<MeshSum> by_mesh(Tensors list) {
  std::vector<MeshSum> sums;
  for (const Tensor& entry : list) {
    const MeshRef mesh = is_dtensor(entry) ? dtensor_spec(entry).mesh : nullptr;
    const auto same = [&](const MeshSum& sum) {
      return sum.mesh == mesh || (sum.mesh && mesh && *sum.mesh == *mesh);
    };
    auto at = std::find_if(sums.begin(), sums.end(), same);
    if (at == sums.end()) at = sums.insert(sums.end(), {mesh, {}});
    at->entries.push_back(&entry);
  }
  return sums;
}

Tensor local_sum(const Op& op, Args args, std::vector<Tensor> locals) {
  if (locals.empty()) return zeros({}, DType::kF64);
  LocalCall call(args);
  call.set_list(0, std::move(locals));
  Tensor total[1];
  call.run(op, total);
  return total[0];
}

Tensor sum_of(const Op& op, Args args, const MeshSum& part) {
  std::vector<Tensor> locals;
  if (!part.mesh) {  // plain: the same on all ranks
    for (const Tensor* entry : part.entries) locals.push_back(*entry);
    return local_sum(op, args, std::move(locals));
  }
  const auto num_axes = static_cast<size_t>(part.mesh->num_axes());
  // Closed reductions, and along which axes some entry is cut: no matter what this rank holds.
  std::vector<std::vector<Placement>> lies;
  std::vector<bool> is_cut(num_axes);
  for (const Tensor* entry : part.entries) {
    lies.push_back(dtensor_spec(*entry).placements);
    for (size_t axis = 0; axis < num_axes; ++axis) {
      if (lies.back()[axis].is_partial()) lies.back()[axis] = Placement::replicate();
      if (!lies.back()[axis].is_replicate()) is_cut[axis] = true;
    }
  }
  for (size_t i = 0; i < part.entries.size(); ++i) {
    const Tensor& entry = *part.entries[i];
    const Tensor local = redistribute_local(local_tensor(entry), dtensor_spec(entry), lies[i]);
    bool is_counted = true;
    for (size_t axis = 0; axis < num_axes; ++axis) {
      const bool is_replica = is_cut[axis] && lies[i][axis].is_replicate();
      if (is_replica && part.mesh->coordinate()[axis] != 0) is_counted = false;
    }
    if (is_counted) locals.push_back(local);
  }
  Tensor total = local_sum(op, args, std::move(locals));
  for (size_t axis = 0; axis < num_axes; ++axis) {
    if (is_cut[axis]) {
      total = reduce_partial(total, *part.mesh->group(static_cast<int>(axis)), PartialOp::kSum);
    }
  }
  return total;
}

Tensor sum_of_squares(const Op& op, Args args) {
  MeshRef mesh;
  Tensor total;
  for (const MeshSum& part : by_mesh(args[0].tensors())) {
    const Tensor own = sum_of(op, args, part);
    total = total.defined() ? add(total, own) : own;
    if (!mesh) mesh = part.mesh;
  }
  const auto num_axes = static_cast<size_t>(mesh->num_axes());
  return make_dtensor(total, {mesh, std::vector<Placement>(num_axes), DimVector(), DType::kF64});
}

bool is_update(const Op& op) {
  return op.schema().returns.empty() && op.schema().arguments[0].is_write;
}
}  // namespace

bool works_on_lists(const Op& op) {
  const Schema& schema = op.schema();
  if (schema.arguments.empty() || !schema.arguments[0].is_list) return false;
  return is_update(op) || op.name() == "foreach_sum_of_squares";
}

void dispatch_lists(const Op& op, Args args, std::span<Tensor> outs) {
  const NoGradGuard no_grad;
  if (is_update(op)) return Update(op, args).run();
  outs[0] = sum_of_squares(op, args);
}
}  // namespace muster
