#pragma once
/// Gloo's transport interface over a channel, so that Gloo's collectives run on our connections.
///
/// Debian's libgloo takes any connection for a peer and ends the process on bytes that no peer
/// sends; its waits cannot be left. So its algorithms are used and its sockets are not. Timeouts
/// that Gloo passes are ignored: deadlines belong to those who wait for the Work. A wait throws
/// gloo::IoException when the group has failed or the peer is gone.

#include <gloo/context.h>

#include <memory>
#include <vector>

#include "dist/backend/gloo/wire/channel.h"

namespace muster::wire {

/// A gloo::Context whose ranks are the group's. @thread one collective at a time
std::shared_ptr<::gloo::Context> make_gloo_context(Channel& channel, int group_rank,
                                                   const std::vector<int>& global_ranks);

}  // namespace muster::wire
