#pragma once
/// Gradients for users: requires_grad, backward, grad, hooks.
///
/// The tape is what the calls of this pass recorded; backward walks it in reverse on the calling
/// thread, latest call first. Names and meaning follow PyTorch; errors say what was asked, what was
/// found and what to do. @source torch.autograd of PyTorch 2.13

#include <functional>
#include <span>
#include <vector>

#include "core/autograd/node.h"
#include "core/dispatch/mode.h"

namespace muster {

/// Makes `tensor` a leaf whose gradient is wanted (or no longer wanted) and returns it.
/// @error kInvalidArgument for a dtype that is not floating; kFailedPrecondition to clear it on a
/// non-leaf
Tensor requires_grad_(const Tensor& tensor, bool requires_grad = true);

/// True for tensors that no recorded call made.
bool is_leaf(const Tensor& tensor);
/// The node that made `tensor`; null for leaves.
Ref<Node> grad_fn(const Tensor& tensor);
/// The accumulated gradient: of a leaf, or of a non-leaf after retain_grad(). Undefined if none.
Tensor grad_of(const Tensor& tensor);
/// Replaces the accumulated gradient; an undefined tensor clears it.
/// @error kInvalidArgument when sizes or dtype differ from the tensor's
void set_grad(const Tensor& tensor, Tensor grad);
/// Keeps the gradient of a non-leaf when backward passes it.
void retain_grad(const Tensor& tensor);

struct BackwardOptions {
  /// Keeps saved values, so that the graph can be walked again.
  bool retain_graph = false;
  /// Records the backward pass itself, for higher derivatives; implies retain_graph.
  bool create_graph = false;
};

/// Adds d(root)/d(leaf) to the gradient of every leaf that wants one.
/// @shape a root has one element unless `grad` is given, which then has the sizes of root
/// @error kFailedPrecondition root wants no gradient, has several elements and no grad, or its
/// graph was freed
void backward(const Tensor& root, const Tensor& grad = {}, BackwardOptions options = {});
void backward(std::span<const Tensor> roots, std::span<const Tensor> grads,
              BackwardOptions options = {});

struct GradOptions {
  bool retain_graph = false;
  bool create_graph = false;
  /// An input that does not take part gives an undefined gradient instead of an error.
  bool allow_unused = false;
};

/// The gradients of sum(outputs * grad_outputs) for `inputs`, without touching any accumulated one.
/// Only nodes on paths to the inputs run. An empty `grad_outputs` means ones for scalars.
/// @error kFailedPrecondition an input does not take part and allow_unused is false
std::vector<Tensor> grad(std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                         std::span<const Tensor> grad_outputs = {}, GradOptions options = {});

/// Sees (and may replace) the gradient of `tensor` each time it is computed.
/// @error kFailedPrecondition the tensor wants no gradient
HookHandle register_hook(const Tensor& tensor, TensorHook hook);
/// Runs with the leaf after its gradient was accumulated; may change both.
/// @error kFailedPrecondition not a leaf that wants a gradient
HookHandle register_post_accumulate_grad_hook(const Tensor& leaf,
                                              std::function<void(const Tensor&)> hook);
/// Runs when the backward pass that is under way on this thread has drained.
/// @error kFailedPrecondition outside of a backward pass
void queue_callback(std::function<void()> callback);

}  // namespace muster
