#pragma once
/// What autograd keeps of one tensor: its gradient, its place in the graph, its accumulator.
///
/// A leaf owns its accumulator and the accumulator knows the leaf only weakly, so that a gradient
/// with history (create_graph) closes no cycle. Internal to core/autograd; users call autograd.h.

#include "core/autograd/node.h"

namespace muster {

/// The end of the tape at a leaf: adds what arrives to the leaf's gradient.
class AccumulateGrad final : public Node {
 public:
  explicit AccumulateGrad(TensorImpl* leaf);
  GradList apply(GradList&& grads, bool create_graph) override;
  [[nodiscard]] std::string name() const override { return "AccumulateGrad"; }

  /// The leaf, or null when it is gone.
  [[nodiscard]] TensorImpl* leaf() const noexcept { return leaf_; }
  void forget_leaf() noexcept { leaf_ = nullptr; }
  /// Runs with the leaf after each accumulation, in no_grad unless create_graph.
  HookHandle add_post_accumulate_hook(std::function<void(const Tensor& leaf)> hook);

 private:
  TensorImpl* leaf_;
  std::vector<std::pair<std::function<void(const Tensor&)>, std::shared_ptr<bool>>> hooks_;
};

struct AutogradMeta final : AutogradMetaBase {
  ~AutogradMeta() override;

  Tensor grad;  ///< leaves only
  bool leaf_requires_grad = false;
  Ref<Node> grad_fn;                ///< null for a leaf
  uint32_t output_nr = 0;           ///< which output of grad_fn
  Ref<AccumulateGrad> accumulator;  ///< made on first use
  Ref<RetainedGrad> retained;
  /// Counts replacements of a base's history by in-place writes through it or its views.
  uint32_t history_version = 0;
  /// For a view: the base's history_version that grad_fn reflects.
  uint32_t seen_history = 0;
};

/// The metadata of a tensor; null when it has none.
inline AutogradMeta* meta_or_null(const TensorImpl* impl) noexcept {
  return static_cast<AutogradMeta*>(impl->autograd.get());
}
/// The metadata of a tensor, made if absent.
AutogradMeta& meta_of(TensorImpl* impl);

/// Where the gradient of `tensor` goes: (grad_fn, output) or the leaf's accumulator; invalid if no
/// gradient is wanted. Rebuilds the history of a view whose base was written in place.
Edge gradient_edge(const Tensor& tensor);

/// The current grad_fn of `tensor` (null for leaves), after the same rebuilding.
Ref<Node> current_grad_fn(const Tensor& tensor);

/// Makes `tensor` output `output_nr` of `node`.
void set_history(const Tensor& tensor, Ref<Node> node, uint32_t output_nr);

}  // namespace muster
