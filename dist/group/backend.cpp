#include "dist/group/backend.h"

#include <fmt/format.h>

namespace muster {

std::string rank_name(int group_rank, int global_rank) {
  return fmt::format("group rank {} (global {})", group_rank, global_rank);
}

GroupMembers GroupMembers::world(int global_rank, int world_size) {
  GroupMembers members;
  members.group_rank = global_rank;
  for (int rank = 0; rank < world_size; ++rank) members.global_ranks.push_back(rank);
  return members;
}

Result<std::shared_ptr<std::byte>> Backend::share(int64_t /*nbytes*/, Deadline /*deadline*/) {
  return std::shared_ptr<std::byte>();
}

void Backend::check(const CollectiveRequest& request) const {
  for (const auto* tensors : {&request.inputs, &request.outputs}) {
    for (const Tensor& tensor : *tensors) {
      MUSTER_CHECK(tensor.device().type != DeviceType::kCuda, ErrorCode::kInvalidArgument,
                   "{}: {} moves tensors of the CPU; got {}\n  fix: use dist.backend nccl",
                   to_string(request.descriptor.kind), name(), tensor);
    }
  }
}
}  // namespace muster
