#include "core/dispatch/op_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "core/base/text.h"
#include "core/dispatch/promotion.h"

namespace muster {
namespace {
std::array<std::atomic<KeyHandler>, kNumDispatchKeys> key_handlers{};

DispatchKey backend_key(DeviceType type) {
  if (type == DeviceType::kCpu) return DispatchKey::kCpu;
  return type == DeviceType::kCuda ? DispatchKey::kCuda : DispatchKey::kMeta;
}

constexpr DispatchKeySet kBackends =
    DispatchKeySet(DispatchKey::kCpu) | DispatchKey::kCuda | DispatchKey::kMeta;

// Keys of the call: of its tensors and of the thread's modes.
DispatchKeySet active_keys(Args args) noexcept {
  const ThreadModes& modes = thread_modes();
  DispatchKeySet keys = keys_of(args);
  if ((keys & kBackends).empty()) keys |= backend_key(modes.default_device.type);
  return (keys | modes.included) - modes.excluded;
}

// Stated once so that every in-place operator refuses the same writes.
void check_in_place_target(const Op& op, const Tensor& self, const TensorSpec& result) {
  MUSTER_CHECK(std::equal(result.sizes.begin(), result.sizes.end(), self.sizes().begin(),
                          self.sizes().end()),
               ErrorCode::kInvalidArgument,
               "{}: the result must have the sizes of self; got {} for self {}", op.name(),
               to_string(Dims(result.sizes)), self);
  MUSTER_CHECK(can_cast(result.dtype, self.dtype()), ErrorCode::kInvalidArgument,
               "{}: result type {} can't be cast to the type of self, {}", op.name(), result.dtype,
               self.dtype());
  MUSTER_CHECK(!certainly_overlaps_itself(self.sizes(), self.strides()),
               ErrorCode::kInvalidArgument,
               "{}: more than one element of the written-to tensor refers to a single memory "
               "location; got sizes {} "
               "strides {}; clone() it first",
               op.name(), to_string(self.sizes()), to_string(self.strides()));
}

// An input that shares memory with self but lies differently would be read half written.
bool overlaps_partially(const Tensor& self, const Tensor& input) {
  if (!(self.storage() == input.storage()) || self.numel() == 0 || input.numel() == 0) return false;
  const bool same = self.storage_offset() == input.storage_offset() &&
                    std::equal(self.sizes().begin(), self.sizes().end(), input.sizes().begin(),
                               input.sizes().end()) &&
                    std::equal(self.strides().begin(), self.strides().end(),
                               input.strides().begin(), input.strides().end());
  if (same) return false;
  // Only dense spans are certain to meet; the undecidable rest is allowed, as in PyTorch.
  if (!is_non_overlapping_and_dense(self.sizes(), self.strides()) ||
      !is_non_overlapping_and_dense(input.sizes(), input.strides())) {
    return false;
  }
  const int64_t a = self.storage_offset(), b = input.storage_offset();
  return a < b + input.numel() && b < a + self.numel();
}
}  // namespace

DispatchKeySet keys_of(Args args) noexcept {
  DispatchKeySet keys;
  for (const Value& value : args) {
    switch (value.tag()) {
      case ValueTag::kTensor:
        keys |= value.tensor().impl()->keys();
        break;
      case ValueTag::kTensorList:
        for (const Tensor& tensor : value.tensors()) {
          if (tensor.defined()) keys |= tensor.impl()->keys();
        }
        break;
      case ValueTag::kDevice:
        keys |= backend_key(value.device().type);
        break;
      default:
        break;
    }
  }
  return keys;
}

void set_key_handler(DispatchKey key, KeyHandler handler) noexcept {
  key_handlers[static_cast<size_t>(key)].store(handler, std::memory_order_release);
}

Op::Op(std::shared_ptr<const OpDef> def, Variant variant)
    : def_(std::move(def)), variant_(variant) {
  name_ = def_->facts().schema.name;
  if (variant == Variant::kInPlace && !def_->facts().only_in_place) name_ += '_';
}

void Op::call(Args args, std::span<Tensor> outs) const {
  const OpDef::Facts& facts = def_->facts();
  MUSTER_ASSERT(args.size() == facts.schema.arguments.size(),
                "{}: {} arguments are passed for the schema's {}", name_, args.size(),
                facts.schema.arguments.size());
  if (facts.composite != nullptr) return call_composite(args, outs);
  run(active_keys(args), args, outs);
}

// A composite runs above dispatch; only autocast may first want its arguments in another dtype.
void Op::call_composite(Args args, std::span<Tensor> outs) const {
  const OpDef::Facts& facts = def_->facts();
  const ThreadModes& modes = thread_modes();
  const bool casts =
      facts.autocast != AutocastClass::kNone || facts.autocast_cuda != AutocastClass::kNone;
  if (casts && (modes.included - modes.excluded).has(DispatchKey::kAutocast)) {
    const KeyHandler handler =
        key_handlers[static_cast<size_t>(DispatchKey::kAutocast)].load(std::memory_order_acquire);
    if (handler != nullptr) return handler(*this, args, outs);
  }
  facts.composite(OpArgs(args, facts.schema), outs);
}

void Op::redispatch(DispatchKeySet mask, Args args, std::span<Tensor> outs) const {
  const OpDef::Facts& facts = def_->facts();
  if (facts.composite != nullptr) return facts.composite(OpArgs(args, facts.schema), outs);
  run(active_keys(args) & mask, args, outs);
}

void Op::run(DispatchKeySet keys, Args args, std::span<Tensor> outs) const {
  while (true) {
    MUSTER_ASSERT(!keys.empty(), "{}: no dispatch key is left", name_);
    const DispatchKey key = keys.highest();
    if (key <= DispatchKey::kMeta) return run_backend(key, args, outs);
    const KeyHandler handler =
        key_handlers[static_cast<size_t>(key)].load(std::memory_order_acquire);
    if (handler != nullptr) return handler(*this, args, outs);
    keys = keys - key;
  }
}

void Op::run_backend(DispatchKey key, Args args, std::span<Tensor> outs) const {
  const OpDef::Facts& facts = def_->facts();
  if (facts.view != nullptr) return run_view(args, outs);
  const OpArgs op_args(args, facts.schema);
  const DeviceType device = key == DispatchKey::kCpu    ? DeviceType::kCpu
                            : key == DispatchKey::kCuda ? DeviceType::kCuda
                                                        : DeviceType::kMeta;
  const KernelFn kernel = facts.kernels[static_cast<size_t>(device)];
  MUSTER_CHECK(kernel != nullptr || key == DispatchKey::kMeta, ErrorCode::kUnimplemented,
               "{}: no kernel for {}", name_, to_string(key));
  if (variant_ == Variant::kInPlace) return run_in_place(kernel, op_args, outs);
  if (facts.infer_one != nullptr) {
    outs[0] = empty_from_spec(facts.infer_one(op_args));
  } else {
    const std::vector<TensorSpec> specs = facts.infer_many(op_args);
    for (size_t i = 0; i < specs.size(); ++i) outs[i] = empty_from_spec(specs[i]);
  }
  if (thread_modes().inference) {
    for (Tensor& out : outs) out.impl()->is_inference = true;
  }
  if (key != DispatchKey::kMeta) kernel(op_args, outs);
}

void Op::run_view(Args args, std::span<Tensor> outs) const {
  const OpDef::Facts& facts = def_->facts();
  const OpArgs op_args(args, facts.schema);
  const Tensor& self = args[0].tensor();
  for (size_t i = 0; i < outs.size(); ++i) {
    outs[i] = alias_with_layout(self, facts.view(op_args, i));
    TensorImpl* impl = outs[i].impl();
    impl->creation = outs.size() > 1 || facts.count != nullptr ? ViewCreation::kMultiOutput
                     : grad_enabled()                          ? self.impl()->creation
                                                               : ViewCreation::kNoGrad;
  }
}

void Op::run_in_place(KernelFn kernel, const OpArgs& args, std::span<Tensor> outs) const {
  const OpDef::Facts& facts = def_->facts();
  const Tensor& self = args.tensor(0);
  MUSTER_CHECK(!self.impl()->is_inference || thread_modes().inference,
               ErrorCode::kFailedPrecondition,
               "{}: inplace update to inference tensor outside InferenceMode is not allowed; got "
               "{}; clone it first",
               name_, self);
  check_in_place_target(*this, self, facts.infer_one(args));
  for (size_t i = 1; i < args.size(); ++i) {
    MUSTER_CHECK(
        !args[i].is_tensor() || !overlaps_partially(self, args.tensor(i)),
        ErrorCode::kInvalidArgument,
        "{}: the written-to tensor {} overlaps the input {} in memory; clone() the input first",
        name_, self, args[i].describe());
  }
  outs[0] = self;
  if (kernel != nullptr && !self.is_meta()) kernel(args, outs);
  if (!self.impl()->is_inference) self.storage()->bump_version();
}

size_t Op::num_outputs(Args args) const {
  const OpDef::Facts& facts = def_->facts();
  return facts.count != nullptr ? facts.count(OpArgs(args, facts.schema))
                                : facts.schema.returns.size();
}

std::vector<TensorSpec> Op::infer(Args args) const {
  const OpDef::Facts& facts = def_->facts();
  const OpArgs op_args(args, facts.schema);
  if (facts.infer_one != nullptr) return {facts.infer_one(op_args)};
  if (facts.infer_many != nullptr) return facts.infer_many(op_args);
  std::vector<TensorSpec> specs;
  for (size_t i = 0; i < num_outputs(args); ++i) {
    Layout layout = facts.view(op_args, i);
    specs.push_back(
        {layout.sizes, layout.strides, args[0].tensor().dtype(), args[0].tensor().device()});
  }
  return specs;
}

void OpTable::add(OpDef def) {
  const auto shared = std::make_shared<const OpDef>(std::move(def));
  const OpDef::Facts& facts = shared->facts();
  const auto add_variant = [&](Op::Variant variant) {
    auto op = std::make_unique<Op>(shared, variant);
    MUSTER_ASSERT(find_or_null(op->name()) == nullptr, "operator {} is defined twice", op->name());
    ops_.push_back(std::move(op));
  };
  if (!facts.only_in_place) add_variant(Op::Variant::kFunctional);
  if (facts.has_in_place || facts.only_in_place) add_variant(Op::Variant::kInPlace);
}

const Op* OpTable::find_or_null(std::string_view name) const noexcept {
  for (const auto& op : ops_) {
    if (op->name() == name) return op.get();
  }
  return nullptr;
}

const Op& OpTable::find(std::string_view name) const {
  if (const Op* op = find_or_null(name)) return *op;
  std::vector<std::string> names;
  for (const auto& op : ops_) names.push_back(op->name());
  const std::string near = nearest_name(name, names);
  throw_error(ErrorCode::kNotFound, "operator \"{}\" does not exist{}", name,
              near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near));
}

OpTable& op_table() noexcept {
  static OpTable table;
  return table;
}
}  // namespace muster
