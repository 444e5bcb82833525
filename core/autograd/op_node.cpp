#include "core/autograd/op_node.h"

#include <algorithm>

namespace muster {

void OpNode::add_slot(const Tensor& tensor) {
  if (tensor.defined()) {
    add_next_edge(gradient_edge(tensor));
    specs_.emplace_back(TensorSpec::of(tensor));
  } else {
    add_next_edge({});
    specs_.emplace_back();
  }
}

void OpNode::save_input(const Value& value, const char* name, bool written_by_call) {
  if (value.is_tensor_list()) {
    for (const Tensor& tensor : value.tensors())
      saved_.emplace_back(SavedTensor::input(tensor, name, *this));
    return;
  }
  if (!value.is_tensor()) {
    saved_.emplace_back(SavedTensor::input({}, name, *this));
    return;
  }
  if (!written_by_call) {
    saved_.emplace_back(SavedTensor::input(value.tensor(), name, *this));
    return;
  }
  // The call overwrites this value: keep a copy of what was there, with the same history.
  static const Op& clone = op_table().find("clone");
  saved_.emplace_back(SavedTensor::input(call_one(clone, value.tensor()), name, *this));
}

Ref<OpNode> OpNode::make(const Op& op, Args args) {
  auto node = make_ref<OpNode>(op);
  const Schema& schema = op.schema();
  node->first_value_ = args.size();
  for (size_t i = 0; i < args.size(); ++i) {
    const auto first = static_cast<uint32_t>(node->specs_.size());
    if (args[i].is_tensor_list()) {
      for (const Tensor& tensor : args[i].tensors()) node->add_slot(tensor);
    } else if (args[i].is_tensor()) {
      node->add_slot(args[i].tensor());
    } else if (schema.arguments[i].type == ArgumentType::kTensor) {
      node->add_slot({});
    }
    node->slots_.emplace_back(Slots{first, static_cast<uint32_t>(node->specs_.size()) - first});
    // From the first argument on that has a value of its own, values_ mirrors the schema.
    if (node->first_value_ == args.size() && !args[i].is_tensor() && !args[i].is_tensor_list()) {
      node->first_value_ = i;
    }
    if (i >= node->first_value_) node->values_.emplace_back(args[i]);
  }
  for (const SavedValue& saved : op.facts().saves) {
    const size_t at = saved.argument;
    if (at == SavedValue::kNoIndex || !node->is_read(saved)) continue;  // a return: saved later
    const bool written = op.writes_self() && args[at].is_tensor() &&
                         args[at].tensor().storage() == args[0].tensor().storage();
    node->save_input(args[at], saved.name.c_str(), written);
  }
  return node;
}

void OpNode::record_outputs(std::span<Tensor> outs) {
  for (const Tensor& out : outs) add_output({DimVector(out.sizes()), out.dtype()});
  for (const SavedValue& saved : op_.facts().saves) {
    const size_t at = saved.result;
    if (at == SavedValue::kNoIndex || !is_read(saved)) continue;
    saved_.emplace_back(
        SavedTensor::output(outs[at], static_cast<uint32_t>(at), saved.name.c_str(), *this));
  }
}

// A value that only the gradient of an argument without one would read need not be kept.
bool OpNode::is_read(const SavedValue& saved) const {
  if (saved.readers.empty()) return true;
  return std::any_of(saved.readers.begin(), saved.readers.end(), [this](size_t argument) {
    const Slots slots = slots_[argument];
    for (uint32_t i = 0; i < slots.count; ++i) {
      if (next_edges()[slots.first + i].is_valid()) return true;
    }
    return false;
  });
}

GradList OpNode::apply(GradList&& grads, bool create_graph) {
  const bool any =
      std::any_of(grads.begin(), grads.end(), [](const Tensor& grad) { return grad.defined(); });
  if (!any) return GradList(specs_.size());
  MUSTER_CHECK(!released_, ErrorCode::kFailedPrecondition,
               "backward of {}: trying to backward through the graph a second time; the saved "
               "values were freed by the "
               "first pass\n  fix: pass retain_graph = true to the first backward",
               op_.name());
  std::vector<std::pair<const SavedTensor*, Tensor>> unpacked;
  grads_ = &grads;
  unpacked_ = &unpacked;
  create_graph_ = create_graph;
  GradList result = op_.facts().derivative(*this);
  grads_ = nullptr;
  unpacked_ = nullptr;
  MUSTER_ASSERT(result.size() == specs_.size(),
                "derivative of {} returned {} gradients for {} inputs", op_.name(), result.size(),
                specs_.size());
  return result;
}

void OpNode::release_saved() noexcept {
  // Nothing saved: a second pass is fine, as in PyTorch.
  if (saved_.empty()) return;
  saved_.clear();
  released_ = true;
}

size_t OpNode::index_of(std::string_view name) const {
  const std::optional<size_t> at = op_.schema().index_of(name);
  MUSTER_ASSERT(at.has_value(), "derivative of {} asks for argument \"{}\", which the schema lacks",
                op_.name(), name);
  return *at;
}

Tensor OpNode::saved(std::string_view name) const {
  for (const SavedTensor& saved : saved_) {
    if (saved.name() != name) continue;
    return saved.has_hooks() ? unpack_once(saved) : saved.unpack(const_cast<OpNode&>(*this));
  }
  throw_error(ErrorCode::kInternal, "derivative of {} asks for \"{}\", which it does not save",
              op_.name(), name);
}

// A derivative may ask twice; a hook runs once.
Tensor OpNode::unpack_once(const SavedTensor& saved) const {
  for (const auto& [known, value] : *unpacked_) {
    if (known == &saved) return value;
  }
  return unpacked_->emplace_back(&saved, saved.unpack(const_cast<OpNode&>(*this))).second;
}

Value OpNode::arg(std::string_view name) const {
  const size_t index = index_of(name);
  return index >= first_value_ ? values_[index - first_value_].view() : Value();
}

bool OpNode::needs(std::string_view name) const {
  const Slots slots = slots_[index_of(name)];
  for (uint32_t i = 0; i < slots.count; ++i) {
    if (next_edges()[slots.first + i].is_valid()) return true;
  }
  return false;
}

const TensorSpec& OpNode::spec(std::string_view name, size_t index) const {
  return specs_[slots_[index_of(name)].first + index];
}

size_t OpNode::list_size(std::string_view name) const { return slots_[index_of(name)].count; }
}  // namespace muster
