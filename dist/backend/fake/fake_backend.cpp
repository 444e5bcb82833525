#include "dist/backend/fake/fake_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

namespace muster {
namespace {
class FinishedWork final : public Work {
 public:
  FinishedWork(WorkDescriptor descriptor, std::optional<Error> error)
      : Work(std::move(descriptor)), error_(std::move(error)) {}
  Result<void> wait(Deadline) override {
    if (error_) return *error_;
    return {};
  }
  [[nodiscard]] bool done() const noexcept override { return true; }

 private:
  std::optional<Error> error_;
};

void copy(const Tensor& to, const Tensor& from, int64_t from_element = 0) {
  if (to.numel() == 0 || to.data_ptr() == nullptr) return;
  const auto* source =
      static_cast<const std::byte*>(from.data_ptr()) + from_element * item_nbytes(from.dtype());
  if (to.data_ptr() != source)
    std::memmove(to.data_ptr(), source, static_cast<size_t>(to.nbytes()));
}

// All ranks contribute the same: each rank's outputs are the input, cut in order, as far as it
// goes.
void copy_pieces(const std::vector<Tensor>& outputs, const Tensor& input, int ranks) {
  const size_t per_rank = std::max<size_t>(1, outputs.size() / static_cast<size_t>(ranks));
  int64_t at = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (i % per_rank == 0) at = 0;
    if (at + outputs[i].numel() <= input.numel()) copy(outputs[i], input, at);
    at += outputs[i].numel();
  }
}

// All ranks contribute the same: a sum is a multiple, a product a power, pairs of equal bits cancel
// under bxor, and the rest is the value itself.
void reduce_same(const Tensor& tensor, ReduceOp op, int ranks) {
  if (tensor.data_ptr() == nullptr) return;
  if (op == ReduceOp::kBxor && ranks % 2 == 0) {
    std::memset(tensor.data_ptr(), 0, static_cast<size_t>(tensor.nbytes()));
  }
  if (op != ReduceOp::kSum && op != ReduceOp::kProduct) return;
  visit_dtype(tensor.dtype(), [&](auto type) {
    using T = decltype(type);
    T* values = static_cast<T*>(tensor.data_ptr());
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
        const float value = static_cast<float>(values[i]);
        values[i] = T(op == ReduceOp::kSum ? value * static_cast<float>(ranks)
                                           : std::pow(value, static_cast<float>(ranks)));
      } else if constexpr (!std::is_same_v<T, bool>) {
        const T value = values[i];
        for (int r = 1; r < ranks; ++r)
          values[i] = static_cast<T>(op == ReduceOp::kSum ? values[i] + value : values[i] * value);
      }
    }
  });
}
}  // namespace

std::shared_ptr<Work> FakeBackend::launch(CollectiveRequest request) {
  if (!aborted_because_.empty()) {
    return std::make_shared<FinishedWork>(
        request.descriptor, make_error(ErrorCode::kAborted, "fake: aborted: {}", aborted_because_));
  }
  const auto& inputs = request.inputs;
  const auto& outputs = request.outputs;
  switch (request.descriptor.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduce:
      if (request.root == kNoPeer || request.root == group_rank_) {
        reduce_same(outputs[0], request.descriptor.op, group_size_);
      }
      break;
    case CollectiveKind::kReduceScatter:
      copy(outputs[0], inputs[0], group_rank_ * outputs[0].numel());
      reduce_same(outputs[0], request.descriptor.op, group_size_);
      break;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kGather:
      if (outputs.size() == 1 && outputs[0].numel() == inputs[0].numel() * group_size_) {
        for (int r = 0; r < group_size_ && inputs[0].data_ptr() != nullptr; ++r) {
          std::memmove(static_cast<std::byte*>(outputs[0].data_ptr()) + r * inputs[0].nbytes(),
                       inputs[0].data_ptr(), static_cast<size_t>(inputs[0].nbytes()));
        }
      } else {
        copy_pieces(outputs, inputs[0], group_size_);
      }
      break;
    case CollectiveKind::kScatter:
      if (!inputs.empty()) copy(outputs[0], inputs[static_cast<size_t>(group_rank_)]);
      break;
    case CollectiveKind::kAllToAll:
      for (size_t r = 0; r < outputs.size(); ++r) {
        if (outputs[r].numel() == inputs[r].numel()) copy(outputs[r], inputs[r]);
      }
      break;
    case CollectiveKind::kRecv:
      if (outputs[0].data_ptr() != nullptr)
        std::memset(outputs[0].data_ptr(), 0, static_cast<size_t>(outputs[0].nbytes()));
      break;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kSend:
    case CollectiveKind::kBarrier:
      break;
  }
  return std::make_shared<FinishedWork>(std::move(request.descriptor), std::nullopt);
}

void FakeBackend::abort(const std::string& reason) {
  aborted_because_ = reason.empty() ? "no reason given" : reason;
}

Result<std::unique_ptr<Backend>> FakeBackend::subgroup(GroupMembers members, Deadline) {
  return std::unique_ptr<Backend>(
      std::make_unique<FakeBackend>(members.group_rank, members.size()));
}
}  // namespace muster
