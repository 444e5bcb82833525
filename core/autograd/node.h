#pragma once
/// Node: one recorded step of the tape; Edge: where a gradient goes next.
///
/// A node takes the gradients of the outputs of a call and gives those of its inputs. The graph is
/// acyclic and owned from the outputs: tensor -> grad_fn -> next edges -> ... Destruction never
/// recurses, whatever the depth.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/inlined_vector.h"
#include "core/dispatch/backward.h"

namespace muster {

class Node;

/// Input `input_nr` of `node`; a null node means that no gradient is wanted there.
struct Edge {
  Ref<Node> node;
  uint32_t input_nr = 0;
  [[nodiscard]] bool is_valid() const noexcept { return static_cast<bool>(node); }
};

/// Sizes and dtype that an incoming gradient must have after reduction; the engine enforces it.
struct GradMetadata {
  DimVector sizes;
  DType dtype = kDefaultDType;
};

/// Sees a gradient and may return another in its place; an undefined tensor means "unchanged".
/// Must not write into its argument.
using TensorHook = std::function<Tensor(const Tensor& grad)>;
/// Runs after a node, with the gradients it made and those it was given.
using PostHook = std::function<void(const GradList& grad_inputs, const GradList& grad_outputs)>;

/// Removes a hook; removal while the hook runs takes effect from the next pass on.
class HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(std::shared_ptr<bool> alive) : alive_(std::move(alive)) {}
  void remove() noexcept {
    if (alive_) *alive_ = false;
  }

 private:
  std::shared_ptr<bool> alive_;
};

/// Where retain_grad() leaves the gradient of a non-leaf tensor.
struct RetainedGrad : RefCounted {
  Tensor grad;
};

class Node : public RefCounted {
 public:
  Node();
  /// For nodes that must run as soon as they are ready (gradient accumulation).
  explicit Node(uint64_t sequence) : sequence_(sequence) {}
  ~Node() override;

  /// Gradients of the inputs from those of the outputs; undefined entries are zero gradients.
  virtual GradList apply(GradList&& grads, bool create_graph) = 0;
  /// "mul", "AccumulateGrad", ...
  [[nodiscard]] virtual std::string name() const = 0;
  /// Drops what was saved for backward; a later apply fails with the "second time" error.
  virtual void release_saved() noexcept {}

  [[nodiscard]] const auto& next_edges() const noexcept { return next_edges_; }
  void add_next_edge(Edge edge) { next_edges_.emplace_back(std::move(edge)); }
  void set_next_edge(size_t i, Edge edge) { next_edges_[i] = std::move(edge); }
  /// Position in recording order; later nodes run first.
  [[nodiscard]] uint64_t sequence() const noexcept { return sequence_; }

  /// One entry per output of the recorded call.
  [[nodiscard]] size_t num_outputs() const noexcept { return outputs_.size(); }
  [[nodiscard]] const GradMetadata& output(size_t i) const noexcept { return outputs_[i]; }
  void add_output(GradMetadata metadata) { outputs_.emplace_back(std::move(metadata)); }

  /// Hooks on the gradient of output `output_nr`, run in order of registration.
  HookHandle add_tensor_hook(uint32_t output_nr, TensorHook hook);
  HookHandle add_post_hook(PostHook hook);
  /// The retained gradient is written after all tensor hooks.
  void retain_output_grad(uint32_t output_nr, Ref<RetainedGrad> slot);

  /// Runs tensor hooks and retains; replaces entries of `grads`. @thread the engine's
  void run_tensor_hooks(GradList& grads);
  void run_post_hooks(const GradList& grad_inputs, const GradList& grad_outputs);
  [[nodiscard]] bool has_post_hooks() const noexcept { return hooks_ && !hooks_->post.empty(); }

 private:
  struct Hooks {
    struct OnTensor {
      uint32_t output_nr;
      TensorHook hook;
      std::shared_ptr<bool> alive;
    };
    struct AfterNode {
      PostHook hook;
      std::shared_ptr<bool> alive;
    };
    std::vector<OnTensor> on_tensor;
    std::vector<AfterNode> post;
    std::vector<std::pair<uint32_t, Ref<RetainedGrad>>> retained;
  };
  Hooks& hooks();

  InlinedVector<Edge, 2> next_edges_;
  InlinedVector<GradMetadata, 1> outputs_;
  uint64_t sequence_;
  std::unique_ptr<Hooks> hooks_;
};

/// Drops a reference without recursion: a chain of a million nodes is torn down in a loop.
void release_node(Ref<Node>&& node) noexcept;

}  // namespace muster
