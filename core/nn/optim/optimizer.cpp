#include "core/nn/optim/optimizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/autograd/autograd.h"
#include "core/base/text.h"
#include "core/ops/creation.h"
#include "core/ops/optimizer.h"
#include "core/ops/views.h"

namespace muster {
namespace {
void check_lr(double lr, const char* kind) {
  MUSTER_CHECK(lr >= 0, ErrorCode::kInvalidArgument, "{}: invalid learning rate {}", kind, lr);
}

void check_options(const AdamWOptions& options) {
  check_lr(options.lr, "AdamW");
  MUSTER_CHECK(options.eps >= 0, ErrorCode::kInvalidArgument, "AdamW: invalid epsilon value {}",
               options.eps);
  for (const double beta : {options.beta1, options.beta2}) {
    MUSTER_CHECK(beta >= 0 && beta < 1, ErrorCode::kInvalidArgument,
                 "AdamW: betas must be in [0, 1); got {} and {}", options.beta1, options.beta2);
  }
  MUSTER_CHECK(options.weight_decay >= 0, ErrorCode::kInvalidArgument,
               "AdamW: invalid weight_decay value {}", options.weight_decay);
}

void check_options(const SgdOptions& options) {
  check_lr(options.lr, "Sgd");
  MUSTER_CHECK(options.momentum >= 0, ErrorCode::kInvalidArgument, "Sgd: invalid momentum value {}",
               options.momentum);
  MUSTER_CHECK(options.weight_decay >= 0, ErrorCode::kInvalidArgument,
               "Sgd: invalid weight_decay value {}", options.weight_decay);
  MUSTER_CHECK(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
               ErrorCode::kInvalidArgument,
               "Sgd: nesterov requires a momentum and zero dampening; got {} and {}",
               options.momentum, options.dampening);
}

template <typename Options>
void check_some_parameters(const std::vector<ParameterGroup<Options>>& groups) {
  const bool any = std::any_of(groups.begin(), groups.end(),
                               [](const auto& group) { return !group.parameters.empty(); });
  MUSTER_CHECK(any, ErrorCode::kInvalidArgument, "optimizer: it got an empty list of parameters");
}
}  // namespace

void Optimizer::add_parameters(size_t group, const std::vector<NamedTensor>& parameters) {
  if (entries_.size() <= group) entries_.resize(group + 1);
  for (const NamedTensor& named : parameters) {
    MUSTER_CHECK(is_leaf(named.tensor) && is_floating(named.tensor.dtype()),
                 ErrorCode::kInvalidArgument,
                 "optimizer: parameter \"{}\" must be a floating leaf tensor; got {}", named.name,
                 named.tensor);
    for (const auto& entries : entries_) {
      const bool taken = std::any_of(entries.begin(), entries.end(),
                                     [&](const Entry& entry) { return entry.name == named.name; });
      MUSTER_CHECK(!taken, ErrorCode::kInvalidArgument,
                   "optimizer: parameter \"{}\" appears more than once", named.name);
    }
    entries_[group].push_back({named.name, named.tensor, {}, false});
  }
}

void Optimizer::ensure_state(Entry& entry, size_t group) {
  if (entry.has_state) return;
  const NoGradGuard no_grad;
  for (const std::string& name : state_names(group)) {
    entry.state.tensors[name] = zeros_like(detach(entry.parameter));
  }
  entry.state.step = 0;
  entry.has_state = true;
}

void Optimizer::zero_grad() {
  for (const auto& entries : entries_) {
    for (const Entry& entry : entries) set_grad(entry.parameter, {});
  }
}

std::vector<NamedTensor> Optimizer::parameters() const {
  std::vector<NamedTensor> out;
  for (const auto& entries : entries_) {
    for (const Entry& entry : entries) out.push_back({entry.name, entry.parameter});
  }
  return out;
}

Optimizer::Entry& Optimizer::entry_of(const std::string& name, size_t* group) {
  std::vector<std::string> names;
  for (size_t g = 0; g < entries_.size(); ++g) {
    for (Entry& entry : entries_[g]) {
      if (entry.name == name) {
        *group = g;
        return entry;
      }
      names.push_back(entry.name);
    }
  }
  const std::string near = nearest_name(name, names);
  throw_error(ErrorCode::kNotFound, "optimizer: it has no parameter \"{}\"{}", name,
              near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near));
}

void Optimizer::set_parameter(const std::string& name, Tensor tensor) {
  size_t group = 0;
  entry_of(name, &group).parameter = std::move(tensor);
}

std::vector<OptimizerStateEntry> Optimizer::state() const {
  std::vector<OptimizerStateEntry> out;
  for (const auto& entries : entries_) {
    for (const Entry& entry : entries) {
      if (!entry.has_state) continue;
      OptimizerStateEntry one{entry.name, entry.state.step, {}};
      for (const auto& [name, tensor] : entry.state.tensors) one.tensors.push_back({name, tensor});
      out.push_back(std::move(one));
    }
  }
  return out;
}

void Optimizer::materialize_state() {
  for (size_t g = 0; g < entries_.size(); ++g) {
    for (Entry& entry : entries_[g]) ensure_state(entry, g);
  }
}

void Optimizer::load_state(const OptimizerStateEntry& given) {
  size_t group = 0;
  Entry& entry = entry_of(given.parameter, &group);
  const std::vector<std::string> wanted = state_names(group);
  std::vector<std::string> faults;
  for (const NamedTensor& named : given.tensors) {
    if (std::find(wanted.begin(), wanted.end(), named.name) == wanted.end()) {
      faults.push_back("unexpected: " + named.name);
    } else if (named.tensor.numel() != entry.parameter.numel()) {
      faults.push_back(fmt::format("shape: {} is {}", named.name, named.tensor));
    }
  }
  for (const std::string& name : wanted) {
    const bool found = std::any_of(given.tensors.begin(), given.tensors.end(),
                                   [&](const NamedTensor& named) { return named.name == name; });
    if (!found) faults.push_back("missing: " + name);
  }
  MUSTER_CHECK(faults.empty(), ErrorCode::kInvalidArgument,
               "load_state of \"{}\" {}: names and sizes must fit\n  {}", given.parameter,
               entry.parameter, join(faults, "\n  "));
  ensure_state(entry, group);
  const NoGradGuard no_grad;
  for (const NamedTensor& named : given.tensors) {
    copy_(entry.state.tensors.at(named.name), named.tensor);
  }
  entry.state.step = given.step;
}

AdamW::AdamW(std::vector<NamedTensor> parameters, const AdamWOptions& options)
    : AdamW(std::vector<ParameterGroup<AdamWOptions>>{{std::move(parameters), options}}) {}

AdamW::AdamW(const std::vector<ParameterGroup<AdamWOptions>>& groups) {
  check_some_parameters(groups);
  for (size_t g = 0; g < groups.size(); ++g) {
    check_options(groups[g].options);
    groups_.push_back(groups[g].options);
    add_parameters(g, groups[g].parameters);
  }
}

std::vector<std::string> AdamW::state_names(size_t group) const {
  if (groups_[group].amsgrad) return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  return {"exp_avg", "exp_avg_sq"};
}

void AdamW::set_lr(double lr) {
  check_lr(lr, "AdamW");
  for (AdamWOptions& group : groups_) group.lr = lr;
}

void AdamW::step(const StepOptions& options) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const AdamWOptions& own = groups_[g];
    std::vector<Tensor> params, grads, first, second, largest;
    DimVector steps;
    for (Entry& entry : entries_[g]) {
      const Tensor grad = grad_of(entry.parameter);
      if (!grad.defined()) continue;
      ensure_state(entry, g);
      params.push_back(entry.parameter);
      grads.push_back(grad);
      first.push_back(entry.state.tensors.at("exp_avg"));
      second.push_back(entry.state.tensors.at("exp_avg_sq"));
      if (own.amsgrad) largest.push_back(entry.state.tensors.at("max_exp_avg_sq"));
      steps.push_back(++entry.state.step);
    }
    if (params.empty()) continue;
    fused_adamw_(params, grads, first, second, largest, steps,
                 {.lr = own.lr,
                  .beta1 = own.beta1,
                  .beta2 = own.beta2,
                  .eps = own.eps,
                  .weight_decay = own.weight_decay,
                  .decoupled_decay = own.decoupled_decay,
                  .maximize = own.maximize,
                  .grad_scale = options.grad_scale,
                  .zero_grad = options.zero_grad});
  }
}

Sgd::Sgd(std::vector<NamedTensor> parameters, const SgdOptions& options)
    : Sgd(std::vector<ParameterGroup<SgdOptions>>{{std::move(parameters), options}}) {}

Sgd::Sgd(const std::vector<ParameterGroup<SgdOptions>>& groups) {
  check_some_parameters(groups);
  for (size_t g = 0; g < groups.size(); ++g) {
    check_options(groups[g].options);
    groups_.push_back(groups[g].options);
    add_parameters(g, groups[g].parameters);
  }
}

std::vector<std::string> Sgd::state_names(size_t group) const {
  if (groups_[group].momentum == 0) return {};
  return {"momentum_buffer"};
}

void Sgd::set_lr(double lr) {
  check_lr(lr, "Sgd");
  for (SgdOptions& group : groups_) group.lr = lr;
}

void Sgd::step(const StepOptions& options) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const SgdOptions& own = groups_[g];
    std::vector<Tensor> params, grads, buffers;
    DimVector first_steps;
    for (Entry& entry : entries_[g]) {
      const Tensor grad = grad_of(entry.parameter);
      if (!grad.defined()) continue;
      params.push_back(entry.parameter);
      grads.push_back(grad);
      if (own.momentum == 0) continue;
      ensure_state(entry, g);
      buffers.push_back(entry.state.tensors.at("momentum_buffer"));
      first_steps.push_back(entry.state.step == 0 ? 1 : 0);
      ++entry.state.step;
    }
    if (params.empty()) continue;
    fused_sgd_(params, grads, buffers, first_steps,
               {.lr = own.lr,
                .momentum = own.momentum,
                .dampening = own.dampening,
                .weight_decay = own.weight_decay,
                .nesterov = own.nesterov,
                .maximize = own.maximize,
                .grad_scale = options.grad_scale,
                .zero_grad = options.zero_grad});
  }
}
}  // namespace muster
