#pragma once
/// Module: parameters, buffers and sub-modules under stable dotted names, with forward hooks.
///
/// Call a module as `module(x)`: hooks run around `compute`, which subclasses write. Registration
/// order is kept everywhere. A parameter is a Tensor member of its module; its slot can be given
/// another tensor (sharding does so) and the module goes on with that one. Modules neither move nor
/// copy.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/autograd/checkpoint.h"
#include "core/autograd/node.h"
#include "core/nn/init.h"
#include "core/tensor/tensor.h"

namespace muster {

class Module;

struct NamedTensor {
  std::string name;  ///< dotted: "h.0.attn.c_attn.weight"
  Tensor tensor;
};

struct NamedModule {
  std::string name;  ///< "" for the module itself
  Module* module = nullptr;
};

/// Where a module keeps a parameter or a buffer. Valid as long as the module lives.
struct TensorSlot {
  std::string name;  ///< dotted, from the module that was asked; the last part is the owner's name
  Tensor* tensor = nullptr;  ///< assign to replace; keep requires_grad as it was
  Module* owner = nullptr;
  InitSpec init;           ///< parameters
  bool persistent = true;  ///< buffers: part of state()
};

class Module {
 public:
  /// Sees the input; a defined result replaces it.
  using ForwardPreHook = std::function<Tensor(Module& module, const Tensor& input)>;
  /// Sees input and output; a defined result replaces the output.
  using ForwardHook =
      std::function<Tensor(Module& module, const Tensor& input, const Tensor& output)>;

  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Runs pre-hooks, compute and hooks, each kind in order of registration. An Error that leaves it
  /// says in which module it arose, and lists that one's parameters.
  Tensor operator()(const Tensor& input);
  /// Runs compute alone, without hooks.
  /// @error kFailedPrecondition hooks are required here (require_hooked_call)
  Tensor forward(const Tensor& input);

  /// "Linear", "Gpt": for messages.
  [[nodiscard]] const std::string& kind() const noexcept { return kind_; }
  /// The dotted name below the outermost module that holds this one; "" for that one itself.
  [[nodiscard]] std::string path() const;

  // Names. All walk the tree in registration order: own tensors first, then sub-modules.
  /// Each parameter once, under its first name.
  [[nodiscard]] std::vector<NamedTensor> named_parameters() const;
  [[nodiscard]] std::vector<Tensor> parameters() const;
  [[nodiscard]] std::vector<NamedTensor> named_buffers() const;
  /// This module and everything below it, parents first.
  [[nodiscard]] std::vector<NamedModule> named_modules();
  /// Direct sub-modules.
  [[nodiscard]] std::vector<NamedModule> children() const;
  /// Every slot, also those that share a tensor. `recurse` false: the module's own only.
  [[nodiscard]] std::vector<TensorSlot> parameter_slots(bool recurse = true);
  [[nodiscard]] std::vector<TensorSlot> buffer_slots(bool recurse = true);
  /// The sub-module at a dotted path; "" is this one. @error kNotFound with the nearest name
  [[nodiscard]] Module& module_at(std::string_view path);
  /// Number of elements of all parameters, shared ones once.
  [[nodiscard]] int64_t num_parameters() const;

  // Values.
  /// Gives every parameter and buffer uninitialised memory on `device` (after construction on the
  /// meta device). Sharing and requires_grad stay.
  void to_empty(Device device = kCpuDevice);
  /// Fills every parameter by its InitSpec: see init.h. Records nothing.
  /// @error kFailedPrecondition a parameter is on the meta device
  void reset_parameters(uint64_t seed);
  /// Converts floating parameters and buffers; sharing and requires_grad stay.
  void to(DType dtype);
  /// Parameters and persistent buffers by name; shared ones under their first name.
  [[nodiscard]] std::vector<NamedTensor> state() const;
  /// Copies values into parameters and buffers. Strict: names and sizes must be those of state().
  /// @error kInvalidArgument lists every missing, unexpected and misshapen entry; nothing is
  /// changed then
  void load_state(const std::map<std::string, Tensor>& state);
  /// Clears every gradient.
  void zero_grad();
  /// Wants gradients of all parameters, or of none.
  void requires_grad_(bool requires_grad = true);

  /// Training mode, for dropout; also of all sub-modules.
  void train(bool is_training = true);
  void eval() { train(false); }
  [[nodiscard]] bool is_training() const noexcept { return is_training_; }

  // Hooks.
  HookHandle register_forward_pre_hook(ForwardPreHook hook);
  HookHandle register_forward_hook(ForwardHook hook);
  /// Refuses forward() from now on; `why` completes "must be called as module(x): ...". "" allows
  /// it again.
  void require_hooked_call(std::string why) { hooks_required_because_ = std::move(why); }
  [[nodiscard]] bool requires_hooked_call() const noexcept {
    return !hooks_required_because_.empty();
  }
  /// Runs `compute` in the place of the module's own from now on, between the hooks: how layers are
  /// made to work on pieces of their parameters. It reads parameters through their slots.
  using Compute = std::function<Tensor(const Tensor& input)>;
  void replace_compute(Compute compute) { replaced_compute_ = std::move(compute); }
  /// Refuses to_empty(), to() and reset_parameters() of this module and of those that hold it, from
  /// now on: its parameters are pieces, which these would take for wholes. `why` completes
  /// "parameters must stay as they are: ...".
  void keep_parameters(std::string why) { parameters_kept_because_ = std::move(why); }
  /// Keeps only the input of `compute` for backward and computes it again there (or no longer).
  /// Hooks run once, around the first run. See core/autograd/checkpoint.h.
  void set_checkpoint(std::optional<CheckpointOptions> options) { checkpoint_ = options; }

 protected:
  explicit Module(std::string kind) : kind_(std::move(kind)) {}

  /// What the module computes. Calls sub-modules as `child(x)`.
  /// @error kUnimplemented by default: a mere container
  virtual Tensor compute(const Tensor& input);

  /// Makes the member `slot` a parameter that wants a gradient; an undefined tensor is left out.
  /// @error kInvalidArgument a name twice, empty or with a dot
  void register_parameter(std::string name, Tensor& slot, Tensor value, InitSpec init);
  void register_buffer(std::string name, Tensor& slot, Tensor value, bool persistent = true);
  /// Makes and owns a sub-module: `Linear& proj_ = add_module<Linear>("proj", options)`.
  template <typename M, typename... Arguments>
  M& add_module(std::string name, Arguments&&... arguments) {
    auto made = std::make_unique<M>(std::forward<Arguments>(arguments)...);
    M& module = *made;
    adopt(std::move(name), std::move(made));
    return module;
  }

 private:
  struct Child {
    std::string name;
    std::unique_ptr<Module> module;
  };
  template <typename Hook>
  struct Registered {
    Hook hook;
    std::shared_ptr<bool> alive;
  };

  Tensor run_hooked(const Tensor& input);
  Tensor run_compute(const Tensor& input);
  [[nodiscard]] std::string describe_place() const;
  void adopt(std::string name, std::unique_ptr<Module> module);
  void check_name(std::string_view name) const;
  void check_may_replace(const char* operation) const;
  // Visits modules with their dotted prefix ("" or "a.b."), parents first.
  void visit(const std::string& prefix,
             const std::function<void(const std::string& prefix, const Module&)>& body) const;

  std::string kind_;
  const Module* parent_ = nullptr;  // owns this one
  std::vector<TensorSlot> parameters_;
  std::vector<TensorSlot> buffers_;
  std::vector<Child> children_;
  std::vector<Registered<ForwardPreHook>> pre_hooks_;
  std::vector<Registered<ForwardHook>> hooks_;
  std::string hooks_required_because_;
  std::string parameters_kept_because_;
  std::function<Tensor(const Tensor&)> replaced_compute_;
  std::optional<CheckpointOptions> checkpoint_;
  bool is_training_ = true;
};

/// Sub-modules by number: "0", "1", ... Has no compute of its own.
class ModuleList final : public Module {
 public:
  ModuleList() : Module("ModuleList") {}
  template <typename M, typename... Arguments>
  M& append(Arguments&&... arguments) {
    M& made = add_module<M>(std::to_string(items_.size()), std::forward<Arguments>(arguments)...);
    items_.push_back(&made);
    return made;
  }
  [[nodiscard]] size_t size() const noexcept { return items_.size(); }
  [[nodiscard]] Module& operator[](size_t i) const { return *items_[i]; }
  [[nodiscard]] auto begin() const { return items_.begin(); }
  [[nodiscard]] auto end() const { return items_.end(); }

 private:
  std::vector<Module*> items_;
};

/// Runs modules one after the other; named by number.
class Sequential final : public Module {
 public:
  Sequential() : Module("Sequential") {}
  template <typename M, typename... Arguments>
  M& append(Arguments&&... arguments) {
    M& made = add_module<M>(std::to_string(items_.size()), std::forward<Arguments>(arguments)...);
    items_.push_back(&made);
    return made;
  }
  [[nodiscard]] size_t size() const noexcept { return items_.size(); }

 protected:
  Tensor compute(const Tensor& input) override;

 private:
  std::vector<Module*> items_;
};

}  // namespace muster
