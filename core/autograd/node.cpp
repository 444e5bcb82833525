#include "core/autograd/node.h"

namespace muster {
namespace {
uint64_t next_sequence() noexcept {
  thread_local uint64_t sequence = 0;
  return sequence++;
}

// Nodes whose last reference may have gone while another node is being destroyed on this thread.
struct Teardown {
  bool running = false;
  std::vector<Ref<Node>> pending;
};
Teardown& teardown() noexcept {
  thread_local Teardown state;
  return state;
}

template <typename Entries>
void erase_removed(Entries& entries) {
  std::erase_if(entries, [](const auto& entry) { return !*entry.alive; });
}
}  // namespace

Node::Node() : sequence_(next_sequence()) {}

Node::~Node() {
  for (Edge& edge : next_edges_) release_node(std::move(edge.node));
}

void release_node(Ref<Node>&& node) noexcept {
  if (!node) return;
  Teardown& state = teardown();
  if (state.running) {
    state.pending.push_back(std::move(node));
    return;
  }
  state.running = true;
  node.reset();
  while (!state.pending.empty()) {
    const Ref<Node> next = std::move(state.pending.back());
    state.pending.pop_back();
  }
  state.running = false;
}

Node::Hooks& Node::hooks() {
  if (!hooks_) hooks_ = std::make_unique<Hooks>();
  return *hooks_;
}

HookHandle Node::add_tensor_hook(uint32_t output_nr, TensorHook hook) {
  auto alive = std::make_shared<bool>(true);
  hooks().on_tensor.push_back({output_nr, std::move(hook), alive});
  return HookHandle(std::move(alive));
}

HookHandle Node::add_post_hook(PostHook hook) {
  auto alive = std::make_shared<bool>(true);
  hooks().post.push_back({std::move(hook), alive});
  return HookHandle(std::move(alive));
}

void Node::retain_output_grad(uint32_t output_nr, Ref<RetainedGrad> slot) {
  hooks().retained.emplace_back(output_nr, std::move(slot));
}

void Node::run_tensor_hooks(GradList& grads) {
  if (!hooks_) return;
  erase_removed(hooks_->on_tensor);
  // A copy: a hook may register or remove hooks; those count from the next pass on.
  const std::vector<Hooks::OnTensor> entries = hooks_->on_tensor;
  for (const Hooks::OnTensor& entry : entries) {
    Tensor& grad = grads[entry.output_nr];
    if (!grad.defined()) continue;
    Tensor replaced = entry.hook(grad);
    if (replaced.defined()) grad = std::move(replaced);
  }
  for (auto& [output_nr, slot] : hooks_->retained) slot->grad = grads[output_nr];
}

void Node::run_post_hooks(const GradList& grad_inputs, const GradList& grad_outputs) {
  if (!hooks_) return;
  erase_removed(hooks_->post);
  const std::vector<Hooks::AfterNode> entries = hooks_->post;
  for (const Hooks::AfterNode& entry : entries) entry.hook(grad_inputs, grad_outputs);
}
}  // namespace muster
