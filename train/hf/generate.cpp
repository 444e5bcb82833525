#include "train/hf/generate.h"

#include <algorithm>
#include <cmath>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"

namespace muster::hf {
namespace {
class OpenCache {
 public:
  OpenCache(CausalLm& model, int64_t capacity) : model_(model) { model_.open_cache(capacity); }
  ~OpenCache() { model_.close_cache(); }
  OpenCache(const OpenCache&) = delete;
  OpenCache& operator=(const OpenCache&) = delete;

 private:
  CausalLm& model_;
};
}  // namespace

std::vector<int64_t> generate_greedy(CausalLm& model, std::span<const int64_t> prompt,
                                     const GenerateOptions& options) {
  MUSTER_CHECK(!prompt.empty() && options.max_new_tokens >= 0, ErrorCode::kInvalidArgument,
               "generate: the prompt must not be empty nor the number of new tokens negative; got "
               "{} tokens and {}",
               prompt.size(), options.max_new_tokens);
  const NoGradGuard no_grad;
  model.eval();
  const OpenCache cache(model, static_cast<int64_t>(prompt.size()) + options.max_new_tokens);
  std::vector<int64_t> ids(prompt.begin(), prompt.end());
  Tensor fresh = from_span(prompt, {1, static_cast<int64_t>(prompt.size())});
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    const Tensor logits = model(fresh);
    const Tensor last = narrow(logits, 1, logits.size(1) - 1, 1);
    MUSTER_CHECK(!std::isnan(amax(last).item()), ErrorCode::kFailedPrecondition,
                 "generate: the logits must be numbers; got nan after {} tokens; the weights or "
                 "the config are damaged, or the dtype is too narrow for them",
                 ids.size());
    fresh = argmax(last, -1);
    ids.push_back(fresh.item_int());
    if (std::ranges::count(options.stop_ids, ids.back()) > 0) break;
  }
  return ids;
}
}  // namespace muster::hf
