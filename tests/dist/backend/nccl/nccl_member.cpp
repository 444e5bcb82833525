// nccl joins the backend suite, and its refusals run where there is no GPU.
#ifdef MUSTER_WITH_NCCL
#include <fmt/format.h>

#include "dist/backend/nccl/cuda.h"
#include "dist/backend/nccl/nccl_backend.h"
#include "tests/support_ranks/ranks.h"

namespace muster::testing {
namespace {
// NCCL takes one rank a device.
std::string unable(int world) {
  const Result<int> count = cuda::count_devices();
  if (!count.ok()) return count.error().message();
  if (count.value() >= world) return "";
  return fmt::format("{} ranks need as many CUDA devices; got {}", world, count.value());
}

const bool joined = join_backend_suite(
    {.name = "nccl",
     .abilities = {.survives_peer_death = false, .reduces_in_group_order = false},
     .open = [](RankContext& ctx) -> Result<std::unique_ptr<Backend>> {
       return std::unique_ptr<Backend>(
           MUSTER_TRY(NcclBackend::open_world({.store = ctx.shared_store(),
                                               .global_rank = ctx.group_rank(),
                                               .world_size = ctx.world_size(),
                                               .local_rank = ctx.group_rank()},
                                              ctx.deadline())));
     },
     .copy = cuda::copy,
     .unable = unable,
     .in_processes = true});
}  // namespace
}  // namespace muster::testing
#endif
