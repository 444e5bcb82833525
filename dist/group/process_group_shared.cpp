// Operations of ranks that share memory.
#include <fmt/format.h>

#include "core/base/hash.h"
#include "dist/group/checks.h"
#include "dist/group/process_group.h"

namespace muster {

std::shared_ptr<std::byte> ProcessGroup::share(int64_t nbytes, std::string_view label, Site site) {
  if (!backend_->abilities().shares_memory) return nullptr;
  const std::string what = fmt::format("{} bytes of {}", nbytes, label);
  run(barrier(false, site, what));
  std::shared_ptr<std::byte> memory =
      backend_->share(nbytes, Deadline::after(options_.timeout)).value();
  run(barrier(false, site, what));  // all have it: it may go
  return memory;
}

ProcessGroup::WorkPtr ProcessGroup::all_gather_in_place(const Tensor& whole, bool async_op,
                                                        Site site, std::string_view label) {
  check_tensor(CollectiveKind::kAllGather, whole, "whole");
  MUSTER_CHECK(backend_->abilities().shares_memory, ErrorCode::kUnimplemented,
               "all_gather_in_place: ranks must share memory; those of {} do not\n"
               "  fix: use all_gather",
               backend_->name());
  constexpr uint64_t kInPlace = 1;
  return launch(CollectiveKind::kAllGather, ReduceOp::kSum, kNoPeer, {whole}, {}, &whole, kInPlace,
                async_op, site, label);
}

ProcessGroup::WorkPtr ProcessGroup::reduce_scatter(const std::vector<Tensor>& outputs,
                                                   const std::vector<Tensor>& inputs, ReduceOp op,
                                                   bool async_op, Site site,
                                                   std::string_view label) {
  constexpr auto kKind = CollectiveKind::kReduceScatter;
  MUSTER_CHECK(backend_->abilities().shares_memory, ErrorCode::kUnimplemented,
               "reduce_scatter of pieces: ranks must share memory; those of {} do not\n"
               "  fix: use reduce_scatter_tensor",
               backend_->name());
  MUSTER_CHECK(
      !outputs.empty() && inputs.size() == outputs.size() * static_cast<size_t>(world_size()),
      ErrorCode::kInvalidArgument,
      "reduce_scatter: as many inputs for each of {} ranks as there are outputs; got {} "
      "inputs and {} outputs",
      world_size(), inputs.size(), outputs.size());
  uint64_t shapes = 1;
  for (const Tensor& input : inputs) {
    check_tensor(kKind, input, "each input");
    check_reduce(kKind, op, input);
    shapes = hash_combine(shapes, static_cast<uint64_t>(input.numel()));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    check_tensor(kKind, outputs[i], "each output");
    const Tensor& own = inputs[static_cast<size_t>(group_rank()) * outputs.size() + i];
    MUSTER_CHECK(outputs[i].numel() == own.numel() && outputs[i].dtype() == own.dtype() &&
                     own.dtype() == inputs[0].dtype(),
                 ErrorCode::kInvalidArgument,
                 "reduce_scatter: outputs are as the inputs for this rank, all of one dtype; got "
                 "output {} and input {}",
                 outputs[i], own);
  }
  return launch(kKind, op, kNoPeer, outputs, inputs, &inputs[0], shapes, async_op, site, label);
}
}  // namespace muster
