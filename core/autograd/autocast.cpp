#include "core/autograd/autocast.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/autograd/autograd.h"
#include "core/dispatch/op_table.h"

namespace muster {
namespace {
// A kept cast. It owns its source, so that the address stays that tensor's.
struct CachedCast {
  Tensor source;
  uint32_t version;
  Tensor cast;
};

struct CacheKey {
  const TensorImpl* source;
  DType dtype;
  bool operator==(const CacheKey&) const = default;
};
struct CacheKeyHash {
  size_t operator()(const CacheKey& key) const noexcept {
    return std::hash<const void*>()(key.source) ^ static_cast<size_t>(key.dtype);
  }
};

struct Cache {
  int depth = 0;  // regions that this thread is in
  std::unordered_map<CacheKey, CachedCast, CacheKeyHash> casts;
};
Cache& cache() noexcept {
  thread_local Cache kept;
  return kept;
}

AutocastSetting* setting_of(ThreadModes& modes, DeviceType device) noexcept {
  if (device == DeviceType::kCpu) return &modes.autocast_cpu;
  return device == DeviceType::kCuda ? &modes.autocast_cuda : nullptr;
}

bool is_eligible(const Tensor& tensor) noexcept {
  return tensor.defined() && is_floating(tensor.dtype()) && tensor.dtype() != DType::kF64 &&
         autocast_setting(tensor.device().type).enabled;
}

Tensor cast_now(const Tensor& tensor, DType dtype) {
  static const Op& to = op_table().find("to");
  return call_one(to, tensor, dtype);
}

// Of weights: several calls of a region share one cast, and its gradient.
Tensor cast_cached(const Tensor& tensor, DType dtype) {
  Cache& kept = cache();
  const ThreadModes& modes = thread_modes();
  const bool may_keep = kept.depth > 0 && modes.autocast_cache && !modes.inference &&
                        tensor.dtype() == DType::kF32 && tensor.requires_grad() &&
                        !tensor.is_view() && is_leaf(tensor);
  if (!may_keep) return cast_now(tensor, dtype);
  CachedCast& entry = kept.casts[{tensor.impl(), dtype}];
  if (!entry.cast.defined() || entry.version != tensor.version()) {
    // Recorded also under no_grad: a later use outside of it needs the gradient.
    const GradModeGuard recorded(true);
    entry = {tensor, tensor.version(), cast_now(tensor, dtype)};
  }
  return entry.cast;
}

template <typename Body>
void for_each_tensor(Args args, const Body& body) {
  for (const Value& value : args) {
    if (value.is_tensor()) body(value.tensor());
    if (!value.is_tensor_list()) continue;
    for (const Tensor& tensor : value.tensors()) body(tensor);
  }
}

AutocastClass class_of(const Op& op, Args args) {
  const OpDef::Facts& facts = op.facts();
  if (facts.autocast == facts.autocast_cuda) return facts.autocast;
  AutocastClass found = AutocastClass::kNone;
  bool decided = false;
  for_each_tensor(args, [&](const Tensor& tensor) {
    if (decided || !is_eligible(tensor)) return;
    decided = true;
    found = tensor.device().type == DeviceType::kCuda ? facts.autocast_cuda : facts.autocast;
  });
  return found;
}

// The dtype in which the eligible arguments meet; nothing when there are none.
std::optional<DType> target_of(AutocastClass cls, Args args) {
  std::optional<DType> target;
  for_each_tensor(args, [&](const Tensor& tensor) {
    if (!is_eligible(tensor)) return;
    switch (cls) {
      case AutocastClass::kLowPrecision:
        target = autocast_setting(tensor.device().type).dtype;
        break;
      case AutocastClass::kFloat32:
        target = DType::kF32;
        break;
      case AutocastClass::kPromote:
        target = target ? promote_types(*target, tensor.dtype()) : tensor.dtype();
        break;
      case AutocastClass::kNone:
      case AutocastClass::kOutside:
        break;
    }
  });
  return target;
}

// The arguments of a call with the eligible ones cast; owns the casts.
class CastArguments {
 public:
  CastArguments(Args args, DType target) {
    size_t tensors = 0;
    for_each_tensor(args, [&](const Tensor&) { ++tensors; });
    tensors_.reserve(tensors);  // Values point into it
    values_.reserve(args.size());
    for (const Value& value : args) {
      if (value.is_tensor()) {
        values_.emplace_back(add(value.tensor(), target));
      } else if (value.is_tensor_list()) {
        const size_t first = tensors_.size();
        for (const Tensor& tensor : value.tensors()) add(tensor, target);
        values_.emplace_back(std::span<const Tensor>(tensors_).subspan(first));
      } else {
        values_.push_back(value);
      }
    }
  }
  [[nodiscard]] Args values() const noexcept { return values_; }

 private:
  const Tensor& add(const Tensor& tensor, DType target) {
    const bool fits = !is_eligible(tensor) || tensor.dtype() == target;
    return tensors_.emplace_back(fits ? tensor : cast_cached(tensor, target));
  }

  std::vector<Tensor> tensors_;
  std::vector<Value> values_;
};

void autocast_handler(const Op& op, Args args, std::span<Tensor> outs) {
  constexpr DispatchKeySet kBelow = DispatchKeySet::below(DispatchKey::kAutocast);
  const AutocastClass cls = op.writes_self() ? AutocastClass::kNone : class_of(op, args);
  if (cls == AutocastClass::kNone) return op.redispatch(kBelow, args, outs);
  const std::optional<DType> target = target_of(cls, args);
  // What the operator is made of keeps the dtypes chosen here.
  const ExcludeKeysGuard outside(DispatchKey::kAutocast);
  if (!target) return op.redispatch(kBelow, args, outs);
  bool fits = true;
  for_each_tensor(args, [&](const Tensor& tensor) {
    if (is_eligible(tensor) && tensor.dtype() != *target) fits = false;
  });
  if (fits) return op.redispatch(kBelow, args, outs);
  const CastArguments cast(args, *target);
  op.redispatch(kBelow, cast.values(), outs);
}
}  // namespace

AutocastGuard::AutocastGuard(DeviceType device, DType dtype, bool enabled, bool cache_enabled)
    : saved_(thread_modes()) {
  ThreadModes& modes = thread_modes();
  AutocastSetting* setting = setting_of(modes, device);
  MUSTER_CHECK(setting != nullptr, ErrorCode::kInvalidArgument,
               "autocast: the device type must be cpu or cuda; got {}", to_string(Device{device}));
  MUSTER_CHECK(dtype == DType::kBF16 || dtype == DType::kF16, ErrorCode::kInvalidArgument,
               "autocast: the low-precision type must be bf16 or f16; got {}", dtype);
  *setting = {enabled, dtype};
  modes.autocast_cache = cache_enabled;
  const bool any = modes.autocast_cpu.enabled || modes.autocast_cuda.enabled;
  modes.included =
      any ? modes.included | DispatchKey::kAutocast : modes.included - DispatchKey::kAutocast;
  ++cache().depth;
}

AutocastGuard::~AutocastGuard() {
  ThreadModes& modes = thread_modes();
  modes.autocast_cpu = saved_.autocast_cpu;
  modes.autocast_cuda = saved_.autocast_cuda;
  modes.autocast_cache = saved_.autocast_cache;
  modes.included = saved_.included.has(DispatchKey::kAutocast)
                       ? modes.included | DispatchKey::kAutocast
                       : modes.included - DispatchKey::kAutocast;
  if (--cache().depth == 0) clear_autocast_cache();
}

AutocastSetting autocast_setting(DeviceType device) noexcept {
  const AutocastSetting* setting = setting_of(thread_modes(), device);
  return setting != nullptr ? *setting : AutocastSetting{};
}

Tensor autocast_low_precision(const Tensor& tensor) {
  if (!autocast_is_active() || !is_eligible(tensor)) return tensor;
  const DType dtype = autocast_setting(tensor.device().type).dtype;
  return tensor.dtype() == dtype ? tensor : cast_cached(tensor, dtype);
}

void clear_autocast_cache() noexcept { cache().casts.clear(); }

void install_autocast() { set_key_handler(DispatchKey::kAutocast, autocast_handler); }
}  // namespace muster
