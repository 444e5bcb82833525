#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "core/ops/optimizer.h"
#include "fsdp/fully_shard.h"

namespace muster::fsdp {
namespace {
// Gradients that are cut along the same axes: their squares are summed over those, and so is no
// replica counted twice.
struct GradientBucket {
  std::vector<ProcessGroup*> cut_over;
  std::vector<Tensor> gradients;
};

std::vector<ProcessGroup*> groups_that_cut(const DTensorSpec& spec) {
  std::vector<ProcessGroup*> groups;
  for (size_t axis = 0; axis < spec.placements.size(); ++axis) {
    if (spec.placements[axis].is_shard()) {
      groups.push_back(spec.mesh->group(static_cast<int>(axis)).get());
    }
  }
  return groups;
}

// In order of the parameters, which is the same on all ranks; also buckets that are empty here.
std::vector<GradientBucket> bucket_gradients(const std::vector<NamedShard>& parameters) {
  std::vector<GradientBucket> buckets;
  for (const NamedShard& shard : parameters) {
    std::vector<ProcessGroup*> cut_over = groups_that_cut(shard.param->spec);
    auto at = std::find_if(buckets.begin(), buckets.end(),
                           [&](const GradientBucket& b) { return b.cut_over == cut_over; });
    if (at == buckets.end()) at = buckets.insert(at, {std::move(cut_over), {}});
    const Tensor gradient = grad_of(shard.param->local);
    if (gradient.defined() && gradient.numel() > 0) at->gradients.push_back(gradient);
  }
  return buckets;
}

// Adds up sums[i] over every group that cuts bucket i: one call a group.
void sum_over_ranks(const std::vector<GradientBucket>& buckets, std::vector<double>& sums) {
  std::vector<ProcessGroup*> done;
  for (const GradientBucket& bucket : buckets) {
    for (ProcessGroup* group : bucket.cut_over) {
      if (std::find(done.begin(), done.end(), group) != done.end()) continue;
      done.push_back(group);
      std::vector<size_t> members;
      std::vector<double> values;
      for (size_t i = 0; i < buckets.size(); ++i) {
        const auto& cut_over = buckets[i].cut_over;
        if (std::find(cut_over.begin(), cut_over.end(), group) == cut_over.end()) continue;
        members.push_back(i);
        values.push_back(sums[i]);
      }
      const Tensor total = from_vector(values);
      group->run(group->all_reduce(total));
      for (size_t i = 0; i < members.size(); ++i) sums[members[i]] = total.data<double>()[i];
    }
  }
}
}  // namespace

double grad_norm(const std::vector<NamedShard>& parameters) {
  const NoGradGuard no_grad;
  const std::vector<GradientBucket> buckets = bucket_gradients(parameters);
  std::vector<double> sums;
  for (const GradientBucket& bucket : buckets) {
    sums.push_back(foreach_sum_of_squares(bucket.gradients).item());
  }
  sum_over_ranks(buckets, sums);
  return std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
}

double clip_grad_norm_(const std::vector<NamedShard>& parameters, double max_norm) {
  const NoGradGuard no_grad;
  const double norm = grad_norm(parameters);
  const double factor = std::min(1.0, max_norm / (norm + 1e-6));
  if (!(factor >= 1.0)) {
    for (const GradientBucket& bucket : bucket_gradients(parameters)) {
      foreach_mul_(bucket.gradients, factor);
    }
  }
  return norm;
}
}  // namespace muster::fsdp
