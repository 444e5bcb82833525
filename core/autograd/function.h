#pragma once
/// Custom differentiable functions: forward and backward written by the user.
///
///   struct Square {
///     static std::vector<Tensor> forward(FunctionContext& context, std::span<const Tensor> in);
///     static GradList backward(FunctionContext& context, const GradList& grads);
///   };
///   Tensor y = apply_function<Square>({x})[0];
///
/// Values needed later go through save_for_backward only: anything stashed elsewhere has no version
/// check. @source torch.autograd.Function

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/autograd/saved_tensor.h"

namespace muster {

/// Passed to forward and backward of one call.
class FunctionContext {
 public:
  /// Keeps inputs or outputs for backward. Call once, in forward.
  void save_for_backward(std::vector<Tensor> tensors) { to_save_ = std::move(tensors); }
  /// The saved tensors, checked against in-place writes. Call in backward.
  /// @error kFailedPrecondition modified since, or freed by the first pass
  [[nodiscard]] std::vector<Tensor> saved() const;
  /// Declares that forward wrote these inputs in place and returns them.
  void mark_dirty(std::vector<Tensor> inputs) { dirty_ = std::move(inputs); }
  /// Declares outputs that carry no gradient.
  void mark_non_differentiable(std::vector<Tensor> outputs) {
    non_differentiable_ = std::move(outputs);
  }
  /// When true (the default) an output without gradient gets zeros in backward, else an undefined
  /// one.
  void set_materialize_grads(bool value) { materialize_grads_ = value; }
  /// Makes a second differentiation an error.
  void set_once_differentiable() { once_differentiable_ = true; }
  /// True when input `index` wants a gradient.
  [[nodiscard]] bool needs_input_grad(size_t index) const { return needs_[index]; }

 private:
  friend class FunctionNode;
  friend std::vector<Tensor> apply_function_impl(
      std::string name, std::vector<Tensor> inputs,
      std::vector<Tensor> (*forward)(FunctionContext&, std::span<const Tensor>),
      GradList (*backward)(FunctionContext&, const GradList&));

  std::vector<Tensor> to_save_;
  std::vector<Tensor> dirty_;
  std::vector<Tensor> non_differentiable_;
  std::vector<bool> needs_;
  std::vector<SavedTensor> saved_;
  Node* node_ = nullptr;
  bool materialize_grads_ = true;
  bool once_differentiable_ = false;
  bool released_ = false;
};

/// Runs forward without recording and records one node for the call.
/// @error kInvalidArgument from backward: another number of gradients than inputs
std::vector<Tensor> apply_function_impl(std::string name, std::vector<Tensor> inputs,
                                        std::vector<Tensor> (*forward)(FunctionContext&,
                                                                       std::span<const Tensor>),
                                        GradList (*backward)(FunctionContext&, const GradList&));

template <typename F>
std::vector<Tensor> apply_function(std::vector<Tensor> inputs, std::string name = "Function") {
  return apply_function_impl(std::move(name), std::move(inputs), &F::forward, &F::backward);
}

}  // namespace muster
