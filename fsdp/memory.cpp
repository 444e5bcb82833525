#include "fsdp/memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "dist/tensor/shard_geometry.h"

namespace muster::fsdp {
namespace {
// Memory while a step goes on.
class Meter {
 public:
  void heap(int64_t nbytes, const char* event, const std::string& owner) {
    heap_ += nbytes;
    if (heap_ <= plan.heap_peak.count) return;
    plan.heap_peak.count = heap_;
    plan.peak_at = fmt::format("{} of {}", event, owner);
  }
  void arena(int64_t nbytes) {
    arena_ += nbytes;
    plan.arena_peak.count = std::max(plan.arena_peak.count, arena_);
  }
  void gathered(int64_t nbytes) {
    gathered_ += nbytes;
    plan.most_gathered.count = std::max(plan.most_gathered.count, gathered_);
  }
  void buffer(int64_t nbytes, const char* what, const GroupMemory& owner) {
    if (nbytes <= plan.largest.count) return;
    plan.largest.count = nbytes;
    plan.largest_is = fmt::format("{} of {}", what, owner.name);
    largest_owner = &owner;
  }

  MemoryPlan plan;
  const GroupMemory* largest_owner = nullptr;

 private:
  int64_t heap_ = 0, arena_ = 0, gathered_ = 0;
};

// One rank's step over the groups.
class Step {
 public:
  Step(const std::vector<GroupMemory>& groups, const MemoryOptions& options)
      : groups_(groups), options_(options), is_open_(groups.size()) {}

  MemoryPlan run() {
    begin();
    const size_t root = groups_.size() - 1;
    gather(root, "forward");
    for (size_t k = 0; k < root; ++k) {
      for (size_t ahead = 0; ahead <= reach() && k + ahead < root; ++ahead) {
        gather(k + ahead, "forward");
      }
      if (groups_[k].reshards) free(k);
    }
    if (groups_[root].reshards) free(root);
    gather(root, "backward");
    begin_root_gradients(root);
    for (size_t k = root; k-- > 0;) {
      for (size_t ahead = 0; ahead <= reach() && ahead <= k; ++ahead) {
        gather(k - ahead, "backward");
      }
      grow_gradients(k);
      reduce(k);
    }
    finish_root_gradients(root);
    reduce(root);
    name_largest();
    return meter_.plan;
  }

 private:
  [[nodiscard]] size_t reach() const { return static_cast<size_t>(options_.prefetch); }

  void begin() {
    MemoryPlan& plan = meter_.plan;
    for (const GroupMemory& group : groups_) {
      plan.parameters.count += group.shard;
      plan.gradients.count += group.sharded_gradient;
      plan.moments.count += options_.moments * group.shard;
      meter_.buffer(group.shard, "shard", group);
      meter_.buffer(group.reduce_input, "reduce input", group);
      for (const ParamShape& param : group.params) {
        if (group.gathered == 0) break;
        meter_.buffer(group.gathered_item * param.rows * param.row_numel, "a parameter", group);
      }
    }
    meter_.arena(plan.parameters.count);
    meter_.heap(plan.moments.count, "state", "the optimizer");
    if (!options_.accumulates) return;
    for (const GroupMemory& group : groups_) {
      meter_.heap(group.kept_gradients, "accumulation", group.name);
    }
  }

  void gather(size_t k, const char* event) {
    if (is_open_[k]) return;
    is_open_[k] = true;
    const GroupMemory& group = groups_[k];
    meter_.heap(group.gathered, event, group.name);
    meter_.gathered(group.gathered);
    meter_.arena(group.cast);
    meter_.arena(-group.cast);
  }

  void free(size_t k) {
    is_open_[k] = false;
    meter_.heap(-groups_[k].gathered, "", "");
    meter_.gathered(-groups_[k].gathered);
  }

  // Added to kept ones of the same dtype as they come.
  [[nodiscard]] bool adds_in_place(size_t k) const {
    return options_.accumulates && groups_[k].kept_gradients == groups_[k].whole_gradients;
  }

  void grow_gradients(size_t k) {
    if (adds_in_place(k)) return;
    meter_.heap(groups_[k].whole_gradients, "backward", groups_[k].name);
  }

  // Its head comes first in backward; a tied weight's gradient waits there for its other part.
  void begin_root_gradients(size_t root) {
    grow_gradients(root);
    if (!adds_in_place(root)) meter_.heap(-options_.late, "", "");
    if (adds_in_place(root)) meter_.heap(options_.summed, "backward", groups_[root].name);
  }

  void finish_root_gradients(size_t root) {
    meter_.heap(options_.late + options_.summed, "backward", groups_[root].name);
    const int64_t stays = adds_in_place(root) ? -options_.summed : options_.late;
    meter_.heap(stays - options_.late - options_.summed, "", "");
  }

  void reduce(size_t k) {
    const GroupMemory& group = groups_[k];
    meter_.arena(group.reduce_input);
    meter_.heap(group.reduce_output + group.pack_copy, "reduction", group.name);
    meter_.heap(-group.pack_copy, "", "");
    if (!adds_in_place(k)) meter_.heap(-group.whole_gradients, "", "");
    if (options_.accumulates) meter_.heap(-group.kept_gradients, "", "");
    if (group.sharded_gradient != group.reduce_output) {
      meter_.heap(group.sharded_gradient, "reduction", group.name);
      meter_.heap(-group.reduce_output, "", "");
    }
    meter_.arena(-group.reduce_input);
    free(k);
  }

  void name_largest() {
    if (meter_.largest_owner == nullptr) return;
    std::vector<ParamShape> params = meter_.largest_owner->params;
    std::stable_sort(params.begin(), params.end(), [](const ParamShape& a, const ParamShape& b) {
      return a.rows * a.row_numel > b.rows * b.row_numel;
    });
    std::vector<std::string> names;
    for (size_t i = 0; i < params.size() && i < 3; ++i) {
      names.push_back(
          fmt::format("{} [{} x {}]", params[i].name, params[i].rows, params[i].row_numel));
    }
    if (params.size() > names.size()) names.emplace_back("..");
    meter_.plan.largest_is += fmt::format(": {}", fmt::join(names, ", "));
  }

  const std::vector<GroupMemory>& groups_;
  const MemoryOptions options_;
  std::vector<bool> is_open_;
  Meter meter_;
};
}  // namespace

int64_t GroupMemory::largest_gradient() const {
  int64_t most = 0;
  for (const ParamShape& param : params) {
    if (param.requires_grad) most = std::max(most, param.rows * param.row_numel);
  }
  return most * gathered_item;
}

GroupMemory group_memory(std::string name, std::vector<ParamShape> params, DType dtype,
                         const MixedPrecision& mixed_precision, int world, int group_rank,
                         bool reshards) {
  const DType gather = mixed_precision.param_dtype.value_or(dtype);
  const DType reduce = mixed_precision.reduce_dtype.value_or(gather);
  GroupMemory memory;
  memory.gathered_item = item_nbytes(gather);
  int64_t padded = 0, wanted_rows = 0;
  for (const ParamShape& param : params) {
    const int64_t own = chunk_range(param.rows, world, group_rank).size * param.row_numel;
    const int64_t whole = param.rows * param.row_numel;
    memory.shard += own * item_nbytes(dtype);
    memory.gathered += whole * item_nbytes(gather);
    if (!param.requires_grad) continue;
    memory.whole_gradients += whole * item_nbytes(gather);
    memory.kept_gradients += whole * item_nbytes(reduce);
    padded += chunk_range(param.rows, world, 0).size * param.row_numel;
    wanted_rows += own;
    if (reduce != gather)
      memory.pack_copy = std::max(memory.pack_copy, whole * item_nbytes(reduce));
  }
  memory.cast = gather == dtype ? 0 : memory.shard / item_nbytes(dtype) * item_nbytes(gather);
  memory.reduce_input = world * padded * item_nbytes(reduce);
  memory.reduce_output = padded * item_nbytes(reduce);
  // The reduced rows become gradients as they lie, padding and all, unless they must be converted.
  memory.sharded_gradient =
      reduce == dtype ? memory.reduce_output : wanted_rows * item_nbytes(dtype);
  memory.name = std::move(name);
  memory.params = std::move(params);
  memory.reshards = reshards;
  return memory;
}

MemoryPlan plan_memory(const std::vector<GroupMemory>& groups, const MemoryOptions& options) {
  if (groups.empty()) return {};
  return Step(groups, options).run();
}

std::string MemoryPlan::describe() const {
  const auto text = [](Bytes bytes) { return format_bytes(bytes); };
  return fmt::format(
      "parameters {}, gradients {}, moments {}: {}\n"
      "gathered at once {}; heap {} at the {}, arena {}: {}\n"
      "largest buffer {}: {}\n",
      text(parameters), text(gradients), text(moments), text(state()), text(most_gathered),
      text(heap_peak), peak_at, text(arena_peak), text(peak()), text(largest), largest_is);
}
}  // namespace muster::fsdp
