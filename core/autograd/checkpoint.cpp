#include "core/autograd/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include "core/autograd/engine.h"
#include "core/autograd/saved_tensor.h"
#include "core/autograd/saved_tensor_hooks.h"
#include "core/base/hash.h"
#include "core/dispatch/mode.h"
#include "core/dispatch/op_table.h"

namespace muster {
namespace {
// Ends a second run once everything needed exists. No std::exception: user code that catches those
// must not swallow it.
struct StopRecompute {};

// What a saved tensor keeps in place of its value; the region knows it weakly, and so which values
// are still needed.
struct Slot {
  size_t index;
};

// What is remembered of a value of the first run.
struct Trace {
  TensorSpec spec;
  std::string site;
  uint64_t hash = 0;
};

uint64_t hash_of(const Tensor& tensor) {
  static const Op& clone = op_table().find("clone");
  const Tensor dense = tensor.is_contiguous() ? tensor : call_one(clone, tensor);
  if (!dense.is_contiguous() || dense.data_ptr() == nullptr) return 0;
  return hash_bytes(
      {static_cast<const std::byte*>(dense.data_ptr()), static_cast<size_t>(dense.nbytes())});
}

// The owner of the region's inputs in messages.
struct RegionNode final : Node {
  GradList apply(GradList&& grads, bool /*create_graph*/) override { return std::move(grads); }
  [[nodiscard]] std::string name() const override { return "checkpoint"; }
};

class RngStateGuard {
 public:
  RngStateGuard(bool enabled, uint64_t seed, uint64_t offset)
      : enabled_(enabled),
        seed_(default_generator().seed()),
        offset_(default_generator().offset()) {
    if (enabled_) default_generator().set_state(seed, offset);
  }
  ~RngStateGuard() {
    if (enabled_) default_generator().set_state(seed_, offset_);
  }
  RngStateGuard(const RngStateGuard&) = delete;
  RngStateGuard& operator=(const RngStateGuard&) = delete;

 private:
  bool enabled_;
  uint64_t seed_;
  uint64_t offset_;
};

// One call of activation_checkpoint(). Lives as long as a saved tensor of the region does.
class Region : public std::enable_shared_from_this<Region> {
 public:
  Region(CheckpointFunction function, std::span<const Tensor> inputs, CheckpointOptions options)
      : function_(std::move(function)),
        options_(options),
        modes_(ThreadModes::capture()),
        seed_(default_generator().seed()),
        offset_(default_generator().offset()),
        owner_(make_ref<RegionNode>()) {
    // Of an enclosing region these are saved tensors like any other.
    for (const Tensor& input : inputs) {
      inputs_.push_back(SavedTensor::input(input, "input", *owner_));
    }
  }

  std::vector<Tensor> run_first(std::span<const Tensor> inputs) {
    const auto self = shared_from_this();
    const SavedTensorHooksGuard hooks(
        {.pack = [self](const Tensor& tensor) { return self->pack(tensor); },
         .unpack =
             [self](const std::any& packed) {
               return self->unpack(*std::any_cast<const std::shared_ptr<Slot>&>(packed));
             }});
    std::vector<Tensor> outputs = function_(inputs);
    forward_done_ = true;
    return outputs;
  }

 private:
  struct Recomputed {
    std::vector<Tensor> values;  // by slot; undefined once used, or when nobody needs it
    std::vector<bool> used;
    size_t count = 0;   // tensors saved so far by the second run
    size_t wanted = 0;  // the run may stop when this many were saved
  };

  Trace trace_of(const Tensor& tensor) const {
    if (options_.check == RecomputeCheck::kNone) return {};
    return {TensorSpec::of(tensor), saved_tensor_site(),
            options_.check == RecomputeCheck::kValues ? hash_of(tensor) : 0};
  }

  std::any pack(const Tensor& tensor) {
    auto slot = std::make_shared<Slot>(Slot{slots_.size()});
    slots_.push_back(slot);
    traces_.push_back(trace_of(tensor));
    return slot;
  }

  Tensor unpack(const Slot& slot) {
    const uint64_t pass = current_backward_pass();
    const auto [found, is_new] = recomputed_.try_emplace(pass);
    Recomputed& state = found->second;  // stays valid while nested passes add others
    if (is_new) {
      try {
        recompute(state);
      } catch (...) {
        recomputed_.erase(pass);
        throw;
      }
      // What the pass does not ask for goes when it ends.
      add_engine_callback([region = weak_from_this(), pass] {
        if (const auto alive = region.lock()) alive->recomputed_.erase(pass);
      });
    }
    MUSTER_CHECK(
        !state.used[slot.index], ErrorCode::kFailedPrecondition,
        "checkpoint: unpack is being triggered for a tensor that was already unpacked once "
        "in this pass; saved tensor {} of {}; ask for the saved tensors once",
        slot.index, slots_.size());
    state.used[slot.index] = true;
    Tensor value = std::exchange(state.values[slot.index], {});
    if (pass == 0) recomputed_.erase(pass);  // outside of a pass each use stands alone
    return value;
  }

  void recompute(Recomputed& state) {
    state.values.resize(slots_.size());
    state.used.resize(slots_.size());
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (!slots_[i].expired()) state.wanted = i + 1;
    }
    std::vector<Tensor> inputs;
    for (const SavedTensor& input : inputs_) inputs.push_back(input.unpack(*owner_));
    const ModeGuard modes(modes_);
    const RngStateGuard rng(options_.preserve_rng_state, seed_, offset_);
    // The graph of the second run serves only a backward inside of the region.
    const SavedTensorHooksGuard hooks(
        {.pack = [this, &state](const Tensor& tensor) { return keep(state, tensor); },
         .unpack = [](const std::any& packed) { return std::any_cast<Tensor>(packed); }});
    try {
      function_(inputs);
    } catch (const StopRecompute&) {
      return;
    }
    MUSTER_CHECK(state.count >= state.wanted && (state.count == slots_.size() || !forward_done_ ||
                                                 options_.check == RecomputeCheck::kNone),
                 ErrorCode::kFailedPrecondition,
                 "checkpoint: a different number of tensors was saved during the original forward "
                 "and recomputation; forward saved {}, recomputation {}\n"
                 "  fix: the region must do the same work both times",
                 slots_.size(), state.count);
  }

  std::any keep(Recomputed& state, const Tensor& tensor) {
    const size_t index = state.count++;
    if (index >= slots_.size()) {
      MUSTER_CHECK(!forward_done_ || options_.check == RecomputeCheck::kNone,
                   ErrorCode::kFailedPrecondition,
                   "checkpoint: trying to save more tensors during recomputation than during the "
                   "original forward pass; forward saved {}, the next is {} {}\n"
                   "  fix: the region must do the same work both times",
                   slots_.size(), saved_tensor_site(), tensor);
      return tensor;
    }
    compare(index, tensor);
    if (!slots_[index].expired()) state.values[index] = tensor;
    if (options_.early_stop && state.count == state.wanted) throw StopRecompute{};
    return tensor;
  }

  void compare(size_t index, const Tensor& tensor) const {
    if (options_.check == RecomputeCheck::kNone) return;
    const Trace& first = traces_[index];
    const Trace second = trace_of(tensor);
    const bool same_metadata = std::equal(first.spec.sizes.begin(), first.spec.sizes.end(),
                                          second.spec.sizes.begin(), second.spec.sizes.end()) &&
                               first.spec.dtype == second.spec.dtype &&
                               first.spec.device == second.spec.device;
    MUSTER_CHECK(same_metadata, ErrorCode::kFailedPrecondition,
                 "checkpoint: a recomputed tensor has different metadata than during the forward "
                 "pass; saved tensor {} of {}: forward {} of {}, recomputation {} of {}\n"
                 "  fix: the region must do the same work both times",
                 index, slots_.size(), first.spec, first.site, second.spec, second.site);
    MUSTER_CHECK(first.hash == second.hash, ErrorCode::kFailedPrecondition,
                 "checkpoint: a recomputed tensor has different values than during the forward "
                 "pass; saved tensor {} of {}: {} of {}\n"
                 "  fix: make the operators before it deterministic",
                 index, slots_.size(), second.spec, second.site);
  }

  CheckpointFunction function_;
  CheckpointOptions options_;
  ThreadModes modes_;
  uint64_t seed_;
  uint64_t offset_;
  Ref<RegionNode> owner_;
  std::vector<SavedTensor> inputs_;
  std::vector<std::weak_ptr<Slot>> slots_;
  std::vector<Trace> traces_;
  std::unordered_map<uint64_t, Recomputed> recomputed_;  // by backward pass
  bool forward_done_ = false;
};
}  // namespace

std::vector<Tensor> activation_checkpoint(CheckpointFunction function, std::vector<Tensor> inputs,
                                          CheckpointOptions options) {
  if (!grad_enabled()) return function(inputs);
  return std::make_shared<Region>(std::move(function), inputs, options)->run_first(inputs);
}

Tensor activation_checkpoint(std::function<Tensor(const Tensor&)> function, const Tensor& input,
                             CheckpointOptions options) {
  return activation_checkpoint(
      [function = std::move(function)](std::span<const Tensor> inputs) {
        return std::vector<Tensor>{function(inputs[0])};
      },
      std::vector<Tensor>{input}, options)[0];
}
}  // namespace muster
