#include <unistd.h>

#include <algorithm>

#include "dist/backend/shm/shm_backend.h"
#include "dist/backends/openers.h"

namespace muster::backends {
namespace {
// Address space, of which only what is touched is memory: as much as the machine has, so that the
// arena is never what is too small. All ranks map all arenas.
Bytes arena_capacity(int world_size) {
  const int64_t memory = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  constexpr int64_t kLeast = (4_GiB).count;
  constexpr int64_t kAddresses = int64_t{1} << 45;
  return {std::clamp(memory, kLeast, std::max(kLeast, kAddresses / world_size))};
}
}  // namespace

Opened open_shm(BackendOptions options, Deadline deadline) {
  return std::unique_ptr<Backend>(
      MUSTER_TRY(ShmBackend::open_world({.store = std::move(options.store),
                                         .global_rank = options.global_rank,
                                         .world_size = options.world_size,
                                         .arena_capacity = arena_capacity(options.world_size)},
                                        deadline)));
}
}  // namespace muster::backends
