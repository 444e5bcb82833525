#ifdef MUSTER_WITH_NCCL
#include "dist/backend/nccl/nccl_backend.h"
#include "dist/backends/openers.h"

namespace muster::backends {
Opened open_nccl(BackendOptions options, Deadline deadline) {
  return std::unique_ptr<Backend>(
      MUSTER_TRY(NcclBackend::open_world({.store = std::move(options.store),
                                          .global_rank = options.global_rank,
                                          .world_size = options.world_size,
                                          .local_rank = options.local_rank},
                                         deadline)));
}
}  // namespace muster::backends
#endif
