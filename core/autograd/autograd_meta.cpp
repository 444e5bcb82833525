#include "core/autograd/autograd_meta.h"

#include <limits>

#include "core/autograd/op_node.h"
#include "core/dispatch/op_table.h"

namespace muster {
namespace {
// A gradient keeps the strides of a dense leaf, and is row-major otherwise (the layout contract).
bool has_contract_layout(const Tensor& grad, const TensorImpl& leaf) {
  if (!is_non_overlapping_and_dense(leaf.sizes, leaf.strides)) return grad.is_contiguous();
  return std::equal(leaf.strides.begin(), leaf.strides.end(), grad.strides().begin(),
                    grad.strides().end()) ||
         (leaf.is_contiguous && grad.is_contiguous());
}

Tensor clone_into_contract_layout(const Tensor& grad, const TensorImpl& leaf) {
  // How the pieces of a DTensor lie in memory is not told by its strides.
  const bool is_wrapper = grad.impl()->keys_own.has(DispatchKey::kDTensor);
  if (is_wrapper || has_contract_layout(grad, leaf)) {
    static const Op& clone = op_table().find("clone");
    return call_one(clone, grad);
  }
  TensorSpec spec = TensorSpec::contiguous(leaf.sizes, grad.dtype(), grad.device());
  if (is_non_overlapping_and_dense(leaf.sizes, leaf.strides)) spec.strides = leaf.strides;
  static const Op& copy = op_table().find("copy_");
  Tensor out = empty_from_spec(spec);
  call_one(copy, out, grad, false);
  return out;
}
}  // namespace

AccumulateGrad::AccumulateGrad(TensorImpl* leaf)
    : Node(std::numeric_limits<uint64_t>::max()), leaf_(leaf) {
  add_output({leaf->sizes, leaf->dtype});
}

HookHandle AccumulateGrad::add_post_accumulate_hook(std::function<void(const Tensor&)> hook) {
  auto alive = std::make_shared<bool>(true);
  hooks_.emplace_back(std::move(hook), alive);
  return HookHandle(std::move(alive));
}

GradList AccumulateGrad::apply(GradList&& grads, bool create_graph) {
  if (leaf_ == nullptr || !grads[0].defined()) return {};
  const Tensor leaf{Ref<TensorImpl>(leaf_)};
  AutogradMeta& meta = meta_of(leaf_);
  Tensor& grad = grads[0];
  if (!meta.grad.defined()) {
    const bool stealable = !create_graph && grad.ref()->use_count() == 1 &&
                           grad.storage()->use_count() == 1 && !grad.is_view() &&
                           has_contract_layout(grad, *leaf_);
    meta.grad = stealable ? std::move(grad) : clone_into_contract_layout(grad, *leaf_);
  } else if (create_graph) {
    static const Op& add = op_table().find("add");
    meta.grad = call_one(add, meta.grad, grad, 1);
  } else {
    static const Op& add_in_place = op_table().find("add_");
    call_one(add_in_place, meta.grad, grad, 1);
  }
  if (!hooks_.empty()) {
    const GradModeGuard mode(create_graph);
    std::erase_if(hooks_, [](const auto& entry) { return !*entry.second; });
    const auto entries = hooks_;
    for (const auto& entry : entries) entry.first(leaf);
  }
  return {};
}

AutogradMeta::~AutogradMeta() {
  if (accumulator && accumulator->leaf() != nullptr && meta_or_null(accumulator->leaf()) == this) {
    accumulator->forget_leaf();
  }
  release_node(std::move(grad_fn));
  release_node(Ref<Node>(std::move(accumulator)));
}

AutogradMeta& meta_of(TensorImpl* impl) {
  if (!impl->autograd) impl->autograd = std::make_unique<AutogradMeta>();
  return *meta_or_null(impl);
}

void set_history(const Tensor& tensor, Ref<Node> node, uint32_t output_nr) {
  AutogradMeta& meta = meta_of(tensor.impl());
  release_node(std::move(meta.grad_fn));
  meta.grad_fn = std::move(node);
  meta.output_nr = output_nr;
  meta.leaf_requires_grad = false;
  if (tensor.impl()->base) {
    const AutogradMeta* base = meta_or_null(tensor.impl()->base.get());
    meta.seen_history = base != nullptr ? base->history_version : 0;
  }
  tensor.impl()->keys_own |= DispatchKey::kAutograd;
}

namespace {
// A view whose base got another history since: its gradient is an as_strided piece of the base's.
void rebuild_view_history(const Tensor& view) {
  TensorImpl* impl = view.impl();
  if (!impl->base) return;
  const AutogradMeta* base_meta = meta_or_null(impl->base.get());
  const uint32_t base_history = base_meta != nullptr ? base_meta->history_version : 0;
  const AutogradMeta* meta = meta_or_null(impl);
  if (base_history == (meta != nullptr ? meta->seen_history : 0)) return;
  static const Op& as_strided = op_table().find("as_strided_relative");
  const Tensor base{impl->base};
  const Value args[] = {base, impl->sizes, impl->strides, impl->offset - base.storage_offset()};
  const Ref<OpNode> node = OpNode::make(as_strided, args);
  node->add_output({impl->sizes, impl->dtype});
  set_history(view, node, 0);
}
}  // namespace

Ref<Node> current_grad_fn(const Tensor& tensor) {
  rebuild_view_history(tensor);
  const AutogradMeta* meta = meta_or_null(tensor.impl());
  return meta != nullptr ? meta->grad_fn : Ref<Node>();
}

Edge gradient_edge(const Tensor& tensor) {
  if (!tensor.requires_grad()) return {};
  rebuild_view_history(tensor);
  AutogradMeta& meta = meta_of(tensor.impl());
  if (meta.grad_fn) return {meta.grad_fn, meta.output_nr};
  if (!meta.accumulator) meta.accumulator = make_ref<AccumulateGrad>(tensor.impl());
  return {meta.accumulator, 0};
}
}  // namespace muster
