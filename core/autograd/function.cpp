#include "core/autograd/function.h"

#include <algorithm>

#include "core/autograd/autograd.h"
#include "core/dispatch/op_table.h"

namespace muster {
namespace {
bool contains(const std::vector<Tensor>& list, const Tensor& tensor) {
  return std::any_of(list.begin(), list.end(),
                     [&](const Tensor& entry) { return entry.is_same(tensor); });
}
}  // namespace

class FunctionNode final : public Node {
 public:
  FunctionNode(std::string name, GradList (*backward)(FunctionContext&, const GradList&))
      : name_(std::move(name)), backward_(backward) {
    context_.node_ = this;
  }

  GradList apply(GradList&& grads, bool create_graph) override {
    if (std::none_of(grads.begin(), grads.end(),
                     [](const Tensor& grad) { return grad.defined(); })) {
      return GradList(next_edges().size());
    }
    MUSTER_CHECK(
        !create_graph || !context_.once_differentiable_, ErrorCode::kFailedPrecondition,
        "backward of {}: it was declared once differentiable; a second derivative was asked for",
        name_);
    if (context_.materialize_grads_) materialize(grads);
    GradList result = backward_(context_, grads);
    MUSTER_CHECK(result.size() == next_edges().size(), ErrorCode::kInvalidArgument,
                 "backward of {}: one gradient for each input; got {} for {} inputs", name_,
                 result.size(), next_edges().size());
    return result;
  }
  [[nodiscard]] std::string name() const override { return name_; }
  void release_saved() noexcept override {
    if (context_.saved_.empty()) return;
    context_.saved_.clear();
    context_.released_ = true;
  }
  FunctionContext& context() { return context_; }

 private:
  void materialize(GradList& grads) const {
    static const Op& zero = op_table().find("zero_");
    for (size_t i = 0; i < grads.size(); ++i) {
      if (grads[i].defined()) continue;
      grads[i] = empty_from_spec(TensorSpec::contiguous(output(i).sizes, output(i).dtype));
      call_one(zero, grads[i]);
    }
  }

  std::string name_;
  GradList (*backward_)(FunctionContext&, const GradList&);
  FunctionContext context_;
};

std::vector<Tensor> FunctionContext::saved() const {
  MUSTER_CHECK(!released_, ErrorCode::kFailedPrecondition,
               "backward of {}: trying to backward through the graph a second time; the saved "
               "values were freed by the "
               "first pass\n  fix: pass retain_graph = true to the first backward",
               node_->name());
  std::vector<Tensor> tensors;
  for (const SavedTensor& saved : saved_) tensors.push_back(saved.unpack(*node_));
  return tensors;
}

std::vector<Tensor> apply_function_impl(std::string name, std::vector<Tensor> inputs,
                                        std::vector<Tensor> (*forward)(FunctionContext&,
                                                                       std::span<const Tensor>),
                                        GradList (*backward)(FunctionContext&, const GradList&)) {
  const bool recording =
      grad_enabled() && std::any_of(inputs.begin(), inputs.end(), [](const Tensor& input) {
        return input.defined() && input.requires_grad();
      });
  const auto node = make_ref<FunctionNode>(std::move(name), backward);
  FunctionContext& context = node->context();
  for (const Tensor& input : inputs) {
    const bool needs = recording && input.defined() && input.requires_grad();
    context.needs_.push_back(needs);
    node->add_next_edge(needs ? gradient_edge(input) : Edge{});
  }
  std::vector<Tensor> outputs;
  {
    const NoGradGuard no_grad;
    outputs = forward(context, inputs);
  }
  for (const Tensor& dirty : context.dirty_) {
    MUSTER_CHECK(contains(inputs, dirty), ErrorCode::kInvalidArgument,
                 "{}: mark_dirty takes inputs only; got {}", node->name(), dirty);
    MUSTER_CHECK(
        !recording || !dirty.requires_grad() || grad_fn(dirty), ErrorCode::kFailedPrecondition,
        "{}: a leaf Variable that requires grad is being used in an in-place operation; got {}",
        node->name(), dirty);
    dirty.storage()->bump_version();
  }
  if (!recording) return outputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    Tensor& output = outputs[i];
    const bool is_input = contains(inputs, output);
    // An input returned unmodified becomes a view of itself: it must not lose its own history.
    if (is_input && !contains(context.dirty_, output)) output = shallow_detach(output);
    node->add_output({DimVector(output.sizes()), output.dtype()});
    if (!is_floating(output.dtype()) || contains(context.non_differentiable_, output)) continue;
    set_history(output, node, static_cast<uint32_t>(i));
    if (output.is_view() && !is_input) output.impl()->creation = ViewCreation::kCustomFunction;
  }
  for (const Tensor& tensor : context.to_save_) {
    const auto at = std::find_if(outputs.begin(), outputs.end(),
                                 [&](const Tensor& output) { return output.is_same(tensor); });
    context.saved_.push_back(at == outputs.end()
                                 ? SavedTensor::input(tensor, "saved", *node)
                                 : SavedTensor::output(tensor,
                                                       static_cast<uint32_t>(at - outputs.begin()),
                                                       "saved", *node));
  }
  context.to_save_.clear();
  context.dirty_.clear();
  context.non_differentiable_.clear();
  return outputs;
}
}  // namespace muster
