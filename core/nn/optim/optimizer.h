#pragma once
/// Optimizers: AdamW, Adam and SGD on groups of named parameters, fused into one pass each.
///
/// State is keyed by parameter name, so that it survives a change of order, of grouping and of
/// layout. A parameter without gradient is left alone, and has no state until its first one.
/// @source torch.optim (2.13): same updates, same order of operations

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/nn/module.h"

namespace muster {

/// What an optimizer keeps of one parameter.
struct ParameterState {
  int64_t step = 0;                       ///< updates so far
  std::map<std::string, Tensor> tensors;  ///< "exp_avg", "exp_avg_sq", "momentum_buffer", ..
};

/// One entry of Optimizer::state(), as a checkpoint keeps it.
struct OptimizerStateEntry {
  std::string parameter;
  int64_t step = 0;
  std::vector<NamedTensor> tensors;
};

struct StepOptions {
  double grad_scale = 1.0;  ///< multiplies gradients as they are read (clipping, loss scaling)
  bool zero_grad = false;   ///< clears gradients in the same pass; they must be contiguous
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Updates every parameter that has a gradient. Records nothing.
  virtual void step(const StepOptions& options = {}) = 0;
  /// Drops all gradients.
  void zero_grad();
  /// The learning rate of every group.
  virtual void set_lr(double lr) = 0;
  [[nodiscard]] virtual size_t num_groups() const noexcept = 0;
  virtual void set_lr(size_t group, double lr) = 0;
  [[nodiscard]] virtual double lr(size_t group = 0) const = 0;

  /// All parameters, in the order of groups.
  [[nodiscard]] std::vector<NamedTensor> parameters() const;
  /// Replaces a parameter's tensor; its state stays. @error kNotFound
  void set_parameter(const std::string& name, Tensor tensor);

  /// State of every parameter that has some, in the order of groups. Tensors are the live ones.
  [[nodiscard]] std::vector<OptimizerStateEntry> state() const;
  /// Makes the state that a first step would make, all zero and with step 0, where there is none:
  /// so that a checkpoint can be read into it.
  void materialize_state();
  /// Replaces the state of one parameter; tensors are copied.
  /// @error kNotFound an unknown parameter; kInvalidArgument names or sizes that do not fit
  void load_state(const OptimizerStateEntry& entry);

 protected:
  Optimizer() = default;
  struct Entry {
    std::string name;
    Tensor parameter;
    ParameterState state;
    bool has_state = false;
  };
  /// Adds the parameters of a group. @error kInvalidArgument a name twice
  void add_parameters(size_t group, const std::vector<NamedTensor>& parameters);
  /// The tensors that the state of a parameter of `group` consists of.
  [[nodiscard]] virtual std::vector<std::string> state_names(size_t group) const = 0;
  /// Zero state for an entry that has none.
  void ensure_state(Entry& entry, size_t group);

  std::vector<std::vector<Entry>> entries_;  // per group

 private:
  Entry& entry_of(const std::string& name, size_t* group);
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool maximize = false;
  bool decoupled_decay = true;  ///< false: Adam, which adds the decay to the gradient
};

/// Parameters that share options.
template <typename Options>
struct ParameterGroup {
  std::vector<NamedTensor> parameters;
  Options options = {};
};

/// AdamW, and Adam with decoupled_decay = false. State: exp_avg, exp_avg_sq (max_exp_avg_sq).
class AdamW final : public Optimizer {
 public:
  explicit AdamW(std::vector<NamedTensor> parameters, const AdamWOptions& options = {});
  /// @error kInvalidArgument an option out of range, a name twice
  explicit AdamW(const std::vector<ParameterGroup<AdamWOptions>>& groups);

  void step(const StepOptions& options = {}) override;
  void set_lr(double lr) override;
  void set_lr(size_t group, double lr) override { groups_.at(group).lr = lr; }
  [[nodiscard]] size_t num_groups() const noexcept override { return groups_.size(); }
  [[nodiscard]] double lr(size_t group = 0) const override { return groups_.at(group).lr; }

 private:
  [[nodiscard]] std::vector<std::string> state_names(size_t group) const override;
  std::vector<AdamWOptions> groups_;
};

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
  bool maximize = false;
};

/// SGD. State with momentum: momentum_buffer, which begins as the first gradient, undamped.
class Sgd final : public Optimizer {
 public:
  explicit Sgd(std::vector<NamedTensor> parameters, const SgdOptions& options = {});
  /// @error kInvalidArgument an option out of range, a name twice
  explicit Sgd(const std::vector<ParameterGroup<SgdOptions>>& groups);

  void step(const StepOptions& options = {}) override;
  void set_lr(double lr) override;
  void set_lr(size_t group, double lr) override { groups_.at(group).lr = lr; }
  [[nodiscard]] size_t num_groups() const noexcept override { return groups_.size(); }
  [[nodiscard]] double lr(size_t group = 0) const override { return groups_.at(group).lr; }

 private:
  [[nodiscard]] std::vector<std::string> state_names(size_t group) const override;
  std::vector<SgdOptions> groups_;
};

}  // namespace muster
