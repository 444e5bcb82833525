#pragma once
/// The bytes of one collective, after all ranks have agreed on it: what does not fit into the
/// contract message.
///
/// Reductions go piece by piece to the rank that owns the piece, which reduces in group order, as
/// every backend of muster does: results equal those of shm to the last bit. Everything else is
/// Gloo's. Blocks; throws gloo::IoException when the group fails meanwhile.

#include <memory>
#include <vector>

#include "dist/backend/gloo/wire/channel.h"
#include "dist/group/backend.h"

namespace gloo {
class Context;
}

namespace muster::wire {

/// What collectives of one group run on. @thread one collective at a time
struct Lane {
  Channel& channel;
  std::shared_ptr<::gloo::Context> gloo;
  int group_rank = 0;
  std::vector<int> global_ranks;
  std::vector<std::byte> scratch;  ///< kept between operations

  [[nodiscard]] int size() const noexcept { return static_cast<int>(global_ranks.size()); }
};

void run_collective(Lane& lane, const CollectiveRequest& request);

}  // namespace muster::wire
