#pragma once
/// Op: a callable operator; OpTable: all of them; key handlers: the systems above the backends.
///
/// A call computes the key set of its tensors and the thread's modes, and runs the handler of the
/// highest key, which may redispatch below itself. Look-ups by name happen at registration or once
/// per call site, never per call.

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/dispatch/mode.h"
#include "core/dispatch/op_def.h"

namespace muster {

class Op {
 public:
  enum class Variant : uint8_t { kFunctional, kInPlace };

  Op(std::shared_ptr<const OpDef> def, Variant variant);

  /// Runs the operator. `outs` has one entry per output, undefined on entry; for an in-place
  /// operator outs[0] becomes the first argument.
  void call(Args args, std::span<Tensor> outs) const;
  /// Runs the highest handler among the keys in `mask`.
  void redispatch(DispatchKeySet mask, Args args, std::span<Tensor> outs) const;

  [[nodiscard]] const OpDef::Facts& facts() const noexcept { return def_->facts(); }
  [[nodiscard]] const Schema& schema() const noexcept { return def_->facts().schema; }
  /// The schema's name, with "_" for an in-place variant.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] Variant variant() const noexcept { return variant_; }
  [[nodiscard]] bool writes_self() const noexcept { return variant_ == Variant::kInPlace; }
  [[nodiscard]] bool is_view() const noexcept { return def_->facts().view != nullptr; }
  /// Outputs that this call has. @error as infer
  [[nodiscard]] size_t num_outputs(Args args) const;
  /// Shapes of all outputs, without running. For views: of the alias.
  [[nodiscard]] std::vector<TensorSpec> infer(Args args) const;

 private:
  void call_composite(Args args, std::span<Tensor> outs) const;
  void run(DispatchKeySet keys, Args args, std::span<Tensor> outs) const;
  void run_backend(DispatchKey key, Args args, std::span<Tensor> outs) const;
  void run_view(Args args, std::span<Tensor> outs) const;
  void run_in_place(KernelFn kernel, const OpArgs& args, std::span<Tensor> outs) const;

  std::shared_ptr<const OpDef> def_;
  Variant variant_;
  std::string name_;
};

/// Keys of all tensors and devices among the arguments.
DispatchKeySet keys_of(Args args) noexcept;

/// A system between callers and backends (autograd, DTensor, tracer): sees every call whose key set
/// holds its key, and goes on with op.redispatch(DispatchKeySet::below(key), ...).
using KeyHandler = void (*)(const Op& op, Args args, std::span<Tensor> outs);
/// Installs the handler of a key for the process. @thread before the first call
void set_key_handler(DispatchKey key, KeyHandler handler) noexcept;

class OpTable {
 public:
  /// Adds an operator and its in-place variant. @error kInternal a name twice
  void add(OpDef def);
  /// @error kNotFound with the nearest name
  [[nodiscard]] const Op& find(std::string_view name) const;
  [[nodiscard]] const Op* find_or_null(std::string_view name) const noexcept;
  [[nodiscard]] const std::vector<std::unique_ptr<Op>>& all() const noexcept { return ops_; }

 private:
  std::vector<std::unique_ptr<Op>> ops_;
};

/// The operators of this process; core/ops fills it before the first look-up there.
OpTable& op_table() noexcept;

/// Runs an operator with one output.
template <typename... Arguments>
Tensor call_one(const Op& op, const Arguments&... arguments) {
  const Value values[] = {Value(arguments)...};
  Tensor out;
  op.call(Args(values, sizeof...(arguments)), std::span<Tensor>(&out, 1));
  return out;
}

/// Runs an operator with N outputs.
template <size_t N, typename... Arguments>
std::array<Tensor, N> call_many(const Op& op, const Arguments&... arguments) {
  const Value values[] = {Value(arguments)...};
  std::array<Tensor, N> outs;
  op.call(Args(values, sizeof...(arguments)), outs);
  return outs;
}

}  // namespace muster
