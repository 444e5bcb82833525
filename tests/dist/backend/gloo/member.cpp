// gloo joins the backend suite.
#include "dist/backend/gloo/gloo_backend.h"
#include "tests/support_ranks/ranks.h"

namespace muster::testing {
namespace {
const bool joined =
    join_backend_suite({.name = "gloo",
                        .abilities = {.survives_peer_death = true},
                        .open = [](RankContext& ctx) -> Result<std::unique_ptr<Backend>> {
                          return std::unique_ptr<Backend>(
                              MUSTER_TRY(GlooBackend::open_world({.store = ctx.shared_store(),
                                                                  .global_rank = ctx.group_rank(),
                                                                  .world_size = ctx.world_size()},
                                                                 ctx.deadline())));
                        }});
}  // namespace
}  // namespace muster::testing
