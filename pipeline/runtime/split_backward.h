#pragma once
/// Backward in two parts: I gives the gradient of a stage's input, W those of its weights, later.
///
/// split_linear_backward() makes the Linear layers of a stage able to put their weight gradients
/// off: backward within a DeferWeights scope leaves them as work to do, which run() does. They are
/// most of the weights' work; other parameters get theirs in I. The sums come in the same order, so
/// results are the same to the last bit. Not for stages whose gradients hooks must see (fsdp) or
/// whose layers a tensor parallel plan has replaced.

#include <vector>

#include "core/nn/module.h"

namespace muster::pipeline {

/// Weight gradients of one backward that are still to be computed.
class WeightWork {
 public:
  struct Item {
    Tensor weight;  ///< leaf
    Tensor bias;    ///< leaf, or undefined
    Tensor input;
    Tensor grad;  ///< of the layer's output
  };
  void add(Item item) { items_.push_back(std::move(item)); }
  [[nodiscard]] bool is_empty() const noexcept { return items_.empty(); }
  /// Adds the gradients to what the leaves have, and forgets the work.
  void run();

 private:
  std::vector<Item> items_;
};

/// While it lives, backward passes on this thread put off what can be put off into `work`.
class DeferWeights {
 public:
  explicit DeferWeights(WeightWork& work) noexcept;
  ~DeferWeights();
  DeferWeights(const DeferWeights&) = delete;
  DeferWeights& operator=(const DeferWeights&) = delete;

 private:
  WeightWork* previous_;
};

/// Prepares every Linear below `stage`, itself included. Returns how many.
int split_linear_backward(Module& stage);

}  // namespace muster::pipeline
