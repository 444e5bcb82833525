#include "core/autograd/saved_tensor.h"

#include <fmt/format.h>

#include "core/autograd/saved_tensor_hooks.h"
#include "core/dispatch/mode.h"

namespace muster {
namespace {
// What the running pack hook packs; told only on demand, as names cost an allocation.
struct PackSite {
  PackSite(const Node& owner, const char* saved_name)
      : node(&owner), name(saved_name), previous(std::exchange(current, this)) {}
  ~PackSite() { current = previous; }
  PackSite(const PackSite&) = delete;
  PackSite& operator=(const PackSite&) = delete;

  const Node* node;
  const char* name;
  PackSite* previous;
  static thread_local constinit PackSite* current;
};
thread_local constinit PackSite* PackSite::current = nullptr;
}  // namespace

std::string saved_tensor_site() {
  const PackSite* site = PackSite::current;
  return site == nullptr ? std::string() : fmt::format("{} \"{}\"", site->node->name(), site->name);
}

struct SavedTensor::Hooked {
  Hooked() = default;
  Hooked(const Hooked&) = delete;
  Hooked& operator=(const Hooked&) = delete;
  ~Hooked() { release_node(std::move(history.node)); }

  std::shared_ptr<const SavedTensorHooks> hooks;
  std::any packed;
  Edge history;  // of an input that some call made
  uint64_t storage_id = 0;
};

void SavedTensor::HookedDeleter::operator()(Hooked* hooked) const noexcept { delete hooked; }

SavedTensor SavedTensor::input(const Tensor& tensor, const char* name, const Node& owner) {
  SavedTensor saved;
  saved.name_ = name;
  if (!tensor.defined()) return saved;
  MUSTER_CHECK(!tensor.impl()->is_inference, ErrorCode::kFailedPrecondition,
               "Inference tensors cannot be saved for backward; got \"{}\" {}; clone it outside "
               "inference mode first",
               name, tensor);
  saved.version_ = tensor.version();
  Edge edge;
  if (tensor.requires_grad()) {
    edge = gradient_edge(tensor);
    if (auto* accumulate = dynamic_cast<AccumulateGrad*>(edge.node.get())) {
      saved.accumulator_ = Ref<AccumulateGrad>(accumulate);
    }
  }
  if (current_saved_tensor_hooks() != nullptr) [[unlikely]] {
    saved.pack(tensor, owner);
    if (!saved.accumulator_) saved.hooked_->history = std::move(edge);
    return saved;
  }
  saved.tensor_ = saved.accumulator_ ? shallow_detach(tensor) : tensor;
  return saved;
}

SavedTensor SavedTensor::output(const Tensor& tensor, uint32_t output_nr, const char* name,
                                const Node& owner) {
  SavedTensor saved;
  saved.name_ = name;
  saved.version_ = tensor.version();
  saved.output_nr_ = output_nr;
  saved.is_output_ = true;
  if (current_saved_tensor_hooks() != nullptr) [[unlikely]] {
    saved.pack(tensor, owner);
  } else {
    saved.tensor_ = shallow_detach(tensor);
  }
  return saved;
}

void SavedTensor::pack(const Tensor& tensor, const Node& owner) {
  hooked_.reset(new Hooked);
  hooked_->hooks = current_saved_tensor_hooks()->hooks();
  hooked_->storage_id = tensor.storage()->id();
  const NoGradGuard no_grad;
  const PackSite site(owner, name_);
  hooked_->packed = hooked_->hooks->pack(shallow_detach(tensor));
  MUSTER_CHECK(tensor.version() == version_, ErrorCode::kFailedPrecondition,
               "saved tensor hooks: a pack hook is modifying its input in place; {} \"{}\" {} was "
               "at version {}, now {}",
               owner.name(), name_, tensor, version_, tensor.version());
}

void SavedTensor::check_version(const Node& owner, const Tensor& value) const {
  MUSTER_CHECK(value.version() == version_, ErrorCode::kFailedPrecondition,
               "backward of {}: one of the variables needed for gradient computation has been "
               "modified by an inplace "
               "operation: saved tensor \"{}\" {} was saved at version {}, now {}\n"
               "  fix: clone() before the write, or write out of place",
               owner.name(), name_, value, version_, value.version());
}

Tensor SavedTensor::as_leaf(const Tensor& value) const {
  Tensor alias = shallow_detach(value);
  AutogradMeta& meta = meta_of(alias.impl());
  meta.leaf_requires_grad = true;
  meta.accumulator = accumulator_;
  alias.impl()->keys_own |= DispatchKey::kAutograd;
  return alias;
}

Tensor SavedTensor::unpack(Node& owner) const {
  if (hooked_) return unpack_hooked(owner);
  if (!tensor_.defined()) return {};
  check_version(owner, tensor_);
  if (accumulator_) return as_leaf(tensor_);
  if (is_output_) {
    Tensor alias = shallow_detach(tensor_);
    set_history(alias, Ref<Node>(&owner), output_nr_);
    return alias;
  }
  return tensor_;
}

Tensor SavedTensor::unpack_hooked(Node& owner) const {
  Tensor value;
  {
    const NoGradGuard no_grad;
    value = hooked_->hooks->unpack(hooked_->packed);
  }
  MUSTER_CHECK(value.defined(), ErrorCode::kFailedPrecondition,
               "saved tensor hooks: an unpack hook must return a tensor; got none for {} \"{}\"",
               owner.name(), name_);
  // A copy holds the value of the time of packing; only the saved storage itself can have changed.
  if (value.storage()->id() == hooked_->storage_id) check_version(owner, value);
  if (accumulator_) return as_leaf(value);
  Tensor alias = shallow_detach(value);
  if (is_output_) {
    set_history(alias, Ref<Node>(&owner), output_nr_);
  } else if (hooked_->history.is_valid()) {
    set_history(alias, hooked_->history.node, hooked_->history.input_nr);
  }
  return alias;
}
}  // namespace muster
