#pragma once
/// The history of a base after an in-place write to one of its views.

#include "core/autograd/autograd_meta.h"

namespace muster {

/// Routes the gradient of the base: the written slice goes through the operator that wrote it, the
/// rest passes on to the base's former history.
class CopySlices final : public Node {
 public:
  CopySlices(const Tensor& base, const Tensor& view, Ref<Node> writer);
  ~CopySlices() override;
  GradList apply(GradList&& grads, bool create_graph) override;
  [[nodiscard]] std::string name() const override { return "CopySlices(" + writer_->name() + ")"; }
  void release_saved() noexcept override { writer_->release_saved(); }

 private:
  Ref<Node> writer_;
  TensorSpec base_;
  Layout view_;  // relative to the base's first element
};

}  // namespace muster
