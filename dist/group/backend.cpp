#include "dist/group/backend.h"

namespace muster {

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
