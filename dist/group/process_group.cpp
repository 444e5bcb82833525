#include "dist/group/process_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/base/hash.h"
#include "dist/group/checks.h"
#include "dist/group/waits.h"

namespace muster {
namespace {
constexpr size_t kShownOperations = 8;

// The pieces of `tensor` along its first dim: `splits` rows each, or equal ones without splits.
std::vector<Tensor> cut_rows(const Tensor& tensor, const std::vector<int64_t>& splits, int ranks,
                             const char* what) {
  check_tensor(CollectiveKind::kAllToAll, tensor, what);
  MUSTER_CHECK(tensor.ndim() >= 1, ErrorCode::kInvalidArgument,
               "all_to_all_single: {} must have a first dim to split; got {}", what, tensor);
  const int64_t rows = tensor.sizes()[0];
  std::vector<int64_t> counts = splits;
  if (splits.empty()) {
    MUSTER_CHECK(rows % ranks == 0, ErrorCode::kInvalidArgument,
                 "all_to_all_single: without splits the rows of {} must divide by {} ranks; got {}",
                 what, ranks, tensor);
    counts.assign(static_cast<size_t>(ranks), rows / ranks);
  }
  int64_t total = 0;
  bool is_valid = counts.size() == static_cast<size_t>(ranks);
  for (const int64_t count : counts) {
    is_valid = is_valid && count >= 0 && count <= rows - total;
    total += count;
  }
  MUSTER_CHECK(is_valid && total == rows, ErrorCode::kInvalidArgument,
               "all_to_all_single: {} splits must be {} sizes with sum {}; got [{}] for {}", what,
               ranks, rows, fmt::join(splits, ", "), tensor);
  std::vector<Tensor> pieces;
  int64_t row = 0;
  for (const int64_t count : counts) {
    Layout layout = tensor.layout();
    layout.sizes[0] = count;
    layout.offset += row * layout.strides[0];
    pieces.push_back(alias_with_layout(tensor, std::move(layout)));
    row += count;
  }
  return pieces;
}
}  // namespace

ProcessGroup::ProcessGroup(Options options, std::unique_ptr<Backend> backend)
    : options_(std::move(options)),
      backend_(std::move(backend)),
      name_hash_(hash_text(options_.name)),
      sent_(options_.global_ranks.size()),
      received_(options_.global_ranks.size()),
      launched_(kNumCollectiveKinds) {
  MUSTER_CHECK(group_rank() >= 0 && group_rank() < world_size(), ErrorCode::kInvalidArgument,
               "process group {}: group rank must be in [0, {}); got {}", name(), world_size(),
               group_rank());
}

ProcessGroup::~ProcessGroup() = default;

ProcessGroup::WorkPtr ProcessGroup::launch(CollectiveKind kind, ReduceOp op, int peer,
                                           std::vector<Tensor> outputs, std::vector<Tensor> inputs,
                                           const Tensor* agreed, uint64_t extra_contract,
                                           bool async_op, const Site& site,
                                           std::string_view label) {
  CollectiveRequest request;
  WorkDescriptor& descriptor = request.descriptor;
  descriptor.kind = kind;
  descriptor.group = name();
  descriptor.op = op;
  descriptor.peer = peer;
  descriptor.file = site.file_name();
  descriptor.line = site.line();
  descriptor.label = label;
  if (agreed != nullptr) {
    descriptor.sizes = DimVector(agreed->sizes());
    descriptor.dtype = agreed->dtype();
  } else if (!inputs.empty()) {
    descriptor.dtype = inputs[0].dtype();
  }
  for (const Tensor& input : inputs) descriptor.numel += input.numel();
  request.inputs = std::move(inputs);
  request.outputs = std::move(outputs);
  request.root = peer;
  request.async_op = async_op;
  backend_->check(request);
  const int src = kind == CollectiveKind::kSend ? group_rank() : peer;
  const int dst = kind == CollectiveKind::kSend ? peer : group_rank();
  if (is_pair(kind)) {
    descriptor.seq =
        ++(kind == CollectiveKind::kSend ? sent_ : received_)[static_cast<size_t>(peer)];
  } else {
    descriptor.seq = ++seq_;
  }
  // What all ranks must agree on. For a pair, both sides hash the same words.
  uint64_t contract = hash_combine(name_hash_, descriptor.seq);
  contract = hash_combine(contract, is_pair(kind) ? 100 : static_cast<uint64_t>(kind));
  contract = hash_combine(contract,
                          static_cast<uint64_t>(op) << 8 | static_cast<uint64_t>(descriptor.dtype));
  contract =
      hash_combine(contract, static_cast<uint64_t>(is_pair(kind) ? src * 65536 + dst : peer));
  for (const int64_t size : descriptor.sizes)
    contract = hash_combine(contract, static_cast<uint64_t>(size));
  if (!label.empty()) contract = hash_combine(contract, hash_text(label));
  descriptor.contract = hash_combine(contract, extra_contract);
  ++launched_[static_cast<size_t>(kind)];
  WorkPtr work = backend_->launch(std::move(request));
  recorder_.record(work);
  return work;
}

void ProcessGroup::check_peer(CollectiveKind kind, int peer) const {
  MUSTER_CHECK(peer >= 0 && peer < world_size(), ErrorCode::kInvalidArgument,
               "{}: group rank must be in [0, {}) of group {} with global ranks [{}]; got {}",
               to_string(kind), world_size(), name(), fmt::join(global_ranks(), ", "), peer);
}

int ProcessGroup::group_rank_of(int global_rank) const {
  const auto at = std::find(global_ranks().begin(), global_ranks().end(), global_rank);
  MUSTER_CHECK(at != global_ranks().end(), ErrorCode::kInvalidArgument,
               "group {}: the rank must be one of its global ranks [{}]; got {}", name(),
               fmt::join(global_ranks(), ", "), global_rank);
  return static_cast<int>(at - global_ranks().begin());
}

ProcessGroup::WorkPtr ProcessGroup::all_reduce(const Tensor& tensor, ReduceOp op, bool async_op,
                                               Site site, std::string_view label) {
  check_tensor(CollectiveKind::kAllReduce, tensor, "tensor");
  check_reduce(CollectiveKind::kAllReduce, op, tensor);
  return launch(CollectiveKind::kAllReduce, op, kNoPeer, {tensor}, {tensor}, &tensor, 0, async_op,
                site, label);
}

ProcessGroup::WorkPtr ProcessGroup::all_gather_into_tensor(const Tensor& output,
                                                           const Tensor& input, bool async_op,
                                                           Site site) {
  constexpr auto kKind = CollectiveKind::kAllGather;
  check_tensor(kKind, output, "output");
  check_tensor(kKind, input, "input");
  MUSTER_CHECK(output.numel() == input.numel() * world_size() && output.dtype() == input.dtype(),
               ErrorCode::kInvalidArgument,
               "all_gather_into_tensor: output must hold {} inputs of the same dtype; got output "
               "{} and input {}",
               world_size(), output, input);
  return launch(kKind, ReduceOp::kSum, kNoPeer, {output}, {input}, &input, 0, async_op, site);
}

ProcessGroup::WorkPtr ProcessGroup::all_gather(const std::vector<Tensor>& outputs,
                                               const Tensor& input, bool async_op, Site site,
                                               std::string_view label) {
  constexpr auto kKind = CollectiveKind::kAllGather;
  check_tensor(kKind, input, "input");
  const size_t per_rank = outputs.size() / static_cast<size_t>(world_size());
  MUSTER_CHECK(per_rank > 0 && outputs.size() == per_rank * static_cast<size_t>(world_size()),
               ErrorCode::kInvalidArgument,
               "all_gather: the same number of outputs for each of {} ranks; got {}", world_size(),
               outputs.size());
  uint64_t shapes = 1;
  for (const Tensor& output : outputs) {
    check_tensor(kKind, output, "each output");
    MUSTER_CHECK(output.dtype() == input.dtype(), ErrorCode::kInvalidArgument,
                 "all_gather: outputs must have the dtype of the input {}; got {}", input, output);
    for (const int64_t size : output.sizes())
      shapes = hash_combine(shapes, static_cast<uint64_t>(size));
    shapes = hash_combine(shapes, 0);
  }
  int64_t own = 0;
  for (size_t i = 0; i < per_rank; ++i)
    own += outputs[static_cast<size_t>(group_rank()) * per_rank + i].numel();
  MUSTER_CHECK(own == input.numel(), ErrorCode::kInvalidArgument,
               "all_gather: the outputs of rank {} must hold its input {}; got {} elements",
               group_rank(), input, own);
  return launch(kKind, ReduceOp::kSum, kNoPeer, outputs, {input}, &outputs[0], shapes, async_op,
                site, label);
}

ProcessGroup::WorkPtr ProcessGroup::reduce_scatter_tensor(const Tensor& output, const Tensor& input,
                                                          ReduceOp op, bool async_op, Site site,
                                                          std::string_view label) {
  constexpr auto kKind = CollectiveKind::kReduceScatter;
  check_tensor(kKind, output, "output");
  check_tensor(kKind, input, "input");
  check_reduce(kKind, op, input);
  MUSTER_CHECK(input.numel() == output.numel() * world_size() && output.dtype() == input.dtype(),
               ErrorCode::kInvalidArgument,
               "reduce_scatter_tensor: input must hold {} outputs of the same dtype; got input {} "
               "and output {}",
               world_size(), input, output);
  return launch(kKind, op, kNoPeer, {output}, {input}, &output, 0, async_op, site, label);
}

ProcessGroup::WorkPtr ProcessGroup::broadcast(const Tensor& tensor, int group_src, bool async_op,
                                              Site site) {
  check_peer(CollectiveKind::kBroadcast, group_src);
  check_tensor(CollectiveKind::kBroadcast, tensor, "tensor");
  return launch(CollectiveKind::kBroadcast, ReduceOp::kSum, group_src, {tensor}, {tensor}, &tensor,
                0, async_op, site);
}

ProcessGroup::WorkPtr ProcessGroup::reduce(const Tensor& tensor, int group_dst, ReduceOp op,
                                           bool async_op, Site site) {
  check_peer(CollectiveKind::kReduce, group_dst);
  check_tensor(CollectiveKind::kReduce, tensor, "tensor");
  check_reduce(CollectiveKind::kReduce, op, tensor);
  return launch(CollectiveKind::kReduce, op, group_dst, {tensor}, {tensor}, &tensor, 0, async_op,
                site);
}

ProcessGroup::WorkPtr ProcessGroup::gather(const std::vector<Tensor>& outputs, const Tensor& input,
                                           int group_dst, bool async_op, Site site) {
  constexpr auto kKind = CollectiveKind::kGather;
  check_peer(kKind, group_dst);
  check_tensor(kKind, input, "input");
  const size_t wanted = group_rank() == group_dst ? static_cast<size_t>(world_size()) : 0;
  MUSTER_CHECK(outputs.size() == wanted, ErrorCode::kInvalidArgument,
               "gather: {} outputs on group rank {} with destination {}; got {}", wanted,
               group_rank(), group_dst, outputs.size());
  for (const Tensor& output : outputs) {
    check_tensor(kKind, output, "each output");
    MUSTER_CHECK(output.numel() == input.numel() && output.dtype() == input.dtype(),
                 ErrorCode::kInvalidArgument,
                 "gather: each output must be like the input {}; got {}", input, output);
  }
  return launch(kKind, ReduceOp::kSum, group_dst, outputs, {input}, &input, 0, async_op, site);
}

ProcessGroup::WorkPtr ProcessGroup::scatter(const Tensor& output, const std::vector<Tensor>& inputs,
                                            int group_src, bool async_op, Site site) {
  constexpr auto kKind = CollectiveKind::kScatter;
  check_peer(kKind, group_src);
  check_tensor(kKind, output, "output");
  const size_t wanted = group_rank() == group_src ? static_cast<size_t>(world_size()) : 0;
  MUSTER_CHECK(inputs.size() == wanted, ErrorCode::kInvalidArgument,
               "scatter: {} inputs on group rank {} with source {}; got {}", wanted, group_rank(),
               group_src, inputs.size());
  for (const Tensor& input : inputs) {
    check_tensor(kKind, input, "each input");
    MUSTER_CHECK(input.numel() == output.numel() && input.dtype() == output.dtype(),
                 ErrorCode::kInvalidArgument,
                 "scatter: each input must be like the output {}; got {}", output, input);
  }
  return launch(kKind, ReduceOp::kSum, group_src, {output}, inputs, &output, 0, async_op, site);
}

ProcessGroup::WorkPtr ProcessGroup::all_to_all(const std::vector<Tensor>& outputs,
                                               const std::vector<Tensor>& inputs, bool async_op,
                                               Site site) {
  constexpr auto kKind = CollectiveKind::kAllToAll;
  MUSTER_CHECK(backend_->abilities().all_to_all, ErrorCode::kUnimplemented,
               "all_to_all: backend {} lacks it", backend_->name());
  const auto world = static_cast<size_t>(world_size());
  MUSTER_CHECK(outputs.size() == world && inputs.size() == world, ErrorCode::kInvalidArgument,
               "all_to_all: {} inputs and outputs; got {} and {}", world, inputs.size(),
               outputs.size());
  for (const std::vector<Tensor>* list : {&inputs, &outputs}) {
    for (const Tensor& tensor : *list) {
      check_tensor(kKind, tensor, list == &inputs ? "each input" : "each output");
      MUSTER_CHECK(tensor.dtype() == inputs[0].dtype(), ErrorCode::kInvalidArgument,
                   "all_to_all: all inputs and outputs must have one dtype; got {} and {}",
                   inputs[0], tensor);
    }
  }
  const auto own = static_cast<size_t>(group_rank());
  MUSTER_CHECK(inputs[own].numel() == outputs[own].numel(), ErrorCode::kInvalidArgument,
               "all_to_all: group rank {} must expect of itself what it sends to itself; got input "
               "{} and output {}",
               own, inputs[own], outputs[own]);
  // Splits differ by rank, so the backend compares piece sizes pair by pair.
  return launch(kKind, ReduceOp::kSum, kNoPeer, outputs, inputs, nullptr, 0, async_op, site);
}

ProcessGroup::WorkPtr ProcessGroup::all_to_all_single(const Tensor& output, const Tensor& input,
                                                      Splits output_splits, Splits input_splits,
                                                      bool async_op, Site site) {
  return all_to_all(cut_rows(output, output_splits, world_size(), "output"),
                    cut_rows(input, input_splits, world_size(), "input"), async_op, site);
}

ProcessGroup::WorkPtr ProcessGroup::barrier(bool async_op, Site site, std::string_view label) {
  return launch(CollectiveKind::kBarrier, ReduceOp::kSum, kNoPeer, {}, {}, nullptr, 0, async_op,
                site, label);
}

ProcessGroup::WorkPtr ProcessGroup::send(const Tensor& tensor, int group_dst, bool async_op,
                                         Site site) {
  return send_tagged(tensor, group_dst, 0, async_op, site);
}

ProcessGroup::WorkPtr ProcessGroup::send_tagged(const Tensor& tensor, int group_dst, uint64_t tag,
                                                bool async_op, Site site) {
  check_peer(CollectiveKind::kSend, group_dst);
  check_tensor(CollectiveKind::kSend, tensor, "tensor");
  return launch(CollectiveKind::kSend, ReduceOp::kSum, group_dst, {}, {tensor}, &tensor, tag,
                async_op, site);
}

ProcessGroup::WorkPtr ProcessGroup::recv(const Tensor& tensor, int group_src, bool async_op,
                                         Site site) {
  return recv_tagged(tensor, group_src, 0, async_op, site);
}

ProcessGroup::WorkPtr ProcessGroup::recv_tagged(const Tensor& tensor, int group_src, uint64_t tag,
                                                bool async_op, Site site) {
  check_peer(CollectiveKind::kRecv, group_src);
  check_tensor(CollectiveKind::kRecv, tensor, "tensor");
  return launch(CollectiveKind::kRecv, ReduceOp::kSum, group_src, {tensor}, {}, &tensor, tag,
                async_op, site);
}

void ProcessGroup::run(const WorkPtr& work) {
  std::optional<WaitScope> scope;
  if (!work->done()) scope.emplace(work, options_.global_ranks);
  const Deadline deadline = Deadline::after(options_.timeout);
  const bool watches = options_.on_slow && options_.slow_after < options_.timeout;
  Result<void> result = work->wait(watches ? Deadline::after(options_.slow_after) : deadline);
  if (watches && !result.ok() && result.error().code() == ErrorCode::kTimeout) {
    SlowPeers slow{.global_ranks = {},
                   .operation = work->descriptor().describe(),
                   .waited = options_.slow_after};
    for (const int peer : work->late_ranks())
      slow.global_ranks.push_back(options_.global_ranks[static_cast<size_t>(peer)]);
    if (!slow.global_ranks.empty()) options_.on_slow(slow);
    result = work->wait(deadline);
  }
  if (result.ok()) return;
  Error error = result.error();
  for (const std::string& line : recorder_.last(kShownOperations))
    error.add_context("last: " + line);
  throw error;
}

Result<GroupMembers> ProcessGroup::members_of(const std::string& name,
                                              const std::vector<int>& group_ranks) const {
  GroupMembers members{.name = name, .identity = {}, .global_ranks = {}, .group_rank = -1};
  for (const int rank : group_ranks) {
    if (rank < 0 || rank >= world_size()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "subgroup {}: ranks must be in [0, {}) of group {}; got {}", name,
                        world_size(), this->name(), rank);
    }
    if (std::count(group_ranks.begin(), group_ranks.end(), rank) > 1) {
      return make_error(ErrorCode::kInvalidArgument,
                        "subgroup {}: each rank may be named once; got [{}]", name,
                        fmt::join(group_ranks, ", "));
    }
    if (rank == group_rank()) members.group_rank = members.size();
    members.global_ranks.push_back(options_.global_ranks[static_cast<size_t>(rank)]);
  }
  if (members.group_rank < 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "subgroup {}: only members call it; group rank {} is none of [{}]", name,
                      group_rank(), fmt::join(group_ranks, ", "));
  }
  return members;
}

Result<std::unique_ptr<ProcessGroup>> ProcessGroup::subgroup(const std::string& name,
                                                             const std::vector<int>& group_ranks,
                                                             Deadline deadline) {
  GroupMembers members = MUSTER_TRY(members_of(name, group_ranks));
  // All members of it have opened groups of this name and these ranks equally often.
  const std::string key = fmt::format("{}/{}", name, fmt::join(members.global_ranks, ","));
  members.identity = fmt::format("{}/{}/{}", options_.identity, key, ++openings_[key]);
  Options options = options_;
  options.name = name;
  options.identity = members.identity;
  options.global_ranks = members.global_ranks;
  options.group_rank = members.group_rank;
  std::unique_ptr<Backend> backend = MUSTER_TRY(backend_->subgroup(std::move(members), deadline));
  return std::make_unique<ProcessGroup>(std::move(options), std::move(backend));
}

void ProcessGroup::abort(const std::string& reason) { backend_->abort(reason); }

uint64_t ProcessGroup::num_launched(CollectiveKind kind) const noexcept {
  return launched_[static_cast<size_t>(kind)];
}
}  // namespace muster
