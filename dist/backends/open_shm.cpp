#include "dist/backend/shm/shm_backend.h"
#include "dist/backends/openers.h"

namespace muster::backends {
Opened open_shm(BackendOptions options, Deadline deadline) {
  return std::unique_ptr<Backend>(
      MUSTER_TRY(ShmBackend::open_world({.store = std::move(options.store),
                                         .global_rank = options.global_rank,
                                         .world_size = options.world_size},
                                        deadline)));
}
}  // namespace muster::backends
