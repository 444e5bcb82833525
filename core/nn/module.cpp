#include "core/nn/module.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/autograd/autograd.h"
#include "core/base/text.h"
#include "core/ops/creation.h"
#include "core/ops/views.h"

namespace muster {
namespace {
const std::string kPlacePrefix = "in module ";

template <typename Hooks>
void drop_removed(Hooks& hooks) {
  std::erase_if(hooks, [](const auto& registered) { return !*registered.alive; });
}

// Replaces each tensor of `slots` by `make(tensor)`, one result per tensor that slots share.
template <typename Make>
void replace_each(std::vector<TensorSlot> slots, const Make& make) {
  std::map<const TensorImpl*, Tensor> made;
  std::vector<Tensor> keep;  // so that no address is used twice
  for (const TensorSlot& slot : slots) {
    Tensor& current = *slot.tensor;
    const auto found = made.find(current.impl());
    if (found != made.end()) {
      current = found->second;
      continue;
    }
    const Tensor old = current;
    keep.push_back(old);
    Tensor fresh = make(old);
    if (!fresh.is_same(old) && old.requires_grad()) muster::requires_grad_(fresh);
    made.emplace(old.impl(), fresh);
    made.emplace(fresh.impl(), fresh);
    keep.push_back(fresh);
    current = fresh;
  }
}
}  // namespace

Tensor Module::operator()(const Tensor& input) {
  try {
    return run_hooked(input);
  } catch (Error& error) {
    const auto& context = error.context();
    const auto names_place = [](const std::string& line) { return line.starts_with(kPlacePrefix); };
    if (std::none_of(context.begin(), context.end(), names_place)) {
      error.add_context(describe_place());
    }
    throw;
  }
}

std::string Module::path() const {
  if (parent_ == nullptr) return "";
  const auto& siblings = parent_->children_;
  const auto own = std::find_if(siblings.begin(), siblings.end(),
                                [this](const Child& child) { return child.module.get() == this; });
  const std::string above = parent_->path();
  return above.empty() ? own->name : above + "." + own->name;
}

// in module "h.0.up" (Linear): h.0.up.weight f32[6, 4], h.0.up.bias f32[6]
std::string Module::describe_place() const {
  const std::string name = path();
  std::string text = fmt::format("{}\"{}\" ({})", kPlacePrefix, name, kind_);
  std::vector<std::string> parts;
  for (const TensorSlot& slot : parameters_) {
    const std::string full = name.empty() ? slot.name : name + "." + slot.name;
    parts.push_back(full + " " + slot.tensor->describe());
  }
  return parts.empty() ? text : text + ": " + join(parts);
}

Tensor Module::run_hooked(const Tensor& input) {
  drop_removed(pre_hooks_);
  drop_removed(hooks_);
  Tensor in = input;
  // By index: a hook may register further hooks.
  for (size_t i = 0; i < pre_hooks_.size(); ++i) {
    if (!*pre_hooks_[i].alive) continue;
    const ForwardPreHook hook = pre_hooks_[i].hook;
    if (Tensor replaced = hook(*this, in); replaced.defined()) in = std::move(replaced);
  }
  Tensor out = run_compute(in);
  for (size_t i = 0; i < hooks_.size(); ++i) {
    if (!*hooks_[i].alive) continue;
    const ForwardHook hook = hooks_[i].hook;
    if (Tensor replaced = hook(*this, in, out); replaced.defined()) out = std::move(replaced);
  }
  return out;
}

Tensor Module::run_compute(const Tensor& input) {
  const auto run = [this](const Tensor& in) {
    return replaced_compute_ ? replaced_compute_(in) : compute(in);
  };
  return checkpoint_ ? activation_checkpoint(run, input, *checkpoint_) : run(input);
}

Tensor Module::forward(const Tensor& input) {
  MUSTER_CHECK(hooks_required_because_.empty(), ErrorCode::kFailedPrecondition,
               "forward of {}: it must be called as module(x), so that its hooks run: {}", kind_,
               hooks_required_because_);
  return run_compute(input);
}

Tensor Module::compute(const Tensor&) {
  throw_error(ErrorCode::kUnimplemented, "forward of {}: a container computes nothing", kind_);
}

void Module::visit(
    const std::string& prefix,
    const std::function<void(const std::string& prefix, const Module&)>& body) const {
  body(prefix, *this);
  for (const Child& child : children_) child.module->visit(prefix + child.name + ".", body);
}

std::vector<NamedTensor> Module::named_parameters() const {
  std::vector<NamedTensor> out;
  std::set<const TensorImpl*> seen;
  visit("", [&](const std::string& prefix, const Module& module) {
    for (const TensorSlot& slot : module.parameters_) {
      if (slot.tensor->defined() && seen.insert(slot.tensor->impl()).second) {
        out.push_back({prefix + slot.name, *slot.tensor});
      }
    }
  });
  return out;
}

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> out;
  for (NamedTensor& named : named_parameters()) out.push_back(std::move(named.tensor));
  return out;
}

std::vector<NamedTensor> Module::named_buffers() const {
  std::vector<NamedTensor> out;
  visit("", [&](const std::string& prefix, const Module& module) {
    for (const TensorSlot& slot : module.buffers_) {
      if (slot.tensor->defined()) out.push_back({prefix + slot.name, *slot.tensor});
    }
  });
  return out;
}

std::vector<NamedModule> Module::named_modules() {
  std::vector<NamedModule> out;
  visit("", [&](const std::string& prefix, const Module& module) {
    std::string name = prefix.empty() ? "" : prefix.substr(0, prefix.size() - 1);
    out.push_back({std::move(name), const_cast<Module*>(&module)});
  });
  return out;
}

std::vector<NamedModule> Module::children() const {
  std::vector<NamedModule> out;
  for (const Child& child : children_) out.push_back({child.name, child.module.get()});
  return out;
}

std::vector<TensorSlot> Module::parameter_slots(bool recurse) {
  if (!recurse) return parameters_;
  std::vector<TensorSlot> out;
  visit("", [&](const std::string& prefix, const Module& module) {
    for (TensorSlot slot : module.parameters_) {
      slot.name = prefix + slot.name;
      out.push_back(std::move(slot));
    }
  });
  return out;
}

std::vector<TensorSlot> Module::buffer_slots(bool recurse) {
  if (!recurse) return buffers_;
  std::vector<TensorSlot> out;
  visit("", [&](const std::string& prefix, const Module& module) {
    for (TensorSlot slot : module.buffers_) {
      slot.name = prefix + slot.name;
      out.push_back(std::move(slot));
    }
  });
  return out;
}

Module& Module::module_at(std::string_view path) {
  std::vector<std::string> names;
  for (const NamedModule& named : named_modules()) {
    if (named.name == path) return *named.module;
    names.push_back(named.name);
  }
  const std::string near = nearest_name(path, names);
  throw_error(ErrorCode::kNotFound, "{}: it has no module \"{}\"{}", kind_, path,
              near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near));
}

int64_t Module::num_parameters() const {
  int64_t count = 0;
  for (const NamedTensor& named : named_parameters()) count += named.tensor.numel();
  return count;
}

void Module::check_may_replace(const char* operation) const {
  visit("", [&](const std::string& prefix, const Module& module) {
    MUSTER_CHECK(module.parameters_kept_because_.empty(), ErrorCode::kFailedPrecondition,
                 "{} of {}: parameters must stay as they are: \"{}\" {}", operation, kind_,
                 prefix.empty() ? "" : prefix.substr(0, prefix.size() - 1),
                 module.parameters_kept_because_);
  });
}

void Module::to_empty(Device device) {
  check_may_replace("to_empty");
  const auto make = [device](const Tensor& old) {
    return empty_from_spec(TensorSpec::contiguous(old.sizes(), old.dtype(), device));
  };
  replace_each(parameter_slots(), make);
  replace_each(buffer_slots(), make);
}

void Module::to(DType dtype) {
  check_may_replace("to");
  const NoGradGuard no_grad;
  const auto make = [dtype](const Tensor& old) {
    if (!is_floating(old.dtype()) || old.dtype() == dtype) return old;
    return muster::to(detach(old), dtype);
  };
  replace_each(parameter_slots(), make);
  replace_each(buffer_slots(), make);
}

void Module::reset_parameters(uint64_t seed) {
  check_may_replace("reset_parameters");
  std::set<const TensorImpl*> seen;
  for (const TensorSlot& slot : parameter_slots()) {
    MUSTER_CHECK(!slot.tensor->is_meta(), ErrorCode::kFailedPrecondition,
                 "reset_parameters of {}: parameter \"{}\" {} has no memory; call to_empty() first",
                 kind_, slot.name, *slot.tensor);
    if (!seen.insert(slot.tensor->impl()).second) continue;
    init_parameter(*slot.tensor, slot.init, seed, slot.name);
  }
}

std::vector<NamedTensor> Module::state() const {
  std::vector<NamedTensor> out;
  std::set<const TensorImpl*> seen;
  visit("", [&](const std::string& prefix, const Module& module) {
    for (const auto* slots : {&module.parameters_, &module.buffers_}) {
      for (const TensorSlot& slot : *slots) {
        if (slot.persistent && slot.tensor->defined() && seen.insert(slot.tensor->impl()).second) {
          out.push_back({prefix + slot.name, *slot.tensor});
        }
      }
    }
  });
  return out;
}

void Module::load_state(const std::map<std::string, Tensor>& state) {
  const std::vector<NamedTensor> own = this->state();
  std::vector<std::string> faults;
  std::set<std::string> known;
  for (const NamedTensor& named : own) {
    known.insert(named.name);
    const auto found = state.find(named.name);
    if (found == state.end()) {
      faults.push_back(fmt::format("missing: {} {}", named.name, named.tensor));
    } else if (!std::equal(found->second.sizes().begin(), found->second.sizes().end(),
                           named.tensor.sizes().begin(), named.tensor.sizes().end())) {
      faults.push_back(
          fmt::format("shape: {} is {}, got {}", named.name, named.tensor, found->second));
    }
  }
  for (const auto& [name, tensor] : state) {
    if (!known.contains(name)) faults.push_back(fmt::format("unexpected: {} {}", name, tensor));
  }
  MUSTER_CHECK(faults.empty(), ErrorCode::kInvalidArgument,
               "load_state of {}: names and sizes must be those of the module; {} entries are "
               "not\n  {}",
               kind_, faults.size(), join(faults, "\n  "));
  const NoGradGuard no_grad;
  for (const NamedTensor& named : own) copy_(named.tensor, state.at(named.name));
}

void Module::zero_grad() {
  for (const NamedTensor& named : named_parameters()) set_grad(named.tensor, {});
}

void Module::requires_grad_(bool requires_grad) {
  for (const NamedTensor& named : named_parameters()) {
    muster::requires_grad_(named.tensor, requires_grad);
  }
}

void Module::train(bool is_training) {
  for (const NamedModule& named : named_modules()) named.module->is_training_ = is_training;
}

HookHandle Module::register_forward_pre_hook(ForwardPreHook hook) {
  auto alive = std::make_shared<bool>(true);
  pre_hooks_.push_back({std::move(hook), alive});
  return HookHandle(std::move(alive));
}

HookHandle Module::register_forward_hook(ForwardHook hook) {
  auto alive = std::make_shared<bool>(true);
  hooks_.push_back({std::move(hook), alive});
  return HookHandle(std::move(alive));
}

void Module::check_name(std::string_view name) const {
  MUSTER_CHECK(!name.empty() && name.find('.') == std::string_view::npos,
               ErrorCode::kInvalidArgument,
               "{}: a name must not be empty or hold a dot; got \"{}\"", kind_, name);
  const auto is_taken = [&](const auto& entry) { return entry.name == name; };
  const bool taken = std::any_of(parameters_.begin(), parameters_.end(), is_taken) ||
                     std::any_of(buffers_.begin(), buffers_.end(), is_taken) ||
                     std::any_of(children_.begin(), children_.end(), is_taken);
  MUSTER_CHECK(!taken, ErrorCode::kInvalidArgument, "{}: the name \"{}\" is taken", kind_, name);
}

void Module::register_parameter(std::string name, Tensor& slot, Tensor value, InitSpec init) {
  check_name(name);
  if (!value.defined()) return;
  slot = muster::requires_grad_(value);
  parameters_.push_back({std::move(name), &slot, this, init, true});
}

void Module::register_buffer(std::string name, Tensor& slot, Tensor value, bool persistent) {
  check_name(name);
  if (!value.defined()) return;
  slot = std::move(value);
  buffers_.push_back({std::move(name), &slot, this, {}, persistent});
}

void Module::adopt(std::string name, std::unique_ptr<Module> module) {
  check_name(name);
  module->parent_ = this;
  children_.push_back({std::move(name), std::move(module)});
}

Tensor Sequential::compute(const Tensor& input) {
  Tensor x = input;
  for (Module* item : items_) x = (*item)(x);
  return x;
}
}  // namespace muster
