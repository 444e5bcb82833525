#include "core/nn/causal_lm.h"

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"

namespace muster {
namespace {
struct ForgetAtExit {
  Tensor& tensor;
  ~ForgetAtExit() { tensor.reset(); }
};
}  // namespace

void KeyValueCache::open(int64_t capacity) {
  MUSTER_CHECK(capacity > 0, ErrorCode::kInvalidArgument,
               "cache: the capacity must be above 0; got {}", capacity);
  close();
  capacity_ = capacity;
}

void KeyValueCache::close() {
  keys_.reset();
  values_.reset();
  capacity_ = length_ = 0;
}

std::pair<Tensor, Tensor> KeyValueCache::append(const Tensor& key, const Tensor& value) {
  const NoGradGuard no_grad;
  const int64_t added = key.size(1), end = length_ + added;
  MUSTER_CHECK(end <= capacity_, ErrorCode::kOutOfRange,
               "cache: {} positions and {} more must fit into {}; open a larger one", length_,
               added, capacity_);
  if (!keys_.defined()) {
    keys_ = empty({key.size(0), capacity_, key.size(2), key.size(3)}, key.dtype(), key.device());
    values_ = empty({value.size(0), capacity_, value.size(2), value.size(3)}, value.dtype(),
                    value.device());
  }
  copy_(narrow(keys_, 1, length_, added), key);
  copy_(narrow(values_, 1, length_, added), value);
  length_ = end;
  return {narrow(keys_, 1, 0, end), narrow(values_, 1, 0, end)};
}

LossSum CausalLm::loss_of(const Tensor& logits, const Tensor& targets) const {
  return replaced_loss_ ? replaced_loss_(logits, targets)
                        : cross_entropy_sum_count(logits, targets);
}

LossSum CausalLm::loss(const Tensor& tokens, const Tensor& targets) {
  const Tensor classes = reshape(targets, {-1});
  if (loss_chunk_ == 0) {
    const Tensor logits = (*this)(tokens);
    return loss_of(reshape(logits, {-1, logits.size(-1)}), classes);
  }
  const ForgetAtExit forget{chunk_targets_};
  chunk_targets_ = classes;
  const Tensor pair = (*this)(tokens);
  return {select(pair, 0, 0), detach(select(pair, 0, 1))};
}

Tensor CausalLm::finish(const Tensor& hidden,
                        const std::function<Tensor(const Tensor& hidden)>& head) {
  if (!chunk_targets_.defined()) return head(hidden);
  const Tensor rows = reshape(hidden, {-1, hidden.size(-1)});
  const LossSum loss = chunked_loss(
      rows, chunk_targets_, loss_chunk_,
      [this, head](const Tensor& x, const Tensor& targets) { return loss_of(head(x), targets); });
  return stack({loss.sum, detach(loss.count)});  // one tensor, as modules return
}

void CausalLm::open_cache(int64_t capacity) {
  for (KeyValueCache* cache : caches()) cache->open(capacity);
}
void CausalLm::close_cache() {
  for (KeyValueCache* cache : caches()) cache->close();
}
}  // namespace muster
