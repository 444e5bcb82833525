#pragma once
/// OpDef: everything known of one operator, stated in one place.
///
/// Schema text, shape rule, kernels, derivative, sharding, autocast and fusion class, samples and
/// tolerances. What an operator lacks it must say with a reason (`not_differentiable(why)`,
/// `replicate_only(why)`), else the table's self-test fails. Calls go through Op (op_table.h).

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "core/dispatch/backward.h"
#include "core/dispatch/value.h"
#include "core/schema/schema.h"

namespace muster {

/// Arguments of a call seen through the schema; index = position in the schema.
class OpArgs {
 public:
  OpArgs(Args values, const Schema& schema) : values_(values), schema_(&schema) {}
  [[nodiscard]] const Value& operator[](size_t index) const { return values_[index]; }
  [[nodiscard]] size_t size() const { return values_.size(); }
  [[nodiscard]] const Tensor& tensor(size_t index) const { return values_[index].tensor(); }
  [[nodiscard]] Args values() const { return values_; }
  /// The operator's name, for messages.
  [[nodiscard]] const char* op_name() const { return schema_->name.c_str(); }

 private:
  Args values_;
  const Schema* schema_;
};

/// Shape rule of an operator with one output: checks arguments, computes metadata, reads no data.
using InferFn = TensorSpec (*)(const OpArgs& args);
/// The same for several outputs.
using InferManyFn = std::vector<TensorSpec> (*)(const OpArgs& args);
/// Layout of output `index` of a view operator; the output aliases the first argument.
using ViewFn = Layout (*)(const OpArgs& args, size_t index);
/// Writes outputs that infer described (or that an in-place call gave).
using KernelFn = void (*)(const OpArgs& args, std::span<Tensor> outs);
/// An operator made of other operators; runs above dispatch and is differentiated through them.
using CompositeFn = void (*)(const OpArgs& args, std::span<Tensor> outs);
/// Number of outputs of an operator that returns a list.
using CountFn = size_t (*)(const OpArgs& args);

/// What autocast does with the floating arguments of an operator (f64 is always left alone).
enum class AutocastClass : uint8_t {
  kNone,          ///< nothing; a composite's parts are cast by their own classes
  kOutside,       ///< nothing, nor with what a composite is made of
  kLowPrecision,  ///< casts them to the region's low-precision type
  kFloat32,       ///< casts low-precision ones to f32
  kPromote,       ///< casts all to the widest among them
};
enum class FusionClass : uint8_t { kOpaque, kPointwise, kRowReduction, kView };

/// Comparison bounds of the conformance tests, relative.
struct Tolerance {
  double f64 = 1e-12;
  double f32 = 1e-5;
  double bf16 = 1.6e-2;
};

/// Values that a derivative reads: names of arguments and returns. "mat2 for self" is read only
/// for the gradient of `self` ("for self, other": of either) and is saved only when that is wanted.
using Saves = std::vector<std::string>;

/// One entry of Saves, resolved against the schema.
struct SavedValue {
  static constexpr size_t kNoIndex = static_cast<size_t>(-1);
  std::string name;
  size_t argument = kNoIndex;   ///< its position among the arguments
  size_t result = kNoIndex;     ///< or, when it is no argument, among the returns
  std::vector<size_t> readers;  ///< arguments whose gradient reads it; empty: any
};

class OpDef {
 public:
  explicit OpDef(std::string_view schema_text);

  OpDef& infer(InferFn fn);
  OpDef& infer(InferManyFn fn);
  /// A view operator: no kernel, no memory.
  OpDef& view(ViewFn fn);
  OpDef& kernel(DeviceType device, KernelFn fn);
  OpDef& composite(CompositeFn fn);
  /// Number of outputs, for an operator whose schema returns Tensor[].
  OpDef& count(CountFn fn);
  /// Also defines `name_`: the same kernel writes into the first argument.
  OpDef& in_place();
  /// An operator that only exists in place (`copy_`, `zero_`): it writes the first argument.
  OpDef& only_in_place();
  /// `saves` names the arguments and returns whose values the derivative reads.
  /// @error kInternal "for" names something that is no argument
  OpDef& derivative(DerivativeFn fn, Saves saves = {});
  OpDef& not_differentiable(std::string why);
  /// One-axis sharding rules, e.g. "S(b), R -> S(b)". All-replicated is implied.
  OpDef& shard(std::vector<std::string> rules);
  OpDef& replicate_only(std::string why);
  /// The class on every device, or one for the CPU and another for CUDA (torch's lists differ).
  OpDef& autocast(AutocastClass value);
  OpDef& autocast(AutocastClass cpu, AutocastClass cuda);
  OpDef& fusion(FusionClass value);
  /// Sample calls for the conformance tests, e.g. "f(2,3), f(3), 0.5": see docs/architecture.md.
  OpDef& samples(std::vector<std::string> texts);
  OpDef& tolerance(Tolerance value);
  /// Takes a generator: equal calls differ; excluded from value comparison.
  OpDef& random();

  // What was stated; read by the table, the recorder, DTensor, tests and `muster ops`.
  struct Facts {
    Schema schema;
    InferFn infer_one = nullptr;
    InferManyFn infer_many = nullptr;
    ViewFn view = nullptr;
    CompositeFn composite = nullptr;
    CountFn count = nullptr;
    std::array<KernelFn, kNumDeviceTypes> kernels{};
    bool has_in_place = false;
    bool only_in_place = false;
    bool is_random = false;
    DerivativeFn derivative = nullptr;
    std::string no_derivative_because;
    std::vector<SavedValue> saves;
    std::vector<std::string> shard_rules;
    std::string replicate_only_because;
    AutocastClass autocast = AutocastClass::kNone;       ///< on the CPU
    AutocastClass autocast_cuda = AutocastClass::kNone;  ///< on CUDA devices
    FusionClass fusion = FusionClass::kOpaque;
    std::vector<std::string> samples;
    Tolerance tolerance;
  };
  [[nodiscard]] const Facts& facts() const { return facts_; }

 private:
  Facts facts_;
};

}  // namespace muster
