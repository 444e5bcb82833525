#include "core/autograd/engine.h"

#include <algorithm>
#include <atomic>
#include <queue>
#include <unordered_map>

#include "core/autograd/autograd_meta.h"
#include "core/dispatch/op_table.h"

namespace muster {
namespace {
// One node of one pass.
struct Task {
  int dependencies = 0;
  bool needed = true;  // on a path to a capture
  GradList grads;
  std::vector<std::pair<uint32_t, size_t>> captures;  // (input_nr, index in the result)
};

struct ReadyOrder {
  bool operator()(const Node* a, const Node* b) const { return a->sequence() < b->sequence(); }
};

class Pass {
 public:
  Pass(std::span<const Edge> roots, std::span<const Edge> captures, EngineOptions options)
      : options_(options), restricted_(!captures.empty()), captured_(captures.size()) {
    count_dependencies(roots);
    for (size_t i = 0; i < captures.size(); ++i) {
      const auto found = tasks_.find(captures[i].node.get());
      if (found != tasks_.end()) found->second.captures.emplace_back(captures[i].input_nr, i);
    }
    if (restricted_) mark_needed(roots);
  }

  std::vector<Tensor> run(std::span<const Edge> roots, GradList grads) {
    for (size_t i = 0; i < roots.size(); ++i) deliver(roots[i], std::move(grads[i]));
    for (const Edge& root : roots) {
      Task& task = tasks_[root.node.get()];
      if (task.dependencies == 0 && task.needed && !std::exchange(queued_[root.node.get()], true)) {
        ready_.push(root.node.get());
      }
    }
    while (!ready_.empty()) {
      Node* node = ready_.top();
      ready_.pop();
      run_node(*node);
    }
    while (!callbacks_.empty()) {
      const std::vector<std::function<void()>> now = std::exchange(callbacks_, {});
      for (const auto& callback : now) callback();
    }
    return std::move(captured_);
  }

  void add_callback(std::function<void()> callback) { callbacks_.push_back(std::move(callback)); }
  [[nodiscard]] uint64_t id() const noexcept { return id_; }

 private:
  static uint64_t next_id() noexcept {
    static std::atomic<uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
  }

  void count_dependencies(std::span<const Edge> roots) {
    std::vector<Node*> stack;
    for (const Edge& root : roots) {
      if (tasks_.try_emplace(root.node.get()).second) stack.push_back(root.node.get());
    }
    while (!stack.empty()) {
      Node* node = stack.back();
      stack.pop_back();
      order_.push_back(node);
      for (const Edge& edge : node->next_edges()) {
        if (!edge.is_valid()) continue;
        const auto [found, is_new] = tasks_.try_emplace(edge.node.get());
        ++found->second.dependencies;
        if (is_new) stack.push_back(edge.node.get());
      }
    }
  }

  // A node is needed when it is captured or some successor is; successors are older, and leaves
  // last.
  void mark_needed(std::span<const Edge> roots) {
    static_cast<void>(roots);
    std::vector<std::pair<Node*, size_t>> stack;
    std::unordered_map<Node*, bool> visited;
    for (Node* start : order_) {
      if (visited[start]) continue;
      visited[start] = true;
      stack.emplace_back(start, 0);
      while (!stack.empty()) {
        auto& [node, next] = stack.back();
        if (next < node->next_edges().size()) {
          Node* child = node->next_edges()[next++].node.get();
          if (child != nullptr && !std::exchange(visited[child], true))
            stack.emplace_back(child, 0);
          continue;
        }
        Task& task = tasks_[node];
        task.needed = !task.captures.empty();
        for (const Edge& edge : node->next_edges()) {
          if (edge.is_valid() && tasks_[edge.node.get()].needed) task.needed = true;
        }
        stack.pop_back();
      }
    }
  }

  void deliver(const Edge& edge, Tensor grad) {
    Task& task = tasks_[edge.node.get()];
    if (task.grads.empty()) task.grads.resize(edge.node->num_outputs());
    if (!grad.defined()) return;
    Tensor& slot = task.grads[edge.input_nr];
    if (!slot.defined()) {
      slot = std::move(grad);
      return;
    }
    // In place only where nobody else can see the buffer.
    const bool is_private = !options_.create_graph && slot.ref()->use_count() == 1 &&
                            slot.storage()->use_count() == 1 && !slot.is_view() &&
                            is_non_overlapping_and_dense(slot.sizes(), slot.strides());
    static const Op& add = op_table().find("add");
    static const Op& add_in_place = op_table().find("add_");
    if (is_private && slot.dtype() == grad.dtype()) {
      call_one(add_in_place, slot, grad, 1);
    } else {
      slot = call_one(add, slot, grad, 1);
    }
  }

  // Reduces broadcast dims, checks sizes, casts dtype.
  Tensor validated(const Node& from, const Edge& edge, size_t index, Tensor grad) {
    const GradMetadata& wanted = edge.node->output(edge.input_nr);
    const bool same = std::equal(wanted.sizes.begin(), wanted.sizes.end(), grad.sizes().begin(),
                                 grad.sizes().end());
    if (!same) {
      MUSTER_CHECK(is_expandable_to(wanted.sizes, grad.sizes()), ErrorCode::kInternal,
                   "{} returned an invalid gradient at index {}: got {} but expected sizes {}",
                   from.name(), index, grad, to_string(Dims(wanted.sizes)));
      static const Op& sum_to_size = op_table().find("sum_to_size");
      grad = call_one(sum_to_size, grad, wanted.sizes);
    }
    if (grad.dtype() != wanted.dtype) {
      static const Op& to = op_table().find("to");
      grad = call_one(to, grad, wanted.dtype);
    }
    return grad;
  }

  void run_node(Node& node) {
    // The node must outlive its own run: releasing saved tensors can drop the last outside
    // reference.
    const Ref<Node> keep(&node);
    Task task = std::move(tasks_[&node]);
    if (task.grads.empty()) task.grads.resize(node.num_outputs());
    node.run_tensor_hooks(task.grads);
    for (const auto& [input_nr, result] : task.captures) captured_[result] = task.grads[input_nr];
    const bool only_captured = restricted_ && node.sequence() == UINT64_MAX;
    const bool has_needed_child =
        !restricted_ ||
        std::any_of(node.next_edges().begin(), node.next_edges().end(), [&](const Edge& edge) {
          return edge.is_valid() && tasks_[edge.node.get()].needed;
        });
    GradList results;
    if (!only_captured && has_needed_child) {
      const GradList seen = node.has_post_hooks() ? task.grads : GradList();
      results = node.apply(std::move(task.grads), options_.create_graph);
      if (node.has_post_hooks()) node.run_post_hooks(results, seen);
      if (!options_.keep_graph) node.release_saved();
    }
    task.grads.clear();
    for (size_t i = 0; i < node.next_edges().size(); ++i) {
      const Edge& edge = node.next_edges()[i];
      if (!edge.is_valid()) continue;
      Task& next = tasks_[edge.node.get()];
      if (next.needed && i < results.size() && results[i].defined()) {
        deliver(edge, validated(node, edge, i, std::move(results[i])));
      }
      if (--next.dependencies == 0 && next.needed) ready_.push(edge.node.get());
    }
  }

  const uint64_t id_ = next_id();
  EngineOptions options_;
  bool restricted_;
  std::vector<Tensor> captured_;
  std::unordered_map<Node*, Task> tasks_;
  std::unordered_map<Node*, bool> queued_;
  std::vector<Node*> order_;
  std::priority_queue<Node*, std::vector<Node*>, ReadyOrder> ready_;
  std::vector<std::function<void()>> callbacks_;
};

thread_local Pass* current_pass = nullptr;
}  // namespace

std::vector<Tensor> run_engine(std::span<const Edge> roots, GradList root_grads,
                               std::span<const Edge> captures, EngineOptions options) {
  Pass pass(roots, captures, options);
  const GradModeGuard mode(options.create_graph);
  // Gradients have the dtypes of the forward pass already; casting again would change them.
  const ExcludeKeysGuard outside_autocast(DispatchKey::kAutocast);
  struct Current {
    Pass* previous;
    explicit Current(Pass* now) : previous(std::exchange(current_pass, now)) {}
    ~Current() { current_pass = previous; }
  } current(&pass);
  return pass.run(roots, std::move(root_grads));
}

uint64_t current_backward_pass() noexcept {
  return current_pass != nullptr ? current_pass->id() : 0;
}

bool add_engine_callback(std::function<void()> callback) {
  if (current_pass == nullptr) return false;
  current_pass->add_callback(std::move(callback));
  return true;
}
}  // namespace muster
