#include "dist/backend/fake/fake_backend.h"
#include "dist/backends/openers.h"

namespace muster::backends {
Opened open_fake(BackendOptions options, Deadline) {
  return std::unique_ptr<Backend>(
      std::make_unique<FakeBackend>(options.global_rank, options.world_size));
}
}  // namespace muster::backends
