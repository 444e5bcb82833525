#include "core/autograd/saved_tensor.h"

namespace muster {

SavedTensor SavedTensor::input(const Tensor& tensor, const char* name) {
  SavedTensor saved;
  saved.name_ = name;
  if (!tensor.defined()) return saved;
  MUSTER_CHECK(!tensor.impl()->is_inference, ErrorCode::kFailedPrecondition,
               "Inference tensors cannot be saved for backward; got \"{}\" {}; clone it outside "
               "inference mode first",
               name, tensor);
  saved.version_ = tensor.version();
  if (tensor.requires_grad()) {
    const Edge edge = gradient_edge(tensor);
    if (auto* accumulate = dynamic_cast<AccumulateGrad*>(edge.node.get())) {
      saved.accumulator_ = Ref<AccumulateGrad>(accumulate);
      saved.tensor_ = shallow_detach(tensor);
      return saved;
    }
  }
  saved.tensor_ = tensor;
  return saved;
}

SavedTensor SavedTensor::output(const Tensor& tensor, uint32_t output_nr, const char* name) {
  SavedTensor saved;
  saved.name_ = name;
  saved.tensor_ = shallow_detach(tensor);
  saved.version_ = tensor.version();
  saved.output_nr_ = output_nr;
  saved.is_output_ = true;
  return saved;
}

Tensor SavedTensor::unpack(Node& owner) const {
  if (!tensor_.defined()) return {};
  MUSTER_CHECK(tensor_.version() == version_, ErrorCode::kFailedPrecondition,
               "backward of {}: one of the variables needed for gradient computation has been "
               "modified by an inplace "
               "operation: saved tensor \"{}\" {} was saved at version {}, now {}\n"
               "  fix: clone() before the write, or write out of place",
               owner.name(), name_, tensor_, version_, tensor_.version());
  if (accumulator_) {
    Tensor alias = shallow_detach(tensor_);
    AutogradMeta& meta = meta_of(alias.impl());
    meta.leaf_requires_grad = true;
    meta.accumulator = accumulator_;
    alias.impl()->keys_own |= DispatchKey::kAutograd;
    return alias;
  }
  if (is_output_) {
    Tensor alias = shallow_detach(tensor_);
    set_history(alias, Ref<Node>(&owner), output_nr_);
    return alias;
  }
  return tensor_;
}
}  // namespace muster
