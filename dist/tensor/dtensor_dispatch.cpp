#include "dist/tensor/dtensor_dispatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "core/autograd/autograd_meta.h"
#include "core/base/hash.h"
#include "core/dispatch/mode.h"
#include "core/ops/ops.h"
#include "dist/tensor/axis_rules.h"
#include "dist/tensor/list_dispatch.h"
#include "dist/tensor/local_shard.h"
#include "dist/tensor/redistribute_local.h"
#include "dist/tensor/shard_rules.h"

namespace muster {
namespace {
constexpr size_t kMaxLayouts = 4096;
thread_local bool implicit_replication = false;

struct KeyHash {
  size_t operator()(const std::vector<int64_t>& key) const noexcept {
    uint64_t h = 0xcbf29ce484222325u;
    for (const int64_t word : key) h = (h ^ static_cast<uint64_t>(word)) * 0x100000001b3u;
    return static_cast<size_t>(h ^ (h >> 29));
  }
};

struct LayoutCache {
  std::unordered_map<std::vector<int64_t>, CallLayout, KeyHash> layouts;
  LayoutCacheCounts counts;
};
LayoutCache& layout_cache() {
  static thread_local LayoutCache cache;
  return cache;
}

// The tensors of a call, flattened, and the mesh they share.
struct CallTensors {
  std::vector<const Tensor*> tensors;
  std::vector<RuleInput> inputs;
  const DTensorSpec* any = nullptr;
};

void check_mesh(const Op& op, const DTensorSpec& a, const DTensorSpec& b) {
  MUSTER_CHECK(a.mesh == b.mesh || *a.mesh == *b.mesh, ErrorCode::kInvalidArgument,
               "{}: all DTensors of a call must lie on one mesh; got {} and {}", op.name(),
               a.describe(), b.describe());
}

// "linear: argument 1 (weight)".
std::string place_of(const Op& op, size_t argument) {
  return fmt::format("{}: argument {} ({})", op.name(), argument,
                     op.schema().arguments[argument].name);
}

// A plain tensor may take part where it stands for the same value on every rank.
void check_plain(const Op& op, const Tensor& tensor, size_t argument, bool is_written,
                 const DTensorSpec& any) {
  const LocalShard* piece = local_shard_of(tensor);
  const bool may_join = (tensor.numel() == 1 || implicit_replication) && !is_written && !piece;
  MUSTER_CHECK(may_join, ErrorCode::kInvalidArgument,
               "{} is a plain tensor {} beside a DTensor {}{}\n"
               "  fix: make it a DTensor by distribute_tensor or from_local, or, where all ranks "
               "hold the same values, use ImplicitReplicationGuard",
               place_of(op, argument), tensor, any.describe(),
               piece ? fmt::format("; it is a piece of {}", piece->whole.describe()) : "");
  MUSTER_CHECK(!grad_enabled() || !tensor.requires_grad() || op.facts().derivative == nullptr,
               ErrorCode::kInvalidArgument,
               "{} is a plain tensor {} that requires a gradient beside a DTensor {}: the gradient "
               "would be a DTensor\n  fix: from_local(x, mesh, [R]) gives it a local one",
               place_of(op, argument), tensor, any.describe());
}

RuleInput describe_input(const Op& op, const Tensor& tensor, size_t argument, size_t pattern,
                         const DTensorSpec& any) {
  MUSTER_CHECK(tensor.defined(), ErrorCode::kInvalidArgument, "{} has an undefined tensor in it",
               place_of(op, argument));
  RuleInput input;
  input.argument = argument;
  input.pattern = pattern;
  input.sizes = DimVector(tensor.sizes());
  input.strides = DimVector(tensor.strides());
  input.dtype = tensor.dtype();
  input.is_written = op.writes_self() && argument == 0;
  if (is_dtensor(tensor)) {
    check_mesh(op, any, dtensor_spec(tensor));
    input.placements = dtensor_spec(tensor).placements;
    return input;
  }
  check_plain(op, tensor, argument, input.is_written, any);
  input.placements.assign(any.placements.size(), Placement::replicate());
  input.is_plain = tensor.numel() == 1;
  return input;
}

// What a tensor of the call is to this rank under `wanted`.
Tensor placed_local(const Tensor& tensor, const RuleInput& input, const DTensorSpec& any,
                    const std::vector<Placement>& wanted) {
  if (input.is_plain) return tensor;
  if (is_dtensor(tensor)) {
    return redistribute_local(local_tensor(tensor), dtensor_spec(tensor), wanted,
                              PartialTargets::kAllow);
  }
  const DTensorSpec whole{any.mesh, input.placements, input.sizes, input.dtype};
  return redistribute_local(tensor, whole, wanted, PartialTargets::kAllow);
}

CallTensors tensors_of(const Op& op, Args args) {
  CallTensors call;
  const auto note = [&](const Tensor& tensor) {
    if (call.any == nullptr && is_dtensor(tensor)) call.any = &dtensor_spec(tensor);
  };
  for (const Value& value : args) {
    if (value.is_tensor()) note(value.tensor());
    if (value.is_tensor_list()) {
      for (const Tensor& tensor : value.tensors()) note(tensor);
    }
  }
  MUSTER_ASSERT(call.any != nullptr, "{}: the DTensor key without a DTensor", op.name());
  size_t pattern = 0;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i].is_tensor()) {
      call.tensors.push_back(&args[i].tensor());
      call.inputs.push_back(describe_input(op, args[i].tensor(), i, pattern, *call.any));
    } else if (args[i].is_tensor_list()) {
      for (const Tensor& tensor : args[i].tensors()) {
        call.tensors.push_back(&tensor);
        call.inputs.push_back(describe_input(op, tensor, i, pattern, *call.any));
      }
    }
    if (op.schema().arguments[i].type == ArgumentType::kTensor) ++pattern;
  }
  return call;
}

int64_t code_of(Placement placement) {
  return static_cast<int64_t>(placement.kind) | static_cast<int64_t>(placement.op) << 4 |
         static_cast<int64_t>(placement.dim) << 8 |
         static_cast<int64_t>(placement.split_factor) << 32;
}

void append_plain(std::vector<int64_t>& key, const Value& value) {
  key.push_back(static_cast<int64_t>(value.tag()));
  switch (value.tag()) {
    case ValueTag::kInt:
    case ValueTag::kBool:
      key.push_back(value.integer());
      break;
    case ValueTag::kIntList:
      key.push_back(static_cast<int64_t>(value.ints().size()));
      key.insert(key.end(), value.ints().begin(), value.ints().end());
      break;
    case ValueTag::kDType:
      key.push_back(static_cast<int64_t>(value.dtype()));
      break;
    case ValueTag::kTensorList:
      key.push_back(static_cast<int64_t>(value.tensors().size()));
      break;
    case ValueTag::kString:
      key.push_back(static_cast<int64_t>(std::hash<std::string_view>()(value.text())));
      break;
    default:
      break;
  }
}

std::vector<int64_t> key_of(const Op& op, Args args, const CallTensors& call) {
  std::vector<int64_t> key;
  key.reserve(64);
  key.push_back(static_cast<int64_t>(reinterpret_cast<intptr_t>(&op)));
  for (const DeviceMesh::Axis& axis : call.any->mesh->axes()) key.push_back(axis.size);
  // Seeds differ at every call and decide nothing.
  const bool is_drawn = call.inputs.size() == 1 && is_drawn_by_box(op);
  for (size_t i = 0; i < args.size() && !is_drawn; ++i) append_plain(key, args[i]);
  for (const RuleInput& input : call.inputs) {
    key.push_back(static_cast<int64_t>(input.sizes.size()) << 8 |
                  static_cast<int64_t>(input.dtype) << 1 | static_cast<int64_t>(input.is_plain));
    key.insert(key.end(), input.sizes.begin(), input.sizes.end());
    key.insert(key.end(), input.strides.begin(), input.strides.end());
    for (const Placement placement : input.placements) key.push_back(code_of(placement));
  }
  return key;
}

const CallLayout& layout_of(const Op& op, Args args, const CallTensors& call) {
  LayoutCache& cache = layout_cache();
  std::vector<int64_t> key = key_of(op, args, call);
  const auto found = cache.layouts.find(key);
  if (found != cache.layouts.end()) {
    ++cache.counts.hits;
    return found->second;
  }
  ++cache.counts.misses;
  CallLayout layout = choose_layout(op, args, call.inputs, *call.any);
  if (cache.layouts.size() >= kMaxLayouts) cache.layouts.clear();
  return cache.layouts.emplace(std::move(key), std::move(layout)).first->second;
}

DTensorImpl& impl_of(const Tensor& dtensor) { return static_cast<DTensorImpl&>(*dtensor.impl()); }

// A view of a DTensor may be read, not written under autograd: its base would not learn of it. Nor
// would it without, where the view had to communicate.
void relate_to_base(const Tensor& self, bool was_moved, const Tensor& out) {
  if (!is_dtensor(self)) return;
  impl_of(out).is_copied_view = was_moved || impl_of(self).is_copied_view;
  if (!grad_enabled()) return;
  out.impl()->base = self.impl()->base ? self.impl()->base : self.ref();
  out.impl()->creation = ViewCreation::kCustomFunction;
}

// A strided piece is no box: it takes its own of numbers that are drawn for the whole.
bool draws_whole(const Op& op, Args args) {
  if (!op.writes_self() || !is_drawn_by_box(op) || !is_dtensor(args[0].tensor())) return false;
  const auto& placements = dtensor_spec(args[0].tensor()).placements;
  return std::any_of(placements.begin(), placements.end(), [](Placement placement) {
    return placement.kind == Placement::Kind::kStridedShard;
  });
}

void draw_whole(const Op& op, Args args, std::span<Tensor> outs) {
  const Tensor& self = args[0].tensor();
  DTensorSpec spec = dtensor_spec(self);
  const std::vector<Placement> wanted = spec.placements;
  spec.placements.assign(wanted.size(), Placement::replicate());
  const Tensor whole = empty_from_spec(TensorSpec::contiguous(spec.sizes, spec.dtype));
  const ReplacedArgs drawn(args, {whole});
  op.redispatch(DispatchKeySet::below(DispatchKey::kDTensor), drawn.args(), outs);
  const NoGradGuard no_grad;
  copy_(local_tensor(self), redistribute_local(whole, spec, wanted));
  outs[0] = self;
}

void check_writable(const Op& op, const Tensor& self) {
  MUSTER_CHECK(!is_dtensor(self) || !impl_of(self).is_copied_view, ErrorCode::kInvalidArgument,
               "{}: it would write a view of a DTensor that had to be communicated, so the viewed "
               "tensor would not change; got {}\n"
               "  fix: clone the view, or redistribute the tensor before it is viewed",
               op.name(), dtensor_spec(self).describe());
}
}  // namespace

ImplicitReplicationGuard::ImplicitReplicationGuard() noexcept : before_(implicit_replication) {
  implicit_replication = true;
}
ImplicitReplicationGuard::~ImplicitReplicationGuard() { implicit_replication = before_; }

LayoutCacheCounts layout_cache_counts() noexcept { return layout_cache().counts; }

void dispatch_dtensor(const Op& op, Args args, std::span<Tensor> outs) {
  if (works_on_lists(op)) return dispatch_lists(op, args, outs);
  const CallTensors call = tensors_of(op, args);
  if (op.writes_self()) check_writable(op, *call.tensors[0]);
  if (draws_whole(op, args)) return draw_whole(op, args, outs);
  const CallLayout& layout = layout_of(op, args, call);
  std::vector<Tensor> locals;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    locals.push_back(placed_local(*call.tensors[i], call.inputs[i], *call.any, layout.inputs[i]));
  }
  ReplacedArgs replaced(args, std::move(locals));
  std::vector<DTensorSpec> specs;
  for (size_t r = 0; r < layout.outputs.size(); ++r) {
    specs.push_back({call.any->mesh, layout.output_placements[r], layout.outputs[r].sizes,
                     layout.outputs[r].dtype});
  }
  if (layout.localize_size) replaced.set_ints(op, "size", specs[0].local_sizes());
  if (layout.fills_box) {
    replaced.set_ints(op, "global_sizes", specs[0].sizes);
    replaced.set_ints(op, "box_start", specs[0].local_box().offsets);
  }
  std::vector<Tensor> results(outs.size());
  op.redispatch(DispatchKeySet::below(DispatchKey::kDTensor), replaced.args(), results);
  if (op.writes_self()) {
    outs[0] = *call.tensors[0];
    return;
  }
  for (size_t r = 0; layout.sizes_from_data && r < outs.size(); ++r) {
    outs[r] = make_dtensor(results[r],
                           {call.any->mesh, std::vector<Placement>(call.any->placements.size()),
                            DimVector(results[r].sizes()), results[r].dtype()});
  }
  for (size_t r = 0; r < specs.size(); ++r) {
    outs[r] = make_dtensor(shallow_detach(results[r]), std::move(specs[r]));
    Layout global{layout.outputs[r].sizes, layout.outputs[r].strides, results[r].storage_offset()};
    outs[r].impl()->set_layout(std::move(global));
    if (op.is_view()) {
      const bool was_moved = layout.inputs[0] != call.inputs[0].placements;
      relate_to_base(args[0].tensor(), was_moved, outs[r]);
    }
  }
}
}  // namespace muster
