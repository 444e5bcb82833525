#pragma once
/// The node of a recorded operator call: the OpDef's derivative with what it saved.

#include "core/autograd/saved_tensor.h"
#include "core/dispatch/op_table.h"

namespace muster {

class OpNode final : public Node, public BackwardContext {
 public:
  /// Records the arguments of a call: edges, metadata, saved inputs. Outputs are added after the
  /// call.
  static Ref<OpNode> make(const Op& op, Args args);
  /// Saves the outputs that the OpDef names, once they exist, and their metadata.
  void record_outputs(std::span<Tensor> outs);

  GradList apply(GradList&& grads, bool create_graph) override;
  [[nodiscard]] std::string name() const override { return op_.name(); }
  void release_saved() noexcept override;

  [[nodiscard]] const Tensor& grad(size_t index) const override { return (*grads_)[index]; }
  [[nodiscard]] Tensor saved(std::string_view name) const override;
  [[nodiscard]] Value arg(std::string_view name) const override;
  [[nodiscard]] bool needs(std::string_view name) const override;
  [[nodiscard]] const TensorSpec& spec(std::string_view name, size_t index) const override;
  [[nodiscard]] size_t list_size(std::string_view name) const override;
  [[nodiscard]] bool create_graph() const override { return create_graph_; }

  explicit OpNode(const Op& op) : op_(op) {}

 private:
  // Slots of a schema argument: [first, first + count) of next_edges and specs.
  struct Slots {
    uint32_t first = 0;
    uint32_t count = 0;
  };
  [[nodiscard]] size_t index_of(std::string_view name) const;
  void add_slot(const Tensor& tensor);
  void save_input(const Value& value, const char* name, bool written_by_call);
  [[nodiscard]] bool is_read(const SavedValue& saved) const;
  [[nodiscard]] Tensor unpack_once(const SavedTensor& saved) const;

  const Op& op_;
  InlinedVector<Slots, 3> slots_;        // per schema argument
  InlinedVector<TensorSpec, 2> specs_;   // per tensor slot
  InlinedVector<OwnedValue, 1> values_;  // per schema argument after the last tensor, or all
  InlinedVector<SavedTensor, 2> saved_;
  size_t first_value_ = 0;  // schema index of values_[0]
  bool released_ = false;
  bool create_graph_ = false;
  // During apply only: the incoming gradients, and what unpack hooks gave so far.
  GradList* grads_ = nullptr;
  std::vector<std::pair<const SavedTensor*, Tensor>>* unpacked_ = nullptr;
};

}  // namespace muster
