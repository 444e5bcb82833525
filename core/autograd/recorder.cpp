#include "core/autograd/recorder.h"

#include <algorithm>

#include "core/autograd/copy_slices.h"
#include "core/autograd/op_node.h"

namespace muster {
namespace {
constexpr DispatchKeySet kBelow = DispatchKeySet::below(DispatchKey::kAutograd);

bool wants_gradient(Args args) {
  return std::any_of(args.begin(), args.end(), [](const Value& value) {
    if (value.is_tensor()) return value.tensor().requires_grad();
    if (!value.is_tensor_list()) return false;
    const auto list = value.tensors();
    return std::any_of(list.begin(), list.end(), [](const Tensor& tensor) {
      return tensor.defined() && tensor.requires_grad();
    });
  });
}

void check_in_place(const Op& op, const Tensor& self) {
  const bool is_leaf = self.requires_grad() && !current_grad_fn(self);
  MUSTER_CHECK(
      !is_leaf || self.is_view(), ErrorCode::kFailedPrecondition,
      "{}: a leaf Variable that requires grad is being used in an in-place operation; got {}\n"
      "  fix: do it under NoGradGuard, or on a clone",
      op.name(), self);
  if (!self.is_view()) return;
  const Tensor base{self.impl()->base};
  MUSTER_CHECK(!base.requires_grad() || current_grad_fn(base), ErrorCode::kFailedPrecondition,
               "{}: a view of a leaf Variable that requires grad is being used in an in-place "
               "operation; got a view {} "
               "of {}",
               op.name(), self, base);
  const char* origin = nullptr;
  if (self.impl()->creation == ViewCreation::kMultiOutput)
    origin = "an operator with several outputs (unbind, split, chunk)";
  if (self.impl()->creation == ViewCreation::kNoGrad) origin = "no_grad mode";
  if (self.impl()->creation == ViewCreation::kCustomFunction) origin = "a custom Function";
  MUSTER_CHECK(
      origin == nullptr, ErrorCode::kFailedPrecondition,
      "{}: a view that was created by {} is being modified inplace with grad mode enabled; got {}\n"
      "  fix: clone() the view, or write out of place",
      op.name(), origin == nullptr ? "" : origin, self);
}

// Self was written: its history, or its base's, now ends in `node`.
void rebase_history(const Tensor& self, const Ref<OpNode>& node) {
  if (!self.is_view()) {
    AutogradMeta& meta = meta_of(self.impl());
    set_history(self, node, 0);
    ++meta.history_version;
    if (meta.retained) node->retain_output_grad(0, meta.retained);
    return;
  }
  const Tensor base{self.impl()->base};
  auto slices = make_ref<CopySlices>(base, self, node);
  set_history(base, slices, 0);
  ++meta_of(base.impl()).history_version;
  // The view's own history follows from the base's at its next use.
}

void record(const Op& op, Args args, std::span<Tensor> outs) {
  const OpDef::Facts& facts = op.facts();
  if (op.writes_self()) check_in_place(op, args[0].tensor());
  if (!wants_gradient(args)) return op.redispatch(kBelow, args, outs);
  if (facts.derivative == nullptr) {
    MUSTER_CHECK(!op.writes_self() || !args[0].tensor().requires_grad(),
                 ErrorCode::kFailedPrecondition,
                 "{}: it has no derivative ({}) and would overwrite {} that requires a gradient",
                 op.name(), facts.no_derivative_because, args[0].tensor());
    return op.redispatch(kBelow, args, outs);
  }
  const Ref<OpNode> node = OpNode::make(op, args);
  op.redispatch(kBelow, args, outs);
  node->record_outputs(outs);
  if (op.writes_self()) {
    MUSTER_CHECK(is_floating(outs[0].dtype()), ErrorCode::kInvalidArgument,
                 "{}: only floating tensors can carry a gradient; got {}", op.name(), outs[0]);
    return rebase_history(outs[0], node);
  }
  for (size_t i = 0; i < outs.size(); ++i) {
    if (is_floating(outs[i].dtype())) set_history(outs[i], node, static_cast<uint32_t>(i));
  }
}

void autograd_handler(const Op& op, Args args, std::span<Tensor> outs) {
  if (!grad_enabled()) return op.redispatch(kBelow, args, outs);
  record(op, args, outs);
}
}  // namespace

void install_autograd() { set_key_handler(DispatchKey::kAutograd, autograd_handler); }
}  // namespace muster
