#include "core/autograd/autograd.h"

#include "core/autograd/autograd_meta.h"
#include "core/autograd/engine.h"
#include "core/dispatch/op_table.h"
#include "core/tensor/wrapper_hooks.h"

namespace muster {
namespace {
// The gradient to start from: given, or 1 for a root of one element.
Tensor root_gradient(const Tensor& root, const Tensor& grad) {
  if (grad.defined()) {
    MUSTER_CHECK(std::equal(grad.sizes().begin(), grad.sizes().end(), root.sizes().begin(),
                            root.sizes().end()),
                 ErrorCode::kInvalidArgument,
                 "backward: grad must have the sizes of its output; got {} for {}", grad, root);
    return grad;
  }
  MUSTER_CHECK(root.numel() == 1, ErrorCode::kFailedPrecondition,
               "backward: grad can be implicitly created only for scalar outputs; got {}", root);
  static const Op& fill = op_table().find("fill_");
  const Tensor one =
      empty_from_spec(TensorSpec::contiguous(root.sizes(), root.dtype(), root.device()));
  call_one(fill, one, 1.0);
  return as_constant_beside(one, root);
}

std::vector<Edge> root_edges(std::span<const Tensor> roots) {
  std::vector<Edge> edges;
  for (const Tensor& root : roots) {
    MUSTER_CHECK(root.defined() && root.requires_grad(), ErrorCode::kFailedPrecondition,
                 "backward: the output does not require grad and does not have a grad_fn; got {}",
                 root);
    edges.push_back(gradient_edge(root));
  }
  return edges;
}

GradList root_gradients(std::span<const Tensor> roots, std::span<const Tensor> grads) {
  MUSTER_CHECK(grads.empty() || grads.size() == roots.size(), ErrorCode::kInvalidArgument,
               "backward: one grad for each output, or none; got {} for {} outputs", grads.size(),
               roots.size());
  GradList list;
  for (size_t i = 0; i < roots.size(); ++i) {
    list.push_back(root_gradient(roots[i], grads.empty() ? Tensor() : grads[i]));
  }
  return list;
}
}  // namespace

Tensor requires_grad_(const Tensor& tensor, bool requires_grad) {
  MUSTER_CHECK(!requires_grad || is_floating(tensor.dtype()), ErrorCode::kInvalidArgument,
               "requires_grad_: only tensors of floating point dtype can require gradients; got {}",
               tensor);
  TensorImpl* impl = tensor.impl();
  AutogradMeta& meta = meta_of(impl);
  if (meta.grad_fn) {
    MUSTER_CHECK(requires_grad, ErrorCode::kFailedPrecondition,
                 "requires_grad_: you can only change requires_grad flags of leaf variables; got "
                 "{} made by {}\n"
                 "  fix: use detach()",
                 tensor, meta.grad_fn->name());
    return tensor;
  }
  meta.leaf_requires_grad = requires_grad;
  if (requires_grad) {
    MUSTER_CHECK(!impl->is_inference || thread_modes().inference, ErrorCode::kFailedPrecondition,
                 "requires_grad_: an inference tensor cannot require gradients outside inference "
                 "mode; got {}",
                 tensor);
    impl->keys_own |= DispatchKey::kAutograd;
  } else {
    impl->keys_own = impl->keys_own - DispatchKey::kAutograd;
  }
  return tensor;
}

bool is_leaf(const Tensor& tensor) { return !current_grad_fn(tensor); }
Ref<Node> grad_fn(const Tensor& tensor) { return current_grad_fn(tensor); }

Tensor grad_of(const Tensor& tensor) {
  const AutogradMeta* meta = meta_or_null(tensor.impl());
  if (meta == nullptr) return {};
  return meta->grad.defined() || !meta->retained ? meta->grad : meta->retained->grad;
}

void set_grad(const Tensor& tensor, Tensor grad) {
  if (grad.defined()) {
    MUSTER_CHECK(std::equal(grad.sizes().begin(), grad.sizes().end(), tensor.sizes().begin(),
                            tensor.sizes().end()) &&
                     grad.dtype() == tensor.dtype(),
                 ErrorCode::kInvalidArgument,
                 "set_grad: a gradient has the sizes and dtype of its tensor; got {} for {}", grad,
                 tensor);
  } else if (meta_or_null(tensor.impl()) == nullptr) {
    return;
  }
  meta_of(tensor.impl()).grad = std::move(grad);
}

void retain_grad(const Tensor& tensor) {
  MUSTER_CHECK(tensor.requires_grad(), ErrorCode::kFailedPrecondition,
               "retain_grad: the tensor must require a gradient; got {}", tensor);
  const Edge edge = gradient_edge(tensor);
  AutogradMeta& meta = meta_of(tensor.impl());
  if (!meta.grad_fn || meta.retained) return;
  meta.retained = make_ref<RetainedGrad>();
  edge.node->retain_output_grad(edge.input_nr, meta.retained);
}

void backward(std::span<const Tensor> roots, std::span<const Tensor> grads,
              BackwardOptions options) {
  const std::vector<Edge> edges = root_edges(roots);
  run_engine(edges, root_gradients(roots, grads), {},
             {.keep_graph = options.retain_graph || options.create_graph,
              .create_graph = options.create_graph});
}

void backward(const Tensor& root, const Tensor& grad, BackwardOptions options) {
  backward(std::span(&root, 1), grad.defined() ? std::span(&grad, 1) : std::span<const Tensor>(),
           options);
}

std::vector<Tensor> grad(std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                         std::span<const Tensor> grad_outputs, GradOptions options) {
  const std::vector<Edge> roots = root_edges(outputs);
  std::vector<Edge> captures;
  for (const Tensor& input : inputs) {
    MUSTER_CHECK(input.defined() && input.requires_grad(), ErrorCode::kFailedPrecondition,
                 "grad: one of the inputs does not require grad; got {}", input);
    captures.push_back(gradient_edge(input));
  }
  std::vector<Tensor> result =
      run_engine(roots, root_gradients(outputs, grad_outputs), captures,
                 {.keep_graph = options.retain_graph || options.create_graph,
                  .create_graph = options.create_graph});
  for (size_t i = 0; i < inputs.size(); ++i) {
    MUSTER_CHECK(result[i].defined() || options.allow_unused, ErrorCode::kFailedPrecondition,
                 "grad: input {} ({}) appears to not have been used in the graph\n"
                 "  fix: set allow_unused if this is wanted",
                 i, inputs[i]);
  }
  return result;
}

HookHandle register_hook(const Tensor& tensor, TensorHook hook) {
  MUSTER_CHECK(
      tensor.requires_grad(), ErrorCode::kFailedPrecondition,
      "register_hook: cannot register a hook on a tensor that doesn't require gradient; got {}",
      tensor);
  const Edge edge = gradient_edge(tensor);
  return edge.node->add_tensor_hook(edge.input_nr, std::move(hook));
}

HookHandle register_post_accumulate_grad_hook(const Tensor& leaf,
                                              std::function<void(const Tensor&)> hook) {
  MUSTER_CHECK(
      leaf.requires_grad() && is_leaf(leaf), ErrorCode::kFailedPrecondition,
      "register_post_accumulate_grad_hook: only leaf tensors that require a gradient; got {}",
      leaf);
  const Edge edge = gradient_edge(leaf);
  return static_cast<AccumulateGrad*>(edge.node.get())->add_post_accumulate_hook(std::move(hook));
}

void queue_callback(std::function<void()> callback) {
  MUSTER_CHECK(add_engine_callback(std::move(callback)), ErrorCode::kFailedPrecondition,
               "queue_callback: only inside a backward pass");
}
}  // namespace muster
