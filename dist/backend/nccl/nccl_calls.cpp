#include "dist/backend/nccl/nccl_calls.h"

#include <nccl.h>

#include "dist/backend/nccl/nccl_rules.h"

namespace muster::nccl {
namespace {
// Whatever is only moved goes as bytes: NCCL has no bool and no i16.
constexpr ncclDataType_t kByte = ncclUint8;

std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }
size_t nbytes_of(const Tensor& tensor) { return static_cast<size_t>(tensor.nbytes()); }

// Several calls as one; without it, messages in both directions would wait for each other.
class Calls {
 public:
  explicit Calls(const CallPlace& place) : place_(place), result_(ncclGroupStart()) {}

  void send(const std::byte* from, size_t nbytes, int to) {
    if (result_ == ncclSuccess && nbytes > 0)
      result_ = ncclSend(from, nbytes, kByte, to, place_.communicator, place_.stream);
  }
  void receive(std::byte* to, size_t nbytes, int from) {
    if (result_ == ncclSuccess && nbytes > 0)
      result_ = ncclRecv(to, nbytes, kByte, from, place_.communicator, place_.stream);
  }
  void broadcast(const std::byte* from, std::byte* to, size_t nbytes, int root) {
    if (result_ == ncclSuccess && nbytes > 0)
      result_ = ncclBroadcast(from, to, nbytes, kByte, root, place_.communicator, place_.stream);
  }
  [[nodiscard]] ncclResult_t end() {
    const ncclResult_t ended = ncclGroupEnd();
    return result_ == ncclSuccess || result_ == ncclInProgress ? ended : result_;
  }

 private:
  const CallPlace& place_;
  ncclResult_t result_;
};

ncclResult_t all_gather(const CallPlace& place, const CollectiveRequest& request) {
  const Tensor& input = request.inputs[0];
  if (request.outputs.size() == 1) {
    return ncclAllGather(bytes_of(input), bytes_of(request.outputs[0]), nbytes_of(input), kByte,
                         place.communicator, place.stream);
  }
  const size_t per_rank = request.outputs.size() / static_cast<size_t>(place.size);
  Calls calls(place);
  const std::byte* from = bytes_of(input);
  for (size_t i = 0; i < request.outputs.size(); ++i) {
    const Tensor& output = request.outputs[i];
    const int root = static_cast<int>(i / per_rank);
    calls.broadcast(root == place.own ? from : bytes_of(output), bytes_of(output),
                    nbytes_of(output), root);
    if (root == place.own) from += output.nbytes();
  }
  return calls.end();
}

ncclResult_t reduce(const CallPlace& place, const CollectiveRequest& request, int root) {
  const auto dtype = static_cast<ncclDataType_t>(*reduction_dtype(request.descriptor.dtype));
  const auto op = static_cast<ncclRedOp_t>(*reduction_op(request.descriptor.op));
  const std::byte* from = bytes_of(request.inputs[0]);
  std::byte* to = bytes_of(request.outputs[0]);
  const auto numel = static_cast<size_t>(request.outputs[0].numel());
  switch (request.descriptor.kind) {
    case CollectiveKind::kReduceScatter:
      return ncclReduceScatter(from, to, numel, dtype, op, place.communicator, place.stream);
    case CollectiveKind::kReduce:
      return ncclReduce(from, to, numel, dtype, op, root, place.communicator, place.stream);
    default:
      return ncclAllReduce(from, to, numel, dtype, op, place.communicator, place.stream);
  }
}

ncclResult_t gather_or_scatter(const CallPlace& place, const CollectiveRequest& request, int root) {
  const bool is_gather = request.descriptor.kind == CollectiveKind::kGather;
  Calls calls(place);
  // Empty except on the root.
  const std::vector<Tensor>& pieces = is_gather ? request.outputs : request.inputs;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const int member = static_cast<int>(i);
    is_gather ? calls.receive(bytes_of(pieces[i]), nbytes_of(pieces[i]), member)
              : calls.send(bytes_of(pieces[i]), nbytes_of(pieces[i]), member);
  }
  const Tensor& own = is_gather ? request.inputs[0] : request.outputs[0];
  is_gather ? calls.send(bytes_of(own), nbytes_of(own), root)
            : calls.receive(bytes_of(own), nbytes_of(own), root);
  return calls.end();
}

ncclResult_t all_to_all(const CallPlace& place, const CollectiveRequest& request) {
  Calls calls(place);
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    const int member = static_cast<int>(i);
    calls.send(bytes_of(request.inputs[i]), nbytes_of(request.inputs[i]), member);
    calls.receive(bytes_of(request.outputs[i]), nbytes_of(request.outputs[i]), member);
  }
  return calls.end();
}
}  // namespace

int enqueue(const CallPlace& place, const CollectiveRequest& request, int peer) {
  int64_t nbytes = 0;
  for (const auto* tensors : {&request.inputs, &request.outputs})
    for (const Tensor& tensor : *tensors) nbytes += tensor.nbytes();
  if (nbytes == 0) return ncclSuccess;
  switch (request.descriptor.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kReduce:
      return reduce(place, request, peer);
    case CollectiveKind::kAllGather:
      return all_gather(place, request);
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
      return gather_or_scatter(place, request, peer);
    case CollectiveKind::kAllToAll:
      return all_to_all(place, request);
    case CollectiveKind::kBroadcast: {
      std::byte* data = bytes_of(request.outputs[0]);
      return ncclBroadcast(data, data, nbytes_of(request.outputs[0]), kByte, peer,
                           place.communicator, place.stream);
    }
    case CollectiveKind::kSend:
      return ncclSend(bytes_of(request.inputs[0]), nbytes_of(request.inputs[0]), kByte, peer,
                      place.communicator, place.stream);
    case CollectiveKind::kRecv:
      return ncclRecv(bytes_of(request.outputs[0]), nbytes_of(request.outputs[0]), kByte, peer,
                      place.communicator, place.stream);
    case CollectiveKind::kBarrier:
      break;  // the agreement was one
  }
  return ncclSuccess;
}
}  // namespace muster::nccl
