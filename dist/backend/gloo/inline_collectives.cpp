#include "dist/backend/gloo/inline_collectives.h"

#include <cstring>
#include <vector>

#include "dist/group/reduce.h"

namespace muster::wire {
namespace {
std::string_view text_of(const Tensor& tensor) {
  return {static_cast<const char*>(tensor.data_ptr()), static_cast<size_t>(tensor.nbytes())};
}

void write(const Tensor& output, std::string_view bytes) {
  if (!bytes.empty() && output.data_ptr() != bytes.data())
    std::memmove(output.data_ptr(), bytes.data(), bytes.size());
}

std::string_view piece(std::string_view whole, int index, int64_t nbytes) {
  return whole.substr(static_cast<size_t>(index * nbytes), static_cast<size_t>(nbytes));
}

void reduce_into(const CollectiveRequest& request, std::vector<std::string_view> contributions) {
  const Tensor& output = request.outputs[0];
  if (output.numel() == 0) return;
  std::vector<const std::byte*> sources;
  for (const std::string_view bytes : contributions)
    sources.push_back(reinterpret_cast<const std::byte*>(bytes.data()));
  reduce_buffers(request.descriptor.op, output.dtype(), static_cast<std::byte*>(output.data_ptr()),
                 sources, output.numel());
}
}  // namespace

bool is_inline(const CollectiveRequest& request, int group_size) {
  const WorkDescriptor& what = request.descriptor;
  const bool is_uneven = what.kind == CollectiveKind::kAllToAll ||
                         (what.kind == CollectiveKind::kAllGather && request.outputs.size() > 1);
  if (is_uneven) return false;
  const bool has_pieces =
      what.kind == CollectiveKind::kReduceScatter || what.kind == CollectiveKind::kScatter;
  const int64_t agreed = numel_of(what.sizes) * item_nbytes(what.dtype);
  return what.kind == CollectiveKind::kBarrier ||
         agreed * (has_pieces ? group_size : 1) <= kInlineNbytes;
}

std::string inline_contribution(const CollectiveRequest& request, int own_rank, int peer) {
  switch (request.descriptor.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kAllGather:
      return std::string(text_of(request.inputs[0]));
    case CollectiveKind::kReduceScatter:
      return std::string(piece(text_of(request.inputs[0]), peer, request.outputs[0].nbytes()));
    case CollectiveKind::kBroadcast:
      return own_rank == request.root ? std::string(text_of(request.inputs[0])) : std::string();
    case CollectiveKind::kReduce:
    case CollectiveKind::kGather:
      return peer == request.root ? std::string(text_of(request.inputs[0])) : std::string();
    case CollectiveKind::kScatter:
      return own_rank == request.root
                 ? std::string(text_of(request.inputs[static_cast<size_t>(peer)]))
                 : std::string();
    case CollectiveKind::kBarrier:
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
      break;
  }
  return {};
}

int64_t expected_contribution_nbytes(const CollectiveRequest& request, int own_rank, int peer) {
  switch (request.descriptor.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kAllGather:
      return request.inputs[0].nbytes();
    case CollectiveKind::kReduceScatter:
      return request.outputs[0].nbytes();
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kScatter:
      return peer == request.root ? request.outputs[0].nbytes() : 0;
    case CollectiveKind::kReduce:
    case CollectiveKind::kGather:
      return own_rank == request.root ? request.inputs[0].nbytes() : 0;
    case CollectiveKind::kBarrier:
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
      break;
  }
  return 0;
}

void run_inline(const CollectiveRequest& request, int own_rank,
                std::span<const std::string_view> contributions) {
  const auto own = static_cast<size_t>(own_rank);
  const auto& outputs = request.outputs;
  std::vector<std::string_view> all(contributions.begin(), contributions.end());
  switch (request.descriptor.kind) {
    case CollectiveKind::kReduce:
      if (own_rank != request.root) return;
      [[fallthrough]];
    case CollectiveKind::kAllReduce:
      all[own] = text_of(request.inputs[0]);
      return reduce_into(request, std::move(all));
    case CollectiveKind::kReduceScatter:
      all[own] = piece(text_of(request.inputs[0]), own_rank, outputs[0].nbytes());
      return reduce_into(request, std::move(all));
    case CollectiveKind::kAllGather: {
      all[own] = text_of(request.inputs[0]);
      auto* to = static_cast<char*>(outputs[0].data_ptr());
      for (const std::string_view bytes : all) {
        if (!bytes.empty() && to != bytes.data()) std::memmove(to, bytes.data(), bytes.size());
        to += bytes.size();
      }
      return;
    }
    case CollectiveKind::kGather:
      if (own_rank != request.root) return;
      all[own] = text_of(request.inputs[0]);
      for (size_t rank = 0; rank < all.size(); ++rank) write(outputs[rank], all[rank]);
      return;
    case CollectiveKind::kBroadcast:
      if (own_rank != request.root) write(outputs[0], all[static_cast<size_t>(request.root)]);
      return;
    case CollectiveKind::kScatter:
      if (own_rank == request.root) return write(outputs[0], text_of(request.inputs[own]));
      return write(outputs[0], all[static_cast<size_t>(request.root)]);
    case CollectiveKind::kBarrier:
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
      return;
  }
}

}  // namespace muster::wire
