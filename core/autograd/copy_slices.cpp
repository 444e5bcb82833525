#include "core/autograd/copy_slices.h"

#include "core/dispatch/op_table.h"

namespace muster {

CopySlices::CopySlices(const Tensor& base, const Tensor& view, Ref<Node> writer)
    : writer_(std::move(writer)), base_(TensorSpec::of(base)), view_(view.layout()) {
  view_.offset -= base.storage_offset();
  add_output({base_.sizes, base_.dtype});
  add_next_edge(gradient_edge(base));
  // Slot 0 of the writer is the view itself; its gradient returns into the base's.
  for (size_t i = 1; i < writer_->next_edges().size(); ++i) add_next_edge(writer_->next_edges()[i]);
}

CopySlices::~CopySlices() { release_node(std::move(writer_)); }

GradList CopySlices::apply(GradList&& grads, bool create_graph) {
  GradList result(next_edges().size());
  if (!grads[0].defined()) return result;
  static const Op& copy = op_table().find("copy_");
  static const Op& clone = op_table().find("clone");
  static const Op& zero = op_table().find("zero_");
  static const Op& as_strided = op_table().find("as_strided");
  TensorSpec spec = base_;
  spec.dtype = grads[0].dtype();
  Tensor whole = empty_from_spec(spec);
  call_one(copy, whole, grads[0], false);
  const Tensor slice = call_one(as_strided, whole, view_.sizes, view_.strides, view_.offset);
  GradList through = writer_->apply({call_one(clone, slice)}, create_graph);
  if (through[0].defined()) {
    call_one(copy, slice, through[0], false);
  } else {
    call_one(zero, slice);
  }
  result[0] = std::move(whole);
  for (size_t i = 1; i < through.size(); ++i) result[i] = std::move(through[i]);
  return result;
}
}  // namespace muster
